"""The figures of FedReMa (Liang et al., ECAI 2024). Arrays: see fedbench.papers.figure_arrays."""

from __future__ import annotations

from matplotlib.figure import Figure

from fedbench.plots import style
from fedbench.plots.style import Arrays


def f1(a: Arrays) -> Figure:
    """Draw accuracy over the samples of a client by method."""
    x, score = [float(name) for name in a["columns"]], a["score/score"].transpose(0, 2, 1)
    labels = "samples a client", "accuracy, %"
    figure = style.line_figure(x, score, a["rows"], *labels, height=2.8, columns=3, dense=False)
    figure.axes[0].set_xscale("log")
    figure.axes[0].set_xticks(x, a["columns"])
    figure.axes[0].minorticks_off()
    return figure


def f3(a: Arrays) -> Figure:
    """Draw the similarities S at four rounds of FedAvg."""
    S, rounds = a["array/record/similarity/value/0/0"][0], a["array/record/similarity/round/0/0"][0]
    return style.matrix_panels(S, [f"t = {int(done)}" for done in rounds], "client", "S", height=2.0)


def f4(a: Arrays) -> Figure:
    """Draw accuracy over rounds by method, a panel each s."""
    figure, axes = style.panels(2, 2, height=2.0, sharex=True)
    for index, (axis, name) in enumerate(zip(axes.flat, a["columns"], strict=True)):
        style.draw_lines(axis, a["round"], a["curve/acc_on_local_pooled"][:, index], a["rows"])
        axis.set_title(name)
    for axis in axes[-1]:
        axis.set_xlabel("round")
    for axis in axes[:, 0]:
        axis.set_ylabel("accuracy, %")
    style.legend(figure, axes[0, 0], 5)
    return figure
