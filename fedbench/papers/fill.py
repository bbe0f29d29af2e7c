"""From a plan with finished runs to the filled table with its rows, curves, matrices and clients."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedbench.core.errors import FedbenchError
from fedbench.papers import measures
from fedbench.papers.plan import CellRuns, Job, Plan
from fedbench.papers.spec import MetricSpec
from fedbench.papers.store import BASELINE, PENDING, Array, Cell, Provenance, TableResult, place_of
from fedbench.runs.fingerprint import machine, source_commit

POINTS = 50  # of a learning curve that are kept


def fill(plan: Plan) -> TableResult:
    """Return the table with all values of finished runs; nothing is trained."""
    cells = [_cell(plan, cell, metric) for cell in plan.cells for metric in plan.spec.metrics]
    return TableResult(plan.spec, tuple(cells), _provenance(plan))


def kept_files(plan: Plan) -> tuple[list[dict[str, Any]], list[Mapping[str, Any]], dict[str, Array], dict[str, Array]]:
    """Return (rows, curves, matrices, clients) of every run that has a result, as `store.save_table` takes them.

    Rows are whole result rows, and curves are thinned. A cell has the matrix [N, N] of its first seed with one. A run
    that kept them has the accuracies of its clients [N].
    """
    rows, curves = list[dict[str, Any]](), list[Mapping[str, Any]]()
    matrices, clients = dict[str, Array](), dict[str, Array]()
    with_matrix = set()
    for row, column, job in _finished(plan):
        labels, place = {"row": row, "column": column}, place_of(row, column, job.seed)
        if job.finished:
            run, result = job.run, job.folder.result()
            matrix, accuracies = None if (row, column) in with_matrix else run.W, run.accuracies
            for point in thinned(run.rounds):
                scores = {name: value for name, value in point.items() if name.startswith(("round", "acc_on"))}
                curves.append({**labels, "seed": job.seed, **scores})
        else:
            result = dict(plan.stored.rows.get(job.key, {}))
            matrix, accuracies = plan.stored.matrices.get(place), plan.stored.clients.get(place)
            own = row, column, str(job.seed)
            curves += (p for p in plan.stored.curves if (p["row"], p["column"], p["seed"]) == own)
        rows.append({**labels, **result})
        if matrix is not None and (row, column) not in with_matrix:
            matrices[place] = matrix
            with_matrix.add((row, column))
        if accuracies is not None:
            clients[place] = accuracies
    return [*rows, *_baselines(plan)], curves, matrices, clients


def thinned(rounds: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return at most `POINTS` of a run's scored rounds, the first and the last among them."""
    if len(rounds) <= POINTS:
        return rounds
    return [rounds[i] for i in np.linspace(0, len(rounds) - 1, POINTS).round().astype(int)]


def _finished(plan: Plan) -> Iterator[tuple[str, str, Job]]:
    """Yield the labels of row and column, and the job, of every run with a result."""
    for cell in plan.cells:
        for job in cell.jobs:
            if not job.study and plan.has(cell, job):
                yield cell.row.label, cell.column.label, job


def _baselines(plan: Plan) -> Iterator[dict[str, Any]]:
    """Yield the result row of every baseline that has one, because values depend on its code too."""
    for cell in plan.cells:
        for job in cell.baselines:
            if result := job.folder.result() if job.finished else plan.stored.rows.get(job.key):
                yield {"row": cell.row.label + BASELINE, "column": cell.column.label, **result}


def _cell(plan: Plan, runs: CellRuns, metric: MetricSpec) -> Cell:
    published = plan.spec.published(runs.row, runs.column, metric)
    cell = Cell(runs.row.label, runs.column.label, metric.name, published=published, reason=runs.reason)
    if runs.parts:
        return _mean(cell, [_cell(plan, part, metric) for part in runs.parts])
    if not runs.jobs:
        return cell
    measure = measures.build(metric.measured(runs.row, runs.column))
    found, reasons = list[tuple[float, Job, Job | None]](), dict[str, list[str]]()
    earlier = plan.stored.failures(runs.row, runs.column, plan.spec.base)
    for job in runs.jobs:
        baseline = runs.baseline_of(job)
        lacking = [each for each in (job, baseline) if each is not None and not each.finished]
        if lacking:
            half = baseline is not None and len(lacking) == 1  # one of the two was made again, the record is of both
            value = None if half and plan.outdated(runs, job) else plan.value(runs, job, metric)
            if value is None:
                why = lacking[0].failure or earlier.get(job.seed, PENDING)
                reasons.setdefault(why, []).append(str(job.seed))
                continue
        else:
            try:
                value = measure.value(job.run, None if baseline is None else baseline.run)
            except FedbenchError as error:
                reasons.setdefault(str(error), []).append(str(job.seed))
                continue
        found.append((value, job, baseline))
    told = "; ".join(f"seed{'s' * (len(own) > 1)} {', '.join(own)}: {why}" for why, own in reasons.items())
    return replace(
        cell,
        values=tuple(value for value, *_ in found),
        seeds=tuple(job.seed for _, job, _ in found),
        keys=tuple(job.key for _, job, _ in found),
        baselines=tuple(each.key for *_, each in found if each is not None),
        reason=PENDING if not found and [*reasons] == [PENDING] else told,
    )


def _mean(cell: Cell, parts: Sequence[Cell]) -> Cell:
    """Return `cell` with the mean of `parts` for each seed that all of them have."""
    values = [dict(zip(part.seeds, part.values, strict=True)) for part in parts]
    keys = [dict(zip(part.seeds, part.keys, strict=True)) for part in parts]
    seeds = tuple(sorted(set.intersection(*(set(part.seeds) for part in parts))))
    return replace(
        cell,
        values=tuple(float(np.mean([each[seed] for each in values])) for seed in seeds),
        seeds=seeds,
        keys=tuple("+".join(each[seed] for each in keys) for seed in seeds),
        reason="; ".join(dict.fromkeys(part.reason for part in parts if part.reason)),
    )


def _provenance(plan: Plan) -> Provenance:
    runs = [job for cell in plan.cells for job in (*cell.jobs, *cell.baselines) if job.finished]
    recorded = [plan.stored.rows.get(job.key, {}) for *_, job in _finished(plan) if not job.finished]
    every = (*_baselines(plan), *recorded, *(job.folder.result() for job in runs))
    results = {str(row.get("key")): row for row in every}
    commits = sorted({str(row.get("commit") or "") for row in results.values()} - {""})
    made, today = [job.folder.environment() for job in runs], dt.datetime.now(dt.timezone.utc).isoformat()
    machines, dates = {machine(each) for each in made}, [each.get("started", today)[:10] for each in made]
    if recorded and (stored := plan.stored.table):
        machines |= {*stored.provenance.machine.split("; ")}
        dates.append(stored.provenance.date)
    return replace(
        plan.provenance,
        machine="; ".join(sorted(machines)) or machine(),
        commit=", ".join(commits) or source_commit()[0],
        date=max(dates, default=today[:10]),
        seconds=float(sum(float(row.get("seconds_total") or 0.0) for row in results.values())),
    )
