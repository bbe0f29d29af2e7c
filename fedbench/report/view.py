"""A filled table in the words of the page: what the template prints and what its script shows on demand."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedbench.report.behind import packed
from fedbench.report.content import content, groups
from fedbench.report.ranks import Diagram, diagram
from fedbench.tables import account
from fedbench.tables.equivalence import DIFFERENT, EQUIVALENT, INCONCLUSIVE
from fedbench.tables.parts import ColumnSpec, MetricSpec, RowSpec
from fedbench.tables.render.grid import DASH, Layout, Text
from fedbench.tables.render.remarks import remarks
from fedbench.tables.result import Cell, TableResult
from fedbench.tables.verdict import NONE

KINDS = {  # of cells -> the sign, for those who do not see the colour, and the word
    EQUIVALENT: ("≈", "equivalent"),
    "above": ("▲", "different, ours is higher"),
    "below": ("▼", "different, ours is lower"),
    INCONCLUSIVE: ("?", "inconclusive"),
    "exploratory": ("†", "exploratory, counted apart"),
    "open": ("○", "no verdict"),
    "missing": ("–", "not run, or failed"),
}
ALONE = "alone"  # nothing is published beside it, and it has no sign
SHORT = 24  # characters of a reason that fit into a cell


@dataclass(frozen=True)
class TableView:
    """A table of the page."""

    folder: str
    title: str
    name: str
    setting: str
    paper: str
    headline: str
    groups: tuple[tuple[str, tuple[int, ...]], ...]  # heading, the columns below it
    counts: tuple[tuple[str, int], ...]  # kind, published values (cells of a table of our own)
    remarks: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    ranks: Diagram | None
    content: dict[str, Any]  # rows, columns, metrics and cells, for the template and the script
    behind: str  # packed: curves, matrices, clients


def shown(table: TableResult) -> TableResult:
    """A table that is not at the paper's setting with only the rows and columns in which something ran."""
    if table.circumstances.faithful:
        return table
    layout = Layout(table)
    chosen = dataclasses.replace(table.spec, rows=tuple(layout.rows), columns=tuple(layout.columns))
    return dataclasses.replace(table, spec=chosen)


def view(
    table: TableResult,
    folder: str,
    runs: Sequence[Mapping[str, str]],
    behind: Mapping[str, Any],
    links: Sequence[tuple[str, str]],
) -> TableView:
    """What the page says of `table`; `runs` are its result rows, `behind` what lies behind its cells."""
    less = shown(table)
    spec, layout = less.spec, Layout(less)
    cells = {
        f"{i}-{j}-{k}": _cell(layout, row, column, metric)
        for i, row in enumerate(spec.rows)
        for j, column in enumerate(spec.columns)
        for k, metric in enumerate(spec.metrics)
    }
    counts = Counter(cell["kind"] for cell in cells.values())
    known = content(less, table.spec, folder, cells, runs)
    for key, cell in cells.items():
        row, column, metric = map(int, key.split("-"))
        where = known["columns"][column]["label"]
        cell["name"] = f"{spec.rows[row].label}, {where}, {spec.metrics[metric].label}"
    return TableView(
        folder=folder,
        title=_title(table),
        name=_name(table),
        setting=f"{account.setting(table).replace('`', '')}; {account.data(table)}",
        paper=spec.paper,
        headline=spec.headline,
        groups=groups(less),
        counts=tuple((kind, counts[kind]) for kind in KINDS if counts[kind]),
        remarks=tuple(remarks(layout if less is table else Layout(table))),
        links=tuple(links),
        ranks=diagram(table, folder),
        content=known,
        behind=packed(behind),
    )


def _title(table: TableResult) -> str:
    """The table's title; on other data than the paper's, what was run comes first."""
    made = table.circumstances
    if not made.substitute:
        return table.title
    own = dataclasses.replace(table, circumstances=dataclasses.replace(made, substitute=""))
    return f"{_name(table)}, in the place of {own.title}"


def _name(table: TableResult) -> str:
    """The paper's name of a table that has its data and rows, else its own."""
    own, substitute = table.spec, table.circumstances.substitute
    if not own.paper or own.varies or substitute:
        return f"{own.name} on {substitute}" if substitute else own.name
    return f"{account.PAPERS.get(own.paper, own.paper)} {own.table}"


def _cell(layout: Layout, row: RowSpec, column: ColumnSpec, metric: MetricSpec) -> dict[str, Any]:
    """What is printed of a cell, and what is shown on demand."""
    table = layout.table
    cell, text = table.cell(row.label, column.label, metric.name), layout.text(row, column, metric)
    kind, said = _kind(cell, text, metric, mirrored=bool(table.spec.paper))
    values = [f"{value:.{metric.decimals}f}" for value in cell.values]
    return {
        "kind": kind,
        "place": text.place,
        "said": said,
        "ours": text.ours if text.ran else "",
        "mean": round(cell.mean, 6) if math.isfinite(cell.mean) else None,
        "paper": "" if cell.published is None else text.published,
        "difference": text.difference,
        "verdict": text.verdict.text,
        "apart": text.verdict.exploratory,
        "also": text.also,
        "reason": cell.reason,
        "seeds": [list(each) for each in zip(cell.seeds, values, cell.keys, strict=True)],
    }


def _kind(cell: Cell, text: Text, metric: MetricSpec, *, mirrored: bool) -> tuple[str, str]:
    """(kind, the verdict in the width of a cell)."""
    judged = text.verdict
    if cell.published is None and (text.ran or mirrored):
        return ALONE, ""
    if not text.ran:
        return "missing", _brief(cell.reason)
    difference = f"{judged.difference:+.{metric.decimals}f}" if math.isfinite(judged.difference) else DASH
    if judged.kind == NONE:
        return "open", f"{difference}, no verdict"
    side = "above" if judged.difference > 0 else "below"
    kind = "exploratory" if judged.exploratory else side if judged.kind == DIFFERENT else judged.kind
    return kind, f"{difference}, {judged.kind}"


def _brief(reason: str) -> str:
    """Why there is no value, in the width of a cell; the whole reason is shown on demand."""
    if not reason.startswith("not run"):
        return "failed" if reason else "not run"
    brief = reason.partition(" (")[0]
    return brief if len(brief) <= SHORT else "not run"
