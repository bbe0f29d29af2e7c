"""Rounds of methods by hand, in plain PyTorch: clients of different sizes, of whom some are away in each round.

What a method's server, memory, messages, uploads and scored models come to after every round is compared with loops
that use neither the engine nor the method's own code. Local work is one full batch, or two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fedbench.config.schema import OptimizerConfig
from fedbench.core import trees
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.engine.method import Method
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation
from fedbench.methods.ditto import Ditto
from fedbench.methods.fedap import FedAP
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedbabu import FedBABU
from fedbench.methods.feddistill import FedDistill
from fedbench.methods.fedper import FedPer
from fedbench.methods.fedproto import FedProto
from fedbench.methods.fedprox import FedProx
from fedbench.methods.fedrema import FedReMa
from fedbench.methods.fedrep import FedRep
from fedbench.methods.fedsac import FedSaC
from fedbench.methods.lg_fedavg import LGFedAvg
from fedbench.methods.local import Local
from fedbench.methods.oracle import Oracle
from fedbench.methods.pfedgraph import PFedGraph
from fedbench.methods.pfedsim import PFedSim
from fedbench.testing.toys import ToyMeter
from tests.methods.toys import (
    BODY,
    HEAD,
    close,
    cross_entropy,
    descend,
    features,
    federation,
    gap,
    initial,
    logits,
    models,
    samples,
    setup,
)

SIZES, LR = (5, 13, 8, 21), 0.3
PARAMETERS = sorted([*BODY, *HEAD])
CLOSE = 1e-11


@dataclass
class Round:
    """What a round came to: trees [C, ...] of the cohort's clients, [N, ...] of all, the server's."""

    ids: list[int]
    message: Tree
    uploads: Tree
    server: Tree
    memory: Tree
    scored: Tree


def played(method: Method, rounds: int = 3, cohort: int = 3, **options: Any) -> tuple[Setup, list[Round]]:
    """The rounds of `method`, three clients of four in each unless told."""
    options = {"epochs": 1, "batch": 50, "optimizer": OptimizerConfig(lr=LR), **options}
    chosen = setup(method, options.pop("data", None) or federation(SIZES), rounds=rounds, cohort=cohort, **options)
    meter = ToyMeter(chosen)
    simulation = Simulation(chosen, meter)
    state, found = simulation.begin(), []
    for done in range(rounds):
        ids = chosen.draw_cohort(Clock(done, rounds)).tolist()
        simulation.step(state)
        trees_of = (meter.message, meter.outcome.uploads, state.server, state.memory, models(chosen, state))
        found.append(Round(ids, *(trees.clone(tree) for tree in trees_of)))
    assert len({tuple(each.ids) for each in found}) > 1 or cohort == len(SIZES), "the same clients in all rounds"
    return chosen, found


def same(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Two trees agree, names and all."""
    assert gap({k: torch.as_tensor(v) for k, v in found.items()}, expected) <= CLOSE


def loss_on(data: tuple[Tensor, Tensor]) -> Callable[[Tree], Tensor]:
    """The mean cross-entropy on samples."""
    return lambda w: cross_entropy(logits(w, data[0]), data[1])


def average(trained: Mapping[int, Tree], names: Sequence[str] = PARAMETERS) -> Tree:
    """By samples, of clients' leaves."""
    whole = sum(SIZES[k] for k in trained)
    return {name: sum(SIZES[k] / whole * w[name] for k, w in trained.items()) for name in names}  # type: ignore[misc]


def stacked(each: Sequence[Tree], names: Sequence[str] = PARAMETERS) -> Tree:
    """Trees of several clients as one, [C, ...]."""
    return {name: torch.stack([tree[name] for tree in each]) for name in names}


def combined(row: Sequence[float], each: Sequence[Tree], names: Sequence[str] = PARAMETERS) -> Tree:
    """The sum of trees by weights."""
    return {name: sum(float(w) * tree[name] for w, tree in zip(row, each, strict=True)) for name in names}  # type: ignore[misc]


