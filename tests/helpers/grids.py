"""The values of tables and figures under conf/, place by place, as docs/settings.csv and docs/readings.csv say them."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import yaml

from tests.helpers import stated

WORDS = re.compile(
    r"(?P<group>table|figure)=(?P<name>\S+?)"
    r"(?: columns=(?P<columns>.*?))?(?: rows=(?P<rows>.*?))?(?P<other> substitute)?"
)


@functools.cache
def grid(group: str, name: str) -> dict[tuple[str, str, bool], dict[str, Any]]:
    """The values of a table or figure by (column, row, whether for other data); "": those of all columns, or rows.

    Numbers of seeds, overrides, studies, baselines, what a measure reads, what is left open or exploratory, of
    a figure its setting of the paper (of those that have none, the open one's); not the words.
    """
    content = yaml.safe_load((stated.CONF / group / f"{name}.yaml").read_text(encoding="utf-8"))
    plain = ("seeds", "published_seeds", "published_over_k", "clients", "left_open")
    base = {key: content[key] for key in plain if key in content}
    base |= {"exploratory": list(content["exploratory"])} if "exploratory" in content else {}
    setting = _setting(content)
    base |= {key: setting[key] for key in ("seeds",) if key in setting}
    base |= dict(map(stated.parsed, (*content.get("base", ()), *setting.get("overrides", ()))))
    found = {("", "", False): base}
    for kind in ("columns", "rows"):
        lines = content.get(kind, ())
        for line in (each for each in lines if str(each["label"]) in setting.get(kind, [str(each["label"])])):
            label = str(line["label"])
            values = dict(map(stated.parsed, line.get("overrides", ())))
            values |= {f"baseline.{key}": value for key, value in map(stated.parsed, line.get("baseline", ()))}
            values |= {key: line[key] for key in ("study",) if key in line}
            if mark := line.get("exploratory"):
                values["exploratory"] = list(mark) if isinstance(mark, Mapping) else True
            values |= dict(stated.leaves(line.get("measures", {})))
            found[(label, "", False) if kind == "columns" else ("", label, False)] = values
            for rows, overrides in line.get("rows", {}).items():
                found[label, rows, False] = dict(map(stated.parsed, overrides))
            if line.get("substitute"):
                found[label, "", True] = dict(map(stated.parsed, line["substitute"]))
    return found


def _setting(content: Mapping[str, Any]) -> dict[str, Any]:
    """A figure's at the paper's scale, or on open data; none of a table."""
    settings: dict[str, dict[str, Any]] = content.get("settings", {})
    return settings.get("paper") or settings.get("open") or {}


def says(place: tuple[str, str, bool], value: Any) -> bool:
    """Whether a row or column has the name of the choice that it makes, as FedAvg of method=fedavg."""
    return _plain(value) in map(_plain, place[:2])


def _plain(text: Any) -> str:
    return re.sub(r"[^a-z0-9]", "", str(text).lower().replace("+", "plus"))


def matches(words: str) -> list[tuple[str, tuple[str, str, bool]]]:
    """The (table or figure, place in it) that the words of a statement about one name."""
    found = WORDS.fullmatch(words)
    assert found, words
    columns, rows = found["columns"] or "", found["rows"] or ""
    named = [
        place
        for place in grid(found["group"], found["name"])
        if place[2] == bool(found["other"])
        and all(
            bool(glob) == bool(label) and fnmatchcase(label, glob)
            for glob, label in ((columns, place[0]), (rows, place[1]))
        )
    ]
    same = [place for place in named if place[1] == rows]  # a glob that the table itself has
    return [(found["name"], place) for place in (same if rows and same else named)]
