"""The arrays of a figure, collected from its runs and stored with it.

R rows, C columns, S seeds, T rounds, N clients, K classes; nan if a run is missing.
- `rows` [R], `columns` [C], `seeds` [S]: labels;
- `score/COLUMN` [R, C, S]: of the result rows (reads.scores);
- `round` [T], `curve/COLUMN` [R, C, S, T]: of rounds.csv (reads.curves);
- `clients/COLUMN` [R, C, S, T, N]: accuracy of each client by round, percent (reads.clients);
- `array/NAME/r/c` [S, ...]: of arrays.npz, where the runs of row r and column c have it (reads.arrays);
- `counts/r/c` [N, K]: training samples by label of the first seed (reads.partition);
- what a function of `EXTRAS` adds (reads.extra).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch

from fedbench.core import rng
from fedbench.core.errors import ConfigError
from fedbench.data import authors
from fedbench.data.datasets.domainnet import DOMAINS
from fedbench.methods.fedcollab import solver
from fedbench.methods.fedcollab.fedcollab import FedCollab
from fedbench.methods.parts import simplex
from fedbench.methods.sosicfl import SosicFL
from fedbench.papers.figure_plan import FigurePlan
from fedbench.papers.plan import Job
from fedbench.papers.store import number_of
from fedbench.runs.building import build, set_up, split_data
from fedbench.runs.config import RunConfig

Arrays = dict[str, np.ndarray]
Grid = list[list[list[Job]]]  # [R][C][S]
MethodT = TypeVar("MethodT")
RESTARTS = 100  # FedCollab, Figure 8
DRAWN = 800  # points a subregion, SosicFL, Figure 3


def collect(plan: FigurePlan) -> Arrays:
    """Return all arrays that the figure's `reads` ask for.

    Raises:
        Damaged: a file of a run is not as it was written.
    """
    spec, reads = plan.runs.spec, plan.spec.reads
    jobs, across = [list(cell.jobs) for cell in plan.runs.cells], len(spec.columns)
    grid = [jobs[start : start + across] for start in range(0, len(jobs), across)]
    found: Arrays = {
        "rows": np.array([row.label for row in spec.rows]),
        "columns": np.array([column.label for column in spec.columns]),
        "seeds": np.array(plan.runs.seeds),
    }
    for column in reads.get("scores", ()):
        found[f"score/{column}"] = _map(
            grid, lambda job, key=column: number_of(job.run.row.get(key) if job.finished else None)
        )
    if columns := reads.get("curves", ()):
        found.update(_curves(grid, columns))
    for name in reads.get("clients", ()):
        found.update(_clients(grid, name))
    for name in reads.get("arrays", ()):
        found.update(_arrays(grid, name))
    if reads.get("partition"):
        for r, line in enumerate(grid):
            for c, seeds in enumerate(line):
                dataset, partition = split_data(seeds[0].config)
                found[f"counts/{r}/{c}"] = np.asarray(partition.label_counts(dataset.y))
    if name := reads.get("extra"):
        found.update(EXTRAS[name](plan, found))
    return found


def _map(grid: Grid, value: Any) -> np.ndarray:
    """Return `value` of each job as an array [R, C, S, ...]."""
    return np.array([[[value(job) for job in jobs] for jobs in line] for line in grid], dtype=np.float64)


def _curves(grid: Grid, columns: list[str]) -> Arrays:
    """Return the rounds that any of the runs scored, and the columns in them."""
    tables = {
        job.identity: {int(row["round"]): row for row in job.run.rounds} if job.finished else {}
        for job in (job for line in grid for jobs in line for job in jobs)
    }
    rounds = sorted({done for table in tables.values() for done in table})

    def read(column: str) -> np.ndarray:
        return _map(grid, lambda job: [number_of(tables[job.identity].get(done, {}).get(column)) for done in rounds])

    return {"round": np.array(rounds), **{f"curve/{column}": read(column) for column in columns}}


def _clients(grid: Grid, name: str) -> Arrays:
    """Return accuracies of clients by round, percent, of the set after acc_on_."""
    there = next((job for line in grid for jobs in line for job in jobs if job.finished), grid[0][0][0])
    first, base = there.run.tallies, f"tally/{name.removeprefix('acc_on_')}"

    def read(job: Job) -> np.ndarray:
        tallies = job.run.tallies if job.finished else dict.fromkeys(first, np.zeros_like(first[f"{base}/total"]))
        correct, total = tallies[f"{base}/correct"], tallies[f"{base}/total"]
        return np.asarray(100 * correct / np.where(total > 0, total, np.nan))

    return {f"clients/{name}": _map(grid, read), "round": first[f"{base}/round"]}


def _arrays(grid: Grid, name: str) -> Arrays:
    """Return the array `name` of every cell whose runs all have it."""
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


def _first_run(plan: FigurePlan) -> RunConfig:
    return plan.runs.cells[0].jobs[0].config


def _method_of(run: RunConfig, kind: type[MethodT]) -> MethodT:
    if not isinstance(run.method, kind):
        raise ConfigError(f"the figure's first row must be a {kind.__name__}")
    return run.method


def solver_orders(plan: FigurePlan, arrays: Arrays) -> Arrays:
    """Run FedCollab's solver from 100 orders: `values` [orders, visits] of Eq. 10, `iterations` [orders], `clients`.

    A finished order keeps its last value.
    """
    run = _first_run(plan)
    sizes = build(run).population.sizes.numpy()
    generator = np.random.default_rng(run.seed)
    solved = solver.solve(
        sizes, arrays["array/distances/0/0"][0], _method_of(run, FedCollab).C, RESTARTS, generator, trace=True
    )
    curves = solved.trajectories or ()
    longest = max(map(len, curves))
    return {
        "values": np.array([np.pad(curve, (0, longest - len(curve)), mode="edge") for curve in curves]),
        "iterations": solved.iterations,
        "clients": np.array(len(sizes)),
    }


def label_map(plan: FigurePlan, _arrays: Arrays) -> Arrays:
    """Return `label_map` [N, K]: the label that each client sees for each label."""
    return {"label_map": np.asarray(split_data(_first_run(plan))[1].label_map)}


def subregion_draws(plan: FigurePlan, arrays: Arrays) -> Arrays:
    """Return `draws` [clusters, points, 3], where the clients of a SosicFL cluster draw, within the L1 `radius`."""
    run, centres = _first_run(plan), arrays["array/centers/0/0"][0]
    radius = _method_of(run, SosicFL).rho * simplex.mean_distance(centres)
    clouds = [
        simplex.uniform(DRAWN, torch.from_numpy(centre), radius, rng.torch_rng(run.seed, "figure", index))
        for index, centre in enumerate(centres)
    ]
    return {"draws": torch.stack(clouds).numpy(), "radius": np.array(radius)}


def domain_images(plan: FigurePlan, _arrays: Arrays) -> Arrays:
    """Return `images` [domains, H, W, C] in [0, 1], a sample of one class of each domain, and the domains' names.

    If the data have no domains, images of clients with transformed data replace them.
    """
    run = _first_run(plan)
    dataset, split = split_data(run)
    setup, partition = set_up(run, dataset, split), run.model.dealt(split)[0]
    domain = None if dataset.domain is None else np.asarray(dataset.domain)
    chosen, names = [], []
    label = int(dataset.y[partition.train[0][0]])
    if domain is not None:
        for index, name in enumerate(DOMAINS if dataset.name == "domainnet" else map(str, np.unique(domain))):
            chosen.append(int(np.flatnonzero((domain == index) & (dataset.y == label))[0]))
            names.append(str(name))
    elif partition.rotation is not None:
        for angle in dict.fromkeys(partition.rotation.tolist()):
            client = int(np.flatnonzero(partition.rotation == angle)[0])
            own = partition.train[client]
            chosen.append(int(own[np.argmax(dataset.y[own] == label)]))
            names.append(f"{angle:+.0f}°")
    shown = setup.federation.unit(torch.tensor(chosen)).clamp(0, 1).permute(0, 2, 3, 1)
    return {"images": shown.cpu().numpy(), "domains": np.array(names)}


def join_round(plan: FigurePlan, _arrays: Arrays) -> Arrays:
    """Return `join_round` of FedCollab's newcomers."""
    return {"join_round": np.array(_method_of(_first_run(plan), FedCollab).join_round)}


def authors_distances(plan: FigurePlan, _arrays: Arrays) -> Arrays:
    """Return `authors` [N, N], the distances that FedCollab's authors publish if the partition is one of theirs."""
    name = _first_run(plan).labels["partition"].removesuffix("_code")
    return {"authors": authors.distances(name)} if name in authors.SCENARIOS else {}


EXTRAS: dict[str, Callable[[FigurePlan, Arrays], Arrays]] = {
    "authors": authors_distances,
    "draws": subregion_draws,
    "images": domain_images,
    "joining": join_round,
    "label_map": label_map,
    "orders": solver_orders,
}
