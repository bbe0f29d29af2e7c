"""Verdicts on SosicFL's figures."""

from __future__ import annotations

import numpy as np

from fedbench.figures.judges.verdict import Verdict, all_of, higher, row, says
from fedbench.methods.sosicfl import region
from fedbench.plots import sosicfl, style
from fedbench.plots.labels import total_variation
from fedbench.plots.style import Arrays

NEAR = 0.3  # L1 distance of points that lie around a place of the simplex
EVEN = 4.0  # standard errors within which the mean of uniform draws lies


def f2(a: Arrays) -> Verdict:
    """Clients of one cluster have nearer label distributions than others."""
    cluster = a["array/cluster/0/0"][0].astype(int)
    apart = total_variation(a["counts/0/0"])
    same = (cluster[:, None] == cluster) & ~np.eye(len(cluster), dtype=bool)
    within, between = apart[same], apart[cluster[:, None] != cluster]
    if not len(within) or not len(between):
        return says(None, "clusters of single clients")
    told = f"total variation of labels {within.mean():.2f} within clusters, {between.mean():.2f} between"
    return says(bool(within.mean() < between.mean()), told)


def f3(a: Arrays) -> Verdict:
    """Draws lie in the simplex, within the radius of their own centre, and as evenly as a grid of the subregion."""
    draws, centres, radius = a["draws"], a["array/centers/0/0"][0], float(a["radius"])
    inside = bool(np.allclose(draws.sum(2), 1) and (draws >= -1e-9).all())
    farthest = float(np.abs(draws - centres[:, None]).sum(2).max())
    grid = region.grid(centres.shape[1])
    off = max(
        unevenness(cloud, grid[np.abs(grid - centre).sum(1) <= radius])
        for cloud, centre in zip(draws, centres, strict=True)
    )
    told = f"draws lie in the simplex: {inside}; at most {farthest:.2f} from the own centre, the radius is {radius:.2f}"
    told += f"; their mean is at most {off:.1f} standard errors from the middle of the subregion"
    return says(inside and farthest <= radius + 1e-6 and off < EVEN, told)


def unevenness(cloud: np.ndarray, even: np.ndarray) -> float:
    """How far the mean of `cloud` [P, n] is from that of `even` [G, n], in standard errors, at most."""
    errors = np.maximum(even.std(0), 1e-9) / np.sqrt(len(cloud))
    return float((np.abs(cloud.mean(0) - even.mean(0)) / errors).max())


def f4(a: Arrays) -> Verdict:
    """Above the baselines at the end in both accuracies."""
    told, truths = [], []
    for key, name in (("acc_on_common", "global"), ("acc_on_local", "local")):
        last = a[f"curve/{key}"][:, 0, :, -1]
        ours = row(a, "SosicFL")
        truths += [higher(last[ours], last[row(a, rival)]) for rival in ("FedAvg", "FedProx")]
        told.append(
            f"{name} " + ", ".join(f"{n} {v.mean():.1f}" for n, v in zip(a["rows"], last, strict=True))
        )
    return says(all_of(truths), "at the end " + "; ".join(told))


def f5(a: Arrays) -> Verdict:
    """Local accuracy near the client's centre is above that elsewhere, by more than for global accuracy."""
    points, overall, local = (
        a[f"array/record/simplex/{part}/0/0"][0, 0] for part in ("points", "global", "local")
    )
    cluster, centres = a["array/cluster/0/0"][0].astype(int), a["array/centers/0/0"][0]
    gains = []
    for client, accuracy in enumerate(local.T):
        near = np.abs(points - centres[cluster[client]]).sum(1) < NEAR
        if near.any() and np.isfinite(accuracy).all():
            gains.append(100 * float(accuracy[near].mean() - accuracy[~near].mean()))
    better = float(np.mean(np.array(gains) > 0))
    told = (
        f"around its cluster's centre a client is {np.mean(gains):+.1f} points from the rest of the simplex"
    )
    told += f" ({100 * better:.0f} % of clients above)"
    told += (
        f"; spread over the simplex {100 * local.std(0).mean():.1f} local, {100 * overall.std():.1f} global"
    )
    return says(bool(np.mean(gains) > 0 and local.std(0).mean() > overall.std()), told)


def f6(a: Arrays) -> Verdict:
    """The variance, averaged over the second half of the rounds, is lower than the baselines'."""
    late = [a[f"array/record/update_variance/value/{r}/0"] for r in range(len(a["rows"]))]
    means = [each[:, each.shape[1] // 2 :].mean(1) for each in late]
    ours = row(a, "SosicFL")
    truths = [higher(means[r], means[ours]) for r in range(len(means)) if r != ours]
    told = "mean over the second half " + ", ".join(
        f"{name} {value.mean():.3g}" for name, value in zip(a["rows"], means, strict=True)
    )
    return says(all_of(truths), told)


def f7(a: Arrays) -> Verdict:
    """Every combination above FedAvg."""
    score, base = a["score/acc_on_local"], a["score/acc_on_local"][row(a, "FedAvg"), 0]
    cells = [
        score[r, c] for r, n in enumerate(a["rows"]) if n.startswith("C=") for c in range(score.shape[1])
    ]
    truths = [higher(cell, base) for cell in cells]
    best, worst = (pick([float(cell.mean()) for cell in cells]) for pick in (max, min))
    told = f"{truths.count(True)} of {len(truths)} combinations above FedAvg ({base.mean():.1f})"
    told += f", {truths.count(False)} below; {worst:.1f} to {best:.1f}"
    return says(all_of(truths), told)


def f8(a: Arrays) -> Verdict:
    """With subregions, early or late, above never."""
    last = a["curve/acc_on_local"][:, 0, :, -1]
    never = last[row(a, "never (500)")]
    starts = [r for r, name in enumerate(a["rows"]) if name.startswith("start")]
    told = "at the end " + ", ".join(f"{n} {v.mean():.1f}" for n, v in zip(a["rows"], last, strict=True))
    return says(all_of([higher(last[r], never) for r in starts]), told)


def f9(a: Arrays) -> Verdict:
    """SosicFL-All: local near SosicFL, global below it."""
    ends = {key: a[f"curve/{key}"][:, 0, :, -1] for key, _ in sosicfl.KINDS}
    every, ours = row(a, "SosicFL-All"), row(a, "SosicFL")
    lower = higher(ends["acc_on_common"][ours], ends["acc_on_common"][every])
    gap = float(style.mean(ends["acc_on_local"][every] - ends["acc_on_local"][ours]))
    lost = float(style.mean(ends["acc_on_common"][every] - ends["acc_on_common"][ours]))
    told = f"SosicFL-All against SosicFL at the end: local {gap:+.1f}, global {lost:+.1f}"
    return says(all_of([lower, abs(gap) < 3]), told)