def flat(w: Tree) -> np.ndarray:
    """All parameters of a model, in the order of their names."""
    return np.concatenate([w[name].detach().numpy().ravel() for name in PARAMETERS])


def nearest(point: np.ndarray) -> np.ndarray:
    """The nearest point of the simplex, by bisection on what is taken off."""
    low, high = point.min() - 1, point.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(point - middle, 0).sum() > 1 else (low, middle)
    return np.asarray(np.maximum(point - low, 0) / np.maximum(point - low, 0).sum())


# ---- averages of a part


@pytest.mark.parametrize(
    ("method", "own", "moves"),
    [
        (FedAvg(), [], ("fc", "head")),
        (FedPer(), HEAD, ("fc", "head")),
        (LGFedAvg(), BODY, ("fc", "head")),
        (Local(), PARAMETERS, ("fc", "head")),
        (FedBABU(), HEAD, ("fc",)),
        (FedRep(), HEAD, ("head", "fc")),
    ],
)
def test_rounds_of_shared_parts(method: Method, own: list[str], moves: tuple[str, ...]) -> None:
    shared = [name for name in PARAMETERS if name not in own]
    chosen, found = played(method)
    data = [samples(chosen, k) for k in range(4)]
    server, mine = initial(chosen), [initial(chosen)] * 4
    for each in found:
        trained = {}
        for k in each.ids:
            w = {name: (mine[k] if name in own else server)[name] for name in PARAMETERS}
            for turn in [[move] for move in moves] if isinstance(method, FedRep) else [moves]:
                w = descend(loss_on(data[k]), w, LR, turn)
            trained[k] = w
        same(each.message, {name: server[name].expand(3, *server[name].shape) for name in shared})
        same(each.uploads, stacked([trained[k] for k in each.ids], shared))
        server = {**server, **average(trained, shared)}
        mine = [trained.get(k, mine[k]) for k in range(4)]
        same(each.memory, stacked(mine, own))
        kept = {name: server[name] for name in shared}
        if isinstance(method, FedBABU):
            kept = {**{f"body/{k}": v for k, v in kept.items()}, **{f"head/{k}": server[k] for k in HEAD}}
        same(each.server, kept)
        same(each.scored, stacked([{**server, **{n: mine[k][n] for n in own}} for k in range(4)]))


def test_rounds_of_pulls_to_what_was_received() -> None:
    """FedProx's w and Ditto's v: two steps, the pull to the received w at either."""

    def steps(start: Tree, received: Tree, data: tuple[Tensor, Tensor], strength: float, count: int) -> Tree:
        def loss(w: Tree) -> Tensor:
            return loss_on(data)(w) + strength / 2 * sum((w[n] - received[n]).square().sum() for n in PARAMETERS)  # type: ignore[no-any-return]

        for _ in range(count):
            start = descend(loss, start, LR)
        return start

    for method, epochs in ((FedProx(mu=0.7), 2), (Ditto(lam=1.5, personal_epochs=3), 2), (Ditto(lam=1.5), 2)):
        chosen, found = played(method, epochs=epochs)
        data = [samples(chosen, k) for k in range(4)]
        server, mine = initial(chosen), [initial(chosen)] * 4
        for each in found:
            pull = method.mu if isinstance(method, FedProx) else 0.0
            trained = {k: steps(server, server, data[k], pull, epochs) for k in each.ids}
            same(each.uploads, stacked([trained[k] for k in each.ids]))
            if isinstance(method, Ditto):
                count = method.personal_epochs or epochs
                fresh = {k: steps(mine[k], server, data[k], method.lam, count) for k in each.ids}
                mine = [fresh.get(k, mine[k]) for k in range(4)]
                same(each.memory, {f"personal/{k}": v for k, v in stacked(mine).items()})
                same(each.scored, stacked(mine))
            server = average(trained)
            same(each.server, server)


# ---- mixtures of stored models


