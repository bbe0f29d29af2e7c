"""GPFL and FedCP, small networks that turn features before a head: limits in which they are FedPer, rounds by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedbench.core import trees
from fedbench.core.batch import Batch
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock, Stage
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.simulation import Simulation
from fedbench.methods.fedcp import FedCP
from fedbench.methods.fedper import FedPer
from fedbench.methods.gpfl import GPFL
from tests.methods.toys import (
    BODY,
    FOUR,
    HEAD,
    ONE_STEP,
    close,
    cross_entropy,
    derivative,
    descend,
    features,
    federation,
    gap,
    models,
    run,
    samples,
    setup,
    simulate,
)

LR = 0.2
TWO: dict[str, Any] = {**ONE_STEP, "rounds": 2, "epochs": 2}  # two rounds of two steps
CODE: dict[str, Any] = {"conditions": "own", "divided": False, "distance": "batch", "squared": True}


def normal(h: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Layer normalisation over the last axis."""
    variance = h.var(-1, unbiased=False, keepdim=True)
    return (h - h.mean(-1, keepdim=True)) / (variance + 1e-5).sqrt() * scale + shift


def head(w: Tree, z: Tensor, space: str = "") -> Tensor:
    return z @ w[f"{space}head.weight"].t() + w[f"{space}head.bias"]


def begun(chosen: Any) -> tuple[Simulation, Any]:
    simulation = Simulation(chosen, LoopedTrainer(chosen))
    return simulation, simulation.begin()


# ---- GPFL


def turned(w: Tree, z: Tensor, condition: Tensor) -> Tensor:
    made = []
    for name in ("gamma", "beta"):
        v = {leaf: w[f"valve/{name}.{leaf}"] for leaf in ("weight", "bias", "scale", "shift")}
        made.append(normal(torch.relu(v["weight"] @ condition + v["bias"]), v["scale"], v["shift"]))
    return torch.relu(z * (made[0] + 1) + made[1])


@pytest.mark.parametrize("fields", [{}, CODE], ids=["text", "code"])
def test_two_rounds_of_gpfl_by_hand(fields: dict[str, Any]) -> None:
    """One client, two rounds of two steps on the sum of Eq. 11."""
    lam, mu = 0.3, 0.05
    chosen = setup(GPFL(lam=lam, mu=mu, **fields), federation((9,)), **TWO)
    _, state = begun(chosen)
    w = {**trees.clone(state.server), **{name: state.memory[name][0].clone() for name in HEAD}}
    x, y = samples(chosen, 0)
    shares = torch.bincount(y, minlength=4).double() / 9
    conditions = torch.zeros(2, 7, dtype=torch.float64)
    for _ in range(2):
        received = w["classes/embeddings"]
        if not fields:
            conditions = torch.stack([received.mean(0), shares @ received / 4])

        def objective(w: Tree, c: Tensor = conditions, received: Tensor = received) -> Tensor:
            z = features(w, x)
            common, own = turned(w, z, c[0]), turned(w, z, c[1])
            E = w["classes/embeddings"]
            cosines = (common @ E.t()) / common.norm(dim=1, keepdim=True) / E.norm(dim=1)
            distance = (common - received[y]).norm() if fields else (common - received[y]).norm(dim=1).mean()
            valve = torch.cat([leaf.flatten() for name, leaf in w.items() if name.startswith("valve/")])
            size = (valve @ valve + E.square().sum()) / 2 if fields else valve.norm() + E.norm()
            return cross_entropy(head(w, own), y) + cross_entropy(cosines, y) + lam * distance + mu * size

        for _ in range(2):
            w = descend(objective, w, LR, {name.split(".")[0] for name in w})  # type: ignore[arg-type]
        E = w["classes/embeddings"]
        if fields:
            conditions = torch.stack([E.mean(0), shares @ E])
    state = simulate(chosen)
    assert close(state.server, {name: w[name] for name in state.server}, 1e-6)  # shares are in single precision
    assert close({name: state.memory[name][0] for name in HEAD}, {name: w[name] for name in HEAD}, 1e-6)
    if not fields:
        E = w["classes/embeddings"]
        conditions = torch.stack([E.mean(0), shares @ E / 4])
    shown = chosen.method.predict(trees.row(models(chosen, state), 0), x, chosen.task)
    assert close(shown, head(w, turned(w, features(w, x), conditions[1])), 1e-6)


def test_gpfl_with_a_closed_valve_and_no_embeddings_is_fedper() -> None:
    """gamma = beta = 0, E = 0: the loss is FedPer's plus that of a guess, and so are the slopes of body and head."""
    chosen = setup(GPFL(lam=0.0, mu=0.0), federation((9,)))
    _, state = begun(chosen)
    closed = {
        name: torch.zeros_like(leaf) if name.endswith((".scale", ".shift", "embeddings")) else leaf
        for name, leaf in trees.clone(state.server).items()
    }
    x, y = samples(chosen, 0)
    view = chosen.client(0, closed, trees.row(state.memory.take(torch.tensor([0])), 0), Clock(0, 2))
    work = chosen.method.start(view)
    model = {name: work[name] for name in (*BODY, *HEAD)}

    def gpfl(w: Tree) -> Tensor:
        return chosen.method.loss({**work, **w}, view, Batch(x, y))

    def fedper(w: Tree) -> Tensor:
        return FedPer().loss(w, view, Batch(x, y))

    assert close(gpfl(model), fedper(model) + torch.tensor(4.0).double().log(), 1e-9)
    assert close(derivative(gpfl, model), derivative(fedper, model))


