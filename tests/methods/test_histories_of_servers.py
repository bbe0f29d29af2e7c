"""Rounds by hand as in test_histories.py, of methods whose servers or clients keep more than models."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fedbench.config.schema import LocalConfig, OptimizerConfig
from fedbench.core import rng, trees
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.engine import schedule
from fedbench.engine.contract import Clock, Stage
from fedbench.engine.method import Method
from fedbench.engine.simulation import Simulation, State
from fedbench.methods import METHODS, fedpac
from fedbench.methods.apfl import APFL
from fedbench.methods.apple import APPLE
from fedbench.methods.cfl import CFL
from fedbench.methods.ditto import Ditto
from fedbench.methods.fedala import FedALA
from fedbench.methods.fedamp import FedAMP
from fedbench.methods.fedas import FedAS
from fedbench.methods.fedbabu import FedBABU
from fedbench.methods.fedbn import FedBN
from fedbench.methods.fedcac import FedCAC
from fedbench.methods.fedcollab import distances
from fedbench.methods.fedcollab.fedcollab import FedCollab
from fedbench.methods.fedcp import FedCP
from fedbench.methods.feddbe import FedDBE
from fedbench.methods.feddyn import FedDyn
from fedbench.methods.fedem import FedEM
from fedbench.methods.fedfomo import FedFomo
from fedbench.methods.fedgen import FedGen
from fedbench.methods.fediot import FedIoT
from fedbench.methods.fednova import FedNova
from fedbench.methods.fedpac import FedPAC
from fedbench.methods.fedper import FedPer
from fedbench.methods.fedphp import FedPHP
from fedbench.methods.fedrc import FedRC
from fedbench.methods.fedrema import FedReMa, segment
from fedbench.methods.fedrep import FedRep
from fedbench.methods.fedrod import FedRoD
from fedbench.methods.fedselect import FedSelect
from fedbench.methods.fedtgp import FedTGP
from fedbench.methods.fesem import FeSEM
from fedbench.methods.finetune import Finetune
from fedbench.methods.gpfl import GPFL
from fedbench.methods.ifca import IFCA
from fedbench.methods.kmeans import KMeans
from fedbench.methods.moon import Moon
from fedbench.methods.oracle import Oracle
from fedbench.methods.parts import simplex
from fedbench.methods.parts.clustered import prepares
from fedbench.methods.per_kind import PerKind
from fedbench.methods.perfedavg import PerFedAvg
from fedbench.methods.pfedme import PFedMe
from fedbench.methods.scaffold import Scaffold
from fedbench.methods.sosicfl import SosicFL, SosicFLPlus
from fedbench.models.small import LeNet5
from fedbench.testing.toys import ToyMeter
from tests.helpers.pair import KIND, pair, personal, trainer
from tests.helpers.tiers import sampled
from tests.methods.quadratics import CURVED, POINTS, UNEQUAL, attraction, bias, counted, local_steps, minima, quadratic
from tests.methods.test_histories import (
    LR,
    PARAMETERS,
    SIZES,
    average,
    combined,
    flat,
    loss_on,
    played,
    same,
    stacked,
)
from tests.methods.toys import (
    BODY,
    HEAD,
    close,
    cross_entropy,
    derivative,
    descend,
    features,
    federation,
    initial,
    logits,
    samples,
)

FOUR = range(4)


def begun(chosen: Any) -> State:
    """What a run begins with."""
    return Simulation(chosen, ToyMeter(chosen)).begin()


def inner(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Any:
    """The scalar product of two models."""
    return sum((a[n] * b[n]).sum() for n in PARAMETERS)


def less(a: Tree, b: Tree) -> Tree:
    return {n: a[n] - b[n] for n in PARAMETERS}


def joined(**parts: Tree) -> Tree:
    """Leaves under names of their own."""
    return {f"{place}/{name}": leaf for place, part in parts.items() for name, leaf in part.items()}


# ---- control variates and drifts


@pytest.mark.parametrize("momentum", sampled([0.0, 0.5], every=2))
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("option", [1, 2])
def test_rounds_of_scaffold(option: int, weighted: bool, momentum: float) -> None:
    """Option II divides by how far a constant gradient of one moves, which momentum lengthens."""
    method, optimizer = (
        Scaffold(option=option, server_lr=0.7, weighted=weighted),
        OptimizerConfig(lr=LR, momentum=momentum),
    )
    chosen, found = played(method, epochs=2, optimizer=optimizer)
    data = [samples(chosen, k) for k in FOUR]
    zero = {n: torch.zeros_like(v) for n, v in initial(chosen).items()}
    x, c, own = initial(chosen), zero, [zero] * 4
    counts = SIZES if weighted else (1, 1, 1, 1)
    for each in found:
        same(trees.row(each.message, 2), joined(model=x, control=c))
        change, moved = {}, {}
        for k in each.ids:
            shift, y, velocity = less(c, own[k]), x, zero
            for _ in range(2):
                slope = derivative(lambda w, k=k, shift=shift: loss_on(data[k])(w) + inner(shift, w), y)  # type: ignore[misc]
                velocity = combined([momentum, 1], [velocity, slope])
                y = combined([1, -LR], [y, velocity])
            change[k] = less(y, x)
            fresh = {n: own[k][n] - c[n] - change[k][n] / ((2 + momentum) * LR) for n in x}
            fresh = derivative(loss_on(data[k]), x) if option == 1 else fresh
            moved[k] = less(fresh, own[k])
            own = [fresh if j == k else own[j] for j in FOUR]
        for i, k in enumerate(each.ids):
            same(trees.row(each.uploads, i), joined(change=change[k], control=moved[k]))
        n = sum(counts[k] for k in each.ids)
        row = [counts[k] / n for k in each.ids]
        x = combined([1, 0.7], [x, combined(row, list(change.values()))])
        c = combined([1, n / sum(counts)], [c, combined(row, list(moved.values()))])
        same(each.server, joined(model=x, control=c))
        same(each.memory, stacked(own))
        same(each.scored, stacked([x] * 4))


@pytest.mark.parametrize("weighted", [False, True])
def test_rounds_of_feddyn(weighted: bool) -> None:
    alpha = 0.3
    chosen, found = played(FedDyn(alpha=alpha, weighted=weighted), epochs=2)
    data = [samples(chosen, k) for k in FOUR]
    zero = {n: torch.zeros_like(v) for n, v in initial(chosen).items()}
    x, h, own = initial(chosen), zero, [zero] * 4
    for each in found:
        sent = {**x, **({"mean_size": torch.tensor(sum(SIZES) / 4)} if weighted else {})}
        same(trees.row(each.message, 1), sent)
        trained = {}
        for k in each.ids:
            strength = alpha * (sum(SIZES) / 4 / SIZES[k] if weighted else 1)

            def loss(w: Tree, k: int = k, strength: float = strength, x: Tree = x, own: list[Tree] = own) -> Tensor:
                apart = less(w, x)
                return loss_on(data[k])(w) + strength * (inner(apart, apart) / 2 - inner(own[k], w))  # type: ignore[no-any-return]

            trained[k] = descend(loss, descend(loss, x, LR), LR)
        same(each.uploads, stacked([trained[k] for k in each.ids]))
        own = [less(own[k], less(trained[k], x)) if k in trained else own[k] for k in FOUR]
        mean = combined([1 / 3] * 3, list(trained.values()))
        h = combined([1, 3 / 4], [h, less(mean, x)])
        x = combined([1, 1], [mean, h])
        same(each.server, joined(model=x, drift=h))
        same(each.memory, stacked(own))
        same(each.scored, stacked([x] * 4))


# ---- models beside the shared one


def test_rounds_of_moon() -> None:
    """The contrast of the received model and the client's last, heads private."""
    chosen, found = played(Moon(mu=2.0, tau=0.7, private=("@head",)), epochs=2)
    data = [samples(chosen, k) for k in FOUR]
    body, previous = initial(chosen), [initial(chosen)] * 4
    for each in found:
        trained = {}
        for k in each.ids:
            received = {**body, **{n: previous[k][n] for n in HEAD}}

            def loss(w: Tree, k: int = k, received: Tree = received, last: Tree = previous[k]) -> Tensor:
                z = features(w, data[k][0])
                near, far = (
                    functional.cosine_similarity(z, features(other, data[k][0]), dim=1) / 0.7
                    for other in (received, last)
                )
                contrast = -(near.exp() / (near.exp() + far.exp())).log().mean()
                return loss_on(data[k])(w) + 2.0 * contrast

            trained[k] = descend(loss, descend(loss, received, LR), LR)
        same(each.message, stacked([body] * 3, BODY))
        same(each.uploads, stacked([trained[k] for k in each.ids], BODY))
        previous = [trained.get(k, previous[k]) for k in FOUR]
        body = average(trained)
        same(each.server, {n: body[n] for n in BODY})
        same(each.memory, joined(private=stacked(previous, HEAD), previous=stacked(previous)))
        same(each.scored, stacked([{**body, **{n: previous[k][n] for n in HEAD}} for k in FOUR]))


