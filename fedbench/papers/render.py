"""A filled table as Markdown, LaTeX, CSV, data frames and pictures, and for the terminal."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.cells import cell_len
from rich.console import Group
from rich.table import Table
from rich.text import Text as Words

from fedbench.cli.runs import Figures
from fedbench.core.errors import FedbenchError, nearest, unknown
from fedbench.core.files import as_csv, frame_of, write_csv, write_text
from fedbench.core.tables import escaped, grouped, latex, latex_line, latex_spans, latex_table, markdown
from fedbench.engine.history import TEST_SETS
from fedbench.papers import comparisons, recorded, store, verdict
from fedbench.papers.equivalence import UNDECIDABLE
from fedbench.papers.spec import ColumnSpec
from fedbench.papers.store import TableResult
from fedbench.papers.text import DASH, SIGNS, Layout, Text, absent, fewer_clients, headings, notes
from fedbench.plots import runs as plots
from fedbench.runs.run import TEXT

if TYPE_CHECKING:
    import pandas as pd


CSV, TEX = "csv", "tex"
FORMATS = (CSV, TEX)  # that a table is drawn in on demand


def formats_of(names: Iterable[str]) -> tuple[str, ...]:
    """Return the formats of these names. Raises UnknownName for an unknown one."""
    found = tuple(names)
    for name in found:
        if name not in FORMATS:
            raise unknown("format of a table", name, FORMATS)
    return found


def write_drawings(folder: Path, formats: Collection[str] = ()) -> tuple[TableResult, recorded.RunCounts]:
    """Draw the table stored in `folder` as table.md in the same folder.

    The format tex gives table.tex. csv gives cells.csv and the tests that the table allows: significance.csv compares
    rows with the headline, bias.csv groups of rows with the paper, and specificity.csv every cell with every published
    value of its column and metric.

    Returns:
        The table, how many runs are behind it, and how many of them were made by other code.

    Raises:
        FedbenchError: the stored table is unreadable.
    """
    table, count = recorded.read_marked(folder)
    write_text(folder / "table.md", draw_markdown(table))
    if TEX in formats:
        write_text(folder / "table.tex", draw_latex(table))
    if CSV in formats:
        write_text(folder / "cells.csv", draw_csv(table))
        first, headline = table.spec.metrics[0], table.spec.headline
        tests: dict[str, Sequence[Any]] = {
            "significance.csv": comparisons.paired(table, first, headline) if headline else [],
            "bias.csv": comparisons.biases(table),
            "specificity.csv": comparisons.matches(table),
        }
        for name, found in tests.items():
            if found:
                write_csv(folder / name, [dataclasses.asdict(each) for each in found])
            else:
                (folder / name).unlink(missing_ok=True)
    return table, count


PLACE = ("row", "column")  # of a cell, by their labels
CELL_TEXT = (*PLACE, "metric", "seeds", "values", "verdict", "exploratory", "also_passes_for", "reason", "keys")


def draw_csv(table: TableResult) -> str:
    """Return the lines, with a header; numbers with all their digits, lists separated by spaces."""
    layout, lines = Layout(table), []
    for row, column, metric in table.spec.places():
        cell, text = table.cell(row.label, column.label, metric.name), layout.text(row, column, metric)
        judged, test, published = text.verdict, text.verdict.comparison, cell.published
        lines.append(
            {
                "row": row.label,
                "column": column.label,
                "metric": metric.name,
                "mean": cell.mean,
                "std": cell.std,
                "n": len(cell.values),
                "seeds": " ".join(map(str, cell.seeds)),
                "values": " ".join(map(repr, cell.values)),
                "published_mean": published and f"{published.bound}{published.mean}",
                "published_std": published and published.std,
                "difference": judged.difference,
                **{name: test and getattr(test, name) for name in ("low", "high", "effect", "margin")},
                "verdict": judged.text,
                "seeds_needed": "" if math.isnan(judged.seeds) else f"{judged.seeds:g}",
                "exploratory": judged.exploratory,
                "also_passes_for": ", ".join(text.also),
                "reason": cell.reason,
                "keys": " ".join(cell.keys),
            }
        )
    return as_csv(lines).decode()


def draw_markdown(table: TableResult) -> str:
    """Return the whole document."""
    layout, spec = Layout(table), table.spec
    pairs = [(column, metric) for column in layout.columns for metric in spec.metrics]
    several = len(spec.metrics) > 1
    lines = [["", *(", ".join(filter(None, (*headings(table, at), of.label * several))) for at, of in pairs)]]
    lines += [[row.label, *(_cell(layout.text(row, *pair)) for pair in pairs)] for row in layout.rows]
    said = "".join(f"- {escaped(note)}\n" for note in notes(layout))
    matrices = "".join(_matrix(layout, column) for column in layout.columns)
    grid = f"{markdown(lines)}\n" if pairs else ""
    return f"# {table.title}\n\n{grid}{said}{matrices}"


def _matrix(layout: Layout, column: ColumnSpec) -> str:
    """Return which published rows each of our rows matches, with a sign for each metric; "" without a verdict."""
    found = comparisons.matrix(layout.matches, column.label)
    rows = list(dict.fromkeys(row for row, _ in found))
    published = list(dict.fromkeys(name for _, name in found))
    if len(published) < 2:
        return ""
    signs = {pair: "".join(SIGNS[outcome] for outcome in outcomes) for pair, outcomes in found.items()}
    lines = [[row, *(signs.get((row, name), "") for name in published)] for row in rows]
    grid = markdown([["ours \\ published", *published], *lines])
    metrics = ", ".join(metric.label for metric in layout.table.spec.metrics)
    return (
        f"\n## Which published rows does each of our rows match? {escaped(column.label)}\n\n"
        f"One sign for each metric that both rows have: {metrics}.\n\n{grid}"
    )


def _cell(text: Text) -> str:
    needed = _needed(text.verdict)
    if not text.ran:
        before = f" {SIGNS[UNDECIDABLE]}{needed}" if needed else ""
        return f"{text.ours} (paper {text.published}){before}" if text.published != DASH else text.ours
    marked = {1: f"**{text.ours}**", 2: f"<u>{text.ours}</u>"}.get(text.place, text.ours)
    if text.published == DASH:
        return marked
    return f"{marked} (paper {text.published}; {text.difference}) {_sign(text.verdict)}{needed}".rstrip()


def _sign(judged: verdict.Verdict) -> str:
    return SIGNS.get(judged.kind, "") + ("†" if judged.exploratory else "")


def _needed(judged: verdict.Verdict) -> str:
    """Return the number of seeds behind a sign."""
    if math.isfinite(judged.seeds):
        return f" {judged.seeds:.0f}"
    return f" {judged.both:.0f} both" if math.isfinite(judged.both) else ""


# A filled table as it is looked at from Python: cells, runs and curves as data frames, the drawing in notebooks.


@dataclass(frozen=True)
class FilledTable:
    """One filled table. Every part is read from its folder when it is first asked for."""

    folder: Path

    @classmethod
    def named(cls, name: str, results: Path | str = "results") -> FilledTable:
        """Return the table of this name: NAME, or NAME/SETTING at another setting.

        Raises:
            FedbenchError: there is none.
        """
        folders = store.table_folders(results)
        if name not in folders:
            near = f"; filled are {nearest(name, folders)}" if folders else ""
            raise FedbenchError(
                f"no filled table '{name}' below {results}; python -m fedbench reproduce table=NAME fills one{near}"
            )
        return cls(folders[name])

    @cached_property
    def table(self) -> TableResult:
        """The specification with its cells, and which of them other code made."""
        return recorded.read_marked(self.folder)[0]

    @cached_property
    def cells(self) -> pd.DataFrame:
        """One line for each cell and metric: mean, standard deviation, values by seed, published value, verdict."""
        return frame_of(draw_csv(self.table).encode(), CELL_TEXT)

    @cached_property
    def rows(self) -> pd.DataFrame:
        """One line for each run: its whole result row."""
        return self._frame(store.ROWS, (*PLACE, *TEXT))

    @cached_property
    def curves(self) -> pd.DataFrame:
        """The learning curves behind the cells."""
        return self._frame(store.CURVES, PLACE)

    def _frame(self, name: str, text: Collection[str]) -> pd.DataFrame:
        """Return the lines of a file; none of a table of studies, which has no runs."""
        files = store.files_of(self.folder)
        return files.frame(name, text) if files.has(name) else frame_of(",".join(PLACE).encode(), text)

    @cached_property
    def matrices(self) -> dict[str, np.ndarray]:
        """Collaboration matrices [N, N] by "row|column|seed"."""
        return store.read_arrays(self.folder, store.MATRICES)

    def __repr__(self) -> str:
        """Return the table as Markdown."""
        return draw_markdown(self.table)

    _repr_markdown_ = __repr__  # which notebooks draw


# A table as LaTeX (booktabs): ours with the published value below, best bold, second underlined, as the papers do.


def draw_latex(table: TableResult) -> str:
    """Return a table environment; needs the package booktabs."""
    layout, spec = Layout(table), table.spec
    pairs = [(column, metric) for column in layout.columns for metric in spec.metrics]
    width = len(spec.metrics)
    above = [headings(table, column) for column in layout.columns]
    head = [latex_spans([group for group, _ in above], width)] if any(group for group, _ in above) else []
    head.append(latex_spans([label for _, label in above], width))
    if width > 1:
        head.append(latex_line(["", *(latex(metric.label) for _, metric in pairs)]))
    body = []
    for row in layout.rows:
        texts = [layout.text(row, *pair) for pair in pairs]
        body.append(latex_line([latex(row.label), *map(_ours, texts)]))
        if any(published := [*map(_published, texts)]):
            body.append(latex_line([r"\quad published", *published]))
    return latex_table(table.title, spec.name, f"l{'r' * len(pairs)}", head, body, [*notes(layout)])


def _ours(text: Text) -> str:
    if not text.ran:
        return "--"
    marked = {1: r"\textbf{%s}", 2: r"\underline{%s}"}.get(text.place, "%s")
    return marked % latex(text.ours)


def _published(text: Text) -> str:
    return "" if text.published == DASH else latex(f"{text.published} {_sign(text.verdict)}").rstrip()


# A table for the terminal: one rich table a column of the paper's, a line a row, ours beside the published value.

BEST = {1: "bold", 2: "underline"}
BORDER = 3  # characters between two columns of a rich table


def draw_terminal(table: TableResult, width: int = 120) -> Group:
    """Return all columns with a value, the meaning of the signs, and what is left out.

    No cell is folded: metrics that do not fit into `width` characters side by side are placed below each other.
    """
    layout = Layout(table)
    drawn = [part for column in layout.columns for part in _column(layout, column, width)]
    signs = ", ".join(f"{sign} {name}" for name, sign in SIGNS.items())
    judged = f"; {signs}" if table.provenance.is_paper_setting else ""
    order = "; bold best, underlined second" if table.provenance.trained else ""
    told = [f"published value in brackets{judged}{order}"] if drawn else []
    return Group(Words(table.title), *drawn, *map(Words, (*told, *fewer_clients(table), *absent(layout, cells=True))))


def _column(layout: Layout, column: ColumnSpec, width: int) -> Iterator[Words | Table]:
    """Yield the heading of a column, and its metrics in as many tables as they need."""
    yield Words(", ".join(filter(None, headings(layout.table, column))))
    metrics = layout.table.spec.metrics
    texts = {row.label: [layout.text(row, column, metric) for metric in metrics] for row in layout.rows}
    lines = {label: [*map(_words, own)] for label, own in texts.items() if any(text.ran for text in own)}
    wide = [
        max(cell_len(metric.label), *(line[i].cell_len for line in lines.values())) + BORDER
        for i, metric in enumerate(metrics)
    ]
    left = room = width - 1 - BORDER - max(map(cell_len, lines))
    blocks: list[list[int]] = [[]]
    for i, needed in enumerate(wide):
        if blocks[-1] and needed > left:
            blocks.append([])
            left = room
        blocks[-1].append(i)
        left -= needed
    for block in blocks:
        drawn = Table("")
        for i in block:
            drawn.add_column(metrics[i].label, justify="right", no_wrap=True)
        for label, line in lines.items():
            drawn.add_row(label, *(line[i] for i in block))
        yield drawn


def _words(text: Text) -> Words:
    """Return a cell; a dash means that it did not run, and a line below the table says why."""
    beside = "" if text.published == DASH else f" ({text.published})"
    sign = SIGNS.get(text.verdict.kind, "")
    return Words.assemble(
        (text.ours if text.ran else DASH, BEST.get(text.place, "")), beside, f" {sign}" if sign else ""
    )


# The pictures of a table, from its files: learning curves, and ours beside the published values.


def table_figures(folder: Path) -> Figures:
    """Return curves by column, and ours beside the published values."""
    table = store.read_table(folder)
    found: Figures = {}
    points = store.read_rows(folder, store.CURVES)
    for index, column in enumerate(table.spec.columns, 1):
        named = _curves(points, column.label)
        sets = {name for each in named.values() for run in each for name in run if name.startswith("acc_on_")}
        wanted = [f"acc_on_{name}" for name in TEST_SETS if f"acc_on_{name}" in sets]
        name = ", ".join(headings(table, column)) if table.provenance.substitute else column.label
        if wanted:
            found[f"curves-{index}"] = plots.accuracy_curves(named, wanted[0], f"{name}: accuracy, %")
        if published := _beside(table, column):
            labels = [row.label for row in table.spec.rows]
            found[f"beside-{index}"] = plots.beside_published(published, labels, f"{table.title}: {name}")
    return found


def _curves(points: Sequence[Mapping[str, str]], column: str) -> dict[str, list[plots.Curve]]:
    """Return the curves of a column by row, one a seed."""
    numbers = ({name: field for name, field in point.items() if name not in ("row", "column")} for point in points)
    places = ((point["row"], point["column"], point["seed"]) for point in points)
    seeds = grouped(zip(places, numbers, strict=True))
    return grouped((row, plots.curve_of(own)) for (row, here, _), own in seeds.items() if here == column)


def _beside(table: TableResult, column: ColumnSpec) -> dict[str, np.ndarray]:
    """Return by metric mean and deviation, ours and published, [rows, 4]; none if nothing is published."""
    found = {}
    for metric in table.spec.metrics:
        cells = table.cells_below(column, metric)
        theirs = [(c.published.mean, c.published.std) if c.published else (np.nan, np.nan) for c in cells]
        values = np.array([(c.mean, c.std, *t) for c, t in zip(cells, theirs, strict=True)], dtype=np.float64)
        if np.isfinite(values[:, 2]).any() and np.isfinite(values[:, 0]).any():
            found[metric.label] = values
    return found