def test_gpfl_shares_all_but_heads() -> None:
    chosen, state = run(GPFL(**CODE))
    first, second = (trees.row(models(chosen, state), k) for k in (0, 1))
    for name in state.server:
        assert close(first[name], second[name])
    assert gap({n: first[n] for n in HEAD}, {n: second[n] for n in HEAD}) > 1e-3
    assert gap({"": first["conditions"]}, {"": second["conditions"]}) > 1e-3


# ---- FedCP


def discrepancy(a: Tensor, b: Tensor) -> Tensor:
    """Biased MMD, pair by pair."""

    def kernel(p: Tensor, q: Tensor) -> Tensor:
        return sum((-(p - q).square().sum() / (2 * width)).exp() for width in (10, 15, 20, 50))  # type: ignore[return-value]

    n = len(a)
    pairs = [(i, j) for i in range(n) for j in range(n)]
    return sum(kernel(a[i], a[j]) + kernel(b[i], b[j]) - 2 * kernel(a[i], b[j]) for i, j in pairs) / n**2  # type: ignore[return-value]


def split_logits(w: Tree, z: Tensor, v: Tensor, gumbel: Tensor | float = 0.0) -> Tensor:
    """The own head on r z, and the received one on the rest."""
    h = (z * v / v.norm()) @ w["policy/fc.weight"].t() + w["policy/fc.bias"]
    odds = (torch.relu(normal(h, w["policy/scale"], w["policy/shift"])).view(len(z), 2, -1) + gumbel).exp()
    r = odds[:, 0] / odds.sum(1)
    return head(w, r * z) + head(w, (1 - r) * z, "head/")


def test_two_rounds_of_fedcp_by_hand() -> None:
    """One client, nine samples, noise for four of them, which the others use again."""
    lam = 2.0
    chosen = setup(FedCP(lam=lam, noise=4), federation((9,)), **TWO)
    simulation, state = begun(chosen)
    w = {**trees.clone(state.server), **{name: state.memory[name][0].clone() for name in HEAD}}
    x, y = samples(chosen, 0)
    for t in range(2):
        clock = Clock(t, 2)
        message = trees.row(chosen.method.send(state.server, chosen.cohort(torch.tensor([0]), clock)), 0)
        view = chosen.client(0, message, trees.row(state.memory.take(torch.tensor([0])), 0), clock)
        order, noise = chosen.batches(0, Stage(), view, "batches")
        v, received = w["head.weight"].sum(0), features(w, x)
        for step, gumbel in enumerate(noise["gumbel"]):
            place = torch.as_tensor(order.cut(step, step + 1).positions)
            rows = gumbel[torch.arange(9) % 4]

            def objective(w: Tree, p: Tensor = place, v: Tensor = v, f: Tensor = received, g: Tensor = rows) -> Tensor:
                z = features(w, x[p])
                return cross_entropy(split_logits(w, z, v, g), y[p]) + lam * discrepancy(z, f[p])

            w = descend(objective, w, LR, ("fc", "head", "policy/fc", "policy/scale", "policy/shift"))
        w |= {f"head/{name}": (w[name] + w[f"head/{name}"]) / 2 for name in HEAD}
        simulation.step(state)
    assert close(state.server, {name: w[name] for name in state.server}, 1e-6)  # noise is in single precision
    assert close({name: state.memory[name][0] for name in HEAD}, {name: w[name] for name in HEAD}, 1e-6)
    shown = chosen.method.predict(trees.row(models(chosen, state), 0), x, chosen.task)
    assert close(shown, split_logits(w, features(w, x), w["head.weight"].sum(0)), 1e-6)
    assert not close(w["head/head.weight"], w["head.weight"], 1e-3)


def test_fedcp_is_fedper_where_all_features_are_the_clients_own() -> None:
    """A policy that says r = 1 whatever comes, no distance; of the received head its bias would be left."""
    options: dict[str, Any] = {"cohort": 0.75, "rounds": 1}
    chosen = setup(FedCP(lam=0.0), federation(FOUR), **options)
    simulation, state = begun(chosen)
    state.server["policy/scale"].zero_()
    state.server["policy/shift"][:7] = 1e4
    state.server["head/head.bias"].zero_()
    simulation.step(state)
    fedper = simulate(setup(FedPer(), federation(FOUR), **options))
    assert close({name: state.server[name] for name in BODY}, fedper.server)
    assert close({name: state.memory[name] for name in HEAD}, {name: fedper.memory[name] for name in HEAD})


def test_fedcps_noise_is_gumbels() -> None:
    """Its mean is Euler's constant, its variance pi^2 / 6."""
    chosen = setup(FedCP(noise=200), federation((9,)))
    _, state = begun(chosen)
    view = chosen.client(
        0,
        trees.row(chosen.method.send(state.server, chosen.cohort(torch.tensor([0]), Clock(0, 2))), 0),
        {},
        Clock(0, 2),
    )
    drawn = chosen.method.draw(torch.Generator().manual_seed(0), 10, view)["gumbel"]
    assert drawn.shape == (10, 200, 2, 7)
    assert float(drawn.mean()) == pytest.approx(0.5772, abs=0.03)
    assert float(drawn.var()) == pytest.approx(1.645, abs=0.06)