@pytest.mark.parametrize("alpha_lr", [None, 0.4])
def test_rounds_of_apfl(alpha_lr: float | None) -> None:
    chosen, found = played(APFL(alpha=0.6, alpha_lr=alpha_lr), epochs=2)
    data = [samples(chosen, k) for k in FOUR]
    w, v, alpha = initial(chosen), [initial(chosen)] * 4, [float(torch.tensor(0.6))] * 4

    def mixed(own: Tree, shared: Tree, a: float) -> Tree:
        return combined([a, 1 - a], [own, shared])

    for each in found:
        same(trees.row(each.message, 0), w)
        trained = {}
        for k in each.ids:
            shared, own, a = w, v[k], alpha[k]
            if alpha_lr:
                slope = derivative(loss_on(data[k]), mixed(own, shared, a))
                a = min(1.0, max(0.0, a - alpha_lr * float(inner(slope, less(own, shared)))))
            for _ in range(2):
                slope = derivative(loss_on(data[k]), mixed(own, shared, a))
                own = {n: own[n] - LR * a * slope[n] for n in own}
                shared = descend(loss_on(data[k]), shared, LR)
            trained[k] = shared
            v, alpha = [[one if j == k else old[j] for j in FOUR] for one, old in ((own, v), (a, alpha))]  # type: ignore[assignment]
        same(each.uploads, stacked([trained[k] for k in each.ids]))
        w = average(trained)
        same(each.server, w)
        same(each.memory, {**joined(personal=stacked(v)), "alpha": torch.tensor(alpha, dtype=torch.float64)})
        same(
            each.scored | {"alpha": w["head.bias"]},
            {**stacked([mixed(v[k], w, alpha[k]) for k in FOUR]), "alpha": w["head.bias"]},
        )
    assert alpha_lr is None or len(set(alpha)) > 2


PFEDME: dict[str, Any] = {"lam": 2.0, "inner_steps": 3, "personal_lr": 0.1}


@pytest.mark.parametrize(
    "fields",
    [
        {"beta": 0.6, "uniform": True, "weight_decay": 0.05, "lr": 0.2},
        {"beta": 1.5, "restart": True},
        {"beta": 1.5, "scored": "w"},
    ],
    ids=str,
)
def test_rounds_of_pfedme(fields: dict[str, Any]) -> None:
    """Steps on theta and on w are plain, whatever the protocol's optimiser; of it w takes the rate alone."""
    method = PFedMe(**PFEDME, **fields)
    heavy = OptimizerConfig(lr=LR, momentum=0.9, weight_decay=0.5, clip=0.01)
    chosen, found = played(method, epochs=2, optimizer=heavy)
    data = [samples(chosen, k) for k in FOUR]
    w, theta = initial(chosen), [initial(chosen)] * 4
    for each in found:
        trained = {}
        for k in each.ids:
            own = shared = w
            for _ in range(2):
                own = shared if method.restart else own
                for _ in range(3):
                    slope = derivative(loss_on(data[k]), own)
                    pulled = {n: slope[n] + 2.0 * (own[n] - shared[n]) + method.weight_decay * own[n] for n in own}
                    own = {n: own[n] - 0.1 * pulled[n] for n in own}
                shared = {n: shared[n] - (method.lr or LR) * 2.0 * (shared[n] - own[n]) for n in own}
            trained[k] = shared
            theta = [own if j == k else theta[j] for j in FOUR]
        same(each.uploads, stacked([trained[k] for k in each.ids]))
        mean = combined([1 / 3] * 3, list(trained.values())) if method.uniform else average(trained)
        w = combined([1 - method.beta, method.beta], [w, mean])
        same(each.server, w)
        same(each.memory, joined(personal=stacked(theta)))
        same(each.scored, stacked([w] * 4 if method.scored == "w" else theta))


def test_rounds_of_perfedavg() -> None:
    """Meta steps on halves of a batch, the first the larger, with the exact Hessian and by differences."""
    for order in ("first", "full", "hessian_free"):
        method = PerFedAvg(alpha=0.2, beta=0.15, order=order, delta=1e-4)
        chosen, found = played(method, rounds=2, cohort=2)
        data = [samples(chosen, k) for k in FOUR]
        w = initial(chosen)
        for done, each in enumerate(found):
            trained = {}
            for k in each.ids:
                keyed = rng.torch_rng(0, "batches", done, k, 0)
                (rows,) = schedule.batches(SIZES[k], chosen.protocol.local, Stage(), keyed)
                x, y, middle = data[k][0][rows], data[k][1][rows], (SIZES[k] + 1) // 2
                first, second = loss_on((x[:middle], y[:middle])), loss_on((x[middle:], y[middle:]))
                meta = derivative(second, {n: w[n] - 0.2 * s for n, s in derivative(first, w).items()})
                if order != "first":
                    step = 1e-5
                    ends = [derivative(first, {n: w[n] + side * meta[n] for n in w}) for side in (step, -step)]
                    meta = {n: meta[n] - 0.2 * (ends[0][n] - ends[1][n]) / (2 * step) for n in w}
                trained[k] = {n: w[n] - 0.15 * meta[n] for n in w}
            expected = stacked([trained[k] for k in each.ids])
            assert all(close(each.uploads[n], expected[n], 1e-7) for n in PARAMETERS)
            w = {n: each.server[n] for n in PARAMETERS}
            assert all(close(w[n], leaf, 1e-7) for n, leaf in average(trained).items())


@pytest.mark.parametrize("mu", [0.4, 0.9, 1.0])
def test_rounds_of_feddbe(mu: float) -> None:
    """The bias of each client's features, and the pull of their running mean to the mean of all; heads private."""
    kappa = 3.0
    chosen, found = played(FedDBE(kappa=kappa, mu=mu, private=("@head",)), epochs=2)
    data = [samples(chosen, k) for k in FOUR]
    m: Tensor = torch.zeros(7, dtype=torch.float64)
    for k in FOUR:  # two plain steps, whose features are followed
        w, r = initial(chosen), torch.zeros(7, dtype=torch.float64)
        for _ in range(2):
            r = (1 - mu) * r + mu * features(w, data[k][0]).mean(0)
            w = descend(loss_on(data[k]), w, LR)
        m = m + SIZES[k] / sum(SIZES) * r
    same({"": begun(chosen).memory["mean"]}, {"": torch.stack([m] * 4)})
    body, head, bias = initial(chosen), [initial(chosen)] * 4, [torch.zeros(7, dtype=torch.float64)] * 4
    for each in found:
        trained = {}
        for k in each.ids:
            x, y = data[k]
            w = {**body, **{n: head[k][n] for n in HEAD}, "bias": bias[k]}
            r = torch.zeros(7, dtype=torch.float64)
            for _ in range(2):

                def loss(w: Tree, x: Tensor = x, y: Tensor = y, r: Tensor = r) -> Tensor:
                    z = features(w, x)
                    scores = (z + w["bias"]) @ w["head.weight"].t() + w["head.bias"]
                    return cross_entropy(scores, y) + kappa / 2 * ((1 - mu) * r + mu * z.mean(0) - m).square().mean()

                z = features(w, x).mean(0)
                w = descend(loss, w, LR, ("fc", "head", "bias"))
                r = (1 - mu) * r + mu * z
            trained[k] = w
            head, bias = ([new if j == k else old[j] for j in FOUR] for new, old in ((w, head), (w["bias"], bias)))  # type: ignore[misc]
        same(each.message, stacked([body] * 3, BODY))
        same(each.uploads, stacked([trained[k] for k in each.ids], BODY))
        body = average(trained)
        same(each.server, {n: body[n] for n in BODY})
        own = {**stacked(head, HEAD), "bias": torch.stack(bias)}
        same(each.memory, {**own, "mean": torch.stack([m] * 4)})
        same(each.scored, {**stacked([body] * 4, BODY), **own})
    shown = chosen.method.predict(trees.row(found[-1].scored, 1), data[0][0], chosen.task)
    z = features(body, data[0][0]) + bias[1]
    same({"": shown}, {"": z @ head[1]["head.weight"].t() + head[1]["head.bias"]})


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("stays", [False, True])
def test_rounds_of_fedrod(alone: bool, stays: bool) -> None:
    """The balanced loss of the generic head, and the personal head's, on top of it or alone."""
    labels = [[0, 1], [0, 1, 2, 3], [1, 2], [0, 3]]
    chosen, found = played(FedRoD(alone=alone, generic_stays=stays), data=federation(SIZES, labels=labels))
    data = [samples(chosen, k) for k in FOUR]
    shared, kept = BODY if stays else PARAMETERS, begun(chosen).memory["log_counts"]  # in single precision
    for k in FOUR:
        counts = torch.tensor([float((data[k][1] == c).sum()) for c in FOUR])
        assert close(kept[k].exp(), counts.double(), 1e-5)
    server, generic = initial(chosen), [initial(chosen)] * 4
    own = [{n: v if alone or stays else torch.zeros_like(v) for n, v in initial(chosen).items() if n in HEAD}] * 4
    for each in found:
        trained = {}
        for k in each.ids:
            x, y = data[k]
            start = {n: (generic[k] if n in HEAD and stays else server)[n] for n in PARAMETERS}
            work = {**start, **{f"own.{n}": v for n, v in own[k].items()}}

            def loss(v: Tree, x: Tensor = x, y: Tensor = y, log_counts: Tensor = kept[k]) -> Tensor:
                z, said = features(v, x), logits(v, x)
                body = z if alone else z.detach()
                mine = body @ v["own.head.weight"].t() + v["own.head.bias"]
                mine = mine if alone else said.detach() + mine
                return cross_entropy(said + log_counts, y) + cross_entropy(mine, y)

            work = descend(loss, work, LR, ("fc", "head", "own"))
            trained[k] = {n: work[n] for n in PARAMETERS}
            own = [{n: work[f"own.{n}"] for n in HEAD} if j == k else own[j] for j in FOUR]
            generic = [trained[k] if j == k else generic[j] for j in FOUR]
        same(each.message, stacked([server] * 3, shared))
        same(each.uploads, stacked([trained[k] for k in each.ids], shared))
        server = average(trained)
        heads = joined(own=stacked(own, HEAD)) | (stacked(generic, HEAD) if stays else {})
        same(each.memory, heads | {"log_counts": kept})
        whole = [{**server, **{n: generic[k][n] for n in HEAD}} if stays else server for k in FOUR]
        same(each.scored, stacked(whole) | joined(own=stacked(own, HEAD)))
        x = data[0][0]
        mine = features(whole[2], x) @ own[2]["head.weight"].t() + own[2]["head.bias"]
        shown = chosen.method.predict(trees.row(each.scored, 2), x, chosen.task)
        same({"": shown}, {"": mine if alone else logits(whole[2], x) + mine})


