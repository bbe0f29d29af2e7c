"""From a figure's runs to the arrays that it is drawn from, and that are kept beside it.

R rows, C columns, S seeds, T rounds, N clients, K classes; nan where a run is not there.
- `rows` [R], `columns` [C], `seeds` [S]: labels;
- `score/COLUMN` [R, C, S]: of the result rows (reads.scores);
- `round` [T], `curve/COLUMN` [R, C, S, T]: of rounds.csv (reads.curves);
- `clients/COLUMN` [R, C, S, T, N]: accuracy of each client by round, percent (reads.clients);
- `array/NAME/r/c` [S, ...]: of arrays.npz, where the runs of row r and column c have it (reads.arrays);
- `counts/r/c` [N, K]: training samples by label of the first seed (reads.partition);
- what a function of fedbench.figures.extras adds (reads.extra).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedbench.data.split import make_partition
from fedbench.figures import extras
from fedbench.figures.plan import FigurePlan
from fedbench.runs import fingerprint
from fedbench.runs.config import RunConfig
from fedbench.tables.job import Job

Arrays = dict[str, np.ndarray]
Grid = list[list[list[Job]]]  # [R][C][S]


def collect(plan: FigurePlan) -> Arrays:
    """All arrays that the figure's `reads` ask for.

    Raises:
        Damaged: a file of a run is not as it was written.
    """
    spec, reads = plan.runs.spec, plan.spec.reads
    grid = _grid(plan)
    found: Arrays = {
        "rows": np.array([row.label for row in spec.rows]),
        "columns": np.array([column.label for column in spec.columns]),
        "seeds": np.array(plan.runs.seeds),
    }
    for column in reads.get("scores", ()):
        found[f"score/{column}"] = _map(grid, lambda job, key=column: _number(_row(job).get(key)))
    if columns := reads.get("curves", ()):
        found.update(_curves(grid, columns))
    for name in reads.get("clients", ()):
        found.update(_clients(grid, name))
    for name in reads.get("arrays", ()):
        found.update(_arrays(grid, name))
    if reads.get("partition"):
        for r, line in enumerate(grid):
            for c, jobs in enumerate(line):
                found[f"counts/{r}/{c}"] = label_counts(jobs[0].config)
    if name := reads.get("extra"):
        found.update(extras.EXTRAS[name](plan, found))
    return found


def _grid(plan: FigurePlan) -> Grid:
    across = len(plan.runs.spec.columns)
    jobs = [list(entry.jobs) for entry in plan.runs.entries]
    return [jobs[start : start + across] for start in range(0, len(jobs), across)]


def _map(grid: Grid, value: Any) -> np.ndarray:
    """`value` of each job as an array [R, C, S, ...]."""
    return np.array([[[value(job) for job in jobs] for jobs in line] for line in grid], dtype=np.float64)


def _row(job: Job) -> dict[str, Any]:
    return job.run.row if job.finished else {}


def _number(value: Any) -> float:
    return float("nan") if value in (None, "") else float(value)


def _curves(grid: Grid, columns: list[str]) -> Arrays:
    """Rounds that any of the runs scored, and the columns in them."""
    tables = {job.identity: _rounds(job) for line in grid for jobs in line for job in jobs}
    rounds = sorted({done for table in tables.values() for done in table})

    def read(column: str) -> np.ndarray:
        return _map(
            grid,
            lambda job: [_number(tables[job.identity].get(done, {}).get(column)) for done in rounds],
        )

    return {"round": np.array(rounds), **{f"curve/{column}": read(column) for column in columns}}


def _rounds(job: Job) -> dict[int, dict[str, str]]:
    if not job.finished:
        return {}
    return {int(row["round"]): row for row in job.run.rounds}


def _clients(grid: Grid, name: str) -> Arrays:
    """Accuracies of clients by round, percent, of the set after acc_on_."""
    base = f"tally/{name.removeprefix('acc_on_')}"

    def read(job: Job) -> np.ndarray:
        tallies = job.run.tallies
        correct, total = tallies[f"{base}/correct"], tallies[f"{base}/total"]
        return np.asarray(100 * correct / np.where(total > 0, total, np.nan))

    return {f"clients/{name}": _map(grid, read), "round": grid[0][0][0].run.tallies[f"{base}/round"]}


def _arrays(grid: Grid, name: str) -> Arrays:
    """Of every cell whose runs all have an array `name`."""
    found = {}
    for r, line in enumerate(grid):
        for c, jobs in enumerate(line):
            each = [job.run.arrays.get(name) if job.finished else None for job in jobs]
            present = [array for array in each if array is not None]
            if present and len({array.shape for array in present}) == 1:
                found[f"array/{name}/{r}/{c}"] = np.stack(present)
            elif present:  # of different sizes, such as clusters: the first seed's
                found[f"array/{name}/{r}/{c}"] = present[0][np.newaxis]
    return found


def label_counts(run: RunConfig) -> np.ndarray:
    """Training samples [N, K] of each class, found without a run."""
    dataset = fingerprint.load(run.dataset)
    partition = make_partition(run.partition, dataset, run.protocol.test, run.partition_seed)
    return np.asarray(partition.label_counts(dataset.y))
