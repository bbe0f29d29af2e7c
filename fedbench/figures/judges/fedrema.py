"""Verdicts on FedReMa's figures."""

from __future__ import annotations

import numpy as np

from fedbench.figures.judges.verdict import Verdict, all_of, higher, row, says
from fedbench.plots.style import Arrays

BLOCK = 4  # clients with the same dominant labels


def f1(a: Arrays) -> Verdict:
    """FedPer falls against FedAvg as samples get fewer, and lies below it at the fewest."""
    score = a["score/score"]
    per, avg, pac = (score[row(a, name)] for name in ("FedPer", "FedAvg", "FedPAC"))
    told = "at {} samples FedPer {:+.1f} and FedPAC {:+.1f} against FedAvg, at {} {:+.1f} and {:+.1f}".format(
        a["columns"][0], (per - avg)[0].mean(), (pac - avg)[0].mean(),
        a["columns"][-1], (per - avg)[-1].mean(), (pac - avg)[-1].mean(),
    )  # fmt: skip
    falls = higher((per - avg)[-1], (per - avg)[0])
    return says(all_of([higher(avg[0], per[0]), falls, higher(pac[0], per[0])]), told)


def f3(a: Arrays) -> Verdict:
    """Within blocks more alike than between at first; all more alike at the end."""
    S = a["array/record/similarity/value/0/0"][0]
    block = np.arange(S.shape[1]) // BLOCK
    same = (block[:, None] == block) & ~np.eye(len(block), dtype=bool)
    other = block[:, None] != block
    gaps = [(float(each[same].mean()), float(each[other].mean())) for each in S]
    rounds = a["array/record/similarity/round/0/0"][0]
    told = "S within blocks / between: "
    told += ", ".join(f"t={int(t)} {x:.2f} / {y:.2f}" for t, (x, y) in zip(rounds, gaps, strict=True))
    return says(gaps[0][0] > gaps[0][1] and gaps[-1][1] > gaps[0][1], told)


def f4(a: Arrays) -> Verdict:
    """FedReMa's best round is the highest at every s."""
    best = np.nanmax(a["curve/acc_on_local_pooled"], axis=3)  # [R, C, S]
    ours = row(a, "FedReMa")
    rivals = [r for r in range(len(best)) if r != ours]
    truths = [higher(best[ours, c], best[r, c]) for c in range(best.shape[1]) for r in rivals]
    told = "best rounds: " + "; ".join(
        f"{name} " + ", ".join(f"{n} {best[r, c].mean():.1f}" for r, n in enumerate(a["rows"]))
        for c, name in enumerate(a["columns"])
    )
    return says(all_of(truths), told)