# ---- servers that learn


@pytest.mark.parametrize("cap", [0.8, 100.0])
def test_rounds_of_fedtgp(cap: float) -> None:
    """Prototypes made by a network on the server, which SGD trains over the round's class means; margins cut or not."""
    method = FedTGP(lam=0.5, margin=cap, epochs=3, batch=4, lr=0.05)
    chosen, found = played(method, data=federation(SIZES, labels=[[0, 1], [0, 1, 2, 3], [1, 2], [0, 3]]))
    data = [samples(chosen, k) for k in FOUR]
    start = begun(chosen).server
    tgp = {n.removeprefix("tgp/"): v for n, v in start.items() if n.startswith("tgp/")}
    mine = [initial(chosen)] * 4

    def made(tgp: Tree) -> Tensor:
        hidden = torch.relu(tgp["embedding"] @ tgp["0.weight"].t() + tgp["0.bias"])
        return hidden @ tgp["1.weight"].t() + tgp["1.bias"]

    for done, each in enumerate(found):
        T = made(tgp)
        same({"": each.message["classes/means"][2]}, {"": T})
        assert each.message["classes/present"].unique().tolist() == [done > 0]
        points, classes, trained = [], [], {}
        for i, k in enumerate(each.ids):
            x, y = data[k]

            def loss(
                w: Tree, k: int = k, x: Tensor = x, y: Tensor = y, T: Tensor = T, on: float = float(done > 0)
            ) -> Tensor:
                return loss_on(data[k])(w) + on * 0.5 * (features(w, x) - T[y]).square().mean()

            trained[k] = descend(loss, mine[k], LR)
            z = features(trained[k], x)
            sums = torch.stack([z[y == c].sum(0) for c in FOUR])
            counts = torch.tensor([float((y == c).sum()) for c in FOUR], dtype=torch.float64)
            same(trees.row(each.uploads, i), {"sums": sums, "counts": counts})
            for c in y.unique().tolist():
                points.append(z[y == c].mean(0).detach())
                classes.append(c)
        mine = [trained.get(k, mine[k]) for k in FOUR]
        means = [
            torch.stack([p for p, c in zip(points, classes, strict=True) if c == label]).mean(0)
            for label in sorted(set(classes))
        ]
        gaps = [min(float((a - b).norm()) for b in means if b is not a) for a in means]
        margin = min(max(gaps), cap)
        generator = chosen.cohort(torch.tensor(each.ids), Clock(done, 3)).generator
        leaves = {n: v.clone().requires_grad_(True) for n, v in tgp.items()}
        optimizer = torch.optim.SGD(leaves.values(), lr=0.05)
        for _ in range(3):
            for rows in torch.randperm(len(classes), generator=generator).split(4):
                optimizer.zero_grad()
                total: Any = 0.0
                T = made(leaves)
                for row in rows.tolist():
                    d = torch.stack([(points[row] - t).norm() for t in T])
                    d = d + margin * functional.one_hot(torch.tensor(classes[row]), 4).double()
                    total = total - (-d).log_softmax(0)[classes[row]] / len(rows)
                total.backward()
                optimizer.step()
        tgp = {n: v.detach() for n, v in leaves.items()}
        same(each.server, {**joined(tgp=tgp), "trained": torch.ones(())})
        same(each.memory, stacked(mine))
        same({n: each.scored[n] for n in PARAMETERS}, stacked(mine))
        same({"": each.scored["classes/means"][3]}, {"": made(tgp)})


