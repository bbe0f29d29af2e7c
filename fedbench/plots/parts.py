"""What figures are made of: lines with spread over seeds, heat maps, points of a simplex."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbench.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]


def curves(
    axis: Axes, x: Any, values: Any, labels: Iterable[str], *, dense: bool = True, start: int = 0
) -> None:
    """Lines of `values` [L, S, X]: mean over seeds S, a band (`dense`) or bars of one standard deviation."""
    place = np.asarray(x, dtype=np.float64)
    for index, (label, line) in enumerate(zip(labels, values, strict=True), start):
        middle, apart = style.mean(line), style.spread(line)
        if not np.isfinite(middle).any():
            continue
        if dense:
            every = max(1, len(place) // 6)
            axis.plot(place, middle, label=label, markevery=(index % every, every), **style.look(index))
            axis.fill_between(
                place,
                middle - apart,
                middle + apart,
                color=style.look(index)["color"],
                alpha=0.18,
                linewidth=0,
            )
        else:
            axis.errorbar(place, middle, apart, capsize=2, elinewidth=0.8, label=label, **style.look(index))
    axis.grid()


def level(axis: Axes, values: Any, label: str, index: int) -> None:
    """A baseline: the mean of `values` over all the width, its standard deviation as a band."""
    middle, apart = float(style.mean(np.ravel(values))), float(style.spread(np.ravel(values)))
    look = {**style.look(index), "marker": ""}
    axis.axhline(middle, label=label, **look)
    axis.axhspan(middle - apart, middle + apart, color=look["color"], alpha=0.12, linewidth=0)


def heat(
    axis: Axes,
    matrix: Any,
    title: str = "",
    *,
    unit: str = "",
    low: float | None = None,
    high: float | None = None,
) -> Any:
    """A matrix [N, N] by colour, with its scale beside it."""
    image = axis.imshow(np.asarray(matrix, dtype=np.float64), vmin=low, vmax=high, interpolation="nearest")
    axis.set_title(title)
    whole(axis)
    axis.spines[:].set_visible(False)
    scale = axis.figure.colorbar(image, ax=axis, shrink=0.85, pad=0.02)
    scale.outline.set_visible(False)
    scale.set_label(unit)
    return image


def matrices(values: Any, titles: Iterable[str], of: str, unit: str, *, height: float) -> Figure:
    """A figure of matrices [N, N] between 0 and 1 side by side: `of` what they are, `unit` of the common scale."""
    figure, axes = style.panels(1, len(values), height=height)
    for axis, matrix, title in zip(axes[0], values, titles, strict=True):
        image = axis.imshow(matrix, vmin=0, vmax=1)
        axis.set(title=title, xlabel=of)
        whole(axis)
        axis.spines[:].set_visible(False)
    axes[0, 0].set_ylabel(of)
    figure.colorbar(image, ax=axes[0], shrink=0.7, pad=0.01, label=unit)
    return figure


def whole(axis: Axes) -> None:
    """Ticks at whole numbers, of clients or classes."""
    from matplotlib.ticker import MaxNLocator

    for ticks in (axis.xaxis, axis.yaxis):
        ticks.set_major_locator(MaxNLocator(integer=True, nbins=5))


def bubbles(axis: Axes, counts: Any, title: str = "") -> None:
    """Samples `counts` [N, K] of each class (up) on each client (across), by a circle's area."""
    counts = np.asarray(counts, dtype=np.float64)
    client, label = np.nonzero(counts)
    area = counts[client, label] / max(1.0, counts.max())
    box = 0.7 * 72 * min(3.0 / counts.shape[0], 2.0 / counts.shape[1])  # points between two circles
    axis.scatter(client, label, s=area * max(3.0, box) ** 2, color=style.COLOURS[0], alpha=0.75, linewidths=0)
    axis.set_title(title)
    axis.set_xlabel("client")
    axis.set_ylabel("class")
    axis.set_xlim(-1, counts.shape[0])
    axis.set_ylim(-1, counts.shape[1])
    whole(axis)


def bars(axis: Axes, values: Any, labels: Sequence[str]) -> None:
    """Means of `values` [L, S] over seeds as bars with one standard deviation, hatched to be told apart in grey."""
    place = np.arange(len(labels))
    hatches = ("", "///", "...", "xxx", "\\\\\\", "ooo", "++", "--")
    drawn = axis.bar(
        place,
        [float(style.mean(each)) for each in values],
        yerr=[float(style.spread(each)) for each in values],
        color=[style.COLOURS[i % len(style.COLOURS)] for i in place],
        edgecolor="white",
        capsize=2,
        error_kw={"elinewidth": 0.8},
    )
    for index, bar in enumerate(drawn):
        bar.set_hatch(hatches[index % len(hatches)])
    axis.set_xticks(place, labels, rotation=30, ha="right", rotation_mode="anchor")
    axis.grid(axis="y")


def flat(points: Any) -> Floats:
    """Points [..., 3] of the simplex in the plane, [..., 2]: corners at (0, 0), (1, 0) and above their middle."""
    corners = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])
    return np.asarray(np.asarray(points, dtype=np.float64) @ corners)


def triangle(axis: Axes) -> None:
    """The edges of the simplex, and names of its corners."""
    edge = flat(np.eye(3))[[0, 1, 2, 0]]
    axis.plot(edge[:, 0], edge[:, 1], color=style.INK, linewidth=0.8)
    for name, (x, y), (dx, dy) in zip("123", flat(np.eye(3)), ((-6, -6), (6, -6), (0, 6)), strict=True):
        axis.annotate(
            rf"$\alpha_{name}$", (x, y), xytext=(dx, dy), textcoords="offset points", ha="center", va="center"
        )
    axis.set_aspect("equal")
    axis.set_axis_off()
    axis.margins(0.1)


def order(matrix: Any) -> NDArray[np.int64]:
    """An order of the clients [N] in which those who weigh each other stand together: hierarchical clustering of W."""
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    both = np.nan_to_num((np.asarray(matrix) + np.asarray(matrix).T) / 2)
    if len(both) < 3:
        return np.arange(len(both))
    apart = both.max() - both
    np.fill_diagonal(apart, 0)
    return np.asarray(leaves_list(linkage(squareform(apart, checks=False), "average")), dtype=np.int64)
