"""Pictures of any runs: accuracy over rounds, bytes and seconds, gain by client, who works with whom, ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbench.plots import parts, style
from fedbench.plots.labels import distributions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curve = Mapping[str, Sequence[float]]  # column of rounds.csv -> values, one a scored round
GIGA = 1e9


def curves(runs: Mapping[str, Sequence[Curve]], column: str, label: str = "accuracy, %") -> Figure:
    """`column` over rounds: a line a name, the mean over its runs (seeds) and a band of one standard deviation."""
    figure, ((axis,),) = style.panels(height=2.8)
    rounds = sorted({done for each in runs.values() for run in each for done in run["round"]})
    values = [np.array([_at(run, column, rounds) for run in each]) for each in runs.values()]
    parts.curves(axis, rounds, values, list(runs))
    axis.set(xlabel="round", ylabel=label)
    style.legend(figure, axis, 2)
    return figure


def _at(run: Curve, column: str, rounds: Sequence[float]) -> list[float]:
    known = dict(zip(run["round"], run[column], strict=True))
    return [known.get(done, float("nan")) for done in rounds]


def cost(runs: Mapping[str, Sequence[Curve]], column: str, label: str = "accuracy, %") -> Figure:
    """`column` against gigabytes sent and seconds of work, a line a run."""
    figure, axes = style.panels(1, 2, height=2.5, sharey=True)
    for index, (name, each) in enumerate(runs.items()):
        for place, run in enumerate(each):
            look = {**style.look(index), "label": name if place == 0 else None, "markevery": 0.25}
            sent = (np.asarray(run["bytes_up"]) + np.asarray(run["bytes_down"])) / GIGA
            axes[0, 0].plot(sent, run[column], **look)
            axes[0, 1].plot(run["seconds_total"], run[column], **look)
    axes[0, 0].set(xlabel="gigabytes, both ways", ylabel=label)
    axes[0, 1].set(xlabel="seconds")
    for axis in axes[0]:
        axis.grid()
    style.legend(figure, axes[0, 0])
    return figure


def gains(gain: NDArray[Any], title: str = "") -> Figure:
    """Gain over Local of each client [N] in points, sorted; losses hatched."""
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
                label=f"{label}: {len(places)} of {len(gain)}",
            )  # fmt: skip
    if len(gain) <= 30:
        axis.set_xticks(range(len(gain)), [str(client) for client in order], fontsize=5)
    axis.set(xlabel="client, sorted by gain", ylabel="gain over Local, points", title=title)
    axis.grid(axis="y")
    style.legend(figure, axis, 2)
    return figure


def collaboration(W: NDArray[Any], title: str = "") -> Figure:
    """The matrix W [N, N] with clients ordered so that those who weigh each other stand together."""
    order = parts.order(W)
    figure, ((axis,),) = style.panels(height=3.0)
    parts.heat(axis, np.asarray(W)[np.ix_(order, order)], title, unit="weight", low=0.0)
    if len(order) <= 30:
        names = [str(client) for client in order]
        axis.set_xticks(range(len(order)), names, fontsize=5)
        axis.set_yticks(range(len(order)), names, fontsize=5)
    axis.set(xlabel="from client", ylabel="for client")
    return figure


def client_map(counts: NDArray[Any], W: NDArray[Any] | None = None, title: str = "") -> Figure:
    """Clients in the plane, near each other where their labels are alike: histograms `counts` [N, K].

    The two leading principal components of the label distributions; colours and markers are the coalitions of W (rows
    that weigh the same clients) if there are at most eight, else the commonest label; areas are sizes.
    """
    q = distributions(counts)
    centred = q - q.mean(0)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    place = np.pad((left * values)[:, :2], ((0, 0), (0, max(0, 2 - len(values)))))
    group, kind = _groups(np.asarray(counts), W)
    size = np.asarray(counts).sum(1)
    figure, ((axis,),) = style.panels(height=2.9)
    for index, value in enumerate(np.unique(group)):
        own, look = group == value, style.look(index)
        axis.scatter(
            *place[own].T, s=12 + 50 * size[own] / size.max(), color=look["color"], marker=look["marker"],
            alpha=0.8, linewidths=0, label=f"{kind} {value}",
        )  # fmt: skip
    for client, (x, y) in enumerate(place if len(place) <= 30 else []):
        axis.annotate(str(client), (x, y), xytext=(3, 3), textcoords="offset points", fontsize=5)
    share = values**2 / max(float((values**2).sum()), 1e-12)
    axis.set(title=title, xlabel=f"first component of labels ({100 * share[0]:.0f} %)")
    axis.set_ylabel(f"second component ({100 * share[1] if len(share) > 1 else 0:.0f} %)")
    style.legend(figure, axis, 3)
    return figure


def _groups(counts: NDArray[Any], W: NDArray[Any] | None) -> tuple[NDArray[Any], str]:
    """(group of each client, what a group is)."""
    if W is not None:
        _, group = np.unique(np.asarray(W) > 0, axis=0, return_inverse=True)
        if 1 < group.max() + 1 <= len(style.MARKERS):
            return group.ravel(), "coalition"
    return counts.argmax(1), "mostly label"


def critical_difference(ranks: Mapping[str, float], critical: float, blocks: int, metric: str = "") -> Figure:
    """Average ranks of methods (1 is best); bars join those that Nemenyi's test does not tell apart (Demsar, 2006)."""
    names = sorted(ranks, key=lambda name: ranks[name])
    place = np.array([ranks[name] for name in names])
    groups = _alike(place, critical)
    figure, ((axis,),) = style.panels(width=5.2, height=0.7 + 0.1 * len(names) + 0.07 * len(groups))
    wide = max(float(place.max() - place.min()), critical)
    low, high = place.min() - 0.08 * wide, place.max() + 0.08 * wide
    depth = 0.5 + 0.22 * len(groups)
    for index, (name, rank) in enumerate(zip(names, place, strict=True)):
        left = index < (len(names) + 1) // 2
        level = depth + 0.4 * (index if left else len(names) - 1 - index)
        axis.plot([rank, rank, low if left else high], [0, level, level], color=style.INK, linewidth=0.7)
        text, side = (f"{name} {rank:.1f} ", "right") if left else (f" {rank:.1f} {name}", "left")
        axis.text(low if left else high, level, text, ha=side, va="center")
    for index, (first, last) in enumerate(groups):
        ends = [place[first] - 0.01 * wide, place[last] + 0.01 * wide]
        axis.plot(ends, [0.3 + 0.22 * index] * 2, color=style.COLOURS[1], linewidth=2.5)
    axis.plot([place.min(), place.max()], [0, 0], color=style.INK)
    axis.plot([place.min(), place.min() + critical], [-0.5, -0.5], color=style.INK, marker="|")
    note = f"critical difference {critical:.2f}; mean rank over {blocks} blocks, {metric}"
    axis.text(place.min(), -0.7, note, va="bottom")
    axis.set_xlim(low - 0.7 * wide, high + 0.7 * wide)
    axis.invert_yaxis()
    axis.set_axis_off()
    return figure


def _alike(place: NDArray[Any], critical: float) -> list[tuple[int, int]]:
    """The longest runs of sorted ranks within the critical difference, of at least two."""
    ends = [int(np.flatnonzero(place - rank <= critical).max()) for rank in place]
    spans = [(first, last) for first, last in enumerate(ends) if last > first]
    return [s for s in spans if not any(o[0] <= s[0] and o[1] >= s[1] for o in spans if o != s)]
