"""Verdicts on FedCollab's figures."""

from __future__ import annotations

import numpy as np

from fedbench.figures.judges.verdict import Verdict, all_of, higher, says
from fedbench.plots.labels import total_variation
from fedbench.plots.style import Arrays

TYPE = 5  # clients of one type


def f1(a: Arrays) -> Verdict:
    """The global model gains at the near and small ends, loses at the far and large ones."""
    gain = a["score/score"][1] - a["score/score"][0]  # [C, S]
    names = list(a["columns"])
    near, far, small, large = (gain[names.index(name)] for name in ("s=1", "s=0", "n=12", "n=120"))
    told = f"global over local: {near.mean():+.1f} at no distance, {far.mean():+.1f} at the largest"
    told += f"; {small.mean():+.1f} with 12 samples, {large.mean():+.1f} with 120"
    zero = np.zeros_like(near)
    return says(
        all_of([higher(near, zero), higher(zero, far), higher(small, zero), higher(zero, large)]), told
    )


def f3(a: Arrays) -> Verdict:
    """Distances of label distributions rise from own type over own size to the other size."""
    D, sizes = total_variation(a["counts/0/0"]), a["counts/0/0"].sum(1)
    own, near, far = (float(D[0, span].mean()) for span in (slice(1, 5), slice(5, 10), slice(10, 20)))
    told = f"client 0 is {own:.2f} from 1-4, {near:.2f} from 5-9, {far:.2f} from 10-19"
    told += f"; {sizes[:10].mean():.0f} samples a large client, {sizes[10:].mean():.0f} a small one"
    return says(own < near < far and sizes[:10].min() > sizes[10:].max(), told)


def f4(a: Arrays) -> Verdict:
    """Labels of client 0 aligned with the others'."""
    maps = a["label_map"]
    aligned = (maps == maps[0]).sum(1)
    told = f"of {maps.shape[1]} labels, {aligned[1:5].mean():.0f} aligned with clients 1-4"
    told += f", {aligned[5:10].mean():.0f} with 5-9, {aligned[10:].max()} with 10-19"
    return says(
        bool((aligned[1:5] == 20).all() and (aligned[5:10] == 14).all() and not aligned[10:].any()), told
    )


def f5(a: Arrays) -> Verdict:
    """How well each method's distances tell clients of one type from the others: FedCollab best, FeSEM worst."""
    found = {}
    for r, name in enumerate(a["rows"]):
        key = f"array/distances/{r}/0"
        if key in a:
            found[str(name).partition(",")[0]] = separation(a[key][0])
    told = "chance that two clients of one type are nearer than two of different types: " + ", ".join(
        f"{name} {100 * value:.0f} %" for name, value in found.items()
    )
    if "authors" in a:
        told += f"; the authors' own {100 * separation(a['authors']):.0f} %"
    if set(found) != {"FedCollab", "FeSEM", "KMeans", "FedCluster"}:
        return says(None, told)
    order = found["FedCollab"] == max(found.values()) and found["FeSEM"] == min(found.values())
    return says(order, told)


def separation(D: np.ndarray) -> float:
    """The chance that a pair of one type (blocks of five) is nearer than a pair of two; ties count half."""
    block = np.arange(len(D)) // TYPE
    upper = np.triu_indices(len(D), 1)
    same = (block[:, None] == block)[upper]
    within, between = D[upper][same], D[upper][~same]
    gaps = between[None] - within[:, None]
    return float((gaps > 0).mean() + (gaps == 0).mean() / 2)


def f6(a: Arrays) -> Verdict:
    """C of 6 to 10 is best; 0 leaves all alone, the largest makes one coalition that is worse."""
    names, score = list(a["rows"]), a["score/acc"][:, 0]
    at = {name: score[names.index(name)] for name in ("0", "6", "8", "10", "1000")}
    count = {n: len(np.unique(a[f"array/coalition/{names.index(n)}/0"][0])) for n in ("0", "10", "1000")}
    told = "accuracy " + ", ".join(f"C={n} {v.mean():.1f}" for n, v in zip(names, score, strict=True))
    told += f"; coalitions {count['0']} at 0, {count['10']} at 10, {count['1000']} at 1000"
    ends = [higher(at["10"], at["0"]), higher(at["10"], at["1000"])]
    best = score.mean(1).max() - max(at[n].mean() for n in ("6", "8", "10")) < 1
    return says(all_of([*ends, bool(best), count["0"] == 20, count["1000"] == 1]), told)


def f7(a: Arrays) -> Verdict:
    """After joining, above Local; its coalition higher at the end than before."""
    clients, rounds, join = a["clients/acc_on_local"], a["round"], float(a["join_round"])
    late, before = rounds >= rounds[-1] - 5, (rounds <= join) & (rounds > join - 6)
    joined, alone = clients[0, 0, :, :, 0], clients[1, 0, :, :, 0]
    others = clients[0, 0, :, :, 1:5].mean(2)
    gains = [
        joined[:, late].mean(1) - alone[:, late].mean(1),
        others[:, late].mean(1) - others[:, before].mean(1),
    ]
    told = f"after joining the newcomer is {gains[0].mean():+.1f} points from Local"
    told += f", its coalition {gains[1].mean():+.1f} from before"
    return says(all_of([higher(each, np.zeros(len(each))) for each in gains]), told)


def f8(a: Arrays) -> Verdict:
    """All orders stop within 80 visits of a client, some at a worse optimum."""
    ends = a["values"][:, -1]
    best = int(np.isclose(ends, ends.min()).sum())
    told = f"{best} of {len(ends)} orders end at the best value"
    told += f"; {int(a['iterations'].max())} visits at most until a pass moves nobody"
    return says(bool(a["iterations"].max() <= 80 and best < len(ends)), told)
