"""Figures of how clients find each other: distances between them, and the coalition solver's way to its solution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]


def distances(matrices: Mapping[str, Floats], title: str) -> Figure:
    """Distances [N, N] between clients by method, a panel each, every one on its own scale from zero."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(3.6 * len(matrices), 3.6), layout="constrained")
    figure.suptitle(title)
    for index, (name, matrix) in enumerate(matrices.items(), 1):
        axis = figure.add_subplot(1, len(matrices), index, title=name, xlabel="client")
        image = axis.imshow(matrix, vmin=0.0, cmap="viridis")
        for ticks in (axis.xaxis, axis.yaxis):
            ticks.set_major_locator(MaxNLocator(integer=True, nbins=5))
        figure.colorbar(image, ax=axis, shrink=0.8)
    return figure


def convergence(values: Floats, clients: int, title: str) -> Figure:
    """The solver's objective [restarts, visits] over passes through all `clients`, a line each restart.

    A restart that has stopped stays at its last value.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.0, 3.8), layout="constrained")
    axis = figure.add_subplot(title=title, xlabel="passes through all clients", ylabel="objective (Eq. 10)")
    axis.plot(np.arange(values.shape[1]) / clients, values.T, color="tab:blue", alpha=0.2, linewidth=0.8)
    axis.grid(alpha=0.3)
    return figure
