"""A filled table in the words of the page: what the template prints and what its script shows on demand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from fedbench.report.curves import packed
from fedbench.tables.render.grid import Layout, Text
from fedbench.tables.result import Cell, TableResult
from fedbench.tables.spec import ColumnSpec, MetricSpec, TableSpec
from fedbench.tables.verdict import DIFFERS, REPRODUCED

PAPERS = {
    "": "Our own tables",
    "fedcollab": "FedCollab",
    "fedrema": "FedReMa",
    "fedsac": "FedSaC",
    "pfedsim": "pFedSim",
    "sosicfl": "SosicFL",
}
MARKS = {"reproduced": "✓", "above": "▲", "below": "▼", "open": "○", "alone": "", "missing": "–"}
SHORT = 24  # characters of a reason that fit into a cell
WORDS = {  # of the legend
    "reproduced": "reproduced",
    "above": "differs, ours is higher",
    "below": "differs, ours is lower",
    "open": "no verdict",
    "missing": "not run, or failed",
}


@dataclass(frozen=True)
class CellView:
    """One number, as printed."""

    key: str  # "row-column-metric", numbers from 0
    column: int
    kind: str  # of MARKS
    place: int
    ours: str
    published: str  # "" if nothing
    verdict: str
    name: str  # of row, column and metric, for those who do not see the table

    @property
    def mark(self) -> str:
        """The verdict as a sign, for those who do not see its colour."""
        return MARKS[self.kind]


@dataclass(frozen=True)
class RowView:
    """A line of the table."""

    label: str
    cells: tuple[CellView, ...]
    headline: bool


@dataclass(frozen=True)
class ColumnView:
    """A column and the data sets it is found by."""

    label: str
    datasets: tuple[str, ...]


@dataclass(frozen=True)
class TableView:
    """A table of the page."""

    anchor: str
    folder: str
    title: str
    name: str
    paper: str
    paper_label: str
    columns: tuple[ColumnView, ...]
    groups: tuple[tuple[str, tuple[int, ...]], ...]  # heading, the columns below it
    metrics: tuple[str, ...]
    rows: tuple[RowView, ...]
    counts: tuple[tuple[str, str, int], ...]  # kind, mark, cells
    remarks: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    content: dict[str, Any]  # for the script: what a cell shows on demand
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
    rows, cells = [], {}
    for i, row in enumerate(spec.rows):
        line = []
        for j, column in enumerate(spec.columns):
            for k, metric in enumerate(spec.metrics):
                cell, text = (
                    table.cell(row.label, column.label, metric.name),
                    layout.text(row, column, metric),
                )
                shown = _cell(f"{i}-{j}-{k}", j, cell, text, _heading(column, metric))
                line.append(shown)
                cells[shown.key] = _details(cell, text, metric)
        rows.append(RowView(row.label, tuple(line), row.label == spec.headline))
    counts = Counter(cell.kind for row in rows for cell in row.cells)
    return TableView(
        anchor=anchor,
        folder=folder,
        title=table.title,
        name=f"{PAPERS.get(spec.paper, spec.paper)} {spec.table}"
        if spec.paper and not spec.varies
        else spec.name,
        paper=spec.paper,
        paper_label=PAPERS.get(spec.paper, spec.paper),
        columns=tuple(ColumnView(column.label, _datasets(table, column)) for column in spec.columns),
        groups=_groups(spec),
        metrics=tuple(metric.label for metric in spec.metrics),
        rows=tuple(rows),
        counts=tuple((kind, mark, counts[kind]) for kind, mark in MARKS.items() if mark and counts[kind]),
        remarks=tuple(layout.remarks()),
        links=tuple(links),
        content=_content(table, anchor, cells, runs),
        behind=packed(behind),
    )


def _cell(key: str, column: int, cell: Cell, text: Text, heading: str) -> CellView:
    published = "" if cell.published is None else text.published
    said = text.verdict.text
    if kind := {REPRODUCED: "reproduced", DIFFERS: "above" if text.verdict.difference > 0 else "below"}.get(
        text.verdict.kind
    ):
        verdict = said
    elif not text.ran:
        kind, verdict = "missing", _brief(cell.reason)
    elif cell.published is None:
        kind, verdict = "alone", ""
    else:
        kind, verdict = "open", f"{text.difference}, no verdict"
    return CellView(key, column, kind, text.place, text.ours, published, verdict, f"{cell.row}, {heading}")


def _brief(reason: str) -> str:
    """Why there is no value, in the width of a cell; the whole reason is shown on demand."""
    if not reason.startswith("not run"):
        return "failed" if reason else "not run"
    brief = reason.partition(" (")[0]
    return brief if len(brief) <= SHORT else "not run"


def _heading(column: ColumnSpec, metric: MetricSpec) -> str:
    parts = (column.group, column.label, metric.label)
    return ", ".join(part for part in parts if part)


def _details(cell: Cell, text: Text, metric: MetricSpec) -> dict[str, Any]:
    values = [f"{value:.{metric.decimals}f}" for value in cell.values]
    return {
        "ours": text.ours if text.ran else "",
        "paper": "" if cell.published is None else text.published,
        "difference": text.difference,
        "verdict": text.verdict.text,
        "reason": cell.reason,
        "seeds": [list(each) for each in zip(cell.seeds, values, cell.keys, strict=True)],
    }


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
                "label": ", ".join(part for part in (column.group, column.label) if part),
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
