"""A figure of our values beside the published ones: a panel a metric, a line a method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedbench.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]

OURS, PUBLISHED = style.COLOURS[:2]
APART = 0.16  # of a line, by which ours lies above it and the published value below


def beside(metrics: Mapping[str, Floats], names: Sequence[str], title: str) -> Figure:
    """Mean and standard deviation, ours and published, [names, 4] in that order, for each metric; nan is left out."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(style.PAGE, 0.7 + 0.2 * len(names)), layout="constrained", facecolor="white")
    figure.suptitle(title)
    axes = figure.subplots(1, len(metrics), sharey=True, squeeze=False)[0]
    for axis, (label, values) in zip(axes, metrics.items(), strict=True):
        _panel(axis, values)
        axis.set_xlabel(label)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure


def _panel(axis: Axes, values: Floats) -> None:
    places = np.arange(len(values))
    for start, shift, colour, marker, face, label in (
        (0, -APART, OURS, "o", OURS, "ours, mean ± standard deviation over seeds"),
        (2, APART, PUBLISHED, "D", "white", "published"),
    ):
        axis.errorbar(
            values[:, start],
            places + shift,
            xerr=values[:, start + 1],
            fmt=marker,
            color=colour,
            markerfacecolor=face,
            markersize=3.5,
            linewidth=1.0,
            label=label,
        )
    axis.grid(axis="x", alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
