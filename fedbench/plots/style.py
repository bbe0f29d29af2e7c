"""The style of all figures (a column wide, 8 pt, no two lines differ only by colour), and their parts."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbench.core.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Arrays = Mapping[str, NDArray[Any]]
Floats = NDArray[np.float64]

COLUMN, PAGE = 3.4, 7.0  # inches, of a paper with two columns
# Okabe and Ito's palette: told apart by colour-blind readers.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (7, 2)))
INK = "#333333"
SIZE = 8  # points
FORMATS = ("svg", "png", "pdf")
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
    """Return (figure, axes [down, across]), with rows `height` inches high; side by side panels are a page wide."""
    from matplotlib.figure import Figure

    chosen = width or (COLUMN if across == 1 else PAGE)
    figure = Figure(figsize=(chosen, height * down), layout="constrained", facecolor="white")
    return figure, figure.subplots(down, across, squeeze=False, **sharing)


def line_style(index: int) -> dict[str, Any]:
    """Return colour, marker and dash of the line with this number; none of the first 64 are alike."""
    again = index + index // len(COLOURS)  # a colour that comes again has another marker and dash
    return {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[again % len(MARKERS)],
        "linestyle": DASHES[again % len(DASHES)],
    }


def legend(figure: Figure, axis: Axes, columns: int = 4) -> None:
    """Put the legend of the lines of `axis` above the whole figure, which grows if the legend has many rows."""
    handles, labels = axis.get_legend_handles_labels()
    if handles:  # as many columns as fit, in letters; a line's sample takes 13
        wide = figure.get_figwidth()
        labels = [textwrap.fill(label, int(14 * wide) - 13) for label in labels]
        across = max(1, min(columns, len(labels), int(17 * wide) // (13 + max(map(len, labels)))))
        rows = -(-sum(label.count("\n") + 1 for label in labels) // across)
        figure.legend(handles, labels, loc="outside upper center", ncols=across)
        figure.set_figheight(figure.get_figheight() + 0.16 * max(0, rows - 2))


def line_figure(
    x: Any, values: Any, labels: Iterable[str], xlabel: str, ylabel: str, *, height: float, columns: int, **how: Any
) -> Figure:
    """Return a figure of one panel of lines, drawn as `how` says (see `draw_lines`), its legend in `columns`."""
    figure, ((axis,),) = panels(height=height)
    draw_lines(axis, x, values, labels, **how)
    axis.set(xlabel=xlabel, ylabel=ylabel)
    legend(figure, axis, columns)
    return figure


@contextmanager
def styled(name: str, *, math: bool = False) -> Iterator[None]:
    """Give figures made and saved inside this style; `name`'s SVG is the same file each time.

    `math`: what stands between two $ is a formula; else a name such as "$10k-$20k" of a client is drawn as it is.
    """
    from matplotlib import rc_context

    with rc_context({**RC, "svg.hashsalt": name, "text.parse_math": math}):
        yield


def save_as(figure: Figure, place: Path, caption: str = "", formats: Iterable[str] = ("svg", "png")) -> None:
    """Write `place`.FORMAT of each format, with `caption` in small print below it."""
    if caption:
        width, height = figure.get_size_inches()
        text = textwrap.fill(caption, int(width * 21))
        lines = text.count("\n") + 1
        figure.set_size_inches(width, height + 0.125 * lines + 0.05)
        figure.supxlabel(text, fontsize=6, color="#555555", x=0.01, ha="left")
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    for kind in formats:
        with replacing(place.parent / f"{place.name}.{kind}") as temporary:
            figure.savefig(temporary, format=kind, dpi=200, metadata=undated.get(kind))


def mean(values: NDArray[Any], axis: int = 0) -> NDArray[Any]:
    """Return the mean of the values other than nan; nan if all are nan."""
    return np.asarray(np.ma.filled(np.ma.masked_invalid(values).mean(axis), np.nan))


def spread(values: NDArray[Any], axis: int = 0) -> NDArray[Any]:
    """Return the sample standard deviation of the values other than nan; 0 for a single value."""
    return np.asarray(np.ma.filled(np.ma.masked_invalid(values).std(axis, ddof=1), 0.0))


def draw_lines(axis: Axes, x: Any, values: Any, labels: Iterable[str], *, dense: bool = True, start: int = 0) -> None:
    """Draw lines of `values` [L, S, X]: mean over seeds S, a band (`dense`) or bars of one standard deviation."""
    place = np.asarray(x, dtype=np.float64)
    for index, (label, line) in enumerate(zip(labels, values, strict=True), start):
        known = np.isfinite(mean(line))  # another line may have been scored at other places
        at, middle, apart = place[known], mean(line)[known], spread(line)[known]
        if not known.any():
            continue
        if dense:
            every = max(1, len(at) // 6)
            axis.plot(at, middle, label=label, markevery=(index % every, every), **line_style(index))
            colour = line_style(index)["color"]
            axis.fill_between(at, middle - apart, middle + apart, color=colour, alpha=0.18, linewidth=0)
        else:
            axis.errorbar(at, middle, apart, capsize=2, elinewidth=0.8, label=label, **line_style(index))
    axis.grid()


def draw_level(axis: Axes, values: Any, label: str, index: int) -> None:
    """Draw a baseline over the whole width: the mean of `values`, and their standard deviation as a band."""
    middle, apart = float(mean(np.ravel(values))), float(spread(np.ravel(values)))
    drawn = {**line_style(index), "marker": ""}
    axis.axhline(middle, label=label, **drawn)
    axis.axhspan(middle - apart, middle + apart, color=drawn["color"], alpha=0.12, linewidth=0)


def draw_matrix(axis: Axes, matrix: Any, title: str, *, low: float, high: float | None = None, unit: str = "") -> None:
    """Draw a matrix [N, N] by colour, with its scale beside it."""
    image = axis.imshow(np.asarray(matrix, dtype=np.float64), vmin=low, vmax=high, interpolation="nearest")
    axis.set_title(title)
    integer_ticks(axis)
    axis.spines[:].set_visible(False)
    scale = axis.figure.colorbar(image, ax=axis, shrink=0.85, pad=0.02)
    scale.outline.set_visible(False)
    scale.set_label(unit)


def write_numbers(axis: Axes, cells: Any, middle: float, form: str = "{}") -> None:
    """Write its number into each cell of an image ("-" for nan), in white on dark cells, which are below `middle`."""
    for (row, column), value in np.ndenumerate(cells):
        text, colour = "-" if np.isnan(value) else form.format(value), "white" if value < middle else "black"
        axis.text(column, row, text, ha="center", va="center", color=colour)


def matrix_panels(values: Any, titles: Iterable[str], of: str, unit: str, *, height: float) -> Figure:
    """Return a figure of matrices [N, N] in [0, 1] side by side; `of` names them, `unit` their common scale."""
    figure, axes = panels(1, len(values), height=height)
    for axis, matrix, title in zip(axes[0], values, titles, strict=True):
        image = axis.imshow(matrix, vmin=0, vmax=1)
        axis.set(title=title, xlabel=of)
        integer_ticks(axis)
        axis.spines[:].set_visible(False)
    axes[0, 0].set_ylabel(of)
    figure.colorbar(image, ax=axes[0], shrink=0.7, pad=0.01, label=unit)
    return figure


def integer_ticks(axis: Axes) -> None:
    """Put ticks at whole numbers, of clients or classes."""
    from matplotlib.ticker import MaxNLocator

    for ticks in (axis.xaxis, axis.yaxis):
        ticks.set_major_locator(MaxNLocator(integer=True, nbins=5))


def draw_label_counts(axis: Axes, counts: Any, title: str = "") -> None:
    """Draw samples `counts` [N, K] of each class (up) on each client (across) as areas of circles."""
    counts = np.asarray(counts, dtype=np.float64)
    client, label = np.nonzero(counts)
    area = counts[client, label] / max(1.0, counts.max())
    box = 0.7 * 72 * min(3.0 / counts.shape[0], 2.0 / counts.shape[1])  # points between two circles
    axis.scatter(client, label, s=area * max(3.0, box) ** 2, color=COLOURS[0], alpha=0.75, linewidths=0)
    axis.set(title=title, xlabel="client", ylabel="class", xlim=(-1, counts.shape[0]), ylim=(-1, counts.shape[1]))
    integer_ticks(axis)


def draw_bars(axis: Axes, values: Any, labels: Sequence[str]) -> None:
    """Draw means of `values` [L, S] over seeds as bars with one standard deviation, hatched for readers in grey."""
    place = np.arange(len(labels))
    hatches = ("", "///", "...", "xxx", "\\\\\\", "ooo", "++", "--")
    drawn = axis.bar(
        place,
        [float(mean(each)) for each in values],
        yerr=[float(spread(each)) for each in values],
        color=[COLOURS[i % len(COLOURS)] for i in place],
        edgecolor="white",
        capsize=2,
        error_kw={"elinewidth": 0.8},
    )
    for index, bar in enumerate(drawn):
        bar.set_hatch(hatches[index % len(hatches)])
    axis.set_xticks(place, labels, rotation=30, ha="right", rotation_mode="anchor")
    axis.grid(axis="y")


def simplex_to_plane(points: Any) -> Floats:
    """Return points [..., 3] of the simplex in the plane [..., 2]: corners at (0, 0), (1, 0) and above the middle."""
    corners = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])
    return np.asarray(np.asarray(points, dtype=np.float64) @ corners)


def draw_simplex(axis: Axes) -> None:
    """Draw the edges of the simplex, and names of its corners."""
    edge = simplex_to_plane(np.eye(3))[[0, 1, 2, 0]]
    axis.plot(edge[:, 0], edge[:, 1], color=INK, linewidth=0.8)
    for name, (x, y), (dx, dy) in zip("123", simplex_to_plane(np.eye(3)), ((-6, -6), (6, -6), (0, 6)), strict=True):
        axis.annotate(
            rf"$\alpha_{name}$", (x, y), xytext=(dx, dy), textcoords="offset points", ha="center", va="center"
        )
    axis.set_aspect("equal")
    axis.set_axis_off()
    axis.margins(0.1)


def cluster_order(matrix: Any) -> NDArray[np.int64]:
    """Return an order of clients [N] in which those who weigh each other are neighbours, by hierarchical clustering."""
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    both = np.nan_to_num((np.asarray(matrix) + np.asarray(matrix).T) / 2)
    if len(both) < 3:
        return np.arange(len(both))
    apart = both.max() - both
    np.fill_diagonal(apart, 0)
    return np.asarray(leaves_list(linkage(squareform(apart, checks=False), "average")), dtype=np.int64)


def label_distributions(counts: Any) -> Floats:
    """Return the label distribution of each client, [N, K]; each client has a sample."""
    counts = np.asarray(counts, dtype=np.float64)
    return np.asarray(counts / counts.sum(1, keepdims=True))


def label_cosine(counts: Any) -> Floats:
    """Return the cosine of every two label distributions, [N, N]."""
    q = label_distributions(counts)
    q = q / np.linalg.norm(q, axis=1, keepdims=True)
    return np.asarray(q @ q.T)
