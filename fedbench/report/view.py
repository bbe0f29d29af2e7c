"""A filled table in the words of the page: what the template prints and what its script shows on demand."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from fedbench.report.curves import packed
from fedbench.tables.equivalence import DIFFERENT, EQUIVALENT, INCONCLUSIVE
from fedbench.tables.parts import ColumnSpec, MetricSpec, RowSpec
from fedbench.tables.render.grid import DASH, Layout, Text
from fedbench.tables.render.remarks import remarks
from fedbench.tables.result import Cell, TableResult
from fedbench.tables.spec import TableSpec
from fedbench.tables.verdict import NONE

PAPERS = {
    "": "Our own tables",
    "fedcollab": "FedCollab",
    "fedrema": "FedReMa",
    "fedsac": "FedSaC",
    "pfedsim": "pFedSim",
    "sosicfl": "SosicFL",
}
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

    anchor: str
    folder: str
    title: str
    name: str
    paper: str
    paper_label: str
    headline: str
    groups: tuple[tuple[str, tuple[int, ...]], ...]  # heading, the columns below it
    counts: tuple[tuple[str, int], ...]  # kind, published values (cells of a table of our own)
    remarks: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    content: dict[str, Any]  # rows, columns, metrics and cells, for the template and the script
    behind: str  # packed: curves and matrices


def view(
    table: TableResult,
    anchor: str,
    folder: str,
    runs: Sequence[Mapping[str, str]],
    behind: Mapping[str, Any],
    links: Sequence[tuple[str, str]],
) -> TableView:
    """What the page says of `table`; `runs` are its result rows, `behind` its curves and matrices."""
    spec, layout = table.spec, Layout(table)
    cells = {
        f"{i}-{j}-{k}": _cell(layout, row, column, metric)
        for i, row in enumerate(spec.rows)
        for j, column in enumerate(spec.columns)
        for k, metric in enumerate(spec.metrics)
    }
    counts = Counter(cell["kind"] for cell in cells.values())
    return TableView(
        anchor=anchor,
        folder=folder,
        title=table.title,
        name=f"{PAPERS.get(spec.paper, spec.paper)} {spec.table}"
        if spec.paper and not spec.varies
        else spec.name,
        paper=spec.paper,
        paper_label=PAPERS.get(spec.paper, spec.paper),
        headline=spec.headline,
        groups=_groups(spec),
        counts=tuple((kind, counts[kind]) for kind in KINDS if counts[kind]),
        remarks=tuple(remarks(layout)),
        links=tuple(links),
        content=_content(table, anchor, cells, runs),
        behind=packed(behind),
    )


def _cell(layout: Layout, row: RowSpec, column: ColumnSpec, metric: MetricSpec) -> dict[str, Any]:
    """What is printed of a cell, what is shown on demand, and what it is called by those who do not see the table."""
    table = layout.table
    cell, text = table.cell(row.label, column.label, metric.name), layout.text(row, column, metric)
    kind, said = _kind(cell, text, metric, mirrored=bool(table.spec.paper))
    values = [f"{value:.{metric.decimals}f}" for value in cell.values]
    return {
        "kind": kind,
        "place": text.place,
        "said": said,
        "name": ", ".join(filter(None, (row.label, column.group, column.label, metric.label))),
        "ours": text.ours if text.ran else "",
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


def _content(
    table: TableResult, anchor: str, cells: dict[str, Any], runs: Sequence[Mapping[str, str]]
) -> dict[str, Any]:
    spec, made = table.spec, table.circumstances
    return {
        "id": anchor,
        "title": table.title,
        "cells": cells,
        "rows": [{"label": row.label, "overrides": row.overrides} for row in spec.rows],
        "columns": [
            {
                "name": column.label,
                "label": ", ".join(part for part in (column.group, column.label) if part),
                "datasets": _datasets(table, column),
                "overrides": column.overrides,
                "own": [column.own(row.label) for row in spec.rows],
                "substitute": (f"dataset={made.substitute}", *column.substitute) if made.substitute else (),
            }
            for column in spec.columns
        ],
        "metrics": [
            {"label": metric.label, "curve": metric.measure.get("column") == "score"}
            for metric in spec.metrics
        ],
        "base": spec.base,
        "changed": made.changed,
        "varied": made.varied,
        "scale": made.scale,
        "runs": {run["key"]: _run(run) for run in runs if run.get("key")},
    }


def _run(run: Mapping[str, str]) -> list[str]:
    """Rounds, seconds and megabytes of a run, as shown beside its value, and the curve its score lies on."""
    sent = sum(float(run.get(name) or 0) for name in ("bytes_up", "bytes_down")) / 1e6
    curve = f"acc_on_{run.get('test_set', 'local')}{'_pooled' if run.get('average') == 'pooled' else ''}"
    return [run.get("rounds", ""), f"{float(run.get('seconds_total') or 0):.1f}", f"{sent:.1f}", curve]


def _datasets(table: TableResult, column: ColumnSpec) -> tuple[str, ...]:
    """The column's own data set, and the one that took its place."""
    chosen = [
        text.partition("=")[2]
        for text in (*table.spec.base, *column.overrides)
        if text.startswith("dataset=")
    ]
    named = chosen[-1:] or [column.published[key] for key in ("dataset",) if key in column.published]
    return tuple(dict.fromkeys([*named, *filter(None, [table.circumstances.substitute])]))


def _groups(spec: TableSpec) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Neighbouring columns with one heading; nothing if no column has any."""
    if not any(column.group for column in spec.columns):
        return ()
    numbered = groupby(enumerate(spec.columns), key=lambda pair: pair[1].group)
    return tuple((group, tuple(i for i, _ in pairs)) for group, pairs in numbered)
