"""Figures of papers that are neither a table nor a sweep, on the runs behind FedCollab's Table 2, label shift.

    python scripts/figures.py [NAME ...] [--seed 0] [--out results/figures] [--redraw] [--set KEY=VALUE ...]

fedcollab_distances (Figure 5): distances between clients as FedCollab, FedCluster, FeSEM and KMeans see them.
fedcollab_solver (Figure 8): the objective along the coalition solver's way, from 100 random orders.

What is missing is run first (runs_dir as everywhere); --redraw draws what was made before again. The numbers go to
OUT/NAME.npz, the figure to OUT/NAME.svg; `--set` changes the runs, for a trial.
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
from fedbench.results.folder import ARRAYS, files_of
from fedbench.runs.config import RunConfig, resolve
from fedbench.runs.execution import build, execute
from fedbench.tables import spec

Arrays = dict[str, NDArray[np.float64]]

TABLE, COLUMN = "fedcollab_t2", 0
COMPARED = ("FedCollab", "FedCluster", "FeSEM", "KMeans")
RESTARTS = 100


@dataclass(frozen=True)
class Kind:
    """How a figure's numbers are found, and how they are drawn."""

    collect: Callable[[int, Sequence[str]], Arrays]
    draw: Callable[[Arrays], Figure]


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
    made = [name for name in FIGURES if (asked.out / f"{name}.npz").exists()]
    for name in asked.names or (made if asked.redraw else FIGURES):
        place = asked.out / f"{name}.npz"
        if not asked.redraw:
            np.savez_compressed(place, **FIGURES[name].collect(asked.seed, asked.set))
        with np.load(place) as arrays, rc_context({"svg.hashsalt": name}):  # the same file each time
            FIGURES[name].draw(dict(arrays)).savefig(place.with_suffix(".svg"), metadata={"Date": None})
        print(place.with_suffix(".svg"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
