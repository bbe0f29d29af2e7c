"""Figures that are neither a table nor a sweep: two of FedCollab's paper, on runs of its Table 2, and one of ours.

    python scripts/figures.py [NAME ...] [--seed 0] [--out results/figures] [--redraw] [--set KEY=VALUE ...]

fedcollab_distances (Figure 5): distances between clients as FedCollab, FedCluster, FeSEM and KMeans see them.
fedcollab_solver (Figure 8): the objective along the coalition solver's way, from 100 random orders.
fedcollab_t1: the values of Table 1 under label shift beside the published ones, from results/tables/fedcollab_t1.

What is missing is run first (runs_dir as everywhere); --redraw draws what was made before again. The numbers of the
first two go to OUT/NAME.npz, the figure to OUT/NAME.svg; `--set` changes the runs, for a trial.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedbench.config.compose import compose
from fedbench.methods.fedcollab import solver
from fedbench.plots import collaboration
from fedbench.plots.beside import beside
from fedbench.results.folder import ARRAYS, files_of
from fedbench.runs.config import RunConfig, resolve
from fedbench.runs.execution import build, execute
from fedbench.tables import spec, store

Arrays = dict[str, NDArray[np.float64]]

TABLE, COLUMN = "fedcollab_t2", 0
COMPARED = ("FedCollab", "FedCluster", "FeSEM", "KMeans")
RESTARTS = 100
FILLED = Path(__file__).resolve().parents[1] / "results" / "tables" / "fedcollab_t1"


@dataclass(frozen=True)
class Kind:
    """How a figure's numbers are found, and how they are drawn."""

    collect: Callable[[int, Sequence[str]], Arrays]
    draw: Callable[[Arrays], Figure]
    kept: bool = True  # in an .npz of its own; False: they are a table's, read anew each time


def config(label: str, seed: int, changes: Sequence[str]) -> RunConfig:
    """The run of a row of the table."""
    table = spec.load(TABLE)
    (row,) = (row for row in table.rows if row.label == label)
    column = table.columns[COLUMN]
    chosen = [*table.base, *column.overrides, *row.overrides, *column.own(label), "progress=none"]
    return resolve(compose([*chosen, *changes, f"seed={seed}"]))


def found_distances(label: str, seed: int, changes: Sequence[str]) -> NDArray[np.float64] | None:
    """Distances [N, N] kept by the run, which is made if it is not there; None if it kept none."""
    folder = execute(config(label, seed, changes)).folder
    arrays = files_of(folder).npz(ARRAYS)
    return np.asarray(arrays["distances"], dtype=np.float64) if "distances" in arrays else None


def collect_distances(seed: int, changes: Sequence[str]) -> Arrays:
    """Of each method that compared clients."""
    each = {label: found_distances(label, seed, changes) for label in COMPARED}
    return {label: matrix for label, matrix in each.items() if matrix is not None}


def collect_solver(seed: int, changes: Sequence[str]) -> Arrays:
    """The objective after every visit, [restarts, visits]; a restart that has stopped stays where it is."""
    run = config("FedCollab", seed, changes)
    distances = found_distances("FedCollab", seed, changes)
    sizes = build(run)[0].population.sizes.numpy()
    solution = solver.solve(sizes, distances, run.method.C, RESTARTS, np.random.default_rng(seed), trace=True)
    curves = solution.trajectories or ()
    longest = max(map(len, curves))
    values = [np.pad(curve, (0, longest - len(curve)), mode="edge") for curve in curves]
    return {"values": np.array(values), "clients": np.array(float(len(sizes)))}


def collect_table(_seed: int, _changes: Sequence[str]) -> Arrays:
    """Ours and published, mean and standard deviation, [rows, 4] for each metric of the filled table."""
    table = store.load_table(FILLED)
    column = table.spec.columns[COLUMN].label
    found = {}
    for metric in table.spec.metrics:
        cells = [table.cell(row.label, column, metric.name) for row in table.spec.rows]
        published = [(c.published.mean, c.published.std) if c.published else (np.nan, np.nan) for c in cells]
        found[metric.label] = np.array(
            [(c.mean, c.std, *theirs) for c, theirs in zip(cells, published, strict=True)], dtype=np.float64
        )
    return found


def draw_table(arrays: Arrays) -> Figure:
    """A panel a metric."""
    names = [row.label.replace("+", " + ") for row in store.load_table(FILLED).spec.rows]
    return beside(arrays, names, "FedCollab's Table 1, label shift on Fashion-MNIST, five seeds")


def draw_distances(arrays: Arrays) -> Figure:
    """A panel a method."""
    return collaboration.distances(arrays, "Distances between clients, Fashion-MNIST, label shift")


def draw_solver(arrays: Arrays) -> Figure:
    """A line a restart."""
    ends = arrays["values"][:, -1]
    best = int(np.isclose(ends, ends.min()).sum())
    title = f"Coalition solver, label shift: {best} of {len(ends)} orders end at the best value"
    return collaboration.convergence(arrays["values"], int(arrays["clients"]), title)


FIGURES = {
    "fedcollab_distances": Kind(collect_distances, draw_distances),
    "fedcollab_solver": Kind(collect_solver, draw_solver),
    "fedcollab_t1": Kind(collect_table, draw_table, kept=False),
}


def main(given: Sequence[str] | None = None) -> int:
    """Make the chosen figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(FIGURES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/figures"))
    parser.add_argument("--redraw", action="store_true", help="from OUT/NAME.npz, without any run")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="overrides of the runs")
    asked = parser.parse_args(given)
    if unknown := set(asked.names) - set(FIGURES):
        parser.error(f"no figure {', '.join(sorted(unknown))}; there are {', '.join(FIGURES)}")
    asked.out.mkdir(parents=True, exist_ok=True)
    made = [name for name, kind in FIGURES.items() if not kind.kept or (asked.out / f"{name}.npz").exists()]
    for name in asked.names or (made if asked.redraw else FIGURES):
        kind, place = FIGURES[name], asked.out / f"{name}.npz"
        if kind.kept and not asked.redraw:
            np.savez_compressed(place, **kind.collect(asked.seed, asked.set))
        arrays = dict(np.load(place)) if kind.kept else kind.collect(asked.seed, asked.set)
        with rc_context({"svg.hashsalt": name}):  # the same file each time
            kind.draw(arrays).savefig(place.with_suffix(".svg"), metadata={"Date": None})
        print(place.with_suffix(".svg"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