def test_rounds_of_fedap() -> None:
    """Two rounds of FedAvg, statistics of features as last seen in them, then fixed weights over all clients."""
    chosen, found = played(FedAP(warmup=0.5, momentum=0.3), rounds=5)
    data = [samples(chosen, k) for k in range(4)]
    stored = [initial(chosen)] * 4
    means, variances = np.zeros((4, 7)), np.ones((4, 7))
    assert set(found[0].ids) | set(found[1].ids) == set(range(4))

    def weights() -> np.ndarray:
        D = np.array(
            [
                [
                    math.sqrt(((means[i] - means[j]) ** 2 + (variances[i] ** 0.5 - variances[j] ** 0.5) ** 2).sum())
                    for j in range(4)
                ]
                for i in range(4)
            ]
        )
        W = 0.3 * np.eye(4)
        for i in range(4):
            others = [j for j in range(4) if j != i]
            for j in others:
                W[i, j] = 0.7 / D[i, j] / sum(1 / D[i, h] for h in others)
        return W

    for done, each in enumerate(found):
        sent = stored if done < 2 else [combined(row, stored) for row in weights()]
        same(each.message, stacked([sent[k] for k in each.ids]))
        trained = {k: descend(loss_on(data[k]), sent[k], LR) for k in each.ids}
        uploads = stacked([trained[k] for k in each.ids])
        if done < 2:
            for k, w in trained.items():
                z = features(w, data[k][0]).detach().numpy()
                means[k], variances[k] = z.mean(0), z.var(0)
            for name, rows in (("mean", means), ("var", variances)):
                uploads[f"statistics/features.running_{name}"] = torch.from_numpy(rows[each.ids])
            stored = [average(trained)] * 4
        else:
            stored = [trained.get(k, stored[k]) for k in range(4)]
        same(each.uploads, uploads)
        known = {
            f"statistics/features.running_{n}": torch.from_numpy(r) for n, r in (("mean", means), ("var", variances))
        }
        same(each.server, {**{f"model/{k}": v for k, v in stacked(stored).items()}, **known})
        if done >= 1:
            same(each.scored, stacked([combined(row, stored) for row in weights()]))
            W = chosen.method.collaboration(each.server, chosen.population)
            assert W is not None
            same({"": W}, {"": torch.from_numpy(weights())})


@pytest.mark.parametrize("scored", ["mixed", "own"])
@pytest.mark.parametrize("log_of_mean", [False, True])
def test_rounds_of_pfedsim(scored: str, log_of_mean: bool) -> None:
    """A round of FedAvg, then extractors mixed by the similarity of classifiers of pairs that met."""
    chosen, found = played(PFedSim(rho=0.25, scored=scored, log_of_mean=log_of_mean, self_weight=1.5), 4, 2)
    data = [samples(chosen, k) for k in range(4)]
    stored, own, trained_in_phase = [initial(chosen)] * 4, [initial(chosen)] * 4, np.zeros(4)
    phi = np.zeros((4, 4))

    def sent() -> list[Tree]:
        rows = phi + 1.5 * np.eye(4)
        rows /= rows.sum(1, keepdims=True)
        return [{**stored[k], **combined(rows[k], stored, BODY)} for k in range(4)]

    for done, each in enumerate(found):
        given = stored if done < 1 else sent()
        same(each.message, stacked([given[k] for k in each.ids]))
        trained = {k: descend(loss_on(data[k]), given[k], LR) for k in each.ids}
        same(each.uploads, stacked([trained[k] for k in each.ids]))
        own = [trained.get(k, own[k]) for k in range(4)]
        if done < 1:
            stored = [average(trained)] * 4
        else:
            stored = [trained.get(k, stored[k]) for k in range(4)]
            trained_in_phase[each.ids] = 1
            for i in each.ids:
                for j in each.ids:
                    if i != j:
                        a, b = (stored[k]["head.weight"].numpy() for k in (i, j))
                        c = [x @ y / (np.linalg.norm(x) * np.linalg.norm(y) + 1e-8) for x, y in zip(a, b, strict=True)]
                        if log_of_mean:
                            phi[i, j] = -math.log(1 - max(0, sum(c) / 4))
                        else:
                            phi[i, j] = -sum(math.log(1 - max(0, x)) for x in c) / 4
        same({"": each.server["phi"]}, {"": torch.from_numpy(phi)})
        same(trees.part(each.server, "model"), stacked(stored))
        after = sent()
        if scored == "own":
            same(trees.part(each.memory, "own"), stacked(own))
            same({"": each.memory["trained"]}, {"": torch.from_numpy(trained_in_phase)})
            after = [own[k] if trained_in_phase[k] else after[k] for k in range(4)]
        same(each.scored, stacked(after))
    assert 0 < (phi > 0).sum() < 12


