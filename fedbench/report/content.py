"""What the page's script knows of a table: labels, cells, overrides, runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from fedbench.tables import account, measures
from fedbench.tables.parts import ColumnSpec
from fedbench.tables.result import TableResult
from fedbench.tables.spec import TableSpec

Runs = Sequence[Mapping[str, str]]  # result rows


def content(
    table: TableResult, whole: TableSpec, folder: str, cells: dict[str, Any], runs: Runs
) -> dict[str, Any]:
    """Plain lists, mappings and text; `cells` by "row-column-metric", `whole` with the columns that are not shown."""
    spec, made = table.spec, table.circumstances
    return {
        "id": folder,
        "cells": cells,
        "rows": [{"label": row.label, "overrides": row.overrides} for row in spec.rows],
        "columns": [_column(table, column, runs) for column in spec.columns],
        "metrics": [
            {"label": metric.label, "curve": getattr(measures.build(metric.measure), "column", "") == "score"}
            for metric in spec.metrics
        ],
        "base": spec.base,
        "changed": made.changed,
        "varied": made.varied,
        "scale": made.scale,
        "runs": {run["key"]: _run(run) for run in runs if run.get("key")},
        "commands": _commands(table, whole),
    }


def _column(table: TableResult, column: ColumnSpec, runs: Runs) -> dict[str, Any]:
    name, note = heading(table, column, runs)
    own = (*([] if note else [column.group]), name)
    made = table.circumstances
    return {
        "name": name,
        "note": note,
        "key": column.label,
        "label": ", ".join(part for part in own if part),
        "datasets": _datasets(table, column),
        "overrides": column.overrides,
        "own": [column.own(row.label) for row in table.spec.rows],
        "substitute": (f"dataset={made.substitute}", *column.substitute) if made.substitute else (),
    }


def heading(table: TableResult, column: ColumnSpec, runs: Runs) -> tuple[str, str]:
    """(what stands above a column, which column of the paper it takes the place of): the data that was run."""
    substitute = table.circumstances.substitute
    if not substitute:
        return column.label, ""
    parts = dict.fromkeys(run.get("partition", "") for run in runs if run.get("column") == column.label)
    paper = (
        column.label
        if not column.group or column.group in column.label
        else f"{column.group}, {column.label}"
    )
    return ", ".join([substitute, *filter(None, parts)]), f"in place of {paper}"


def groups(table: TableResult) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Neighbouring columns with one heading; nothing if no column has any, or if other data was run."""
    columns = table.spec.columns
    if table.circumstances.substitute or not any(column.group for column in columns):
        return ()
    numbered = groupby(enumerate(columns), key=lambda pair: pair[1].group)
    return tuple((group, tuple(i for i, _ in pairs)) for group, pairs in numbered)


def _commands(table: TableResult, whole: TableSpec) -> dict[str, str]:
    """The command that makes each cell, by "row-column"."""
    every = dataclasses.replace(table, spec=whole)
    found = {}
    for i, row in enumerate(table.spec.rows):
        for j, column in enumerate(table.spec.columns):
            seeds = {
                seed for m in table.spec.metrics for seed in table.cell(row.label, column.label, m.name).seeds
            }
            found[f"{i}-{j}"] = account.command(every, row.label, column.label, tuple(sorted(seeds)))
    return found


def _run(run: Mapping[str, str]) -> dict[str, Any]:
    """What is shown of a run beside its value, and what its figures need."""
    sent = sum(float(run.get(name) or 0) for name in ("bytes_up", "bytes_down")) / 1e6
    return {
        "rounds": run.get("rounds", ""),
        "seconds": f"{float(run.get('seconds_total') or 0):.1f}",
        "megabytes": f"{sent:.1f}",
        "curve": f"acc_on_{run.get('test_set', 'local')}{'_pooled' if run.get('average') == 'pooled' else ''}",
        "partition": run.get("partition_hash", ""),
        "local": run.get("local_key", ""),
    }


def _datasets(table: TableResult, column: ColumnSpec) -> tuple[str, ...]:
    """The data set that was run: the column's own, or the one in its place."""
    if table.circumstances.substitute:
        return (table.circumstances.substitute,)
    chosen = [
        text.partition("=")[2]
        for text in (*table.spec.base, *column.overrides)
        if text.startswith("dataset=")
    ]
    return tuple(chosen[-1:] or [column.published[key] for key in ("dataset",) if key in column.published])
