"""FedCCFA: rounds by loops over clients and classes, groups by their definition, and its limit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedbench.config.schema import OptimizerConfig
from fedbench.core.trees import Tree
from fedbench.methods.fedccfa import FedCCFA, madd, partners
from fedbench.methods.fedrep import FedRep
from tests.methods.test_histories import LR, SIZES, average, loss_on, played, same, stacked
from tests.methods.toys import (
    BODY,
    HEAD,
    close,
    cross_entropy,
    derivative,
    features,
    federation,
    final,
    gap,
    initial,
    samples,
)
from tests.methods.toys import logits as logits_of

FOUR = range(4)
MOMENTUM, DECAY, RATE = 0.5, 0.02, 0.4


def distance(vectors: list[np.ndarray], i: int, j: int) -> float:
    """MADD of two of several vectors: over each third one, how much farther it is from one than from the other."""

    def cosine(a: np.ndarray, b: np.ndarray) -> float:
        return float(a @ b / np.sqrt((a @ a) * (b @ b)))

    others = [z for z in range(len(vectors)) if z not in (i, j)]
    gaps = [abs(cosine(vectors[i], vectors[z]) - cosine(vectors[j], vectors[z])) for z in others]
    return sum(gaps) / max(1, len(gaps))


def chains(count: int, near: Any) -> list[set[int]]:
    """Groups that grow by whoever is near a member."""
    left, found = set(range(count)), []
    while left:
        group = {min(left)}
        while more := {j for j in left - group if any(near(i, j) for i in group)}:
            group |= more
        found.append(group)
        left -= group
    return found


def moved(loss: Any, w: Tree, names: list[str], rate: float) -> Tree:
    """A first step of an optimiser with decay."""
    slope = derivative(loss, w)
    return {n: v - rate * (slope[n] + DECAY * v) if n in names else v for n, v in w.items()}


@pytest.mark.parametrize(("by_samples", "eps"), [(False, 0.2), (True, 0.2), (False, 3.0)])
def test_rounds_of_fedccfa(by_samples: bool, eps: float) -> None:  # noqa: C901 - rounds, read from top to bottom
    """Balanced steps, classifier, extractor with anchors from the third round, groups of each class."""
    gamma, tau = 2.0, 0.5
    method = FedCCFA(
        eps=eps, gamma=gamma, tau=tau, from_round=2, weighting="samples" if by_samples else "clients",
        balanced_epochs=2, balanced_lr=RATE, classifier_lr=0.25,
    )  # fmt: skip
    data = federation(SIZES, labels=[[0, 1], [0, 1, 2, 3], [0, 1, 2], [3, 0]])
    optimizer = OptimizerConfig(lr=LR, momentum=MOMENTUM, weight_decay=DECAY)
    chosen, found = played(method, data=data, rounds=4, optimizer=optimizer)
    data_of = [samples(chosen, k) for k in FOUR]
    start = initial(chosen)
    body, heads = {n: start[n] for n in BODY}, [{n: start[n] for n in HEAD} for _ in FOUR]
    anchors: list[dict[int, Tensor]] = [{} for _ in FOUR]
    merged = 0
    for done, each in enumerate(found):
        for i, k in enumerate(each.ids):
            same({n: each.message[n][i] for n in BODY}, body)
            same({n: each.message[n][i] for n in HEAD}, heads[k])
        trained: dict[int, Tree] = {}
        compared: dict[int, Tree] = {}
        means: dict[int, dict[int, Tensor]] = {}
        for k in each.ids:
            x, y = data_of[k]
            own = {c: (y == c).nonzero().flatten().tolist() for c in y.unique().tolist()}
            least = min(5, *(len(places) for places in own.values()))
            rows = sorted(place for places in own.values() for place in places[:least])
            w, speed = {**body, **{n: start[n] for n in HEAD}}, {n: torch.zeros_like(start[n]) for n in HEAD}
            for _ in range(2):
                slope = derivative(loss_on((x[rows], y[rows])), w)
                speed = {n: MOMENTUM * speed[n] + slope[n] + DECAY * w[n] for n in HEAD}
                w = {n: v - RATE * speed[n] if n in HEAD else v for n, v in w.items()}
            compared[k] = {n: w[n] for n in HEAD}
            w = {**body, **(heads[k] if anchors[k] else compared[k])}
            w = moved(loss_on(data_of[k]), w, HEAD, 0.25)
            shares = [len(places) / len(y) for places in own.values()]
            weight = float(found[0].memory["own/entropy"][k]) / gamma  # kept in single precision
            assert gamma * weight == pytest.approx(-sum(p * np.log(p) for p in shares), abs=1e-6)
            pulls = anchors[k] if done >= 2 else {}

            def loss(w: Tree, k: int = k, weight: float = weight, pulls: dict[int, Tensor] = pulls) -> Tensor:
                x, y = data_of[k]
                total = cross_entropy(logits_of(w, x), y)
                if pulls:
                    for z, label in zip(features(w, x), y.tolist(), strict=True):
                        scores = {c: (z @ a) / (z.norm() * a.norm()) / tau for c, a in pulls.items()}
                        chances = torch.stack(list(scores.values())).logsumexp(0) - scores[label]
                        total = total + weight * chances / len(y)
                return total

            trained[k] = moved(loss, w, BODY, LR)
            z = features(trained[k], x)
            means[k] = {c: z[places].mean(0).detach() for c, places in own.items()}
        body = average(trained, BODY)
        heads = [{n: trained[k][n].clone() for n in HEAD} if k in trained else heads[k] for k in FOUR]
        anchors = [means.get(k, anchors[k]) for k in FOUR]
        before = {k: heads[k] for k in each.ids}
        heads = [{n: leaf.clone() for n, leaf in head.items()} for head in heads]
        anchors = [dict(mine) for mine in anchors]
        for c in FOUR:
            members = [k for k in each.ids if c in means[k]]
            vectors = [
                np.append(compared[k]["head.weight"][c].numpy(), float(compared[k]["head.bias"][c])) for k in members
            ]
            groups = chains(len(members), lambda i, j, v=vectors: distance(v, i, j) <= eps)
            for group in groups:
                ids = [members[i] for i in sorted(group)]
                merged += len(ids) > 1
                counts = [len((data_of[k][1] == c).nonzero()) if by_samples else 1 for k in ids]
                parts = [m / sum(counts) for m in counts]
                for k in ids:
                    for n in HEAD:
                        heads[k][n][c] = sum(p * before[j][n][c] for p, j in zip(parts, ids, strict=True))
                    anchors[k][c] = torch.stack([p * means[j][c] for p, j in zip(parts, ids, strict=True)]).sum(0)
        same(each.scored, stacked([{**body, **heads[k]} for k in FOUR]))
        for k in FOUR:
            assert each.server["classes/known"][k].tolist() == [c in anchors[k] for c in FOUR]
            for c, anchor in anchors[k].items():
                assert close(each.server["classes/anchors"][k, c], anchor)
    assert merged > 0


def test_distances_are_over_third_clients_and_groups_are_chains() -> None:
    """Five classifiers on a line of angles: neighbours are alike, the ends are not, and all are one chain."""
    angles = np.array([0.0, 0.3, 0.6, 0.9, 2.5])
    vectors = [np.array([np.cos(a), np.sin(a)]) for a in angles]
    found = madd(np.stack(vectors) @ np.stack(vectors).T)
    for i in range(5):
        for j in range(5):
            assert found[i, j] == pytest.approx(distance(vectors, i, j) if i != j else 0, abs=1e-12)
    eps = max(found[i, i + 1] for i in range(3)) + 1e-9
    assert found[0, 3] > eps, "the ends are near"
    rows = torch.from_numpy(np.stack(vectors)).unsqueeze(1)
    counts = torch.tensor([[1.0], [2.0], [3.0], [4.0], [0.0]])
    M = partners(rows, counts, float(eps), by_samples=True)
    chain = partners(rows[:4], counts[:4], float(eps), by_samples=True)
    assert M.shape == (1, 5, 5)
    assert M[0, 4].tolist() == [0, 0, 0, 0, 1], "who lacks the class keeps its row"
    assert close(M[0, :4, :4], chain[0])
    assert close(chain.sum(2), torch.ones(1, 4, dtype=torch.float64))
    assert M[0, 0].tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4, 0]), "three are no chain to the fourth"
    pairs = partners(rows, counts, 0.15, by_samples=True)  # of the four, ends and middle are .13 apart, others .167
    assert pairs[0, 0].tolist() == pytest.approx([0.2, 0, 0, 0.8, 0])
    assert pairs[0, 1].tolist() == pytest.approx([0, 0.4, 0.6, 0, 0])
    alone = partners(rows, torch.ones(5, 1), 0.0, by_samples=False)
    assert close(alone[0], torch.eye(5, dtype=torch.float64))


def test_without_groups_anchors_and_balanced_steps_it_is_fedrep() -> None:
    """Clients of all classes: two that alone have one are a group at any distance."""
    limit: dict[str, Any] = {"balanced_epochs": 0, "classifier_lr": 0.1}
    large = (24, 30, 27, 33)
    fedrep = final(FedRep(head_epochs=1, body_epochs=2), large, cohort=0.75)
    assert close(final(FedCCFA(eps=0.0, from_round=9, **limit), large, cohort=0.75), fedrep)
    for eps, first in ((3.0, 9), (0.0, 1)):
        assert gap(final(FedCCFA(eps=eps, from_round=first, **limit), large, cohort=0.75), fedrep) > 1e-4
