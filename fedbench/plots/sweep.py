"""Figures of sweeps, one function each; seeds are averaged, bars and bands are one sample standard deviation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbench.plots import style

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

COLUMNS = 3  # panels side by side
DODGE = 0.6  # of the way to the next category, over which the dots of one are spread
NAMES = {"score": "accuracy, %", "acc": "accuracy, %", "acc_on_local": "local accuracy, %", "ipr": "IPR, %"}


def lines(runs: pd.DataFrame, x: str, by: str, y: str, title: str) -> Figure:
    """`y` over the values of `x`, evenly spaced, each value of `by` in its own look; a panel each of `panel`.

    Numbers are joined by a line. Categories have no order: each has a dot with its spread, and every run a small one.
    """
    figure, axes = _panels(list(dict.fromkeys(runs["panel"])), title)
    for panel, axis in axes.items():
        mine = runs[runs["panel"] == panel]
        ticks = ordered(mine[x])
        values = ordered(mine[by]) if by else [""]
        for index, value in enumerate(values):
            part = mine[mine[by].astype(str) == value] if by else mine
            groups = [numbers(part[part[x].astype(str) == tick][y]) for tick in ticks]
            means = [_mean(group) for group in groups]
            spread = [float(np.std(g, ddof=1)) if len(g) > 1 else 0.0 for g in groups]
            look = {"marker": style.MARKERS[index % len(style.MARKERS)], "capsize": 3, "label": value}
            if _numeric(ticks):
                axis.errorbar(range(len(ticks)), means, spread, **look)
                continue
            place = np.arange(len(ticks)) + DODGE * ((index + 0.5) / len(values) - 0.5)
            drawn = axis.errorbar(place, means, spread, linestyle="none", **look)
            each = [(at, number) for at, group in zip(place, groups, strict=True) for number in group]
            at, number = zip(*each, strict=True) if each else ((), ())
            axis.plot(at, number, ".", color=drawn[0].get_color(), alpha=0.4, markersize=3)
        axis.set_xticks(range(len(ticks)), ticks)
        axis.set_xlabel(short(x))
        axis.set_ylabel(NAMES.get(y, y))
        axis.grid(alpha=0.3)
        if by:
            axis.legend(title=short(by))
    return figure


def heatmap(runs: pd.DataFrame, x: str, by: str, y: str, title: str) -> Figure:
    """Mean `y` by colour and number: `x` across, `by` up; a panel each of `panel`."""
    figure, axes = _panels(list(dict.fromkeys(runs["panel"])), title)
    for panel, axis in axes.items():
        mine = runs[runs["panel"] == panel]
        across, up = ordered(mine[x]), ordered(mine[by])
        cells = [[_mean(numbers(mine[(mine[x] == a) & (mine[by] == u)][y])) for a in across] for u in up]
        image = axis.imshow(np.array(cells), origin="lower", cmap="viridis", aspect="auto")
        middle = float(np.nanmean(cells))
        for row, column in np.ndindex(len(up), len(across)):
            value = cells[row][column]
            text = "-" if math.isnan(value) else f"{value:.2f}"
            axis.text(
                column, row, text, ha="center", va="center", color="white" if value < middle else "black"
            )
        axis.set_xticks(range(len(across)), across)
        axis.set_yticks(range(len(up)), up)
        axis.set_xlabel(short(x))
        axis.set_ylabel(short(by))
        figure.colorbar(image, ax=axis, label=NAMES.get(y, y))
    return figure


def curves(runs: Sequence[Mapping[str, Any]], y: str, title: str) -> Figure:
    """`y` over rounds: a line a value (entry `line`), the mean over its runs, in a panel each of `panel`."""
    figure, axes = _panels(list(dict.fromkeys(run["panel"] for run in runs)), title)
    for panel, axis in axes.items():
        mine = [run for run in runs if run["panel"] == panel]
        for line in dict.fromkeys(run["line"] for run in mine):
            points: dict[int, list[float]] = {}
            for run in mine:
                for row in run["rounds"] if run["line"] == line else ():
                    if row.get(y):
                        points.setdefault(int(row["round"]), []).append(float(row[y]))
            means = np.array([_mean(values) for values in points.values()])
            spread = np.array([np.std(v, ddof=1) if len(v) > 1 else 0.0 for v in points.values()])
            axis.plot(list(points), means, label=line)
            axis.fill_between(list(points), means - spread, means + spread, alpha=0.2)
        axis.set_xlabel("round")
        axis.set_ylabel(NAMES.get(y, y))
        axis.grid(alpha=0.3)
        axis.legend()
    return figure


def tuning(trials: pd.DataFrame, params: Sequence[str], title: str) -> Figure:
    """Validation score of every trial with the best so far, and against each of `params`."""
    figure, axes = _panels(["", *params], title)
    best, *rest = axes.values()
    scores = trials["val"].to_numpy(dtype=float)
    best.plot(trials["trial"], scores, "o", alpha=0.6, label="trial")
    best.plot(trials["trial"], np.fmax.accumulate(scores), drawstyle="steps-post", label="best so far")
    best.set_xlabel("trial")
    best.legend()
    for name, axis in zip(params, rest, strict=True):
        values = list(trials[name])
        if all(isinstance(value, (int, float)) for value in values):
            axis.plot(values, scores, "o", alpha=0.6)
        else:
            ticks = ordered([str(value) for value in values])
            axis.plot([ticks.index(str(value)) for value in values], scores, "o", alpha=0.6)
            axis.set_xticks(range(len(ticks)), ticks)
        axis.set_xlabel(short(name))
    for axis in axes.values():
        axis.set_ylabel("validation accuracy, %")
        axis.grid(alpha=0.3)
    return figure


def ordered(values: Any) -> list[str]:
    """The distinct values as text: by size if all are numbers, else in order of first appearance."""
    distinct = list(dict.fromkeys(map(str, values)))
    return sorted(distinct, key=float) if _numeric(distinct) else distinct


def _numeric(values: Sequence[str]) -> bool:
    try:
        return all(math.isfinite(float(value)) for value in values)
    except ValueError:
        return False


def numbers(column: Any) -> NDArray[np.float64]:
    """The finite values of a column."""
    array = np.array([math.nan if value is None else float(value) for value in column], dtype=np.float64)
    return array[np.isfinite(array)]


def short(key: str) -> str:
    """method.rho -> rho."""
    return key.rpartition(".")[2]


def _mean(values: Any) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def _panels(names: Sequence[str], title: str) -> tuple[Figure, dict[str, Any]]:
    """A figure that needs no display, with an axis for each name."""
    from matplotlib.figure import Figure

    across = min(COLUMNS, len(names))
    down = -(-len(names) // across)
    figure = Figure(figsize=(5.0 * across, 3.8 * down), layout="constrained")
    figure.suptitle(title)
    axes = {name: figure.add_subplot(down, across, index) for index, name in enumerate(names, 1)}
    for name, axis in axes.items():
        axis.set_title(name if "=" in name else "", fontsize="medium")
    return figure, axes
