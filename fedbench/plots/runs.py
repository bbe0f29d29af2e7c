"""Figures of any runs: a partition, accuracy over rounds, gain by client, collaboration matrices, tables, sweeps."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbench.config.schema import score_of
from fedbench.core.tables import grouped
from fedbench.plots import style
from fedbench.plots.style import Floats

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

Curve = Mapping[str, Sequence[float]]  # column of rounds.csv -> values, one a scored round
GIGA = 1e9

# of a figure beside published values
OURS, PUBLISHED = style.COLOURS[:2]
APART = 0.16  # of a line, by which ours lies above it and the published value below

# of a sweep's figure
COLUMNS = 3  # panels side by side
DODGE = 0.6  # of the way to the next category, over which the dots of one are spread
NAMES = {"score": "accuracy, %", "acc": "accuracy, %", "acc_on_local": "local accuracy, %", "ipr": "IPR, %"}


def curve_of(rows: Sequence[Mapping[str, str]]) -> Curve:
    """Return the columns of a history by name; an empty field is nan."""
    return {name: [float(row[name] or "nan") for row in rows] for name in rows[0]}


def accuracy_curves(runs: Mapping[str, Sequence[Curve]], column: str, label: str = "accuracy, %") -> Figure:
    """Draw `column` over rounds: for each name the mean over its runs (seeds) and a band of one standard deviation."""
    where = _over_rounds(runs, column)
    return style.line_figure(*where, list(runs), "round", textwrap.fill(label, 40), height=2.8, columns=2)


def _over_rounds(lines: Mapping[str, Sequence[Curve]], column: str) -> tuple[list[float], list[NDArray[Any]]]:
    """Return the rounds X at which a run was scored, and for each line `column` [runs, X], nan where it was not."""
    rounds = sorted({done for each in lines.values() for run in each for done in run["round"]})
    # Of several runs one may not have the column.
    known = [[dict(zip(run["round"], run.get(column, ()), strict=False)) for run in each] for each in lines.values()]
    return rounds, [np.array([[run.get(done, np.nan) for done in rounds] for run in each]) for each in known]


def cost_curves(runs: Mapping[str, Sequence[Curve]], column: str, label: str = "accuracy, %") -> Figure:
    """Draw `column` against gigabytes sent and seconds of work, with a line for each run."""
    figure, axes = style.panels(1, 2, height=2.5, sharey=True)
    for index, (name, each) in enumerate(runs.items()):
        for place, run in enumerate(each):
            look = {**style.line_style(index), "label": name if place == 0 else None, "markevery": 0.25}
            sent = (np.asarray(run["bytes_up"]) + np.asarray(run["bytes_down"])) / GIGA
            axes[0, 0].plot(sent, run[column], **look)
            axes[0, 1].plot(run["seconds_total"], run[column], **look)
    axes[0, 0].set(xlabel="gigabytes, both ways", ylabel=label)
    axes[0, 1].set(xlabel="seconds")
    for axis in axes[0]:
        axis.grid()
    style.legend(figure, axes[0, 0])
    return figure


def local_common_plane(runs: Mapping[str, Sequence[tuple[float, float]]], what: str = "accuracy") -> Figure:
    """Draw `what` of runs on the common test set against clients' own samples, a small dot each and a large mean.

    Above the dotted line personal models know their own client better than the others.
    """
    figure, ((axis,),) = style.panels(height=3.2)
    for index, (name, each) in enumerate(runs.items()):
        x, y = np.array(each, dtype=np.float64).T
        look = {**style.line_style(index), "linestyle": ""}
        axis.plot(x, y, **look, alpha=0.4, markersize=2.5)
        axis.plot(x.mean(), y.mean(), **look, markersize=6, label=name)
    axis.axline((50, 50), slope=1, color="0.6", linestyle=":", linewidth=0.8)
    axis.set(xlabel=f"{what} on the test set of all, %", ylabel=f"{what} on clients' own samples, %")
    axis.autoscale_view()
    axis.grid()
    style.legend(figure, axis, 2)
    return figure


def gain_bars(gain: NDArray[Any], title: str = "", names: Sequence[str] = ()) -> Figure:
    """Draw the gain over Local of each client [N], called by `names`, in points, sorted; losses hatched.

    A client without a test sample (nan) has no bar and does not count.
    """
    gain = np.asarray(gain, dtype=np.float64)
    order = np.argsort(-gain)
    figure, ((axis,),) = style.panels(height=2.2)
    for chosen, colour, hatch, label in (
        (gain > 0, style.COLOURS[0], "", "gains"),
        (gain <= 0, style.COLOURS[1], "///", "does not gain"),
    ):
        places = np.flatnonzero(chosen[order])
        if len(places):
            axis.bar(
                places, gain[order][places], color=colour, hatch=hatch, edgecolor="white", linewidth=0.3,
                label=f"{label}: {len(places)} of {np.isfinite(gain).sum()}",
            )  # fmt: skip
    _name_clients(order, names, axis.xaxis)
    axis.set(xlabel="client, sorted by gain", ylabel="gain over Local, points", title=title)
    axis.grid(axis="y")
    style.legend(figure, axis, 2)
    return figure


def collaboration_matrix(W: NDArray[Any], title: str = "", names: Sequence[str] = ()) -> Figure:
    """Draw the matrix W [N, N] with clients ordered so that those who weigh each other stand together."""
    order = style.cluster_order(W)
    figure, ((axis,),) = style.panels(height=3.0)
    style.draw_matrix(axis, np.asarray(W)[np.ix_(order, order)], title, unit="weight", low=0.0)
    _name_clients(order, names, axis.xaxis, axis.yaxis)
    axis.set(xlabel="from client", ylabel="for client")
    return figure


def _name_clients(order: NDArray[np.int64], names: Sequence[str], *sides: Axis) -> None:
    """Put ticks at the clients in this `order`; with more than 30 at every second, third, ... client."""
    places = range(0, len(order), -(-len(order) // 30))
    called = [_called(names, order[place]) for place in places]
    for side in sides:
        side.set_ticks(places, called, fontsize=5)
        if side.get_label_position() == "bottom" and max(map(len, called)) > 3:
            side.set_tick_params(rotation=90)


def _called(names: Sequence[str], client: int) -> str:
    """Return the name of a client, or its number if it has none."""
    return str(names[client] if len(names) else client)[:20]


def partition_bubbles(counts: NDArray[Any], title: str = "", names: Sequence[str] = ()) -> Figure:
    """Draw the samples of each class on each client, `counts` [N, K]."""
    figure, ((axis,),) = style.panels(height=2.9)
    style.draw_label_counts(axis, counts, title)
    if len(names):
        _name_clients(np.arange(len(counts)), names, axis.xaxis)
    return figure


def client_map(
    counts: NDArray[Any], W: NDArray[Any] | None = None, title: str = "", names: Sequence[str] = ()
) -> Figure:
    """Draw clients in the plane so that clients with similar labels are close: histograms `counts` [N, K].

    The two leading principal components of the label distributions; colours and markers are the coalitions of W (rows
    that weigh the same clients) if there are at most eight, else the commonest label; areas are sizes.
    """
    q = style.label_distributions(counts)
    centred = q - q.mean(0)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    place = np.pad((left * values)[:, :2], ((0, 0), (0, max(0, 2 - len(values)))))
    group, kind = _groups(np.asarray(counts), W)
    size = np.asarray(counts).sum(1)
    figure, ((axis,),) = style.panels(height=2.9)
    for index, value in enumerate(np.unique(group)):
        own, look = group == value, style.line_style(index)
        axis.scatter(
            *place[own].T, s=12 + 50 * size[own] / size.max(), color=look["color"], marker=look["marker"],
            alpha=0.8, linewidths=0, label=f"{kind} {value}",
        )  # fmt: skip
    for client, (x, y) in enumerate(place if len(place) <= 30 else []):
        axis.annotate(_called(names, client), (x, y), xytext=(3, 3), textcoords="offset points", fontsize=5)
    share = values**2 / max(float((values**2).sum()), 1e-12)
    axis.set(title=title, xlabel=f"first component of labels ({100 * share[0]:.0f} %)")
    axis.set_ylabel(f"second component ({100 * share[1] if len(share) > 1 else 0:.0f} %)")
    style.legend(figure, axis, 3)
    return figure


def _groups(counts: NDArray[Any], W: NDArray[Any] | None) -> tuple[NDArray[Any], str]:
    """Return (group of each client, name of the grouping)."""
    if W is not None:
        _, group = np.unique(np.asarray(W) > 0, axis=0, return_inverse=True)
        if 1 < group.max() + 1 <= len(style.MARKERS):
            return group.ravel(), "coalition"
    return counts.argmax(1), "mostly label"


def beside_published(metrics: Mapping[str, Floats], names: Sequence[str], title: str) -> Figure:
    """Draw a panel for each metric and a line for each name of values [names, 4]: our mean and deviation, theirs."""
    title = textwrap.fill(title, 90)
    height = 0.7 + 0.2 * len(names) + 0.15 * title.count("\n")
    figure, (axes,) = style.panels(1, len(metrics), width=style.PAGE, height=height, sharey=True)
    figure.suptitle(title)
    for axis, (label, values) in zip(axes, metrics.items(), strict=True):
        places = np.arange(len(values))
        for start, shift, colour, marker, face, whose in (
            (0, -APART, OURS, "o", OURS, "ours, mean ± standard deviation over seeds"),
            (2, APART, PUBLISHED, "D", "white", "published"),
        ):
            axis.errorbar(
                values[:, start], places + shift, xerr=values[:, start + 1], fmt=marker, color=colour,
                markerfacecolor=face, linewidth=1.0, label=whose,
            )  # fmt: skip
        axis.grid(axis="x")
        axis.set_xlabel(label)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def named(y: str, runs: Iterable[Mapping[Any, Any]]) -> str:
    """Return the axis label of the column `y` of runs."""
    return NAMES.get(y, y).replace("accuracy", score_of(runs))


def sweep_lines(runs: pd.DataFrame, x: str, by: str, y: str, title: str) -> Figure:
    """Draw `y` over the evenly spaced values of `x`, with a style for each value of `by`, a panel for each of `panel`.

    A line joins numbers. Categories have no order: each has a dot with its spread, and each run has a small dot.
    """
    figure, axes = _sweep_panels(list(dict.fromkeys(runs["panel"])), title)
    for panel, axis in axes.items():
        mine = runs[runs["panel"] == panel]
        ticks = ordered(mine[x])
        values = ordered(mine[by]) if by else [""]
        for index, value in enumerate(values):
            part = mine[mine[by].astype(str) == value] if by else mine
            groups = [part[y][part[x].astype(str) == tick].to_numpy(float) for tick in ticks]
            means, spread = list(map(style.mean, groups)), list(map(style.spread, groups))
            look = {"marker": style.MARKERS[index % len(style.MARKERS)], "capsize": 3, "label": value}
            if _numeric(ticks):
                axis.errorbar(range(len(ticks)), means, spread, **look)
                continue
            place = np.arange(len(ticks)) + DODGE * ((index + 0.5) / len(values) - 0.5)
            drawn = axis.errorbar(place, means, spread, linestyle="none", **look)
            at = np.repeat(place, list(map(len, groups)))
            axis.plot(at, np.concatenate(groups), ".", color=drawn[0].get_color(), alpha=0.4, markersize=3)
        axis.set_xticks(range(len(ticks)), ticks)
        axis.set(xlabel=short(x), ylabel=named(y, runs.to_dict("records")))
        axis.grid(alpha=0.3)
        if by:
            axis.legend(title=short(by))
    return figure


def sweep_heatmap(runs: pd.DataFrame, x: str, by: str, y: str, title: str) -> Figure:
    """Draw the mean `y` as colours and numbers, `x` across and `by` up, with a panel for each of `panel`."""
    figure, axes = _sweep_panels(list(dict.fromkeys(runs["panel"])), title)
    for panel, axis in axes.items():
        mine = runs[runs["panel"] == panel]
        across, up = ordered(mine[x]), ordered(mine[by])
        at, of = mine[x].astype(str), mine[by].astype(str)
        cells = [[style.mean(mine[y][(at == a) & (of == u)].to_numpy(float)) for a in across] for u in up]
        image = axis.imshow(np.array(cells), origin="lower", cmap="viridis", aspect="auto")
        style.write_numbers(axis, cells, float(style.mean(np.ravel(cells))), "{:.2f}")
        axis.set_xticks(range(len(across)), across)
        axis.set_yticks(range(len(up)), up)
        axis.set(xlabel=short(x), ylabel=short(by))
        figure.colorbar(image, ax=axis, label=named(y, runs.to_dict("records")))
    return figure


def sweep_curves(runs: Sequence[Mapping[Any, Any]], y: str, title: str) -> Figure:
    """Draw `y` over rounds: a line for each value (entry `line`), its runs' mean; a panel for each of `panel`."""
    figure, axes = _sweep_panels(list(dict.fromkeys(run["panel"] for run in runs)), title)
    for panel, axis in axes.items():
        lines: dict[str, list[Curve]] = grouped((run["line"], run["rounds"]) for run in runs if run["panel"] == panel)
        style.draw_lines(axis, *_over_rounds(lines, y), lines)
        axis.set(xlabel="round", ylabel=named(y, runs))
        axis.legend()
    return figure