# ---- mixtures of a round


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


GRAPHS: list[FedSaC | PFedGraph] = [
    PFedGraph(alpha=0.8, lam=0.4, snap=None),
    PFedGraph(alpha=1.5, lam=0.4, similarity="parameters", snap=0.9995, attract=False, from_round=1),
    FedSaC(alpha=0.9, beta=0.4, lam=0.5, alpha_share=0.5, k=2, snap=0.8),
    FedSaC(alpha=0.6, beta=0.3, lam=0.5, reference="directions", from_round=1, centred=True, snap=None),
]


@pytest.mark.parametrize("method", GRAPHS)
def test_rounds_of_graphs_by_cosine(method: FedSaC | PFedGraph) -> None:
    """W by bisection on |w - p|^2 + (alpha C - beta S) w, or - S / alpha w; a pull by the cosine to what was sent."""
    chosen, found = played(method, rounds=4, epochs=2)
    data = [samples(chosen, k) for k in range(4)]
    start = initial(chosen)
    sent = [start] * 4
    unit = {name: leaf / np.linalg.norm(flat(start)) for name, leaf in start.items()}
    directions = [unit] * 4
    kept = np.eye(4)

    for done, each in enumerate(found):
        message = stacked([sent[k] for k in each.ids])
        if method.reference == "directions":
            reference = stacked([directions[k] for k in each.ids])
            if done == 0:  # made before the run's precision is known
                assert close(trees.part(each.message, "direction"), reference, 1e-7)
                reference = trees.part(each.message, "direction")
                directions = [trees.row(reference, 0)] * 4
            message |= {f"direction/{n}": v for n, v in reference.items()}
        same(each.message, message)
        trained = {}
        for k in each.ids:
            reference = directions[k] if method.reference == "directions" else sent[k]
            length = 1.0 if method.reference == "directions" else float(np.linalg.norm(flat(sent[k])))
            weight = (method.lam if method.attract else -method.lam) if done >= method.from_round else 0.0

            def loss(w: Tree, k: int = k, reference: Tree = reference, scale: float = weight / length) -> Tensor:
                norm = sum(w[n].square().sum() for n in PARAMETERS) ** 0.5
                return loss_on(data[k])(w) - scale * sum((w[n] * reference[n]).sum() for n in PARAMETERS) / norm  # type: ignore[no-any-return]

            trained[k] = descend(loss, descend(loss, sent[k], LR), LR)  # at first the cosine to what was sent is flat
        rows = [flat(trained[k]) - (flat(start) if method.similarity == "updates" else 0) for k in each.ids]
        S = np.array([[cosine(a, b) for b in rows] for a in rows])
        np.fill_diagonal(S, 1.0)
        S = S if method.snap is None else np.where(method.snap < S, 1.0, S)
        p = np.array([SIZES[k] for k in each.ids]) / sum(SIZES[k] for k in each.ids)
        uploads = stacked([trained[k] for k in each.ids])
        same(trees.plain(each.uploads), uploads)
        if isinstance(method, PFedGraph):
            cost = -S / method.alpha
        else:
            bases = []
            for i, k in enumerate(each.ids):
                z = features(trained[k], data[k][0]).detach().numpy()
                z = z - z.mean(0) if method.centred else z
                U = np.linalg.svd(z)[2][: method.k].T
                U = U * np.sign(U[np.abs(U).argmax(0), np.arange(method.k)])
                same({"": each.uploads["subspace/U"][i]}, {"": torch.from_numpy(U.copy())})
                bases.append(U)
            angles = [[np.arccos(np.clip(np.linalg.svd(a.T @ b)[1], -1, 1)).mean() for b in bases] for a in bases]
            C = np.cos(np.array(angles))
            np.fill_diagonal(C, 1.0)
            cost = (method.alpha if done < method.alpha_share * 4 else 0.0) * C - method.beta * S
        W = np.stack([nearest(p - row / 2) for row in cost])
        for i, k in enumerate(each.ids):
            kept[k] = 0
            kept[k, each.ids] = W[i]
            sent[k] = combined(W[i], [trained[j] for j in each.ids])
            ones = [{n: w[n] / np.linalg.norm(flat(w)) for n in PARAMETERS} for w in (trained[j] for j in each.ids)]
            directions[k] = combined(W[i], ones)
        same(trees.part(each.server, "model"), stacked(sent))
        same({"": each.server["W"]}, {"": torch.from_numpy(kept)})
        same(each.scored, stacked(sent))
    assert ((kept > 0).sum(1) > 1).any()
    assert len(np.unique(kept.round(6))) > 3


