"""Verdicts on pFedSim's figures."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from fedbench.figures.judges.verdict import Verdict, all_of, higher, off, says
from fedbench.plots.style import Arrays

OWNED = (set(range(5)), set(range(5)), set(range(2, 7)), set(range(5, 10)))  # labels of i, i', j, k


def f1(a: Arrays) -> Verdict:
    """The first layer is most alike, the last least."""
    layers = [float(off(each).mean()) for each in a["array/record/cka/value/0/0"][0, 0]]
    told = "mean CKA of two models by layer: " + ", ".join(f"{each:.2f}" for each in layers)
    return says(layers[-1] == min(layers) and layers[0] == max(layers), told)


def f2(a: Arrays) -> Verdict:
    """The order of pairs, and of classes that both have, or both lack, over those that one has."""
    each = a["array/record/classifier_cosine/value/0/0"][:, 0]  # [S, K, 4, 4]
    pairs = [(0, 1), (0, 2), (2, 3), (0, 3)]
    means = [each[:, :, x, y].mean(1) for x, y in pairs]
    same: list[np.ndarray] = []
    other: list[np.ndarray] = []
    for x, y in pairs:
        for label in range(each.shape[1]):
            both = (label in OWNED[x]) == (label in OWNED[y])
            (same if both else other).append(each[:, label, x, y])
    truths = [higher(p, q) for p, q in pairwise(means)]
    truths.append(higher(np.mean(same, 0), np.mean(other, 0)))
    told = "mean cosines (i, i') {:.2f}, (i, j) {:.2f}, (j, k) {:.2f}, (i, k) {:.2f}".format(
        *(float(each.mean()) for each in means)
    )
    told += f"; classes that both have or lack {np.mean(same):.2f}, others {np.mean(other):.2f}"
    return says(all_of(truths), told)


def f3(a: Arrays) -> Verdict:
    """Fewer classes at the smaller alpha."""
    held = [float((a[f"counts/0/{c}"] > 0).sum(1).mean()) for c in range(2)]
    return says(held[0] < held[1], f"a client holds {held[0]:.1f} classes at 0.1, {held[1]:.1f} at 0.5")


def f5(a: Arrays) -> Verdict:
    """Nothing is measured: the images are to be looked at, and are those of domains only on DomainNet."""
    return says(
        None, f"images of {len(a['domains'])} domains to look at: {', '.join(map(str, a['domains']))}"
    )