def tuning_trials(trials: pd.DataFrame, params: Sequence[str], title: str) -> Figure:
    """Draw the validation score of every trial with the best so far, and against each of `params`."""
    figure, axes = _sweep_panels(["", *params], title)
    best, *rest = axes.values()
    scores = trials["val"].to_numpy(dtype=float)
    best.plot(trials["trial"], scores, "o", alpha=0.6, label="trial")
    best.plot(trials["trial"], np.fmax.accumulate(scores), drawstyle="steps-post", label="best so far")
    best.set_xlabel("trial")
    best.legend()
    for name, axis in zip(params, rest, strict=True):
        places = list(trials[name])
        if not all(isinstance(value, (int, float)) for value in places):
            ticks = ordered(places)
            places = [ticks.index(str(value)) for value in places]
            axis.set_xticks(range(len(ticks)), ticks)
        axis.plot(places, scores, "o", alpha=0.6)
        axis.set_xlabel(short(name))
    for axis in axes.values():
        axis.set_ylabel("validation score, %")
        axis.grid(alpha=0.3)
    return figure


def ordered(values: Any) -> list[str]:
    """Return the distinct values as text: by size if all are numbers, else in order of first appearance."""
    distinct = list(dict.fromkeys(map(str, values)))
    return sorted(distinct, key=float) if _numeric(distinct) else distinct


def _numeric(values: Sequence[str]) -> bool:
    try:
        return all(math.isfinite(float(value)) for value in values)
    except ValueError:
        return False


def short(key: str) -> str:
    """Return the last part of a key: method.rho -> rho."""
    return key.rpartition(".")[2]


def _sweep_panels(names: Sequence[str], title: str) -> tuple[Figure, dict[str, Any]]:
    """Return a figure that needs no display, with an axis for each name."""
    across = min(COLUMNS, len(names))
    figure, grid = style.panels(-(-len(names) // across), across, width=5.0 * across, height=3.8)
    figure.suptitle(title)
    for axis in grid.flat[len(names) :]:
        axis.remove()
    axes = dict(zip(names, grid.flat, strict=False))
    for name, axis in axes.items():
        axis.set_title(name if "=" in name else "", fontsize="medium")
    return figure, axes
