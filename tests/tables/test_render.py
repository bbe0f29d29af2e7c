"""Markdown, LaTeX and CSV of a filled table."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from pathlib import Path

from fedbench.tables import store
from fedbench.tables.render import cells, latex, markdown, write
from fedbench.tables.result import Cell, Circumstances
from tests.tables.toys import filled, value

PUBLISHED = {"A": value(91.0, 0.5), "B_1": value(80.0)}
VALUES = {"A": [90.0, 91.0, 92.0], "B_1": [85.0, 85.0, 85.0], "C": [math.nan, 70.0, 72.0], "D": []}
MADE = Circumstances(machine="M", commit="abc", date="2026-01-01", seconds=30.0)


def test_markdown_has_value_published_difference_and_verdict() -> None:
    text = markdown.render(filled(VALUES, PUBLISHED, made=MADE, headline="A"))
    lines = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("| ")}
    assert "**91.00 ± 1.00** (paper 91.00 ± 0.50; +0.00) ✓" in lines["A"]
    assert "<u>85.00 ± 0.00</u> (paper 80.00; +5.00) ✗" in lines["B_1"]
    assert "71.00 ± 1.41 (1 of 3 censored)" in lines["C"]
    assert "not run" in lines["D"]
    assert "Of 2 published values 1 are reproduced, 1 differ, 0 have no verdict." in text
    assert "commit abc" in text
    assert "the paper's claim that A is best holds" in text


def test_rows_with_fewer_seeds_than_the_table_are_named() -> None:
    some = markdown.render(filled({**VALUES, "E": [1.0], "F": [2.0]}, PUBLISHED, made=MADE))
    assert "over seeds 0, 1, 2; " in some
    assert "Fewer seeds so far: E, F over 0." in some, "D did not run at all, which its cells say"
    assert "Fewer seeds" not in markdown.render(filled(VALUES, PUBLISHED, made=MADE))


def test_a_substitute_is_in_the_title_and_voids_verdicts() -> None:
    made = Circumstances("quick", "digits", ("model=mlp",))
    text = markdown.render(filled(VALUES, PUBLISHED, made=made))
    title = text.splitlines()[0]
    assert "digits instead of the paper's data" in title
    assert "quick scale" in title
    assert "model=mlp" in title
    assert "✓" not in text
    assert "✗" not in text


def test_latex_escapes_and_marks() -> None:
    text = latex.render(filled(VALUES, PUBLISHED, made=MADE))
    assert r"\caption{Toy \& table}" in text
    assert r"B\_1" in text
    assert r"\textbf{91.00 $\pm$ 1.00}" in text
    assert r"\underline{85.00 $\pm$ 0.00}" in text
    assert r"91.00 $\pm$ 0.50 \checkmark" in text
    for line in text.splitlines():
        if line.endswith(r"\\"):
            assert line.count(" & ") == 1  # a label and one column


def test_csv_has_every_cell_with_all_digits() -> None:
    rows = list(csv.DictReader(io.StringIO(cells.render(filled({"A": [1 / 3, 0.5, 1.0]}, PUBLISHED)))))
    assert [float(x) for x in rows[0]["values"].split()] == [1 / 3, 0.5, 1.0]
    assert rows[0]["seeds"] == "0 1 2"
    assert rows[0]["verdict"].startswith("differs by")


def test_write_draws_what_is_stored(tmp_path: Path) -> None:
    table = filled({"A": [1.0, 2.0, 3.0], "B": [1.0, 1.0, 4.0]}, made=MADE, headline="A", paper="")
    store.save(tmp_path, table, [])
    write(tmp_path)
    names = {file.name for file in tmp_path.iterdir()}
    assert {"table.md", "table.tex", "cells.csv", "significance.csv"} <= names
    assert (tmp_path / "table.md").read_text(encoding="utf-8") == markdown.render(store.load_table(tmp_path))


def test_runs_that_are_too_short_have_no_order() -> None:
    made = Circumstances("smoke", trained=False)
    text = markdown.render(filled(VALUES, PUBLISHED, made=made, headline="A"))
    assert "claim" not in text
    assert "too short" in text


def test_a_column_without_a_run_is_named_below_with_the_reason() -> None:
    table = filled(VALUES, PUBLISHED, made=MADE, columns=[{"label": "c"}, {"label": "absent"}])
    more = [Cell(row, "absent", "acc", reason="not run: data missing (get it)") for row in VALUES]
    text = markdown.render(dataclasses.replace(table, cells=(*table.cells, *more)))
    assert "absent" not in text.splitlines()[2]
    assert "- No run of column absent: data missing (get it)." in text
