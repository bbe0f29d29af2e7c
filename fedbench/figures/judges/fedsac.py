"""Verdicts on FedSaC's figures."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from fedbench.figures.judges.verdict import Verdict, all_of, higher, off, row, says
from fedbench.plots import style
from fedbench.plots.fedsac import W, complementarity
from fedbench.plots.labels import label_cosine
from fedbench.plots.style import Arrays


def f1(a: Arrays) -> Verdict:
    """The gain of averaging is largest between the ends of complementarity."""
    gain = a["score/score"][1] - a["score/score"][0]  # [C, S]
    best = int(style.mean(gain, 1).argmax())
    x = complementarity(a)
    told = f"the gain over training alone is largest at complementarity {x[best]:.2f} ({gain[best].mean():+.1f} points)"
    told += f", {gain[0].mean():+.1f} at {x[0]:.2f}, {gain[-1].mean():+.1f} at {x[-1]:.2f}"
    if best in (0, len(x) - 1):
        inner = gain[1:-1][style.mean(gain[1:-1], 1).argmax()]
        return says(False if higher(gain[best], inner) else None, told)
    return says(all_of([higher(gain[best], gain[0]), higher(gain[best], gain[-1])]), told)


def f3(a: Arrays) -> Verdict:
    """Similarity alone keeps clients with themselves; complementarity prefers unlike clients; both are between."""
    networks = [a[f"{W}/{r}/0"][0, 0] for r in range(3)]
    own = [float(np.diag(each).mean()) for each in networks]
    alike = off(label_cosine(a["counts/0/0"]))
    slopes = [float(np.corrcoef(alike, off(each))[0, 1]) if off(each).std() > 0 else 0.0 for each in networks]
    told = "own weight {:.2f} by similarity, {:.2f} balanced, {:.2f} by complementarity".format(*own)
    told += "; correlation of weights with label similarity {:+.2f}, {:+.2f}, {:+.2f}".format(*slopes)
    return says(own[0] > own[1] > own[2] and slopes[2] < 0, told)


def f4(a: Arrays) -> Verdict:
    """Classes a client fall from partition to partition."""
    held = [float((a[f"counts/0/{c}"] > 0).sum(1).mean()) for c in range(4)]
    told = "a client holds {:.1f}, {:.1f}, {:.1f} and {:.1f} classes".format(*held)
    return says(all(x >= y for x, y in pairwise(held)) and held[0] > held[-1], told)


def f5(a: Arrays) -> Verdict:
    """Above FedAvg everywhere."""
    return _above(a)


def f6(a: Arrays) -> Verdict:
    """Above FedAvg everywhere."""
    return _above(a)


def _above(a: Arrays) -> Verdict:
    score, base = a["score/score"][:-2], a["score/score"][row(a, "FedAvg")]
    truths = [higher(each[c], base[c]) for each in score for c in range(len(base))]
    gaps = [float((score[:, c] - base[c]).mean()) for c in range(len(base))]
    listed = ", ".join(f"{name} {gap:+.1f}" for name, gap in zip(a["columns"], gaps, strict=True))
    told = f"above FedAvg in {truths.count(True)} of {len(truths)} points, below in {truths.count(False)}"
    told += f"; mean gap {listed}"
    return says(all_of(truths), told)


def f7(a: Arrays) -> Verdict:
    """FedSaC ends highest."""
    last = a["curve/acc_on_global"][:, 0, :, -1]
    order = np.argsort(-style.mean(last, 1))
    ours = row(a, "FedSaC")
    truths = [higher(last[ours], last[r]) for r in range(len(last)) if r != ours]
    told = "at the end " + ", ".join(f"{a['rows'][r]} {last[r].mean():.1f}" for r in order)
    return says(all_of(truths), told)
