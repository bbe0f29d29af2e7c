"""The figures of FedCollab (Bao et al., ICML 2023). Arrays: see fedbench.papers.figure_arrays."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from fedbench.plots import style
from fedbench.plots.style import Arrays


def f1(a: Arrays) -> Figure:
    """Draw a global and a local model's accuracy over distance (columns "s=...", at 1 - s) and quantity ("n=...")."""
    figure, axes = style.panels(1, 2, height=2.4)
    names = list(a["columns"])
    score = a["score/score"].transpose(0, 2, 1)
    near = [c for c, name in enumerate(names) if name.startswith("s=")]
    many = [c for c, name in enumerate(names) if name.startswith("n=")]
    far = [1 - float(names[c][2:]) for c in near]
    style.draw_lines(axes[0, 0], far, score[:, :, near], a["rows"], dense=False)
    axes[0, 0].set(xlabel="distance (1 - s)", ylabel="mean accuracy, %", title="(a) over distance")
    sizes = [float(names[c][2:]) for c in many]
    style.draw_lines(axes[0, 1], sizes, score[:, :, many], a["rows"], dense=False)
    axes[0, 1].set(xlabel="samples a client", xscale="log", title="(b) over quantity")
    axes[0, 1].set_xticks(sizes, [names[c][2:] for c in many])
    axes[0, 1].minorticks_off()
    style.legend(figure, axes[0, 0])
    return figure


def f3(a: Arrays) -> Figure:
    """Draw the samples of each label on each client: large and small clients on scales of their own."""
    counts = a["counts/0/0"]
    figure, axes = style.panels(1, 2, height=2.3)
    half = len(counts) // 2
    for axis, own, start in ((axes[0, 0], counts[:half], 0), (axes[0, 1], counts[half:], half)):
        left = np.zeros(len(own))
        for label in map(int, np.flatnonzero(counts.sum(0))):
            look = style.line_style(label)
            hatch = ("", "///", "...", "xx")[(label + label // len(style.COLOURS)) % 4]  # another as colours repeat
            axis.bar(
                np.arange(start, start + len(own)), own[:, label], bottom=left, color=look["color"],
                hatch=hatch, edgecolor="white", linewidth=0.3, label=f"label {label}",
            )  # fmt: skip
            left = left + own[:, label]
        axis.set(xlabel="client", ylabel="training samples", xticks=range(start, start + len(own)))
    style.legend(figure, axes[0, 0], 5)
    return figure


def f4(a: Arrays) -> Figure:
    """Draw the label that each client's type sees in the place of each."""
    maps = a["label_map"]  # [N, K]
    types, first = np.unique(maps, axis=0, return_index=True)
    types = types[np.argsort(first)]
    figure, ((axis,),) = style.panels(height=1.7, width=style.PAGE)
    image = axis.imshow(types, aspect="auto")
    style.write_numbers(axis, types, types.max() / 2)
    ranges = [np.flatnonzero((maps == each).all(1)) for each in types]
    axis.set_yticks(range(len(types)), [f"clients {own.min()}-{own.max()}" for own in ranges])
    axis.set(xlabel="label", xticks=range(types.shape[1]))
    axis.spines[:].set_visible(False)
    figure.colorbar(image, ax=axis, label="seen as", pad=0.01)
    return figure


def f5(a: Arrays) -> Figure:
    """Draw the distances between clients by method, and the authors' own of this scenario."""
    found = {
        str(name).partition(",")[0]: a[f"array/distances/{r}/0"][0]
        for r, name in enumerate(a["rows"])
        if f"array/distances/{r}/0" in a
    }
    if "authors" in a:
        found["FedCollab (authors)"] = a["authors"]
    figure, axes = style.panels(1, len(found), height=1.9)
    for axis, (name, matrix) in zip(axes[0], found.items(), strict=True):
        image = axis.imshow(matrix, vmin=0.0)
        axis.set(title=name, xlabel="client", xticks=range(0, len(matrix), 5), yticks=range(0, len(matrix), 5))
        axis.spines[:].set_visible(False)
        figure.colorbar(image, ax=axis, shrink=0.75, location="bottom", pad=0.03)
    return figure


def f6(a: Arrays) -> Figure:
    """Draw accuracy and the number of coalitions over C, evenly spaced."""
    figure, (top, bottom) = style.panels(2, 1, height=1.6, sharex=True)
    names = list(a["rows"])
    place = np.arange(len(names))
    style.draw_lines(top[0], place, a["score/acc"][:, 0].T[None], ["FedCollab"], dense=False)
    top[0].set_ylabel("accuracy, %")
    count = np.array([[len(np.unique(each)) for each in a[f"array/coalition/{r}/0"]] for r in place])
    style.draw_lines(bottom[0], place, count.T[None], ["coalitions"], dense=False, start=1)
    bottom[0].set(ylabel="coalitions", xlabel="C", yscale="log")
    bottom[0].set_yticks([1, 2, 3, 5, 10, 20], ["1", "2", "3", "5", "10", "20"])
    bottom[0].minorticks_off()
    bottom[0].set_xticks(place, names)
    return figure


def f7(a: Arrays) -> Figure:
    """Draw the accuracy of the newcomer, and of the coalition that it joins, over rounds; Local's dotted."""
    clients = a["clients/acc_on_local"]  # [R, C, S, T, N]
    joined, alone = clients[0, 0], clients[1, 0]
    lines = [joined[..., 0], alone[..., 0], joined[..., 1:5].mean(-1)]
    names = ["client 0 (joins)", "client 0 (Local)", "clients 1-4 (its coalition)"]
    label = "round (dotted: client 0 joins)"
    figure = style.line_figure(a["round"], lines, names, label, "accuracy, %", height=2.6, columns=2)
    figure.axes[0].axvline(float(a["join_round"]), color=style.INK, linewidth=0.8, linestyle=":")
    return figure


def f8(a: Arrays) -> Figure:
    """Draw the solver's objective along its way from each order, and when it last improved."""
    figure, ((left, right),) = style.panels(1, 2, height=2.3)
    values, step = a["values"], int(a["clients"])
    left.plot(np.arange(values.shape[1]), values.T, color=style.COLOURS[0], alpha=0.15, linewidth=0.8)
    left.set(xlabel="inner iterations", ylabel="objective (Eq. 10)")
    left.grid()
    edges = np.arange(0, a["iterations"].max() + 2 * step, step) - step / 2  # a pass visits every client
    right.hist(a["iterations"], bins=edges, color=style.COLOURS[0], rwidth=0.8)
    right.set(xlabel="inner iterations until a pass moves nobody", ylabel="orders")
    return figure