# ---- FedReMa


@pytest.mark.parametrize(
    "fields",
    [
        {"align": 0.5, "delta": 0.9},
        {"align": 2.0, "align_mean": True, "uniform": True, "last_gap": False, "keep_below": False, "delta": 0.9},
        {"probe_per_client": True, "temper_all": False, "ccp": False, "probe_scale": 0.5, "temperature": 0.3},
        {"delta": 1.0, "shuffle": True, "in_turn": True},
    ],
    ids=str,
)
def test_rounds_of_fedrema(fields: dict[str, Any]) -> None:  # noqa: C901 - rounds, read from top to bottom
    """Probes, choices, the period, class means and mixtures, by loops."""
    method = FedReMa(classifier=("@head",), **fields)
    chosen, found = played(method, rounds=4)
    data = [samples(chosen, k) for k in range(4)]
    body, heads = initial(chosen), [initial(chosen)] * 4
    means, seen = torch.zeros(4, 7, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    G, kept, on, largest = np.zeros((4, 4)), np.eye(4), True, 0.0
    periods = []
    for done, each in enumerate(found):
        start = [{**{n: body[n] for n in BODY}, **{n: heads[k][n] for n in HEAD}} for k in range(4)]
        same(trees.plain(each.message), stacked([start[k] for k in each.ids]))
        trained = {}
        for k in each.ids:

            def loss(w: Tree, k: int = k, h: Tensor = means, known: Tensor = seen) -> Tensor:
                x, y = data[k]
                apart = (features(w, x) - h[y]).square()
                pull = (apart.mean(1) if method.align_mean else apart.sum(1)) * known[y]
                return loss_on(data[k])(w) + method.align * pull.mean()

            trained[k] = descend(loss, start[k], LR)
        same(trees.plain(each.uploads), stacked([trained[k] for k in each.ids]))
        if method.align:
            same({"": each.message["classes/means"][1]}, {"": means})
            same({"": each.message["classes/seen"][2]}, {"": seen})
            sums, counts = torch.zeros(3, 4, 7, dtype=torch.float64), torch.zeros(3, 4, dtype=torch.float64)
            for i, k in enumerate(each.ids):
                for z, label in zip(features(trained[k], data[k][0]), data[k][1].tolist(), strict=True):
                    sums[i, label] += z
                    counts[i, label] += 1
            same(trees.part(each.uploads, "classes"), {"sums": sums, "counts": counts})
            for c in range(4):
                having = [i for i in range(3) if counts[i, c] > 0]
                if having and method.uniform:
                    means[c] = sum(sums[i, c] / counts[i, c] for i in having) / len(having)
                elif having:
                    means[c] = sum(sums[i, c] for i in having) / sum(counts[i, c] for i in having)
                seen[c] = 1.0 if having else seen[c]
            same(trees.part(each.server, "classes"), {"means": means, "seen": seen})
        # probes
        cohort = chosen.cohort(torch.tensor(each.ids), Clock(done, 4))
        probes = torch.rand(3 if method.probe_per_client else 1, 7, generator=cohort.generator) * method.probe_scale
        A, gaps = np.zeros((3, 3)), []
        for i in range(3):
            h = probes[i if method.probe_per_client else 0].double()
            z = [trained[k]["head.weight"] @ h + trained[k]["head.bias"] for k in each.ids]
            mine = (z[i] / method.temperature).softmax(0)
            theirs = [(other / (method.temperature if method.temper_all else 1)).softmax(0) for other in z]
            s = [1.0 if j == i else float(functional.cosine_similarity(mine, theirs[j], 0)) for j in range(3)]
            order = sorted(range(3), key=lambda j: s[j])
            steps = [s[order[m + 1]] - s[order[m]] for m in range(2 if method.last_gap else 1)]
            cut = steps.index(max(steps))
            A[i, order[cut if method.keep_below else cut + 1 :]] = 1
            gaps.append(max(steps))
        n = np.array([SIZES[k] for k in each.ids], dtype=float)
        if on:
            W = A * (1 if method.uniform else n)
        else:
            W = G[np.ix_(each.ids, each.ids)].copy()
            W[W.sum(1) == 0] = np.eye(3)[W.sum(1) == 0]
        if method.shuffle:
            W = W[:, torch.randperm(3, generator=cohort.generator).numpy()]
        W = W / W.sum(1, keepdims=True)
        current = [trained[k] for k in each.ids]
        if method.in_turn:
            rows = np.eye(3)
            for i in range(3):
                current[i] = combined(W[i], current)
                rows[i] = W[i] @ rows
            W = rows
        else:
            current = [combined(row, current) for row in W]
        for i, k in enumerate(each.ids):
            heads[k] = current[i]
            kept[k] = 0
            kept[k, each.ids] = W[i]
        body = average(trained)
        if on:
            G[np.ix_(each.ids, each.ids)] += A
            gap_now = sum(gaps) / 3
            largest = max(largest, gap_now)
            on = gap_now > method.delta * largest or not method.ccp
        periods.append(on)
        same({"": each.server["chosen"]}, {"": torch.from_numpy(G)})
        same({"": each.server["W"]}, {"": torch.from_numpy(kept)})
        assert bool(each.server["period/on"]) is on
        assert float(each.server["period/largest"]) == pytest.approx(largest, abs=CLOSE)
        same(each.scored, stacked([{**{n: body[n] for n in BODY}, **{n: heads[k][n] for n in HEAD}} for k in range(4)]))
        W_found = method.collaboration(each.server, chosen.population)
        same({"": W_found}, {"": torch.from_numpy(kept)})
    assert periods[-1] is (not method.ccp)


# ---- class means


@pytest.mark.parametrize(
    "method",
    [
        FedProto(lam=0.7),
        FedProto(lam=0.7, weighting="clients", inference="head"),
        FedDistill(lam=0.7),
        FedDistill(lam=0.7, distance="mse", own=True),
    ],
)
def test_rounds_of_class_means(method: FedProto | FedDistill) -> None:  # noqa: C901 - rounds, read from top to bottom
    """Sums and counts of each client's latest upload, means of them, and the pull of the classes that have one."""
    labels = [[0, 1], [1, 2], [1], [2, 0]]
    chosen, found = played(method, data=federation(SIZES, labels=labels), cohort=2, rounds=4)
    data = [samples(chosen, k) for k in range(4)]
    mine = [initial(chosen)] * 4
    proto = isinstance(method, FedProto)
    value, width = (features, 7) if proto else (logits, 4)
    sums, counts = torch.zeros(4, 4, width, dtype=torch.float64), torch.zeros(4, 4, dtype=torch.float64)

    def means(receiver: int) -> dict[int, Tensor]:
        result = {}
        for c in range(4):
            from_ = [j for j in range(4) if counts[j, c] > 0 and (proto or method.own or j != receiver)]  # type: ignore[union-attr]
            if not from_:
                continue
            if isinstance(method, FedProto) and method.weighting == "samples":
                result[c] = sum(sums[j, c] for j in from_) / sum(counts[j, c] for j in from_)
            else:
                result[c] = sum(sums[j, c] / counts[j, c] for j in from_) / len(from_)
        return result  # type: ignore[return-value]

    def check(leaves: Tree, ids: Sequence[int]) -> None:
        for i, k in enumerate(ids):
            expected = means(k)
            assert leaves["classes/present"][i].nonzero().flatten().tolist() == sorted(expected)
            for c, mean in expected.items():
                assert close(leaves["classes/means"][i, c], mean, CLOSE)

    for each in found:
        check(each.message, each.ids)
        trained = {}
        for k in each.ids:
            x, y = data[k]
            targets = means(k)

            def loss(w: Tree, k: int = k, x: Tensor = x, y: Tensor = y, targets: dict[int, Tensor] = targets) -> Tensor:
                total = torch.zeros((), dtype=torch.float64)
                for v, c in zip(value(w, x), y.tolist(), strict=True):
                    if c in targets and isinstance(method, FedDistill) and method.distance == "cross_entropy":
                        total = total - (targets[c].softmax(0) * v.log_softmax(0)).sum()
                    elif c in targets:
                        total = total + (v - targets[c]).square().mean()
                return loss_on(data[k])(w) + 0.7 * total / len(y)

            trained[k] = descend(loss, mine[k], LR)
        for i, k in enumerate(each.ids):
            mine[k] = trained[k]
            sums[k], counts[k] = 0, 0
            for v, c in zip(value(trained[k], data[k][0]), data[k][1].tolist(), strict=True):
                sums[k, c] += v.detach()
                counts[k, c] += 1
            same(trees.row(each.uploads, i), {"sums": sums[k], "counts": counts[k]})
        same(each.server, {"sums": sums, "counts": counts})
        same(each.memory, stacked(mine))
        same({name: each.scored[name] for name in PARAMETERS}, stacked(mine))
        if isinstance(method, FedProto) and method.inference == "prototype":
            check(each.scored, range(4))
    assert float(counts[:, 3].sum()) == 0


# ---- coalitions


def test_rounds_of_coalitions() -> None:
    """FedPer in each of two coalitions, one of whom may have no member in a round; the numbers are recorded."""
    for given, told in (((7, 2, 7, 2), [1, 0, 1, 0]), ((), [0, 0, 0, 0])):
        method = Oracle(base={"name": "fedper"}, coalition=given)
        chosen, found = played(method, cohort=1 if given else 2, rounds=4)
        data = [samples(chosen, k) for k in range(4)]
        bodies, mine = [initial(chosen)] * 4, [initial(chosen)] * 4
        for each in found:
            trained = {
                k: descend(loss_on(data[k]), {**bodies[k], **{n: mine[k][n] for n in HEAD}}, LR) for k in each.ids
            }
            same(each.message, stacked([bodies[k] for k in each.ids], BODY))
            same(each.uploads, stacked([trained[k] for k in each.ids], BODY))
            mine = [trained.get(k, mine[k]) for k in range(4)]
            for number in set(told):
                present = {k: w for k, w in trained.items() if told[k] == number}
                if present:
                    bodies = [average(present) if told[k] == number else bodies[k] for k in range(4)]
            assert each.server["coalition"].tolist() == told
            expected = [bodies[told.index(number)] for number in sorted(set(told))]
            same(trees.part(each.server, "base"), stacked(expected, BODY))
            same(each.memory, stacked(mine, HEAD))
            same(each.scored, stacked([{**bodies[k], **{n: mine[k][n] for n in HEAD}} for k in range(4)]))
        assert Simulation(chosen, ToyMeter(chosen)).begin().arrays["coalition"].tolist() == told
