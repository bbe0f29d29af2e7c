"""From a plan whose runs are done to the filled table, its rows, its curves, its matrices and its clients."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedbench.core.errors import FedbenchError
from fedbench.runs.environment import machine, source_commit
from fedbench.tables import measures, store
from fedbench.tables.plan import Entry, Job, Plan
from fedbench.tables.spec import MetricSpec
from fedbench.tables.store import PENDING, Cell, Circumstances, TableResult

POINTS = 50  # of a learning curve that are kept


def fill(plan: Plan) -> TableResult:
    """The table with every value that the finished runs give; nothing is trained."""
    cells = [_cell(plan, entry, metric) for entry in plan.entries for metric in plan.spec.metrics]
    return TableResult(plan.spec, tuple(cells), _circumstances(plan))


def rows(plan: Plan) -> list[dict[str, Any]]:
    """One line a finished run: the table's row and column, and the whole result row."""
    lines = []
    for entry, job in _finished(plan):
        result = job.folder.result() if job.finished else plan.recorded.rows.get(job.key, {})
        lines.append({"row": entry.row.label, "column": entry.column.label, **result})
    return lines


def curves(plan: Plan) -> Iterator[dict[str, Any]]:
    """The learning curves of the finished runs, thinned."""
    for entry, job in _finished(plan):
        row, column = entry.row.label, entry.column.label
        if not job.finished:
            yield from plan.recorded.curve(row, column, job.seed)
            continue
        for point in thinned(job.run.rounds):
            scores = {name: value for name, value in point.items() if name.startswith(("round", "acc_on"))}
            yield {"row": row, "column": column, "seed": job.seed, **scores}


def thinned(rounds: list[dict[str, str]]) -> list[dict[str, str]]:
    """At most `POINTS` of a run's scored rounds, the first and the last among them."""
    if len(rounds) <= POINTS:
        return rounds
    return [rounds[i] for i in np.linspace(0, len(rounds) - 1, POINTS).round().astype(int)]


def matrices(plan: Plan) -> dict[str, np.ndarray[Any, Any]]:
    """Collaboration matrices [N, N] of every cell that has one: of the first seed that does."""
    found: dict[tuple[str, str], tuple[int, np.ndarray[Any, Any]]] = {}
    for entry, job in _finished(plan):
        row, column = entry.row.label, entry.column.label
        if (row, column) in found:
            continue
        matrix = job.run.W if job.finished else plan.recorded.matrix(row, column, job.seed)
        if matrix is not None:
            found[row, column] = job.seed, matrix
    return {store.place_of(*cell, seed): matrix for cell, (seed, matrix) in found.items()}


def clients(plan: Plan) -> dict[str, np.ndarray[Any, Any]]:
    """The accuracy of each client [N] of the finished runs, in percent, where it was kept."""
    found = {}
    for entry, job in _finished(plan):
        row, column = entry.row.label, entry.column.label
        kept = job.run.accuracies if job.finished else plan.recorded.accuracies(row, column, job.seed)
        if kept is not None:
            found[store.place_of(row, column, job.seed)] = kept
    return found


def _finished(plan: Plan) -> Iterator[tuple[Entry, Job]]:
    for entry in plan.entries:
        for job in entry.jobs:
            if not job.study and plan.has(entry, job):
                yield entry, job


def _cell(plan: Plan, entry: Entry, metric: MetricSpec) -> Cell:
    published = plan.spec.published(entry.row, entry.column, metric)
    cell = Cell(entry.row.label, entry.column.label, metric.name, published=published, reason=entry.reason)
    if entry.reason:
        return cell
    measure = measures.build(metric.measured(entry.row, entry.column))
    values, seeds, keys, baselines, reasons = [], [], [], [], []
    for job, baseline in entry.pairs:
        lacking = [each for each in (job, baseline) if each is not None and not each.finished]
        if lacking:
            value = plan.value(entry, job, metric)
            if value is None:
                reasons.append(f"seed {job.seed}: {lacking[0].failure or PENDING}")
                continue
        else:
            try:
                value = measure.value(job.run, None if baseline is None else baseline.run)
            except FedbenchError as error:
                reasons.append(f"seed {job.seed}: {error}")
                continue
        values.append(value)
        seeds.append(job.seed)
        keys.append(job.key)
        baselines += [] if baseline is None else [baseline.key]
    same = {reason.partition(": ")[2] for reason in reasons}
    if len(reasons) == len(entry.jobs) and len(same) == 1:
        reasons = list(same)
    return dataclasses.replace(
        cell,
        values=tuple(values),
        seeds=tuple(seeds),
        keys=tuple(keys),
        baselines=tuple(baselines),
        reason="; ".join(reasons),
    )


def _circumstances(plan: Plan) -> Circumstances:
    runs = [job for entry in plan.entries for job in (*entry.baselines, *entry.jobs) if job.finished]
    recorded = [plan.recorded.rows.get(job.key, {}) for _, job in _finished(plan) if not job.finished]
    results = {str(row.get("key")): row for row in (*recorded, *(job.folder.result() for job in runs))}
    commits = sorted({str(row.get("commit") or "") for row in results.values()} - {""})
    machines = {machine(): None} if runs else {}
    if recorded and plan.recorded.made:
        machines |= dict.fromkeys(plan.recorded.made.machine.split("; "))
    return dataclasses.replace(
        plan.made,
        machine="; ".join(sorted(machines)) or machine(),
        commit=", ".join(commits) or source_commit()[0],
        date=dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%d"),
        seconds=float(sum(float(row.get("seconds_total") or 0.0) for row in results.values())),
    )
