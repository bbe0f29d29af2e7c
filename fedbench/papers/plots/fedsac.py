"""The figures of FedSaC (Yan et al., ICML 2024). Arrays: see fedbench.papers.figure_arrays."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from fedbench.plots import style
from fedbench.plots.style import Arrays

W = "array/record/collaboration/value"


def f1(a: Arrays) -> Figure:
    """Draw the accuracy after averaging two clients' models, and the similarity of the models, over complementarity."""
    figure, ((left, right),) = style.panels(1, 2, height=2.3)
    # Of columns "s=...": the share of a client's samples that is of its own classes.
    x = np.array([1 - float(name.removeprefix("s=")) for name in a["columns"]])
    style.draw_lines(left, x, a["score/score"].transpose(0, 2, 1), a["rows"], dense=False)
    left.set(xlabel="complementarity (1 - s)", ylabel="mean accuracy, %")
    alike = np.stack([a[f"array/record/model_cosine/value/1/{c}"][:, -1, 0, 1] for c in range(len(x))], -1)
    style.draw_lines(right, x, alike[None], ["models after local training"], dense=False, start=2)
    right.set(xlabel="complementarity (1 - s)", ylabel="cosine of the two models")
    style.legend(figure, left)
    return figure


def f3(a: Arrays) -> Figure:
    """Draw data similarity, model similarity, complementarity, and the three networks made of them."""
    figure, axes = style.panels(2, 3, height=2.2)
    one = {name: a[f"array/record/{name}/value/1/0"][0, 0] for name in ("update_cosine", "complementarity")}
    networks = [a[f"{W}/{r}/0"][0, 0] for r in range(3)]
    high = max(float(each.max()) for each in networks)
    shown = [style.label_cosine(a["counts/0/0"]), *one.values(), *networks]
    titles = ["(a) label distributions", "(b) S: updates", "(c) C: features"]
    titles += [f"({letter}) W: {name}" for letter, name in zip("def", a["rows"], strict=True)]
    tops = [1.0, 1.0, 1.0, high, high, high]
    for axis, matrix, title, top in zip(axes.flat, shown, titles, tops, strict=True):
        style.draw_matrix(axis, matrix, title, low=min(0.0, float(matrix.min())), high=top)
    for axis in axes[-1]:
        axis.set_xlabel("client")
    return figure


def f4(a: Arrays) -> Figure:
    """Draw the samples of each class on two clients under four partitions."""
    names = list(a["columns"])
    figure, axes = style.panels(1, len(names), height=2.0, sharey=True)
    for index, (axis, name) in enumerate(zip(axes[0], names, strict=True)):
        counts = a[f"counts/0/{index}"][:2]
        place = np.arange(counts.shape[1])
        for client, hatch in ((0, ""), (1, "///")):
            axis.bar(
                place + 0.4 * client - 0.2, counts[client], 0.4, color=style.COLOURS[client], hatch=hatch,
                edgecolor="white", linewidth=0.3, label=f"client {client}",
            )  # fmt: skip
        axis.set(title=name, xlabel="class")
        style.integer_ticks(axis)
    axes[0, 0].set_ylabel("training samples")
    style.legend(figure, axes[0, 0])
    return figure


def f5(a: Arrays) -> Figure:
    """Draw accuracy over alpha on four partitions, with FedAvg's."""
    return _sensitivity(a, r"$\alpha$")


def f6(a: Arrays) -> Figure:
    """Draw accuracy over beta on four partitions, with FedAvg's."""
    return _sensitivity(a, r"$\beta$")


def _sensitivity(a: Arrays, symbol: str) -> Figure:
    """Draw a panel a partition (column), a point a value (rows but the last two), the last rows as levels."""
    x = [float(name) for name in a["rows"][:-2]]
    figure, axes = style.panels(2, 2, height=1.8, sharex=True)
    for index, (axis, name) in enumerate(zip(axes.flat, a["columns"], strict=True)):
        values = a["score/score"][:, index]
        style.draw_lines(axis, x, values[:-2].T[None], ["FedSaC"], dense=False)
        for place, label in enumerate(a["rows"][-2:], 1):
            style.draw_level(axis, values[len(x) + place - 1], label, place)
        axis.set_title(name)
    for axis in axes[-1]:
        axis.set_xlabel(symbol)
    for axis in axes[:, 0]:
        axis.set_ylabel("accuracy, %")
    style.legend(figure, axes[0, 0])
    return figure


def f7(a: Arrays) -> Figure:
    """Draw accuracy over rounds by method."""
    curves = a["curve/acc_on_global"][:, 0]
    return style.line_figure(a["round"], curves, a["rows"], "round", "accuracy, %", height=2.8, columns=3)
