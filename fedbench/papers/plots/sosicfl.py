"""The figures of SosicFL (arXiv 2403.03333, 2024). Arrays: see fedbench.papers.figure_arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedbench.plots import style
from fedbench.plots.style import Arrays

KINDS = (("acc_on_common", "global accuracy, %"), ("acc_on_local", "mean local accuracy, %"))


def _clients(a: Arrays) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (positions [N, 3], cluster of each client [N], centres [C, 3]) of the first seed."""
    positions, cluster, centres = (a[f"array/{name}/0/0"][0] for name in ("positions", "cluster", "centers"))
    return positions, cluster.astype(int), centres


def _members(axis: Axes, a: Arrays) -> None:
    positions, cluster, centres = _clients(a)
    places, middles = style.simplex_to_plane(positions), style.simplex_to_plane(centres)
    for index in range(len(centres)):
        look = style.line_style(index)
        own = places[cluster == index]
        axis.scatter(own[:, 0], own[:, 1], s=14, color=look["color"], marker=look["marker"], linewidths=0)
        axis.scatter(middles[index, 0], middles[index, 1], s=32, color=look["color"], marker="x", linewidths=1.4)
    style.draw_simplex(axis)


def f2(a: Arrays) -> Figure:
    """Draw label distributions, and the clients as points of the simplex, clusters and their centres."""
    figure, ((left, middle),) = style.panels(1, 2, height=2.5)
    _, cluster, _ = _clients(a)
    order = np.argsort(cluster, kind="stable")
    counts = a["counts/0/0"][order]
    style.draw_label_counts(left, counts, "label distributions, clients by cluster")
    _members(middle, a)
    middle.set_title("clients (markers by cluster) and centres (×)")
    return figure


def f3(a: Arrays) -> Figure:
    """Draw where in the simplex the clients of each cluster draw their alpha."""
    draws = a["draws"]  # [C, P, 3]
    figure, ((axis,),) = style.panels(height=2.9)
    for index, cloud in enumerate(draws):
        x, y = style.simplex_to_plane(cloud).T
        axis.scatter(x, y, s=2, color=style.line_style(index)["color"], alpha=0.35, linewidths=0, rasterized=True)
    _members(axis, a)
    return figure


def f4(a: Arrays) -> Figure:
    """Draw global and local accuracy over rounds by method."""
    figure, axes = style.panels(1, 2, height=2.5)
    for axis, (column, label) in zip(axes[0], KINDS, strict=True):
        style.draw_lines(axis, a["round"], a[f"curve/{column}"][:, 0], a["rows"])
        axis.set(xlabel="round", ylabel=label)
    style.legend(figure, axes[0, 1])
    return figure


def f5(a: Arrays) -> Figure:
    """Draw accuracy over the simplex: of all clients, and of two clients of different clusters."""
    points, overall, local = (a[f"array/record/simplex/{part}/0/0"][0, 0] for part in ("points", "global", "local"))
    positions, cluster, centres = _clients(a)
    chosen = apart(cluster, centres)
    figure, axes = style.panels(1, 3, height=2.3)
    shown = [(overall, "global test set", None), *((local[:, k], f"client {k}", k) for k in chosen)]
    for axis, (values, title, client) in zip(axes[0], shown, strict=True):
        x, y = style.simplex_to_plane(points).T
        image = axis.scatter(x, y, c=100 * values, s=3, linewidths=0, rasterized=True)
        style.draw_simplex(axis)
        axis.set_title(title)
        figure.colorbar(image, ax=axis, shrink=0.7, label="accuracy, %", orientation="horizontal", pad=0.02)
        if client is not None:
            axis.scatter(*style.simplex_to_plane(positions[client]), s=30, color="white", edgecolors="black", zorder=3)
            axis.scatter(*style.simplex_to_plane(centres[cluster[client]]), s=40, color="#D00000", marker="x", zorder=3)
    return figure


def apart(cluster: Any, centres: Any) -> tuple[int, int]:
    """Return the first clients of the two clusters whose centres are farthest apart."""
    gaps = np.abs(centres[:, None] - centres[None]).sum(2)
    first, second = np.unravel_index(gaps.argmax(), gaps.shape)
    return int(np.argmax(cluster == first)), int(np.argmax(cluster == second))


def f6(a: Arrays) -> Figure:
    """Draw the total variance of the classifier's updates over rounds (Eq. 10) by method."""
    values = [a[f"array/record/update_variance/value/{r}/0"] for r in range(len(a["rows"]))]
    rounds = a["array/record/update_variance/round/0/0"][0]
    label = "total variance of updates"
    figure = style.line_figure(rounds, values, a["rows"], "round", label, height=2.7, columns=3)
    figure.axes[0].set_yscale("log")
    return figure


def f7(a: Arrays) -> Figure:
    """Draw local accuracy over clusters C and radius rho, beside the baselines'."""
    names = list(a["rows"])
    settings = [name for name in names if name.startswith("C=")]
    score = style.mean(a["score/acc_on_local"], 2)
    cells = score[: len(settings)]
    figure, ((axis,),) = style.panels(height=2.3)
    image = axis.imshow(cells, origin="lower", aspect="auto")
    style.write_numbers(axis, cells, (cells.min() + cells.max()) / 2, "{:.1f}")
    axis.set_xticks(range(cells.shape[1]), a["columns"])
    axis.set_yticks(range(len(settings)), settings)
    rest = ", ".join(f"{name} {score[names.index(name), 0]:.1f}" for name in names[len(settings) :])
    axis.set(xlabel=r"$\rho$", title=rest)
    axis.spines[:].set_visible(False)
    figure.colorbar(image, ax=axis, label="mean local accuracy, %")
    return figure


def f8(a: Arrays) -> Figure:
    """Draw local accuracy over rounds when subregions are assigned at several rounds."""
    curves = a["curve/acc_on_local"][:, 0]
    return style.line_figure(a["round"], curves, a["rows"], "round", "mean local accuracy, %", height=2.7, columns=2)


f9 = f4  # with SosicFL-All, from random weights