def test_rounds_of_fedgen() -> None:
    """What is generated on server and clients, from the same draws; Adam on the server by torch.optim."""
    method = FedGen(
        generative_weight=1.5, latent_weight=0.7, decay=0.6, hidden=5, noise=3, steps=3, batch=6, lr=0.02, diversity=0.5
    )
    labels = [[0, 1], [0, 1, 2, 3], [1, 2], [0, 3]]
    chosen, found = played(method, data=federation(SIZES, labels=labels))
    data = [samples(chosen, k) for k in FOUR]
    every = torch.cat([y for _, y in data])
    shares = torch.stack([(every == c).double().mean() for c in FOUR])
    start = begun(chosen).server
    made = {n.removeprefix("generator/"): v for n, v in start.items() if n.startswith("generator/")}
    w = initial(chosen)

    def generated(made: Tree, eps: Tensor, y: Tensor) -> Tensor:
        given = torch.cat([eps, functional.one_hot(y, 4).double()], 1)
        return torch.relu(given @ made["0.weight"].t() + made["0.bias"]) @ made["1.weight"].t() + made["1.bias"]

    def drawn(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        eps = torch.randn(1, 6, 3, generator=generator)[0].double()
        return eps, torch.multinomial(shares, 6, replacement=True, generator=generator)

    for done, each in enumerate(found):
        same(trees.row(each.message, 1), {**w, **joined(generator=made), "labels": shares})
        trained = {}
        for k in each.ids:
            x, y = data[k]
            generator = rng.torch_rng(0, "batches/noise", done, k, 0)
            (eps, classes), (own, _) = drawn(generator), drawn(generator)
            order = schedule.batches(len(y), chosen.protocol.local, Stage(), rng.torch_rng(0, "batches", done, k, 0))
            (rows,) = order
            x, y = x[rows], y[rows]
            z, mine = generated(made, eps, classes), generated(made, own[torch.arange(len(y)) % 6], y)
            teacher = (mine @ w["head.weight"].t() + w["head.bias"]).softmax(1)

            def loss(
                v: Tree,
                x: Tensor = x,
                y: Tensor = y,
                z: Tensor = z,
                classes: Tensor = classes,
                t: Tensor = teacher,
                decay: float = 0.6**done,
            ) -> Tensor:
                known = cross_entropy(z @ v["head.weight"].t() + v["head.bias"], classes)
                apart = (t * (t.log() - logits(v, x).log_softmax(1))).sum(1).mean()
                return cross_entropy(logits(v, x), y) + decay * (1.5 * known + 0.7 * apart)

            trained[k] = descend(loss, w, LR)
        same(each.uploads, stacked([trained[k] for k in each.ids]))
        generator = chosen.cohort(torch.tensor(each.ids), Clock(done, 3)).generator
        leaves = {n: v.clone().requires_grad_(True) for n, v in made.items()}
        optimizer = torch.optim.Adam(leaves.values(), lr=0.02)
        for _ in range(3):
            eps, classes = drawn(generator)
            z = generated(leaves, eps, classes)
            said = sum(z @ v["head.weight"].t() + v["head.bias"] for v in trained.values()) / 3
            spread = sum(
                (eps[i] - eps[j]).square().mean() * (z[i] - z[j]).abs().mean() for i in range(6) for j in range(6)
            )
            optimizer.zero_grad()
            (cross_entropy(said, classes) + 0.5 * (-spread / 36).exp()).backward()
            optimizer.step()
        made, w = {n: v.detach() for n, v in leaves.items()}, average(trained)
        same(each.server, {**w, **joined(generator=made)})
        same(each.scored, stacked([w] * 4))


def test_rounds_of_fediot() -> None:  # noqa: C901 - rounds, read from top to bottom
    """Autoencoders of two kinds, averaged by kind; the server's classifier by Adam on what it was given."""
    chosen = pair(FedIoT(labelled=0.3, steps=4, batch=5, lr=0.05), cohort="4")
    simulation = Simulation(chosen, trainer(chosen))
    state = simulation.begin()
    kinds = chosen.task.modalities
    w = {n: v for n, v in state.server.items() if not n.startswith("labelled/")}
    known, seen = [], set()
    for index, (kind, setup) in enumerate(zip(kinds, chosen.modalities, strict=True)):
        members = [k for k in range(5) if KIND[k] == index]
        x, y = (torch.cat(parts) for parts in zip(*(samples(setup, k) for k in members), strict=True))
        rows = torch.randperm(len(y), generator=rng.torch_rng(0, "labelled", index))[: round(0.3 * len(y))]
        same({"": state.server[f"labelled/{kind.prefix}x"]}, {"": x[rows]})
        known.append((x[rows], y[rows]))
    for done in range(3):
        ids = chosen.draw_cohort(Clock(done, 3)).tolist()
        seen.add(tuple(ids))
        trained: dict[int, Tree] = {}
        for k in ids:
            kind, (x, y) = kinds[KIND[k]], samples(chosen.modalities[KIND[k]], k)
            own = kind.own(w)
            order = schedule.batches(len(y), chosen.protocol.local, Stage(), rng.torch_rng(0, "batches", done, k, 0))
            for rows in order:

                def loss(v: Tree, x: Tensor = x[rows], kind: Any = kind) -> Tensor:
                    z = kind.features(v, x, train=True)
                    rebuilt = z @ v[f"decoder/{kind.prefix}weight"].t() + v[f"decoder/{kind.prefix}bias"]
                    if kind is kinds[0]:
                        return (rebuilt - x.flatten(1)).square().mean()
                    each = []
                    for one, given in zip(rebuilt.log_softmax(1), x.flatten(1).long().tolist(), strict=True):
                        words = [word for word in given if word > 0]
                        each.append(-sum(one[word] for word in words) / len(words))
                    return torch.stack(each).mean()

                slope = derivative(loss, own)
                own = {n: v if n in HEAD else v - 0.1 * slope[n] for n, v in own.items()}
            trained[k] = own
        fresh = {}
        for n in w:
            having = [k for k in ids if n in trained[k] and n not in HEAD]
            sizes = [len(samples(chosen.modalities[KIND[k]], k)[1]) for k in having]
            if having:
                fresh[n] = sum(s / sum(sizes) * trained[k][n] for s, k in zip(sizes, having, strict=True))
        w = {**w, **fresh}  # type: ignore[dict-item]
        generator = chosen.cohort(torch.tensor(ids), Clock(done, 3)).generator
        z = [kind.features(kind.own(w), x).detach() for kind, (x, _) in zip(kinds, known, strict=True)]
        head = {n: w[n].clone().requires_grad_(True) for n in HEAD}
        optimizer = torch.optim.Adam(head.values(), lr=0.05)
        for _ in range(4):
            terms = []
            for place in (0, 1):
                rows = torch.randint(len(z[place]), (5,), generator=generator)
                said = z[place][rows] @ head["head.weight"].t() + head["head.bias"]
                terms.append(cross_entropy(said, known[place][1][rows]))
            optimizer.zero_grad()
            (sum(terms) / 2).backward()  # type: ignore[union-attr]
            optimizer.step()
        w = {**w, **{n: v.detach() for n, v in head.items()}}
        simulation.step(state)
        same({n: v for n, v in state.server.items() if not n.startswith("labelled/")}, w)
        for k, model in enumerate(personal(chosen, state)):
            same(model, {n: v for n, v in kinds[KIND[k]].own(w).items() if "/" not in n})
    assert len(seen) > 1


# ---- clusters


@pytest.mark.parametrize("method", [IFCA(k=3), FeSEM(k=2, pretrain_rounds=0)])
def test_rounds_of_centres(method: IFCA | FeSEM) -> None:
    """The nearest centre by loss, or by distance after training; a centre without a client in the round waits."""
    chosen, found = played(method, rounds=4, cohort=2)
    data = [samples(chosen, k) for k in FOUR]
    first = begun(chosen).server
    soft = isinstance(method, FeSEM)
    centres = [trees.row(trees.part(first, "base") if soft else first, j) for j in range(method.k)]
    taken = first["coalition"].tolist() if soft else []

    def least(k: int) -> int:
        losses = [float(loss_on(data[k])(w)) for w in centres]
        return losses.index(min(losses))

    for each in found:
        if soft:
            same(each.message, stacked([centres[taken[k]] for k in each.ids]))
        else:
            same(trees.row(each.message, 1), stacked(centres))
        now = {k: taken[k] if soft else least(k) for k in each.ids}
        trained = {k: descend(loss_on(data[k]), centres[now[k]], LR) for k in each.ids}
        extra = {} if soft else {"choice": torch.tensor([now[k] for k in each.ids])}
        same(each.uploads, {**stacked([trained[k] for k in each.ids]), **extra})
        for j in range(method.k):
            members = {k: w for k, w in trained.items() if now[k] == j}
            centres[j] = average(members) if members else centres[j]
        if soft:
            for k, w in trained.items():
                distances = [float(np.linalg.norm(flat(w) - flat(centre))) for centre in centres]
                taken[k] = distances.index(min(distances))
            assert each.server["coalition"].tolist() == taken
        same(trees.part(each.server, "base") if soft else each.server, stacked(centres))
        same({n: each.scored[n] for n in PARAMETERS}, stacked([centres[taken[k] if soft else least(k)] for k in FOUR]))


@pytest.mark.parametrize(
    "fields",
    [
        {"eps1": 10.0, "eps2": 0.05, "gamma_max": 0.2},
        {"eps1": 0.99, "eps2": 0.4, "relative": True, "uniform": True, "linkage": "complete"},
        {"eps1": 10.0, "eps2": 0.01, "warmup": 1, "smallest": 3},
    ],
    ids=str,
)
def test_rounds_of_cfl(fields: dict[str, Any]) -> None:  # noqa: C901 - rounds, read from top to bottom
    """Cuts by the best of all bipartitions; three clients at most are compared, where either linkage finds it."""
    method = CFL(**fields)
    chosen, found = played(method, rounds=6, data=federation(SIZES, labels=[[0], [1, 2], [0, 3], [1]]))
    data = [samples(chosen, k) for k in FOUR]
    taken, centres, peak = [0] * 4, [initial(chosen)], [0.0] * 4
    counted = (1, 1, 1, 1) if method.uniform else SIZES
    for done, each in enumerate(found):
        same(each.message, stacked([centres[taken[k]] for k in each.ids]))
        trained = {k: descend(loss_on(data[k]), centres[taken[k]], LR) for k in each.ids}
        for j in range(len(centres)):
            members = [k for k in each.ids if taken[k] == j]
            if not members or done < method.warmup:
                continue
            d = {k: flat(trained[k]) - flat(centres[j]) for k in members}
            n = sum(counted[k] for k in members)
            drift = float(np.linalg.norm(sum(counted[k] / n * d[k] for k in members)))
            everyone = [k for k in FOUR if taken[k] == j]
            unit = 1.0
            if method.relative:
                unit = max(drift, *(peak[k] for k in everyone))
                peak = [unit if k in everyone else peak[k] for k in FOUR]
            longest = max(float(np.linalg.norm(v)) for v in d.values())
            if not (drift < method.eps1 * unit and longest > method.eps2 * unit) or len(members) < method.smallest:
                continue
            S = {(a, b): d[a] @ d[b] / np.linalg.norm(d[a]) / np.linalg.norm(d[b]) for a in members for b in members}
            cuts = [set(c) for size in range(1, len(members)) for c in itertools.combinations(members, size)]
            across = [max(S[a, b] for a in cut for b in members if b not in cut) for cut in cuts]
            if ((1 - min(across)) / 2) ** 0.5 > method.gamma_max:
                cut = cuts[across.index(min(across))]
                rest = set(members) - cut
                leaving = cut if sum(counted[k] for k in cut) < sum(counted[k] for k in rest) else rest
                if sum(counted[k] for k in cut) == sum(counted[k] for k in rest):
                    leaving = {k for k in members if each.server["coalition"][k] == len(centres)}
                    assert leaving in (cut, rest)
                centres.append(centres[j])
                taken = [len(centres) - 1 if k in leaving else taken[k] for k in FOUR]
        for j in range(len(centres)):
            members = [k for k in each.ids if taken[k] == j]
            if members:
                n = sum(counted[k] for k in members)
                centres[j] = combined([counted[k] / n for k in members], [trained[k] for k in members])
        assert each.server["coalition"].tolist() == taken
        same(trees.part(each.server, "base"), stacked(centres))
        same(each.scored, stacked([centres[taken[k]] for k in FOUR]))
        if method.relative:
            same({"": each.server["peak"]}, {"": torch.tensor(peak, dtype=torch.float64)})
    assert len(centres) > 1


# ---- cases that no ordinary round has


def test_clients_whose_gradients_are_zero_count_alike_in_fedas() -> None:
    chosen, _ = played(FedAS(), rounds=1, cohort=4)
    uploads = {**stacked([{n: torch.full_like(v, float(k)) for n, v in initial(chosen).items()} for k in FOUR], BODY)}
    cohort = chosen.cohort(torch.arange(4), Clock(0, 1))
    for fisher, expected in (([0.0] * 4, 1.5), ([0.0, 3.0, 0.0, 1.0], 1.5), ([0.0, 0.0, 2.0, 0.0], 2.0)):
        given = {**uploads, "fisher": torch.tensor(fisher, dtype=torch.float64)}
        after = chosen.method.aggregate({}, given, cohort)
        assert close(after["fc.0.bias"], torch.full((7,), expected, dtype=torch.float64), 1e-12)


def test_fedremas_classifier_may_have_batch_normalisation() -> None:
    """The whole network as classifier: the loss is the plain one in training mode, and statistics move."""
    options: dict[str, Any] = {"data": federation(SIZES, (1, 16, 16)), "model": LeNet5(batch_norm=True), "cohort": 4}
    chosen, aligned = played(FedReMa(classifier=("*",), align=1.0), rounds=1, **options)
    plain = played(FedReMa(classifier=("*",)), rounds=1, **options)[1]
    same(trees.plain(aligned[0].uploads), plain[0].uploads)
    x, y = samples(chosen, 1)
    pixels = torch.stack([x[y == c].sum(0).flatten() for c in FOUR])
    same({"": aligned[0].uploads["classes/sums"][1]}, {"": pixels})


def test_fedremas_ties_are_cut_in_the_clients_order() -> None:
    S = torch.full((40, 40), 0.5, dtype=torch.float64)
    S[:, ::3] = 0.25
    S.fill_diagonal_(1.0)
    kept, gaps = segment(S, last_gap=False, keep_below=True)
    for i in range(40):
        low = [j for j in range(0, 40, 3) if j != i]
        expected = [j for j in range(40) if j not in low[:-1]]
        assert kept[i].nonzero().flatten().tolist() == expected
    assert gaps.tolist() == [0.25] * 40


@pytest.mark.parametrize("baseline", ["trained", "before"])
def test_rounds_of_fedfomo(baseline: str) -> None:
    """Weights of the models that help on validation samples, added up in P; the best known are sent next.

    Models that were never uploaded are not sent. Where there are too few others, the client's own fills their places.
    Compared with what a client began to train from, its own trained model helps too, or does not.
    """
    chosen, found = played(FedFomo(M=2, epsilon=0.0, baseline=baseline), rounds=6)
    data = [samples(chosen, k) for k in FOUR]
    held = [chosen.federation.gather(chosen.federation.validation_indices(k)) for k in FOUR]
    stored, began, P = [initial(chosen)] * 4, [initial(chosen)] * 4, np.zeros((4, 4))
    own_weights, known = [], set[int]()
    for each in found:
        trained = {}
        for i, k in enumerate(each.ids):
            peers = each.message["reported/peers"][i].tolist()
            others = sorted((j for j in known if j != k), key=lambda j: -P[k, j])
            sent_others = [j for j in peers if j != k]
            assert len({*sent_others}) == len(sent_others) == min(2, len(others))
            assert sorted(P[k, sent_others]) == sorted(P[k, others[:2]])
            assert known.issuperset(sent_others)
            for place, j in enumerate(peers):
                same({n: each.message[f"peer/{n}"][i, place] for n in PARAMETERS}, stored[j])
            theta, candidates = (stored[k], peers) if baseline == "trained" else (began[k], [*peers, k])
            weights = []
            for j in candidates:
                apart = float(np.linalg.norm(flat(stored[j]) - flat(theta)))
                gain = float(loss_on(held[k])(theta)) - float(loss_on(held[k])(stored[j]))
                weights.append(gain / apart if apart > 0 else 0.0)
            if baseline == "before":  # its own competes once
                weights[:2] = [0.0 if j == k else weight for j, weight in zip(peers, weights, strict=False)]
            positive = [max(0.0, value) for value in weights]
            start = theta
            if sum(positive) > 0:
                row = [value / sum(positive) for value in positive]
                start = combined([1, *row], [start, *(less(stored[j], start) for j in candidates)])
                own_weights += row[2:]
            same({"": each.uploads["reported/weights"][i]}, {"": torch.tensor(weights[:2], dtype=torch.float64)})
            trained[k], began[k] = descend(loss_on(data[k]), start, LR), start
            for j, value in zip(peers, weights, strict=False):
                P[k, j] += value
        same({n: each.uploads[n] for n in PARAMETERS}, stacked([trained[k] for k in each.ids]))
        stored = [trained.get(k, stored[k]) for k in FOUR]
        known |= {*each.ids}
        uploaded = torch.tensor([k in known for k in FOUR])
        same(each.server, {**joined(model=stacked(stored)), "P": torch.from_numpy(P), "uploaded": uploaded})
        kept = {} if baseline == "trained" else joined(before=stacked(began))
        same(each.memory, {**stacked(stored), **kept})
        same(each.scored, stacked(stored))
    assert (P > 0).any()
    if baseline == "before":
        assert 0 < sum(0 < share < 1 for share in own_weights) < len(own_weights)


# ---- endpoints


@pytest.mark.parametrize(
    "method",
    sampled(
        [
            SosicFL(samples=1, rho=0.9),
            SosicFL(samples=2, simplex=("*",)),
            SosicFLPlus(samples=2, lam=0.6, personal_samples=1),
        ],
        every=2,
    ),
)
def test_rounds_of_sosicfl(method: SosicFL) -> None:
    """Two steps a round on endpoints at drawn alphas, one alpha used in turn; scored in the middle of the subregion."""
    chosen, found = played(method, epochs=2, data=federation(SIZES, labels=[[0], [1], [2, 3], [0, 1]]))
    data = [samples(chosen, k) for k in FOUR]
    start = begun(chosen).server
    region = {n: v for n, v in start.items() if n.startswith("region/")}
    w = {n: v for n, v in start.items() if n not in region}
    names, plus = sorted(w), isinstance(method, SosicFLPlus)
    mine, ends = [w] * 4, PARAMETERS if method.simplex == ("*",) else HEAD
    assert names == sorted([*(f"endpoints/{n}" for n in ends), *(n for n in PARAMETERS if n not in ends)])

    def at(work: Tree, alpha: Tensor) -> Tree:
        return {**work, **{n: sum(a * v for a, v in zip(alpha, work[f"endpoints/{n}"], strict=True)) for n in ends}}  # type: ignore[misc]

    def steps(work: Tree, k: int, alphas: Tensor, lam: float, received: Tree) -> Tree:
        for alpha in alphas:

            def loss(v: Tree, alpha: Tensor = alpha) -> Tensor:
                pull = sum((v[n] - received[n]).square().sum() for n in names)
                return loss_on(data[k])(at(v, alpha)) + lam / 2 * pull

            slope = derivative(loss, work)
            work = {n: v - LR * slope[n] for n, v in work.items()}
        return work

    for done, each in enumerate(found):
        trained = {}
        for i, k in enumerate(each.ids):
            message = trees.row(each.message, i)
            same(message, {**w, "region/center": region["region/center"][k], "region/radius": region["region/radius"]})
            view = chosen.client(k, message, trees.row(each.memory, k), Clock(done, 3))
            noise = chosen.source(chosen, k, Stage(), view, "batches")[1]
            assert len(noise["alpha"].unique(dim=0)) == method.samples
            trained[k] = steps(w, k, noise["alpha"], 0.0, w)
            if isinstance(method, SosicFLPlus):
                assert len(noise["personal"].unique(dim=0)) == 1
                fresh = steps(mine[k], k, noise["personal"], method.lam, w)
                mine = [fresh if j == k else mine[j] for j in FOUR]
        same(each.uploads, stacked([trained[k] for k in each.ids], names))
        w = average(trained, names)
        same(each.server, {**w, **region})
        same(each.memory, joined(personal=stacked(mine, names)) if plus else {})
        scored = [at(mine[k] if plus else w, region["region/center"][k]) for k in FOUR]
        same({n: each.scored[n] for n in PARAMETERS}, stacked(scored))
        common = chosen.method.common(each.server, chosen.task)
        assert common is not None
        thirds = torch.full((3,), 1 / 3, dtype=torch.float64)
        same(common, {n: at(w, thirds)[n] for n in PARAMETERS})


def test_the_codes_draws_are_a_point_of_the_cube_over_its_length() -> None:
    centre = torch.tensor([0.2, 0.5, 0.3])
    found = simplex.unprojected(5, centre, 0.4, torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(0)
    cube = torch.rand(5, 3, dtype=torch.float64, generator=generator)
    length = torch.rand(5, 1, dtype=torch.float64, generator=generator)
    for point, u, r in zip(found, cube, length, strict=True):
        u, size = 2 * u - 1, float((2 * u - 1).abs().sum())
        expected = [float(c) + 0.4 * float(r) * float(v) / size for c, v in zip(centre.double(), u, strict=True)]
        assert point.tolist() == pytest.approx(expected, abs=1e-12)


def test_the_energy_of_points_by_loops() -> None:
    """The mean over pairs of one over their squared distance; those that are too near count as if they were not."""
    points = np.random.default_rng(0).random((6, 3))
    points[1] = points[0]
    terms = []
    for i in range(6):
        for j in range(i):
            squared = sum((points[i, c] - points[j, c]) ** 2 for c in range(3))
            terms.append(1 / max(squared, simplex.NEAREST**2))
    assert simplex.riesz_energy(points) == pytest.approx(sum(terms) / len(terms))
    assert simplex.riesz_energy(points[:1]) == 0.0


# ---- which mini-batches stages see


def stages_of(method: Method, round_: int = 2, *, adapts: bool = False, **local: int | None) -> list[Any]:
    """Of each stage its order, epochs, iterations, and the rate that is its own."""
    work = (LocalConfig(**{"epochs": 2, "iterations": None, **local}), Clock(round_, 9))  # type: ignore[arg-type]
    found = method.adapt(*work) if adapts else method.stages(*work)
    return [(s.order, s.epochs, s.iterations, s.optimizer.lr if s.optimizer else s.lr) for s in found]


def test_stages_of_one_order_see_the_same_mini_batches_and_others_do_not() -> None:
    """What stages draw by is part of a run's numbers."""
    once = (0, None, None, None)
    assert stages_of(Ditto(personal_epochs=3)) == [once, (0, 3, None, None)]
    assert stages_of(SosicFLPlus(personal_epochs=3)) == [once, (0, 3, None, None)]
    assert stages_of(FedRep(head_epochs=4)) == [(0, 4, None, None), (1, 1, None, None)]
    assert stages_of(FedAS(align_epochs=3, align_lr=0.7)) == [(1, 3, None, 0.7), once]
    assert stages_of(FedReMa(alternate=True, classifier_epochs=3)) == [(0, 3, None, None), (1, None, None, None)]
    apart = FedPAC(classifier_epochs=2, classifier_lr=0.6, extractor_epochs=5)
    assert stages_of(apart) == [(0, 2, None, 0.6), (1, 5, None, None)]
    assert stages_of(FedPAC()) == [(0, 1, None, 0.1), (1, None, None, None)]
    assert stages_of(APFL(alpha_lr=0.6)) == [(0, None, 1, 0.6), once]
    by_order = [(order, 1, None, None) for order in (1, 0, 3, 2)]
    assert stages_of(FedSelect()) == by_order
    assert stages_of(FedSelect(alternations=1)) == by_order[:2]
    assert stages_of(FedSelect(), epochs=None, iterations=7) == [(order, None, None, None) for order in (1, 0)]
    assert stages_of(PerFedAvg(beta=0.6)) == [(0, None, None, 0.6)]
    for method in (FedPHP(), FedEM(), FedCP(), GPFL(), Moon(), FedGen(), FedIoT(), FedTGP()):
        assert stages_of(method) == [once], type(method).__name__
    for round_, learns in ((0, []), (1, [(1, 7, None, None)]), (2, [(1, 1, None, None)])):
        assert stages_of(FedALA(start_epochs=7), round_) == [*(learns or [(1, 0, None, None)]), once]
        assert stages_of(FedALA(start_epochs=7), round_, adapts=True) == learns
    assert stages_of(FedBABU(tune_epochs=3, tune_lr=0.6), adapts=True) == [(0, 3, None, 0.6)]
    assert stages_of(Finetune(steps=4), adapts=True) == [(0, None, 4, None)]
    assert stages_of(PerFedAvg(alpha=0.3, adapt_steps=4), adapts=True) == [(0, None, 4, 0.3)]
    assert stages_of(PerFedAvg(alpha=0.3, adapt_epochs=2), adapts=True) == [(0, 2, None, 0.3)]
    for method in (PerFedAvg(alpha=0.0), FedBABU(tune_epochs=0), Ditto(), FedAS()):
        assert stages_of(method, adapts=True) == [], type(method).__name__
    probed = Finetune(steps=None, epochs=3, lr=0.2, probed=("@head",))
    assert stages_of(probed, adapts=True) == [(1, 3, None, 0.2), (0, 3, None, 0.2)]


# ---- discriminators in chunks


def test_as_many_pairs_are_trained_at_once_as_fit() -> None:
    """Of a pair: its basis, training and validation rows in it and weights; hidden layers of a step, four times."""
    for features_, m in ((40, 10), (40, 11), (12, 5)):
        phi = torch.zeros(3, features_, dtype=torch.float64)
        embedding = distances.Embedding(phi, torch.zeros(3, 6), torch.zeros(6), torch.zeros(()))
        reduced = 4 * m <= features_
        width = 2 * m if reduced else features_
        numbers = width * 6 + 4 * (2 * m) * 6
        if reduced:
            numbers += features_ * width + (2 * m) * width + 9 * width
        assert distances._chunk(embedding, m, 9) == distances.WORK_BYTES // (8 * numbers)


# ---- valves, policies and components


def over(h: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Layer normalisation of the last axis."""
    return (h - h.mean(-1, keepdim=True)) / (h.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt() * scale + shift


def moved_by(loss: Any, w: Tree, still: tuple[str, ...] = ()) -> Tree:
    """A step on all leaves but those that begin as `still`."""
    slope = derivative(loss, w)
    return {n: v if n.startswith(still) and still else v - LR * slope[n] for n, v in w.items()}


@pytest.mark.parametrize("code", [False, True])
def test_rounds_of_gpfl(code: bool) -> None:
    lam, mu = 0.3, 0.05
    fields: dict[str, Any] = (
        {"conditions": "own", "divided": False, "distance": "batch", "squared": True} if code else {}
    )
    chosen, found = played(GPFL(lam=lam, mu=mu, **fields), data=federation(SIZES, labels=[[0], [0, 1], [1, 2], [3, 0]]))
    data, first = [samples(chosen, k) for k in FOUR], begun(chosen)
    w, own = first.server, [trees.row(first.memory, k) for k in FOUR]
    shares = [own[k]["own/shares"] for k in FOUR]
    for k in FOUR:
        assert close(shares[k], torch.stack([(data[k][1] == c).double().mean() for c in FOUR]), 1e-7)

    def turned(v: Tree, z: Tensor, condition: Tensor) -> Tensor:
        gamma, beta = (
            over(
                torch.relu(v[f"valve/{n}.weight"] @ condition + v[f"valve/{n}.bias"]),
                v[f"valve/{n}.scale"],
                v[f"valve/{n}.shift"],
            )
            for n in ("gamma", "beta")
        )
        return torch.relu(z * (gamma + 1) + beta)

    def averages(E: Tensor, k: int) -> Tensor:
        return torch.stack([E.mean(0), (shares[k] @ E) / (1 if code else 4)])

    for each in found:
        same(trees.row(each.message, 0), w)
        trained, E = {}, w["classes/embeddings"]
        for k in each.ids:
            x, y = data[k]
            c = own[k]["own/conditions"] if code else averages(E, k)

            def loss(v: Tree, x: Tensor = x, y: Tensor = y, c: Tensor = c, E: Tensor = E) -> Tensor:
                z, e = features(v, x), v["classes/embeddings"]
                common, mine = turned(v, z, c[0]), turned(v, z, c[1])
                cosines = (common / common.norm(dim=1, keepdim=True)) @ (e / e.norm(dim=1, keepdim=True)).t()
                apart = common - E[y]
                distance = apart.norm() if code else apart.norm(dim=1).mean()
                valve = torch.cat([leaf.flatten() for n, leaf in v.items() if n.startswith("valve/")])
                size = (valve @ valve + e.square().sum()) / 2 if code else valve.norm() + e.norm()
                said = mine @ v["head.weight"].t() + v["head.bias"]
                return cross_entropy(said, y) + cross_entropy(cosines, y) + lam * distance + mu * size

            v = moved_by(loss, {**w, **{n: own[k][n] for n in HEAD}})
            trained[k] = v
            mine = {**own[k], **{n: v[n] for n in HEAD}}
            if code:
                mine["own/conditions"] = averages(v["classes/embeddings"], k)
            own = [mine if j == k else own[j] for j in FOUR]
        same(each.uploads, stacked([trained[k] for k in each.ids], sorted(w)))
        w = average(trained, sorted(w))
        same(each.server, w)
        same(each.memory, stacked(own, sorted(own[0])))
        conditions = [own[k]["own/conditions"] if code else averages(w["classes/embeddings"], k) for k in FOUR]
        x = data[0][0]
        for k in FOUR:
            v = {**w, **own[k]}
            shown = chosen.method.predict(trees.row(each.scored, k), x, chosen.task)
            said = turned(v, features(v, x), conditions[k][1]) @ v["head.weight"].t() + v["head.bias"]
            same({"": shown}, {"": said})


def test_rounds_of_fedcp() -> None:
    lam = 2.0
    chosen, found = played(FedCP(lam=lam, noise=4), epochs=2)
    data, first = [samples(chosen, k) for k in FOUR], begun(chosen)
    w, own = first.server, [trees.row(first.memory, k) for k in FOUR]

    def said(v: Tree, z: Tensor, context: Tensor, gumbel: Tensor) -> Tensor:
        h = (z * context) @ v["policy/fc.weight"].t() + v["policy/fc.bias"]
        odds = (torch.relu(over(h, v["policy/scale"], v["policy/shift"])).view(len(z), 2, 7) + gumbel).exp()
        r = odds[:, 0] / (odds[:, 0] + odds[:, 1])
        mine = (r * z) @ v["head.weight"].t() + v["head.bias"]
        return mine + ((1 - r) * z) @ v["head/head.weight"].t() + v["head/head.bias"]

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        squared = (a[:, None] - b[None]).square().sum(2)
        return sum((-squared / (2 * width)).exp().mean() for width in (10, 15, 20, 50))  # type: ignore[return-value]

    none = torch.zeros(1, 2, 7, dtype=torch.float64)
    for done, each in enumerate(found):
        same(trees.row(each.message, 1), w)
        trained = {}
        for k in each.ids:
            keyed = rng.torch_rng(0, "batches", done, k, 0)
            order = schedule.batches(SIZES[k], chosen.protocol.local, Stage(), keyed)
            drawn = torch.empty(2, 4, 2, 7).exponential_(generator=rng.torch_rng(0, "batches/noise", done, k, 0))
            v = own[k]["head.weight"].sum(0)
            context = v / v.norm()

            work = {**w, **own[k]}
            for rows, noise in zip(order, drawn, strict=True):  # at first the distance to what was received is flat
                x, y = data[k][0][rows], data[k][1][rows]
                gumbel = -noise.log().double()[torch.arange(len(y)) % 4]

                def loss(
                    v: Tree, x: Tensor = x, y: Tensor = y, gumbel: Tensor = gumbel, c: Tensor = context, w: Tree = w
                ) -> Tensor:
                    z, given = features(v, x), features(w, x)
                    apart = kernel(z, z) + kernel(given, given) - 2 * kernel(z, given)
                    return cross_entropy(said(v, z, c, gumbel), y) + lam * apart

                work = moved_by(loss, work, ("head/",))
            v = work
            own = [{n: v[n] for n in HEAD} if j == k else own[j] for j in FOUR]
            trained[k] = {n: (v[n.removeprefix("head/")] + v[n]) / 2 if n.startswith("head/") else v[n] for n in w}
        same(each.uploads, stacked([trained[k] for k in each.ids], sorted(w)))
        w = average(trained, sorted(w))
        same(each.server, w)
        same(each.memory, stacked(own, HEAD))
        x = data[2][0]
        for k in FOUR:
            v = {**w, **own[k]}
            context = v["head.weight"].sum(0) / v["head.weight"].sum(0).norm()
            shown = chosen.method.predict(trees.row(each.scored, k), x, chosen.task)
            same({"": shown}, {"": said(v, features(v, x), context, none)})


@pytest.mark.parametrize("method", [FedEM(components=2), FedEM(components=4, damped=True), FedRC(components=2)])
def test_rounds_of_fedem(method: FedEM) -> None:
    chosen, found = played(method, epochs=2, data=federation(SIZES, labels=[[0, 1], [0, 1, 2, 3], [1, 2], [0, 3]]))
    M, rc = method.components, isinstance(method, FedRC)
    data, first = [samples(chosen, k) for k in FOUR], begun(chosen)
    theta = [trees.row(trees.part(first.server, "component"), m) for m in range(M)]
    pi = torch.full((4, M), 1 / M, dtype=torch.float64)
    mass = torch.zeros(4, M, 4, dtype=torch.float64)

    def losses(w: Tree, k: int) -> Tensor:
        x, y = data[k]
        return -logits(w, x).log_softmax(1)[torch.arange(len(y)), y]

    for each in found:
        P = mass.sum(0).clamp(min=1e-8)
        P = P / P.sum(1, keepdim=True)
        sent = joined(component=stacked(theta)) | ({"labels": P} if rc else {})
        same(trees.row(each.message, 2), sent)
        trained: dict[int, list[Tree]] = {}
        for k in each.ids:
            y = data[k][1]
            odds = [pi[k, m] * (-losses(theta[m], k)).exp() / (P[m, y] if rc else 1) for m in range(M)]
            q = [one / sum(odds) for one in odds]
            pi[k] = torch.stack([one.mean() for one in q])
            for m in range(M):
                mass[k, m] = torch.stack([q[m][y == c].sum() for c in FOUR])
            trained[k] = theta
            for _ in range(2):
                trained[k] = [
                    descend(lambda w, k=k, q=q[m]: (q * losses(w, k)).mean(), trained[k][m], LR)  # type: ignore[misc]
                    for m in range(M)
                ]
        labels = {"labels": mass[each.ids]} if rc else {}
        up = [joined(component=stacked(trained[k])) for k in each.ids]
        same(each.uploads, stacked(up, sorted(up[0])) | labels)
        share = sum(SIZES[k] for k in each.ids) / sum(SIZES) if method.damped else 1.0
        means = [average({k: trained[k][m] for k in each.ids}) for m in range(M)]
        theta = [combined([1 - share, share], [theta[m], means[m]]) for m in range(M)]
        same(each.server, joined(component=stacked(theta)) | ({"labels": mass} if rc else {}))
        same(each.memory, {"pi": pi})
        same(each.scored, {**{n: v.expand(4, *v.shape) for n, v in joined(component=stacked(theta)).items()}, "pi": pi})
        said = sum(pi[1, m] * logits(theta[m], data[1][0]).softmax(1) for m in range(M))
        shown = chosen.method.predict(trees.row(each.scored, 1), data[1][0], chosen.task)
        same({"": shown.exp()}, {"": torch.as_tensor(said)})


@pytest.mark.parametrize(
    ("fields", "epochs"),
    [
        ({"sigma": 3.0, "self_weight": 0.4, "from_round": 1}, 2),
        ({"sigma": 3.0, "self_weight": 0.4, "similarity": "updates"}, 1),
        ({"sigma": 5.0, "attention": "distance"}, 1),
        ({"sigma": 1.5, "attention": "distance"}, 1),
    ],
    ids=str,
)
def test_rounds_of_fedamp(fields: dict[str, Any], epochs: int) -> None:
    """Attention by cosine or distance, the client itself apart; a client that is away keeps the u that it had."""
    method = FedAMP(lam=0.5, alpha=2.0, **fields)
    chosen, found = played(method, epochs=epochs)
    data, start = [samples(chosen, k) for k in FOUR], initial(chosen)
    u, mine, kept = [start] * 4, [start] * 4, np.eye(4)
    for done, each in enumerate(found):
        same(each.message, stacked([u[k] for k in each.ids]))
        for k in each.ids:

            def loss(w: Tree, k: int = k, u: Tree = u[k], on: float = float(done >= method.from_round)) -> Tensor:
                return loss_on(data[k])(w) + on * 0.5 / (2 * 2.0) * inner(less(w, u), less(w, u))  # type: ignore[no-any-return]

            trained = mine[k]
            for _ in range(epochs):
                trained = descend(loss, trained, LR)
            mine = [trained if j == k else mine[j] for j in FOUR]
        rows = [flat(mine[k]) - (flat(start) if method.similarity == "updates" else 0) for k in each.ids]
        fresh = {}
        for i, k in enumerate(each.ids):
            odds = {
                j: np.exp(3.0 * rows[i] @ rows[j] / np.linalg.norm(rows[i]) / np.linalg.norm(rows[j]))
                for j in range(3)
                if j != i
            }
            row = [0.4 if j == i else 0.6 * odds[j] / sum(odds.values()) for j in range(3)]
            if method.attention == "distance":
                near = [np.exp(-((rows[i] - rows[j]) ** 2).sum() / method.sigma) for j in range(3)]
                row = [2.0 / method.sigma * near[j] * (j != i) for j in range(3)]
                row = [one / max(1.0, sum(row)) for one in row]
                row[i] = 1 - sum(row)
            kept[k] = 0
            kept[k, each.ids] = row
            fresh[k] = combined(row, [mine[j] for j in each.ids])
        u = [fresh.get(k, u[k]) for k in FOUR]
        same(each.uploads, stacked([mine[k] for k in each.ids]))
        same(each.memory, stacked(mine))
        same(each.server, {**joined(model=stacked(u), initial=start), "W": torch.from_numpy(kept)})
        same(each.scored, stacked(mine))


def test_rounds_of_fednova() -> None:
    """Clients with one, two and three steps, two of them in a round."""
    chosen = quadratic(
        FedNova(),
        UNEQUAL,
        POINTS,
        CURVED,
        rounds=4,
        epochs=2,
        cohort=2,
        optimizer=OptimizerConfig(lr=0.1, momentum=0.4),
    )
    w, e = initial(chosen)["head.bias"].numpy(), minima(chosen).numpy()
    meter = ToyMeter(chosen)
    simulation = Simulation(chosen, meter)
    state, seen = simulation.begin(), set()
    for done in range(4):
        ids = chosen.draw_cohort(Clock(done, 4)).tolist()
        seen.add(tuple(ids))
        simulation.step(state)
        taken = [2 * -(-UNEQUAL[k] // 8) for k in ids]
        passed = np.array([counted(steps, 0.4) for steps in taken])
        trained = [local_steps(w, attraction(CURVED[k], e[k]), n, 0.1, 0.4) for k, n in zip(ids, taken, strict=True)]
        per_step = (w - np.stack(trained)) / passed[:, None]
        share = np.array([UNEQUAL[k] for k in ids]) / sum(UNEQUAL[k] for k in ids)
        w = w - (share @ passed) * (share @ per_step)
        same({"": meter.outcome.uploads["change/head.bias"]}, {"": torch.from_numpy(per_step)})
        same({"": meter.outcome.uploads["steps"]}, {"": torch.from_numpy(passed)})
        same({"": bias(state)}, {"": torch.from_numpy(w)})
    assert len(seen) > 1


def test_groups_of_models_trained_alone() -> None:
    """KMeans: two rounds alone, then the partition of least squared distance from its means, of all there are."""
    chosen, found = played(KMeans(k=2, pretrain_rounds=2), data=federation(SIZES, labels=[[0], [1, 2], [0, 3], [1]]))
    F = [loss_on(samples(chosen, k)) for k in FOUR]
    alone = [flat(descend(f, descend(f, initial(chosen), LR), LR)) for f in F]

    def inertia(labels: tuple[int, ...]) -> float:
        total = 0.0
        for j in set(labels):
            own = np.stack([alone[k] for k in FOUR if labels[k] == j])
            total += float(((own - own.mean(0)) ** 2).sum())
        return total

    best = min(itertools.product((0, 1), repeat=4), key=inertia)
    arrays = begun(chosen).arrays
    groups = arrays["coalition"].tolist()
    assert [a == groups[0] for a in groups] == [a == best[0] for a in best]
    apart = [[float(np.linalg.norm(a - b)) for b in alone] for a in alone]
    np.testing.assert_allclose(arrays["distances"], apart, atol=1e-6)
    centres = [initial(chosen)] * 2
    for each in found:
        trained = {k: descend(F[k], centres[groups[k]], LR) for k in each.ids}
        for j in (0, 1):
            members = {k: w for k, w in trained.items() if groups[k] == j}
            centres[j] = average(members) if members else centres[j]
        same(
            each.server | {"coalition": torch.zeros(1)}, {**joined(base=stacked(centres)), "coalition": torch.zeros(1)}
        )
        same(each.scored, stacked([centres[groups[k]] for k in FOUR]))


# ---- what methods declare to the checks


def test_settings_are_declared_where_a_network_without_batch_normalisation_needs_them() -> None:
    assert Finetune().conformance.settings == {}
    assert Finetune(tuned=("@norm",)).conformance.settings == {"tuned": ("@norm", "@head")}
    assert FedBN().conformance.settings == {"private": ("@norm", "@head")}
    assert [SosicFL(start_round=n).conformance.settings for n in (0, 1, 5)] == [{"start_round": n} for n in (0, 1, 1)]
    drawn = [APPLE(), FedReMa(), FedGen()], [APPLE(apart=True), FedReMa(shuffle=True), FedReMa(probe_per_client=True)]
    for methods, declared in zip(drawn, (False, True), strict=True):
        assert all(bool(each.conformance.draws_by_position) is declared for each in methods)


FINISH, START = frozenset({"finish"}), frozenset({"start"})
READS = {
    **dict.fromkeys(
        ("fedap", "feddistill", "fedgh", "fedpac", "fedproto", "fedsac", "fedsac_multimodal", "fedtgp"), FINISH
    ),
    **dict.fromkeys(("fedem", "fedfomo", "fedrc"), START),
    "fedas": START | FINISH,
    "fedccfa": START | FINISH,
    "ifca": START | {"personal"},
    "knnper": {"model", "personal"},
    "pfedfda": START | FINISH | {"model", "personal"},
}
DRAWN = {"fedcollab", "fedgh", "fediot", "fedtgp", "fesem", "pfedhn"}  # the server draws by the clients' numbers
APART = {
    "apple",
    "dp_fedavg",
    "fedas",
    "feddistill",
    "fedgh",
    "fednova",
    "fedproto",
    "fedtgp",
    "ifca",
    "local",
    "pfedhn",
    "robust",
}  # models are no averages
UNLIKE = {
    *("fedadagrad", "fedadam", "fedala", "fedavg", "fedavgm", "fedbabu", "fedbn", "feddistill", "fedgh", "fediot"),
    *("fedkd", "fedmrl", "fedntd", "fedper", "fedphp", "fedproto", "fedprox", "fedrep", "fedsac_multimodal", "fedtgp"),
    *("fedyogi", "finetune", "fml", "knnper", "lg_fedavg", "local", "moon", "per_kind", "perfedavg"),
}  # whose server serves clients of several kinds


def test_what_each_method_says_of_itself() -> None:
    for name in METHODS:
        method = METHODS.build({"name": name})
        assert method.reads_data == READS.get(name, set()), name
        assert (method.shares(torch.ones(2)) is None) is (name in APART), name
        assert ("modalities" not in method.unfit) is (name in UNLIKE), name
        assert method.prepare_round == (3 if name == "flux" else 0), name
        declared = method.conformance
        assert bool(declared.draws_by_position) is (name in DRAWN), name
        assert bool(declared.sends_by_cohort) is (name in {"fedfomo", "fedphp"}), name
        assert declared.smallest == 1 + (name == "fedcollab"), name
        for outer in (FedCollab, Oracle, PerKind):
            if method.prepare_round == 0 and (outer is not PerKind or not prepares(method)):
                inside = outer(base={"name": name})
                assert inside.reads_data == method.reads_data
                assert (inside.shares(torch.ones(2)) is None) is (name in APART)
    assert [Scaffold(option=n).reads_data for n in (1, 2)] == [{"finish"}, set()]
    assert [FedReMa(align=n).reads_data for n in (0.0, 0.1)] == [set(), {"finish"}]
    averaged = [FedPer(private=leaves).shares(torch.ones(2)) is not None for leaves in (("*",), ("@head",))]
    assert averaged == [False, True]
    assert SosicFL(start_round=7).prepare_round == 7


def test_a_wrong_setting_inside_is_told_where_it_is() -> None:
    with pytest.raises(ConfigError, match=r"method\.base\.mu") as error:
        FedCollab(base={"name": "fedprox", "mu": -1})
    assert "\n" not in str(error.value)


def test_cfl_records_distances_once_it_had_any() -> None:
    for eps1, names in ((0.0, {"coalition"}), (1e9, {"coalition", "distances"})):
        method = CFL(eps1=eps1, eps2=0.0)
        _, found = played(method, rounds=2, cohort=4)
        assert set(method.record(found[-1].server)) == names


# ---- entries and cores


@pytest.mark.parametrize("apart", [False, True])
def test_rounds_of_apple(apart: bool) -> None:
    """Steps on the own core and p together, with the pull of the first rounds; cores of absent clients stay."""
    p_lr, mu = 0.2, 2.0
    chosen, found = played(APPLE(p_lr=p_lr, mu=mu, pulled=0.7, schedule="cosine", apart=apart), epochs=2)
    data, first = [samples(chosen, k) for k in FOUR], begun(chosen)
    cores = [trees.row(trees.part(first.server, "core"), k) for k in FOUR]
    assert (float((cores[0]["head.weight"] - cores[1]["head.weight"]).abs().max()) > 1e-2) is apart
    p0 = torch.tensor(SIZES, dtype=torch.float64) / sum(SIZES)
    moved = [torch.zeros(4, dtype=torch.float64)] * 4

    def mixed(p: Tensor, own: Tree, k: int, others: list[Tree]) -> Tree:
        each = [own if j == k else others[j] for j in FOUR]
        return {n: sum(p[j] * each[j][n] for j in FOUR) for n in PARAMETERS}  # type: ignore[misc]

    for done, each in enumerate(found):
        for i, k in enumerate(each.ids):
            place = {"place": torch.tensor([k]), "p0": p0}
            same(trees.row(each.message, i), joined(core=stacked(cores)) | place)
        received, pull = list(cores), mu * ((1 + np.cos(np.pi * done / 2)) / 2 if done < 2 else 0.0)
        for k in each.ids:
            work = {**received[k], "moved": moved[k]}
            for _ in range(2):

                def loss(v: Tree, k: int = k, received: list[Tree] = received, pull: float = pull) -> Tensor:
                    w = mixed(p0 + v["moved"], v, k, received)
                    return loss_on(data[k])(w) + pull / 2 * v["moved"].square().sum()

                slope = derivative(loss, work)
                work = {n: v - (p_lr if n == "moved" else LR) * slope[n] for n, v in work.items()}
            cores[k], moved[k] = {n: work[n] for n in PARAMETERS}, work["moved"]
        same(each.uploads, stacked([cores[k] for k in each.ids]))
        same(each.server, joined(core=stacked(cores)))
        same(each.memory, {"moved": torch.stack(moved)})
        scored = {n: each.scored[n] for n in PARAMETERS}
        same(scored, stacked([mixed(p0 + moved[k], cores[k], k, cores) for k in FOUR]))


@pytest.mark.parametrize("collaborate", [True, False])
def test_rounds_of_fedpac(collaborate: bool) -> None:
    """A step on the head, one on the body towards centroids; what each client says of its received features."""
    method = FedPAC(lam=0.7, classifier_epochs=2, classifier_lr=0.2, collaborate=collaborate)
    chosen, found = played(method, data=federation(SIZES, labels=[[0], [0, 1], [1, 2], [2, 0]]))
    data = [samples(chosen, k) for k in FOUR]
    body, heads, kept = initial(chosen), [initial(chosen)] * 4, np.eye(4)
    centroids, seen = torch.zeros(4, 7, dtype=torch.float64), [False] * 4
    for each in found:
        given = [{**body, **{n: heads[k][n] for n in HEAD}} for k in FOUR]
        common = {"centroids": centroids, "seen": torch.tensor(seen)}
        for i, k in enumerate(each.ids):
            same(trees.row(each.message, i), {**given[k], **common})
        trained, hs, Vs = {}, [], []
        sums, counts = torch.zeros(4, 7, dtype=torch.float64), [0] * 4
        for i, k in enumerate(each.ids):
            x, y = data[k]

            def aligned(w: Tree, k: int = k, c: Tensor = centroids, known: list[bool] = seen) -> Tensor:
                x, y = data[k]
                pulls = [
                    (z - c[t]).square().mean() for z, t in zip(features(w, x), y.tolist(), strict=True) if known[t]
                ]
                return loss_on(data[k])(w) + 0.7 * trees.sum_of(pulls) / len(y)

            w = given[k]
            for _ in range(2):
                w = descend(loss_on(data[k]), w, 0.2, ("head",))
            w = descend(aligned, w, LR, ("fc",))
            z = features(given[k], x)
            h = torch.stack([z[y == c].sum(0) / len(y) for c in FOUR])
            V = (z.square().sum() / len(y) - h.square().sum()) / len(y)
            after = features(w, x)
            own = torch.stack([after[y == c].sum(0) for c in FOUR])
            number = [int((y == c).sum()) for c in FOUR]
            up = {"sums": own, "counts": torch.tensor(number).double(), "h": h, "V": V}
            parts = joined(body={n: w[n] for n in BODY}, heads={n: w[n] for n in HEAD})
            same(trees.row(each.uploads, i), parts | up)
            sums, counts = sums + own, [a + b for a, b in zip(counts, number, strict=True)]
            trained[k] = w
            hs.append(h)
            Vs.append(V)
        W = fedpac.weights(torch.stack(hs), torch.stack(Vs)).numpy() if collaborate else np.eye(3)
        for i, k in enumerate(each.ids):
            heads[k] = combined(W[i], [trained[j] for j in each.ids])
            kept[k] = 0
            kept[k, each.ids] = W[i]
        body = average(trained)
        rows = [sums[c] / counts[c] if counts[c] else centroids[c] for c in FOUR]
        centroids, seen = torch.stack(rows), [s or n > 0 for s, n in zip(seen, counts, strict=True)]
        common = {"centroids": centroids, "seen": torch.tensor(seen), "W": torch.from_numpy(kept)}
        same(each.server, joined(body={n: body[n] for n in BODY}, heads=stacked(heads, HEAD)) | common)
        whole = [{**body, **{n: heads[k][n] for n in HEAD}} for k in FOUR]
        same({n: each.scored[n] for n in PARAMETERS}, stacked(whole))
    assert collaborate is bool(((kept > 1e-3).sum(1) > 1).any())
    assert seen == [True, True, True, False]


@pytest.mark.parametrize("beta", [5.0, 2.0])
def test_rounds_of_fedcac(beta: float) -> None:
    """Critical entries by the client's own step, overlaps in the round, u of the cohort and w of all in the round."""
    tau = 0.3
    chosen, found = played(FedCAC(tau=tau, beta=beta), data=federation(SIZES, labels=[[0, 1], [0, 1], [2, 3], [1, 2]]))
    data = [samples(chosen, k) for k in FOUR]
    w, u = initial(chosen), [initial(chosen)] * 4
    Q = [{n: torch.zeros_like(v, dtype=torch.bool) for n, v in w.items()}] * 4
    for done, each in enumerate(found):
        starts = [{n: torch.where(Q[k][n], u[k][n], w[n]) for n in PARAMETERS} for k in FOUR]
        same(each.message, stacked([u[k] for k in each.ids]) | joined(common=stacked([w] * 3)))
        ends = {k: descend(loss_on(data[k]), starts[k], LR) for k in each.ids}
        for k in each.ids:
            worth = {n: ((v - starts[k][n]) * v).abs() for n, v in ends[k].items()}
            mine = {}
            for n, v in worth.items():
                ranked, marked = (-v).flatten().argsort(), torch.zeros(v.numel(), dtype=torch.bool)
                marked[ranked[: int(tau * v.numel())]] = True
                mine[n] = marked.view_as(v) & (v > 1e-10)
            Q = [mine if j == k else Q[j] for j in FOUR]
        same(each.uploads, stacked([ends[k] for k in each.ids]) | joined(critical=stacked([Q[k] for k in each.ids])))
        marks = [np.concatenate([Q[k][n].flatten().numpy() for n in PARAMETERS]).astype(float) for k in each.ids]
        overlap = np.array([[1 - np.abs(a - b).sum() / (2 * a.sum()) for b in marks] for a in marks])
        pairs = [overlap[i, j] for i in range(3) for j in range(3) if i != j]
        threshold = np.mean(pairs) + (done + 1) / beta * (max(pairs) - np.mean(pairs))
        for i, k in enumerate(each.ids):
            partners = [j for m, j in enumerate(each.ids) if m == i or overlap[i, m] >= threshold]
            u = [
                combined([1 / len(partners)] * len(partners), [ends[j] for j in partners]) if m == k else u[m]
                for m in FOUR
            ]
        w = average(ends)
        same(trees.part(each.server, "model"), stacked(u))
        same(trees.part(each.server, "common"), w)
        same(each.memory, joined(critical=stacked(Q)))
        same(each.scored, stacked([{n: torch.where(Q[k][n], u[k][n], w[n]) for n in PARAMETERS} for k in FOUR]))
