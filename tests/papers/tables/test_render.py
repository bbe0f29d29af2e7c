"""Markdown, LaTeX and CSV of a filled table."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fedbench.papers import render, store
from fedbench.papers.render import write_drawings
from fedbench.papers.store import Cell, Provenance
from fedbench.papers.text import Layout, commands, notes
from tests.papers.tables.toys import filled, value

PUBLISHED = {"A": value(91.0, 0.5), "B_1": value(80.0)}
VALUES = {"A": [90.0, 91.0, 92.0], "B_1": [85.0, 85.0, 85.0], "C": [math.nan, 70.0, 72.0], "D": []}
FIVE = {"published_seeds": 5}
MADE = Provenance(machine="M", commit="abc", date="2026-01-01", seconds=30.0)


def test_markdown_has_value_published_difference_and_verdict() -> None:
    text = render.draw_markdown(filled(VALUES, PUBLISHED, made=MADE, headline="A", **FIVE))
    rows = [line for line in text.partition("## ")[0].splitlines() if line.startswith("| ")]
    lines = {row.split("|")[1].strip(): row for row in rows}
    # A: se = sqrt(1 / 3 + 0.25 / 5) = 0.6191, df = 2.61, t(.975) = 3.47; half a unit of the last digit is 0.005.
    assert "**91.00 ± 1.00** (paper 91.00 ± 0.50; +0.00 [-2.15, 2.15], g 0.0) ?" in lines["A"]
    assert "<u>85.00 ± 0.00</u> (paper 80.00; +5.00 [5.00, 5.00]) ≠" in lines["B_1"]
    assert "71.00 ± 1.41 (1 of 3 censored)" in lines["C"]
    assert "D" not in lines
    assert "- Left out (not run yet): rows D.\n" in text
    assert "Of 2 published values: 0 equivalent, 1 different, 1 inconclusive, 0 undecidable, 0 without" in text
    assert "- Margins: Acc % 1." in text
    assert "commit abc" in text
    assert "the paper's claim that A is best holds" in text
    some = filled(VALUES, {**PUBLISHED, "D": value(70.0)}, made=MADE, headline="A", **FIVE)
    assert "; A is best of the 2 rows that were run (3 in the paper)." in render.draw_markdown(some)


def test_columns_with_the_same_paired_comparison_share_a_line() -> None:
    lines = {"rows": [{"label": row} for row in "AB"], "columns": [{"label": column} for column in "cde"]}
    better = {"c": 5.0, "d": 0.0, "e": 6.0}  # how far A is above B
    base = np.array([80.0, 82.0, 84.0])
    cells = [
        Cell(row, column, "acc", tuple(base + (row == "A") * gap), (0, 1, 2))
        for row in "AB"
        for column, gap in better.items()
    ]
    said = notes(Layout(dataclasses.replace(filled({"A": [1.0]}, headline="A", **lines), cells=tuple(cells))))
    paired = "paired over seeds, 5 % with Holm's adjustment: A is"
    assert [line for line in said if paired in line] == [
        f"c, e, {paired} above B (1 comparison).",
        f"d, {paired} not significantly different from any (1 comparison).",
    ]


def test_rows_with_fewer_seeds_than_the_table_are_named() -> None:
    some = render.draw_markdown(filled({**VALUES, "E": [1.0], "F": [2.0]}, PUBLISHED, made=MADE))
    assert "over seeds 0, 1, 2." in some
    assert "Fewer seeds so far: E, F over 0." in some, "D did not run at all, which its cells say"
    assert "Fewer seeds" not in render.draw_markdown(filled(VALUES, PUBLISHED, made=MADE))


def test_columns_and_cells_with_fewer_seeds_are_named_and_not_asked_for_more() -> None:
    lines = {"rows": [{"label": row} for row in "AB"], "columns": [{"label": column} for column in "cd"]}
    table = filled({"A": [1.0]}, **lines)

    def with_counts(*counts: int) -> store.TableResult:
        places = [(row, column) for row in "AB" for column in "cd"]
        cells = [Cell(*place, "acc", (1.0,) * n, tuple(range(n))) for place, n in zip(places, counts, strict=True)]
        return dataclasses.replace(table, cells=tuple(cells))

    assert "Fewer seeds so far: d over 0, 1." in notes(Layout(with_counts(5, 2, 5, 2)))
    assert "Fewer seeds so far: A / d over 0, 1; B over 0." in notes(Layout(with_counts(5, 2, 1, 1)))
    assert [*commands(with_counts(5, 2, 5, 2))] == [
        "make reproduce-toy columns=1",
        "make reproduce-toy columns=2 seeds=2",
    ]


def test_a_substitute_is_in_the_title_and_voids_verdicts() -> None:
    made = Provenance("quick", "digits", ("model=mlp",))
    text = render.draw_markdown(filled(VALUES, PUBLISHED, made=made))
    title = text.splitlines()[0]
    assert title.startswith("# toy on digits, in the place of Toy")
    assert "| c" not in text
    assert "| digits, in place of c |" in text
    assert "quick scale" in title
    said = "- Scale quick: 10% of the rounds but at least 2; epochs a round at most 1; mini-batches a round"
    assert said in text
    assert "Scale" not in render.draw_markdown(filled(VALUES, PUBLISHED, made=MADE))
    assert "model=mlp" in title
    assert not set("≈≠?") & set(text)


def test_latex_escapes_and_marks() -> None:
    text = render.draw_latex(filled(VALUES, PUBLISHED, made=MADE, notes=["on two\nlines"]))
    assert "\n% on two lines\n" in text
    assert r"\caption{Toy \& table}" in text
    assert r"B\_1" in text
    assert r"\textbf{91.00 $\pm$ 1.00}" in text
    assert r"\underline{85.00 $\pm$ 0.00}" in text
    assert r"91.00 $\pm$ 0.50 ?" in text
    assert r"80.00 $\neq$" in text
    for line in text.splitlines():
        if line.endswith(r"\\"):
            assert line.count(" & ") == 1  # a label and one column
    assert text.splitlines()[:6] == [
        r"% needs \usepackage{booktabs} in the preamble",
        r"\begin{table}",
        r"\centering",
        r"\caption{Toy \& table}",
        r"\label{tab:toy}",
        r"\begin{tabular}{lr}",
    ]
    assert "" not in text.splitlines()
    assert text.count(r"\quad published &") == len(PUBLISHED)
    assert not [line for line in text.splitlines() if line.startswith(r"\quad published &  ")]


def test_csv_has_every_cell_with_all_digits() -> None:
    rows = list(csv.DictReader(io.StringIO(render.draw_csv(filled({"A": [1 / 3, 0.5, 1.0]}, PUBLISHED)))))
    assert [float(x) for x in rows[0]["values"].split()] == [1 / 3, 0.5, 1.0]
    assert rows[0]["seeds"] == "0 1 2"
    assert rows[0]["verdict"] == "different"
    low, difference, high, margin = (float(rows[0][name]) for name in ("low", "difference", "high", "margin"))
    assert low < difference < high < -margin


def test_write_draws_what_is_stored(tmp_path: Path) -> None:
    table = filled({"A": [1.0, 2.0, 3.0], "B": [1.0, 1.0, 4.0]}, made=MADE, headline="A", paper="")
    store.save_table(tmp_path, table, [])
    write_drawings(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"table.md", store.ARCHIVE}
    write_drawings(tmp_path, render.FORMATS)
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {"table.md", store.ARCHIVE, "table.tex", "cells.csv", "significance.csv"}
    assert (tmp_path / "table.md").read_text(encoding="utf-8") == render.draw_markdown(store.read_table(tmp_path))
    for name in ("bias.csv", "specificity.csv"):
        (tmp_path / name).write_text("of an earlier state", encoding="utf-8")
    assert write_drawings(tmp_path, render.FORMATS)[0] == store.read_table(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == names, "a test that the table allows no more goes"


def test_what_was_chosen_afterwards_is_marked_and_counted_apart() -> None:
    rows = [{"label": "A"}, {"label": "B_1", "exploratory": "taken after A was seen"}]
    table = filled({"A": VALUES["A"], "B_1": VALUES["B_1"]}, PUBLISHED, made=MADE, rows=rows, **FIVE)
    text = render.draw_markdown(table)
    assert "+5.00 [5.00, 5.00]) ≠†" in text
    assert "Of 1 published values: 0 equivalent, 0 different, 1 inconclusive, 0 undecidable, 0 without" in text
    assert "Exploratory values, counted separately: of 1 published values: 0 equivalent, 1 different" in text
    assert "- Exploratory (†), B_1: taken after A was seen." in text
    assert r"$\neq$$\dagger$" in render.draw_latex(table)
    line = list(csv.DictReader(io.StringIO(render.draw_csv(table))))[1]
    assert (line["verdict"], line["exploratory"]) == ("different (exploratory)", "taken after A was seen")


def test_what_a_verdict_is_worth_is_said_and_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    near = {"A": value(90.0, 0.1), "B": value(90.2, 0.1), "C": value(60.0, 0.1)}
    same = [89.9, 90.0, 90.1]
    table = filled({"A": same, "B": same, "C": same}, near, made=MADE, groups={"near": ["A", "B"]}, **FIVE)
    text = render.draw_markdown(table)
    assert (
        "Acc %: 2 of 3 rows match their own published value; each of them also matches 1.0 other rows on average. "
        "Of 6 pairs of different rows 4 are equivalent, 2 different." in text
    )
    assert "| A | ≈ | ≈ | ≠ |" in text
    assert "c, near: mean difference Acc % -0.10 [" in text
    monkeypatch.setattr("fedbench.papers.spec.find_published", lambda _paper, _table, where: near[where["method"]])
    store.save_table(tmp_path, table, [])
    write_drawings(tmp_path, ["csv"])
    assert (tmp_path / "specificity.csv").read_text().count("equivalent") == 6
    assert (tmp_path / "bias.csv").read_text().count("near") == 1
    assert csv_line(tmp_path / "cells.csv")["also_passes_for"] == "B"


def csv_line(path: Path) -> dict[str, str]:
    """The first line."""
    with path.open(newline="") as file:
        return next(csv.DictReader(file))


def test_over_what_an_interval_is_depends_on_the_partition() -> None:
    values = {"A": VALUES["A"]}
    assert "Each seed draws its own partition" in render.draw_markdown(filled(values, PUBLISHED, made=MADE))
    kept = dataclasses.replace(MADE, varied=("partition_seed=0",))
    assert "All seeds share one partition (partition_seed=0)" in render.draw_markdown(
        filled(values, PUBLISHED, made=kept)
    )
    drawn = dataclasses.replace(MADE, varied=("partition_seed=null",))
    each = filled(values, PUBLISHED, made=drawn, base=("partition_seed=0",))
    assert "Each seed draws its own partition" in render.draw_markdown(each)
    of_file = "partition=fedcollab_label_shift_seed0"
    text = render.draw_markdown(filled(values, PUBLISHED, made=dataclasses.replace(MADE, varied=(of_file,))))
    assert f"All seeds share one partition ({of_file})" in text
    columns = [{"label": a, "overrides": [f"partition={b}"]} for a, b in (("c", "dir0.1"), ("d", "file"))]
    table = filled(values, PUBLISHED, made=MADE, columns=columns)
    more = Cell("A", "d", "acc", (90.0, 91.0), (0, 1))
    text = render.draw_markdown(dataclasses.replace(table, cells=(*table.cells, more)))
    assert "- c: Each seed draws its own partition" in text
    assert "- d: All seeds share one partition (partition=file)" in text
    for name in ("dir_fedsac1e-1", "dir_fedsac0.1"):
        authors = filled(values, PUBLISHED, made=MADE, base=(f"partition={name}",))
        assert f"All seeds share one partition (partition={name})" in render.draw_markdown(authors)
    forced = dataclasses.replace(MADE, varied=("++partition=dir0.1",))
    assert "Each seed draws its own" in render.draw_markdown(dataclasses.replace(authors, provenance=forced))
    of_each_seed = filled(values, PUBLISHED, made=MADE, base=("partition=anda",))
    assert "Each seed draws its own" in render.draw_markdown(of_each_seed)
    redrawn = dataclasses.replace(MADE, varied=("partition.draw=null",))
    assert "Each seed draws its own" in render.draw_markdown(dataclasses.replace(authors, provenance=redrawn))


def test_a_finding_is_said_only_where_it_holds() -> None:
    findings = ["at the paper's setting", {"text": "after 20 rounds", "changed": ["protocol.rounds=20"]}]
    settings = {"notes": ["always"], "findings": findings}

    def said(**made: object) -> list[bool]:
        provenance = dataclasses.replace(MADE, **made)  # type: ignore[arg-type]
        text = render.draw_markdown(filled(VALUES, PUBLISHED, made=provenance, **settings))
        return [words in text for words in ("always", "at the paper's setting", "after 20 rounds")]

    assert said() == [True, True, False]
    assert said(varied=("partition_seed=0",)) == [True, True, False]
    assert said(changed=("protocol.rounds=20",)) == [True, False, True]
    assert said(changed=("protocol.rounds=20",), substitute="digits") == [True, False, False]
    assert said(scale="smoke") == [True, False, False]


def test_runs_that_are_too_short_have_no_order() -> None:
    made = Provenance("smoke", trained=False)
    text = render.draw_markdown(filled(VALUES, PUBLISHED, made=made, headline="A"))
    assert "claim" not in text
    assert "too short" in text
    assert "**" not in text, "none is best"
    assert "**" in render.draw_markdown(filled(VALUES, PUBLISHED, headline="A"))


def test_only_what_has_a_value_or_failed_is_drawn_and_the_rest_is_named_in_a_line() -> None:
    columns = [{"label": label} for label in ("c", "later", "absent")]
    table = filled({**VALUES, "E": []}, PUBLISHED, made=MADE, columns=columns)
    cells_ = [dataclasses.replace(cell, reason="Diverged: nan") if cell.row == "E" else cell for cell in table.cells]
    for column, reason in (("later", "not run yet"), ("absent", "not run: data missing")):
        cells_ += [Cell(row, column, "acc", reason=reason) for row in (*VALUES, "E")]
    table = dataclasses.replace(table, cells=tuple(cells_))
    left = "Left out (not run yet): rows D; columns later."
    text = render.draw_markdown(table)
    assert f"- {left}\n- No run of column absent: data missing.\n" in text
    assert "- No run of row E: Diverged: nan.\n" in text
    assert "| E |" not in text
    assert "later, Acc" not in text
    assert "absent, Acc" not in text
    assert text.count("| D |") == render.draw_latex(table).count("D & ") == 0
    with (console := Console(width=120)).capture() as capture:
        console.print(render.draw_terminal(table))
    assert left in capture.get()
    assert "No run of row E: Diverged: nan." in capture.get()


def test_a_cell_that_diverged_says_so_and_why_is_below_the_table() -> None:
    metrics, why = [{"name": "acc"}, {"name": "ipr"}], "seed 0: Diverged: training diverged in round 6"
    table = filled({"A": [1.0, 2.0], "B": [3.0, 4.0]}, made=MADE, metrics=metrics)
    more = [Cell("A", "c", "ipr", (5.0, 6.0), (0, 1)), Cell("B", "c", "ipr", reason=why)]
    text = render.draw_markdown(dataclasses.replace(table, cells=(*table.cells, *more)))
    assert "| diverged |" in text
    assert text.count(why) == text.count(f"- No run of cell B / c: {why}.\n") == 1


def test_a_row_that_lost_a_seed_to_divergence_is_never_best_and_says_why() -> None:
    why = "seed 1: Diverged: training diverged in round 6"
    printed = {"A": value(1.0), "B": value(3.0), "C": value(1.0)}
    table = filled({"A": [1.0, 2.0], "B": [3.0], "C": [1.0, 1.0]}, printed, made=MADE, headline="B")
    one, other, third = table.cells
    lost = dataclasses.replace(table, cells=(one, dataclasses.replace(other, reason=why), third))
    text = render.draw_markdown(lost)
    assert "| **1.50 ± 0.71** (" in text
    assert "| B | 3.00 (" in text
    assert "is best" not in text
    assert text.count(why) == text.count(f"- Fewer seeds of cell B / c: {why}.\n") == 1
    waiting = dataclasses.replace(table, cells=(one, dataclasses.replace(other, reason="seed 1: not run yet"), third))
    text = render.draw_markdown(waiting)
    assert "| B | **3.00** (" in text
    assert "the paper's claim that B is best holds" in text
    assert "seeds of cell" not in text


def test_where_nothing_ran_no_empty_grid_is_drawn_and_one_line_says_why() -> None:
    columns = [{"label": label} for label in ("c", "d")]
    table = filled({"A": [], "B": []}, PUBLISHED, made=MADE, columns=columns)
    cells_ = [Cell(row, column, "acc", reason="no body is left") for row in ("A", "B") for column in ("c", "d")]
    table = dataclasses.replace(table, cells=tuple(cells_))
    text = render.draw_markdown(table)
    assert text.count("no body is left") == text.count("No run of columns c, d: no body is left.") == 1
    assert "\n|" not in text
    with (console := Console(width=80)).capture() as capture:
        console.print(render.draw_terminal(table))
    assert [line.strip() for line in capture.get().splitlines()] == [
        "Toy & table", "No run of columns c, d: no body is left."
    ]  # fmt: skip


def test_a_cell_without_a_value_is_a_dash_in_the_terminal_and_is_told_below() -> None:
    table = filled({"A": [1.0, 2.0], "B": [3.0, 4.0]}, made=MADE, metrics=[{"name": "acc"}, {"name": "ipr"}])
    more = [Cell("A", "c", "ipr", (5.0, 6.0), (0, 1)), Cell("B", "c", "ipr", reason="no Local to compare with")]
    with (console := Console(width=80)).capture() as capture:
        console.print(render.draw_terminal(dataclasses.replace(table, cells=(*table.cells, *more))))
    assert "No run of cell B / c: no Local to compare with." in capture.get()
    (line,) = [line for line in capture.get().splitlines() if line.startswith("│ B ")]
    assert line.strip("│").split("│")[-1].strip() == "-"


@pytest.mark.parametrize("width", [40, 80])
def test_no_value_is_folded_and_a_long_setting_is_a_line_above(width: int) -> None:
    metrics = [{"name": name, "label": name} for name in ("acc", "acc_pooled", "ipr", "rsd", "score")]
    made = dataclasses.replace(MADE, changed=("protocol.optimizer.state=fresh", "partition.num_clients=10") * 4)
    table = filled({"A": [80.0, 90.0], "Method+Coalitions": [70.0, 72.0]}, made=made, metrics=metrics)
    places = [Cell(cell.row, "c", each["name"], cell.values, (0, 1)) for cell in table.cells for each in metrics]
    table = dataclasses.replace(table, cells=tuple(places))
    with (console := Console(width=width)).capture() as capture:
        console.print(render.draw_terminal(table, width))
    lines = capture.get().splitlines()
    assert capture.get().count("85.00 ± 7.07") == capture.get().count("71.00 ± 1.41") == len(metrics)
    assert lines[0].startswith("Toy & table (with")
    assert len(lines[1].strip()) > width // 3, "the title has the whole width"


def test_remarks_about_the_paper_s_scale_do_not_stand_below_runs_that_are_too_short() -> None:
    said = {"notes": ["batches hold 100"]}
    values = {"A": VALUES["A"]}
    assert "batches hold 100" in render.draw_markdown(filled(values, made=MADE, **said))
    short = render.draw_markdown(filled(values, made=Provenance("smoke", trained=False), **said))
    assert "batches hold 100" not in short
