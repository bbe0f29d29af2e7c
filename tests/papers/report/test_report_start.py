"""The counts of the start view: those of verdicts.md and README, and what the runs cost."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from pathlib import Path

import pytest

from fedbench.papers import store
from fedbench.papers.report import overview, table_view
from fedbench.papers.summary import FILE
from fedbench.papers.text import spelled
from tests.papers.report.toys import judged_table, run

ROOT = Path(__file__).parents[3]
KINDS = ("equivalent", "different", "inconclusive", "undecidable")


@pytest.mark.slow
def test_the_committed_counts_agree_everywhere() -> None:
    """Start view, cards, verdicts.md and README."""
    folders = store.table_folders(ROOT / "results")
    tables = {name: store.read_table(folder) for name, folder in folders.items()}
    rows = {name: store.read_rows(folder) for name, folder in folders.items()}
    first = overview(tables, rows)

    said = (ROOT / "results" / FILE).read_text(encoding="utf-8")
    written = {}
    for line in said.splitlines():
        if match := re.match(r"\| (\w+), (.+), \d+ tables?, each value once \| (.+) \|", line):
            setting = "as published" if match[2] == "as specified" else spelled(match[2].split())
            written[match[1], setting] = without_rows(match[3])
    shown = {
        (line.paper, line.setting): [
            number
            for kinds in (line.confirmed, line.exploratory)
            for number in (kinds.total(), *(kinds[kind] for kind in KINDS))
        ]
        for line in first.lines
        if line.confirmed
    }
    assert shown == written

    published = [line for line in first.lines if line.setting == "as published" and line.confirmed]
    assert first.confirmed == sum((line.confirmed for line in published), Counter())
    readme = re.sub(r" from \d+ rows?( of runs)?", "", (ROOT / "README.md").read_text(encoding="utf-8"))
    for line in published:
        phrases = [
            ", ".join(f"{kinds[kind]} {kind}" for kind in KINDS if kinds[kind])
            for kinds in (line.confirmed, line.exploratory)
        ]
        assert f"| {'; exploratory: '.join(filter(None, phrases))} |" in readme

    by_table = {match[1]: match for match in re.finditer(r"\| \[([^]]+)\]\(\S+ \| (.+) \|", said)}
    for name, table in tables.items():
        counts = dict(table_view(table, name, [], {}, []).counts)
        card = [sum(counts.get(kind, 0) for kind in kinds) for kinds in CARD]
        numbers = without_rows(by_table[name][2]) if name in by_table else [0] * 10
        assert card == numbers[1:6], name


def without_rows(line: str) -> list[int]:
    """The numbers of a line but for the rows of runs behind the values, which the page does not show."""
    numbers = [int(text) for text in line.split(" | ")]
    return [number for place, number in enumerate(numbers) if place % (len(numbers) // 2) != 1]


CARD = (("equivalent",), ("above", "below"), ("inconclusive",), ("undecidable",), ("exploratory",))


def test_a_run_of_two_tables_costs_once_and_other_settings_stand_apart() -> None:
    table = judged_table()
    made = dataclasses.replace(table.provenance, scale="quick")
    tables = {"a": table, "b": table, "c": dataclasses.replace(table, provenance=made)}
    lines = [{name: str(value) for name, value in run("FedAvg", seed).items()} for seed in (0, 1)]
    first = overview(tables, {"a": lines, "b": lines[:1], "c": []})
    whole, quick = first.lines
    assert (whole.label, whole.setting, whole.tables, whole.runs) == (
        "FedCollab",
        "as published",
        ("a", "b"),
        2,
    )
    assert whole.hours == 3 / 3600
    assert whole.confirmed == {"equivalent": 1, "different": 2, "undecidable": 2}
    assert (quick.setting, quick.confirmed.total(), quick.runs) == ("shorter: quick scale", 0, 0)
    assert quick.open == 7
    assert (first.runs, first.confirmed) == (2, whole.confirmed)


def test_other_settings_are_in_words_each_in_a_line_and_empty_tables_in_none() -> None:
    table = judged_table()
    small = ("model=lenet5", "protocol.rounds=20", "partition.num_clients=10", "protocol.cohort=5")
    changes: list[dict[str, object]] = [
        {"changed": small},
        {"changed": small, "substitute": "digits"},
        {"varied": ("partition_seed=2",)},
    ]
    made = [dataclasses.replace(table.provenance, **change) for change in changes]  # type: ignore[arg-type]
    tables = {str(i): dataclasses.replace(table, provenance=each) for i, each in enumerate(made)}
    tables["empty"] = dataclasses.replace(
        tables["0"],
        cells=tuple(dataclasses.replace(cell, values=(), seeds=(), keys=()) for cell in table.cells),
    )
    first = overview(tables, {name: [] for name in tables})
    words = "network lenet5, 20 rounds, 10 clients, protocol.cohort=5"
    assert {line.setting: line.tables for line in first.lines} == {
        words: ("0",),
        f"on other data, {words}": ("1",),
        "the partition of seed 2": ("2",),
    }
    assert first.empty == ("empty",)


def test_exploratory_values_of_two_tables_count_once() -> None:
    table = judged_table()
    rows = tuple(dataclasses.replace(row, exploratory="seen before") for row in table.spec.rows)
    apart = dataclasses.replace(table, spec=dataclasses.replace(table.spec, rows=rows))
    (line,) = overview({"a": apart, "b": apart}, {"a": [], "b": []}).lines
    assert (line.confirmed.total(), line.exploratory.total()) == (0, 5)
