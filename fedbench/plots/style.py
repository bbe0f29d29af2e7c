"""The one look of all figures: a column wide, 8 pt, no two lines told apart by colour alone."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Arrays = Mapping[str, NDArray[Any]]

COLUMN, PAGE = 3.4, 7.0  # inches, of a paper with two columns
# Okabe and Ito's palette: told apart by colour-blind readers.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (7, 2)))
INK, PALE = "#333333", "#BBBBBB"
SIZE = 8  # points
RC: dict[Any, Any] = {
    "font.size": SIZE,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "axes.titlesize": SIZE,
    "axes.labelsize": SIZE,
    "xtick.labelsize": SIZE - 1,
    "ytick.labelsize": SIZE - 1,
    "legend.fontsize": SIZE - 1,
    "figure.titlesize": SIZE + 1,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.edgecolor": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "image.cmap": "viridis",
    "svg.fonttype": "none",
}


def panels(
    down: int = 1, across: int = 1, *, width: float | None = None, height: float = 2.2, **sharing: Any
) -> tuple[Figure, NDArray[Any]]:
    """(figure, axes [down, across]); `height` inches a row; a column wide, the page where panels are side by side."""
    from matplotlib.figure import Figure

    chosen = width or (COLUMN if across == 1 else PAGE)
    figure = Figure(figsize=(chosen, height * down), layout="constrained", facecolor="white")
    return figure, figure.subplots(down, across, squeeze=False, **sharing)


def look(index: int) -> dict[str, Any]:
    """Colour, marker and dash of the line with this number; none of the first 64 are alike."""
    again = index + index // len(COLOURS)  # a colour that comes again has another marker and dash
    return {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[again % len(MARKERS)],
        "linestyle": DASHES[again % len(DASHES)],
    }


def legend(figure: Figure, axis: Axes, columns: int = 4) -> None:
    """Of the lines of `axis`, above the whole figure."""
    handles, labels = axis.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside upper center", ncols=min(columns, len(labels)))


@contextmanager
def styled(name: str) -> Iterator[None]:
    """Figures made and saved inside have this look, and `name`'s SVG is the same file each time."""
    from matplotlib import rc_context

    with rc_context({**RC, "svg.hashsalt": name}):
        yield


def save(figure: Figure, place: Path, caption: str = "", formats: Sequence[str] = ("svg", "png")) -> None:
    """Write `place`.FORMAT of each format, with `caption` in small print below it."""
    if caption:
        wide = int(figure.get_size_inches()[0] * 23)
        text = textwrap.fill(caption, wide)
        lines = text.count("\n") + 1
        width, height = figure.get_size_inches()
        figure.set_size_inches(width, height + 0.125 * lines + 0.05)
        figure.supxlabel(text, fontsize=6, color="#555555", x=0.01, ha="left")
    for kind in formats:
        extra: dict[str, Any] = {"metadata": {"Date": None}} if kind == "svg" else {}
        extra = {"metadata": {"CreationDate": None}} if kind == "pdf" else extra
        figure.savefig(place.parent / f"{place.name}.{kind}", dpi=200, **extra)


def mean(values: NDArray[Any], axis: int = 0) -> NDArray[Any]:
    """The mean of what is no nan; nan where all is."""
    known = np.isfinite(values)
    total = np.where(known, values, 0.0).sum(axis)
    return np.asarray(total / np.where(known.any(axis), known.sum(axis), np.nan))


def spread(values: NDArray[Any], axis: int = 0) -> NDArray[Any]:
    """The sample standard deviation of what is no nan; 0 of a single value."""
    known = np.isfinite(values)
    count = known.sum(axis)
    apart = np.where(known, values - np.expand_dims(mean(values, axis), axis), 0.0)
    return np.asarray(np.sqrt((apart**2).sum(axis) / np.maximum(count - 1, 1)))
