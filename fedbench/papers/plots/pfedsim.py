"""The figures of pFedSim (Tan et al., 2023). Arrays: see fedbench.papers.figure_arrays."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from fedbench.plots import style
from fedbench.plots.style import Arrays

NAMES = ("i", "i'", "j", "k")


def f1(a: Arrays) -> Figure:
    """Draw the linear CKA of every two models, a panel a layer."""
    layers = a["array/record/cka/value/0/0"][0, 0]
    titles = [f"layer {index}" for index in range(len(layers))]
    return style.matrix_panels(layers, titles, "model", "CKA", height=1.9)


def f2(a: Arrays) -> Figure:
    """Draw cosines of classifiers: their mean over classes by pair, and of each class."""
    each = a["array/record/classifier_cosine/value/0/0"][:, 0]  # [S, K, 4, 4]
    classes = each.shape[1]
    figure, axes = style.panels(2, 1, height=1.9, width=style.PAGE)
    pairs = [(0, 1), (0, 2), (2, 3), (0, 3)]
    names = [f"({NAMES[x]}, {NAMES[y]})" for x, y in pairs]
    style.draw_bars(axes[0, 0], [each[:, :, x, y].mean(1) for x, y in pairs], names)
    axes[0, 0].set_ylabel("mean cosine of classifiers")
    place = np.arange(classes)
    for index, (x, y) in enumerate(pairs):
        values = each[:, :, x, y]
        axes[1, 0].errorbar(
            place + 0.12 * (index - 1.5), style.mean(values), style.spread(values), capsize=2, elinewidth=0.8,
            label=names[index], **{**style.line_style(index), "linestyle": ""},
        )  # fmt: skip
    axes[1, 0].set(xlabel="class (i, i': 0-4; j: 2-6; k: 5-9)", ylabel="cosine by class", xticks=place)
    axes[1, 0].grid()
    style.legend(figure, axes[1, 0])
    return figure


def f3(a: Arrays) -> Figure:
    """Draw the samples of each class on each client under two concentrations."""
    figure, axes = style.panels(1, len(a["columns"]), height=2.4)
    for index, (axis, name) in enumerate(zip(axes[0], a["columns"], strict=True)):
        style.draw_label_counts(axis, a[f"counts/0/{index}"], name)
    return figure


def f5(a: Arrays) -> Figure:
    """Draw a sample image of each domain, of one class."""
    images, names = a["images"], a["domains"]
    figure, axes = style.panels(1, len(images), height=1.35)
    for axis, image, name in zip(axes[0], images, names, strict=True):
        axis.imshow(image.squeeze(), cmap="gray")
        axis.set_title(name)
        axis.set_axis_off()
    return figure
