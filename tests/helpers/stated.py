"""What docs/settings.csv and docs/readings.csv say of the presets under conf/, and what these hold, value by value.

A value has a place, (preset, key): of a component ("method=fedsac", "discriminator.lr"), or of a table's base, of its
columns, of its rows or of rows in a column ("table=fedsac_t1 columns=C10 homo rows=FedSaC", "method.alpha"). A figure's
are as a table's ("figure=fedsac_f5 rows=FedAvg").
"""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

from fedbench.config import groups

CONF = groups.conf_dir()
DOCS = Path(__file__).parents[2] / "docs"
COMPONENTS = ("method", "protocol", "partition", "model", "dataset", "scale")
GRIDS = ("table", "figure")
GROUPS = (*COMPONENTS, "experiment", *GRIDS)


@dataclass(frozen=True)
class Statement:
    """That `key` has `value` in the presets that `words` name; a line of one of the two files."""

    line: str  # file and what is in it, for messages
    words: str
    key: str
    value: Any

    @property
    def places(self) -> list[str]:
        """The presets: with `method=a,b` two of them; names of rows and columns may be globs."""
        first, _, rest = self.words.partition(" ")
        group, _, chosen = first.partition("=")
        return [" ".join([f"{group}={option}", *([rest] if rest else [])]) for option in chosen.split(",")]


def read(name: str) -> list[dict[str, str]]:
    with (DOCS / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def settings() -> list[Statement]:
    """Of docs/settings.csv, whose lines hold mappings of YAML."""
    found = []
    for row in read("settings.csv"):
        line = f"docs/settings.csv, {row['preset']} ({row['source']}, {row['place']})"
        group = row["preset"].partition("=")[0]
        values: Mapping[str, Any] = yaml.safe_load("{" + row["settings"] + "}")
        for key, value in values.items():
            found.append(Statement(line, row["preset"], key if group in GRIDS else f"{group}.{key}", value))
    return found


def readings() -> list[Statement]:
    """Of docs/readings.csv: `WORDS: VALUE` for a key, `WORDS: VALUE, VALUE` for keys, several apart by semicolons."""
    found = []
    for row in read("readings.csv"):
        line = f"docs/readings.csv, {row['paper']}, {row['about']}"
        keys = [key.strip() for key in row["key"].split(",") if key.strip()]
        for column in ("follows_text", "follows_code", "default"):
            if not keys or row[column] in ("", "not offered"):
                continue
            for text in row[column].split("; "):
                words, colon, value = text.rpartition(": ")
                assert colon, f"{line}: no WORDS: VALUE in '{text}'"
                values = yaml.safe_load(value if len(keys) == 1 else f"[{value}]")
                values = [values] if len(keys) == 1 else values
                assert len(values) == len(keys), f"{line}: '{text}' has not a value for each of {keys}"
                found += [Statement(line, words, *pair) for pair in zip(keys, values, strict=True)]
    return found


def parsed(override: str) -> tuple[str, Any]:
    """(key, value) of an override of the command line."""
    found = OverridesParser.create().parse_override(override)
    return found.key_or_group, found.value()


def leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def parent(group: str, name: str) -> dict[str, Any]:
    """The preset on which this one is built, if there is one, as `inherits`."""
    content = yaml.safe_load((CONF / group / f"{name}.yaml").read_text(encoding="utf-8"))
    first = content.get("defaults", [None])[0]
    return {"inherits": first} if isinstance(first, str) and first != "_self_" else {}


def own_values(group: str, name: str) -> dict[str, Any]:
    """What the file of a preset says itself, but for its name, as `method.alpha`; it may inherit more."""
    content = yaml.safe_load((CONF / group / f"{name}.yaml").read_text(encoding="utf-8"))
    content.pop(groups.TUNE, None)  # what a leaderboard chooses among is no value of a run
    content.pop("defaults", None)
    if group == "experiment":
        return experiment(name)
    called = {"name": name, "preset": name.rpartition("_")[2]}
    return {
        f"{group}.{key}": value
        for key, value in leaves(content | parent(group, name))
        if called.get(key) != value and not str(value).startswith("${")
    }


def experiment(name: str) -> dict[str, Any]:
    """What a sweep chooses, sets and varies, all as `experiment.KEY`; not how it is drawn."""
    content = yaml.safe_load((CONF / "experiment" / f"{name}.yaml").read_text(encoding="utf-8"))
    choices = {key.rpartition("/")[2]: value for each in content.pop("defaults") for key, value in each.items()}
    varied = content.pop("hydra")["sweeper"]["params"]
    content.pop("sweep")
    return {f"experiment.{key}": value for key, value in (choices | dict(leaves(content)) | varied).items()}


def applied(overrides: list[str]) -> dict[str, Any]:
    """The values that overrides give, group by group, as `method.alpha`; a choice also under its group's name."""
    found: dict[str, Any] = {}
    for text in overrides:
        key, value = parsed(text)
        if key == "experiment":
            found |= experiment(str(value))
        elif key in COMPONENTS:
            found = {name: each for name, each in found.items() if not name.startswith(f"{key}.")}
            found |= {f"{key}.{name}": each for name, each in option(key, str(value)).items()} | {key: value}
        elif key == "method/base":
            found |= {f"method.base.{name}": each for name, each in option("method", str(value)).items()}
        else:
            found[key] = value
    return found


@functools.cache
def option(group: str, name: str) -> dict[str, Any]:
    """All values of a preset, inherited ones too; `dir0.5` is of the family `dir`."""
    own = (CONF / group / f"{name}.yaml").is_file()
    file = name if own else re.sub(r"\d+(\.\d+)?$", "", name)
    return dict(leaves(groups.plain_option(group, file))) | parent(group, file)
