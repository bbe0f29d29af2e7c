"""pFedHN, kNN-Per, pFedMe, Per-FedAvg and APFL: limits, and rounds by hand."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor, nn

from fedbench.config.schema import OptimizerConfig, TestConfig
from fedbench.core import rng, trees
from fedbench.core.batch import Batch
from fedbench.core.errors import ConfigError, FedbenchError, UnknownName
from fedbench.core.trees import Tree
from fedbench.engine import schedule
from fedbench.engine.contract import Clock, Stage
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.method import Method
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation
from fedbench.engine.stacked import StackedTrainer
from fedbench.methods.apfl import APFL
from fedbench.methods.fedamp import FedAMP
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedfomo import FedFomo
from fedbench.methods.fedrod import FedRoD
from fedbench.methods.knnper import KNNPer
from fedbench.methods.local import Local
from fedbench.methods.perfedavg import PerFedAvg, halves
from fedbench.methods.pfedhn import PFedHN
from fedbench.methods.pfedme import PFedMe
from fedbench.models.small import LeNet5
from tests.methods.quadratics import CURVED, POINTS, UNEQUAL, minima, quadratic
from tests.methods.toys import (
    FOUR,
    adapted,
    close,
    cross_entropy,
    descend,
    features,
    federation,
    final,
    gap,
    initial,
    logits,
    models,
    samples,
    setup,
    simulate,
)

LR = 0.1
FULL: dict[str, Any] = {"epochs": 1, "batch": 50, "optimizer": OptimizerConfig(lr=LR)}


# ---- pFedHN


class HyperNetwork(nn.Module):
    """Embedding, Linear-ReLU twice, and a linear map to the model: layers = 1."""

    def __init__(self, phi: Tree) -> None:
        super().__init__()
        self.embeddings = nn.Embedding.from_pretrained(phi["embeddings"].clone(), freeze=False)
        self.linears = nn.ModuleList()
        for place in range(3):
            narrow, wide = phi[f"{place}.weight"].shape
            linear = nn.Linear(wide, narrow, dtype=torch.float64)
            linear.load_state_dict({k: phi[f"{place}.{k}"].clone() for k in ("weight", "bias")})
            self.linears.append(linear)

    def forward(self, client: int, shapes: dict[str, torch.Size]) -> Tree:
        z = self.embeddings(torch.tensor(client))
        z = self.linears[1](torch.relu(self.linears[0](z)))
        flat, made, offset = self.linears[2](z), {}, 0
        for name in sorted(shapes):
            made[name] = flat[offset : offset + shapes[name].numel()].view(shapes[name])
            offset += shapes[name].numel()
        return made


@pytest.mark.parametrize("clip", [50.0, 0.01])
def test_the_hypernetwork_descends_the_clients_losses(clip: float) -> None:
    """Clients that take one step on F_i: phi takes SGD's step on the mean of lr F_i(h(v_i; phi)), twice."""
    method = PFedHN(embedding=3, hidden=5, layers=1, lr=0.5, momentum=0.9, weight_decay=0.01, clip=clip)
    chosen = setup(method, federation((6, 9, 4)), rounds=2, cohort=0.67, **FULL)
    simulation = Simulation(chosen, LoopedTrainer(chosen))
    state = simulation.begin()
    shapes = {k: v.shape for k, v in initial(chosen).items()}
    net = HyperNetwork(trees.part(state.server, "phi"))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9, weight_decay=0.01)
    for done in (0, 1):
        received = models(chosen, state)
        for client in range(3):
            assert close(trees.row(received, client), net(client, shapes))
        cohort = chosen.draw_cohort(Clock(done, 2)).tolist()
        assert len(cohort) == 2
        optimizer.zero_grad()
        for client in cohort:
            x, y = samples(chosen, client)
            (LR / 2 * cross_entropy(logits(net(client, shapes), x), y)).backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.get_total_norm([p.grad for p in net.parameters() if p.grad is not None])
        assert (float(norm) > clip) is (clip < 1)
        for p in net.parameters():
            if p.grad is not None:
                p.grad *= min(1.0, clip / float(norm))
        optimizer.step()
        simulation.step(state)
    found = models(chosen, state)
    for client in range(3):
        assert close(trees.row(found, client), net(client, shapes))


def test_a_still_hypernetwork_keeps_its_models_and_gives_each_client_its_own() -> None:
    method = PFedHN(lr=1e-30, embedding=4, hidden=6)
    before, after = (final(method, rounds=rounds) for rounds in (1, 3))
    assert close(before, after)
    assert gap(trees.row(after, 0), trees.row(after, 1)) > 1e-2
    assert gap(final(PFedHN(lr=0.5, embedding=4, hidden=6)), after) > 1e-4


# ---- kNN-Per


def test_the_server_is_fedavgs_and_without_neighbours_so_are_the_scores() -> None:
    knn, fedavg = (setup(each, federation(FOUR), rounds=2, cohort=0.5) for each in (KNNPer(weight=0.0), FedAvg()))
    state, plain = simulate(knn), simulate(fedavg)
    assert close(state.server, plain.server)
    assert state.bytes_up == plain.bytes_up
    assert state.bytes_down == plain.bytes_down
    x, _ = samples(knn, 3)
    scores = knn.method.predict(trees.row(models(knn, state), 1), x, knn.task)
    assert close(scores, fedavg.task.apply(plain.server, x).softmax(1))


@pytest.mark.parametrize("k", [1, 4, 30])
def test_neighbours_are_scikit_learns(k: int) -> None:
    chosen = setup(KNNPer(k=k, weight=0.3, scale=0.01), federation(FOUR), rounds=2)
    state = simulate(chosen)
    received = models(chosen, state)
    for client in (0, 3):
        x, y = samples(chosen, client)
        z = features(state.server, x).numpy()
        tests, _ = chosen.federation.gather(chosen.federation.indices("local", client))

        def kernel(distance: np.ndarray) -> np.ndarray:
            return np.exp(-(distance**2) / (7 * 0.01))

        neighbours = KNeighborsClassifier(min(k, len(y)), weights=kernel, algorithm="brute").fit(z, y.numpy())
        expected = np.zeros((len(tests), 4))
        expected[:, neighbours.classes_] = neighbours.predict_proba(features(state.server, tests).numpy())
        softmax = logits(state.server, tests).softmax(1).numpy()
        found = chosen.method.predict(trees.row(received, client), tests, chosen.task)
        np.testing.assert_allclose(found.numpy(), 0.3 * expected + 0.7 * softmax, atol=1e-9)


def test_the_softmax_of_votes_by_hand() -> None:
    """Three stored samples, two of them neighbours: softmax of the sums of exp(-d^2) by class."""
    chosen = setup(KNNPer(k=2, weight=1.0, votes="softmax"), federation(FOUR))
    x, _ = samples(chosen, 0)
    w = initial(chosen)
    z = features(w, x[:1])
    stored = torch.cat([z, z, z])
    stored[1, 0] += 0.5  # squared distances 0, .25 and 4
    stored[2, 0] += 2.0
    store = {"z": stored, "y": torch.eye(4, dtype=z.dtype)[[2, 1, 2]], "real": torch.ones(3, dtype=torch.bool)}
    found = chosen.method.predict({**w, **trees.join(store=store)}, x[:1], chosen.task)
    sums = torch.tensor([[0.0, np.exp(-0.25), 1.0, 0.0]], dtype=z.dtype)
    assert close(found, sums.softmax(1), 1e-9)
    together = {**store, "y": torch.eye(4, dtype=z.dtype)[[2, 2, 1]]}
    sums = torch.tensor([[0.0, 0.0, 1.0 + np.exp(-0.25), 0.0]], dtype=z.dtype)
    assert close(chosen.method.predict({**w, **trees.join(store=together)}, x[:1], chosen.task), sums.softmax(1), 1e-9)


def test_padded_and_trained_models_score_alike_in_both_engines() -> None:
    for score, votes in (("received", "shares"), ("trained", "softmax")):
        options = {"rounds": 2, "score": score, "test": TestConfig(sets="both")}
        chosen = setup(KNNPer(k=3, weight=0.8, votes=votes), federation((1, 21, 4)), **options)
        looped, stacked = simulate(chosen), simulate(chosen, StackedTrainer(chosen, 3))
        for name, tally in looped.history.last.tallies.items():
            assert tally.correct.tolist() == stacked.history.last.tallies[name].correct.tolist()
        fedavg = simulate(setup(FedAvg(), federation((1, 21, 4)), **options))
        assert close(looped.server, fedavg.server)


def test_impossible_settings_are_refused() -> None:
    cases: list[tuple[type[Method], dict[str, Any]]] = [
        (FedAMP, {"attention": "x"}),
        (FedAMP, {"self_weight": 2.0}),
        (FedFomo, {"M": 0}),
        (PFedHN, {"momentum": 1.0}),
        (PFedHN, {"hidden": 0}),
        (KNNPer, {"k": 0}),
    ]
    for method, wrong in cases:
        with pytest.raises(FedbenchError):
            method(**wrong)


# pFedMe: limits, the proximal point, rounds by hand; options of pFedMe, APFL and Per-FedAvg that presets leave out.

SHARE = np.array(UNEQUAL) / sum(UNEQUAL)


def by_hand(method: PFedMe, w: np.ndarray, e: np.ndarray, lr: float) -> tuple[np.ndarray, np.ndarray]:
    """(server's w, thetas) after one round on quadratic clients of one, two and three steps."""
    trained, thetas = [], []
    for k, steps in enumerate((1, 2, 3)):
        own, theta = w, w
        for _ in range(steps):
            theta = own if method.restart else theta
            for _ in range(method.inner_steps):
                slope = CURVED[k] * (theta - e[k]) + method.weight_decay * theta
                theta = theta - method.personal_lr * (slope + method.lam * (theta - own))
            own = own - lr * method.lam * (own - theta)
        trained.append(own)
        thetas.append(theta)
    share = np.full(3, 1 / 3) if method.uniform else SHARE
    return w + method.beta * (share @ np.stack(trained) - w), np.stack(thetas)


PFEDMES: list[dict[str, Any]] = [
    *({"beta": beta} for beta in (0.0, 0.5, 1.0, 2.0)),
    {"restart": True},
    {"uniform": True},
    {"beta": 0.5, "restart": True, "uniform": True},
    {"lr": 0.3},
    {"weight_decay": 0.7},
]
PLAIN = OptimizerConfig(lr=0.1)
OTHERS = OptimizerConfig(lr=0.1, momentum=0.9, weight_decay=0.5, clip=0.01)


@pytest.mark.parametrize("optimizer", [PLAIN, OTHERS], ids=["plain", "momentum"])
@pytest.mark.parametrize("options", PFEDMES, ids=str)
def test_two_rounds_of_pfedme_by_hand(options: dict[str, Any], optimizer: OptimizerConfig) -> None:
    """Whatever the protocol's optimiser, w takes plain steps of its rate."""
    method = PFedMe(lam=3.0, inner_steps=4, personal_lr=0.05, **options)
    chosen = quadratic(method, UNEQUAL, POINTS, CURVED, epochs=1, optimizer=optimizer)
    w, e = initial(chosen)["head.bias"].numpy(), minima(chosen).numpy()
    theta = w
    for _ in range(2):
        w, theta = by_hand(method, w, e, method.lr or 0.1)
    state = simulate(chosen)
    assert close(state.server["head.bias"], torch.from_numpy(w), 1e-12)
    assert close(models(chosen, state)["head.bias"], torch.from_numpy(theta), 1e-12)
    assert method.beta > 0 or close(state.server, initial(chosen), 1e-14)


def test_pfedme_may_score_w() -> None:
    """As trained, w_i of each client; as received, the server's w."""
    options: dict[str, Any] = {"lam": 3.0, "inner_steps": 4, "personal_lr": 0.05}
    chosen = quadratic(PFedMe(scored="w", **options), UNEQUAL, POINTS, CURVED, epochs=1, rounds=1, optimizer=PLAIN)
    state = simulate(chosen)
    start = initial(chosen)["head.bias"].numpy()
    w, thetas = by_hand(PFedMe(**options), start, minima(chosen).numpy(), 0.1)
    assert close(state.server["head.bias"], torch.from_numpy(w), 1e-12)
    assert close(models(chosen, state), trees.expand(state.server, 3), 1e-14)
    work = {"shared/head.bias": torch.zeros(2), "personal/head.bias": torch.ones(2)}
    client = chosen.client(0, state.server, trees.row(state.memory, 0), Clock(1, 1))
    assert chosen.method.model(work, client)["head.bias"].tolist() == [0.0, 0.0]
    assert PFedMe().model(work, client)["head.bias"].tolist() == [1.0, 1.0]
    assert close(state.memory["personal/head.bias"], torch.from_numpy(thetas), 1e-12), "theta is kept all the same"


def test_many_inner_steps_reach_the_proximal_point() -> None:
    """argmin a/2 ||theta - e||^2 + lambda/2 ||theta - w||^2 = (a e + lambda w) / (a + lambda)."""
    method = PFedMe(lam=3.0, inner_steps=200, personal_lr=0.1)
    chosen = quadratic(method, UNEQUAL, POINTS, CURVED, rounds=1, iterations=1, optimizer=OptimizerConfig(lr=0.1))
    w, e = initial(chosen)["head.bias"].numpy(), minima(chosen).numpy()
    found = models(chosen, simulate(chosen))["head.bias"].numpy()
    for k in range(3):
        assert found[k] == pytest.approx((CURVED[k] * e[k] + 3 * w) / (CURVED[k] + 3), abs=1e-12)


def test_pfedme_with_one_inner_step_of_length_one_over_lambda_is_fedavg() -> None:
    """Then lambda (w - theta) = grad f(w), for the first step of a round."""
    options: dict[str, Any] = {"iterations": 1, "rounds": 4, "cohort": 0.8}
    method = PFedMe(lam=4.0, inner_steps=1, personal_lr=0.25)
    found = simulate(setup(method, **options)).server
    assert close(found, simulate(setup(FedAvg(), **options)).server)


@pytest.mark.parametrize("lr", [0.1, 0.03])
def test_restarting_pfedme_with_one_inner_step_of_length_one_over_lambda_is_fedavg_at_any_rate(
    lr: float,
) -> None:
    """Then lambda (w - theta) = grad f(w) at every step of a round, and not for the first alone."""
    options: dict[str, Any] = {"rounds": 3, "optimizer": OptimizerConfig(lr=lr)}
    expected = simulate(setup(FedAvg(), **options)).server
    method = PFedMe(lam=4.0, inner_steps=1, personal_lr=0.25, restart=True)
    assert close(simulate(setup(method, **options)).server, expected)
    going_on = dataclasses.replace(method, restart=False)
    assert gap(simulate(setup(going_on, **options)).server, expected) > 1e-3


@pytest.mark.parametrize("restart", [True, False])
def test_pfedme_at_rate_one_over_lambda_is_sgd_on_theta(restart: bool) -> None:
    """eta lambda = 1 puts w on theta after each mini-batch, so restarting there changes nothing."""
    method = PFedMe(lam=4.0, inner_steps=1, personal_lr=0.1, restart=restart)
    found = simulate(setup(method, rounds=3, optimizer=OptimizerConfig(lr=0.25))).server
    expected = simulate(setup(FedAvg(), rounds=3, optimizer=OptimizerConfig(lr=0.1))).server
    assert close(found, expected)


def test_without_its_pull_pfedmes_server_rests_and_its_clients_descend_alone() -> None:
    chosen = setup(PFedMe(lam=0.0, inner_steps=1, personal_lr=0.1), rounds=1)
    state = simulate(chosen)
    assert close(state.server, initial(chosen), 1e-12)
    local = setup(Local(), rounds=1)  # at learning rate 0.1
    assert close(models(chosen, state), models(local, simulate(local)))


def test_statistics_of_theta_outlive_a_restart() -> None:
    """A theta that never leaves w has seen the same batches, restarted or not."""
    options: dict[str, Any] = {"rounds": 1, "epochs": 1, "batch": 4, "model": LeNet5(batch_norm=True)}
    first, second = (
        simulate(setup(PFedMe(lam=0.0, personal_lr=0.0, restart=restart), federation((13, 9), (1, 16, 16)), **options))
        for restart in (True, False)
    )
    assert close(first.server, second.server, 1e-12)
    assert close(first.memory, second.memory, 1e-12)


OPTIONS = [
    PerFedAvg(order="full", alpha=0.1),
    PerFedAvg(order="hessian_free", alpha=0.1),
    PFedMe(beta=0.5),
    PFedMe(restart=True, uniform=True),
    PFedMe(weight_decay=0.1, scored="w"),
    APFL(alpha_lr=0.1),
    FedAMP(from_round=1),
    FedRoD(generic_stays=True),
]


@pytest.mark.parametrize("method", OPTIONS)
def test_options_are_the_same_stacked(method: Method) -> None:
    def chosen() -> Setup:
        data = federation((1, 7, 13), (1, 16, 16))  # in batches of 4: one, two and four steps
        return setup(method, data, LeNet5(batch_norm=True), rounds=2, epochs=1, batch=4)

    here, there = chosen(), chosen()
    looped = simulate(here, LoopedTrainer(here))
    other = simulate(there, StackedTrainer(there, 2))
    assert gap({**looped.server, **looped.memory}, {**other.server, **other.memory}) < 1e-7


def test_pfedme_uploads_the_statistics_of_theta_and_apfl_keeps_the_mixtures() -> None:
    data = federation((6, 6), (1, 16, 16))
    options: dict[str, Any] = {"rounds": 1, "epochs": 1, "model": LeNet5(batch_norm=True)}
    chosen = setup(PFedMe(), data, **options)
    state = simulate(chosen)
    start = initial(chosen)
    for name in chosen.task.buffers:
        assert close(state.server[name], state.memory[f"personal/{name}"].mean(0), 1e-12)
        assert gap({"": state.server[name]}, {"": start[name]}) > 1e-2
    chosen = setup(APFL(alpha=0.0), data, **options)
    state = simulate(chosen)
    for name in chosen.task.buffers:  # at alpha 0 the mixture is w, so that both saw the same
        assert close(state.server[name], state.memory[f"personal/{name}"].mean(0), 1e-12)


META_SHARE = np.array(UNEQUAL) / sum(UNEQUAL)
FULL_BATCH: dict[str, Any] = {"rounds": 1, "epochs": 1, "batch": 50}


# ---- Per-FedAvg


@pytest.mark.parametrize(("order", "power"), [("first", 1), ("hessian_free", 2), ("full", 2)])
def test_a_round_of_perfedavg_by_hand(order: str, power: int) -> None:
    """On quadratics grad f(w - alpha grad f(w)) = a (1 - alpha a) (w - e), times I - alpha a of the Hessian."""
    alpha, beta = 0.2, 0.1
    method = PerFedAvg(alpha=alpha, beta=beta, order=order)
    chosen = quadratic(method, UNEQUAL, POINTS, CURVED, rounds=1, epochs=1, optimizer=OptimizerConfig(lr=9.0))
    w, e = initial(chosen)["head.bias"].numpy(), minima(chosen).numpy()
    trained = []
    for k, steps in enumerate((1, 2, 3)):
        rate = 1 - beta * CURVED[k] * (1 - alpha * CURVED[k]) ** power
        trained.append(e[k] + rate**steps * (w - e[k]))
    state = simulate(chosen)
    assert close(state.server["head.bias"], torch.from_numpy(META_SHARE @ np.stack(trained)), 1e-9)
    tuned = adapted(chosen, state)["head.bias"].numpy()
    w = state.server["head.bias"].numpy()
    for k in range(3):  # one step at rate alpha
        assert tuned[k] == pytest.approx(w - alpha * CURVED[k] * (w - e[k]), abs=1e-12)


def test_perfedavg_without_an_inner_step_is_fedavg_where_the_halves_agree() -> None:
    for order in ("first", "hessian_free", "full"):
        method = PerFedAvg(alpha=0.0, order=order)
        found = simulate(quadratic(method, UNEQUAL, POINTS, CURVED, cohort=2)).server
        assert close(found, simulate(quadratic(FedAvg(), UNEQUAL, POINTS, CURVED, cohort=2)).server, 1e-9)


@pytest.mark.parametrize(("order", "tolerance"), [("first", 1e-10), ("full", 1e-10), ("hessian_free", 1e-6)])
def test_perfedavgs_step_is_autograds(order: str, tolerance: float) -> None:
    """One client of five samples, halves of three and two: through the inner step, or not."""
    alpha = 0.5
    method = PerFedAvg(alpha=alpha, order=order, delta=1e-4)
    chosen = setup(method, federation((5,)), **FULL_BATCH, optimizer=OptimizerConfig(lr=1.0))
    w = initial(chosen)
    x, y = samples(chosen, 0)
    keyed = rng.torch_rng(0, "batches", 0, 0, 0)
    (rows,) = schedule.batches(5, chosen.protocol.local, Stage(), keyed)
    leaves = {k: v.clone().requires_grad_(True) for k, v in w.items()}
    inner = cross_entropy(logits(leaves, x[rows[:3]]), y[rows[:3]])
    slopes = torch.autograd.grad(inner, list(leaves.values()), create_graph=order != "first")
    ahead = {k: leaves[k] - alpha * slope for k, slope in zip(leaves, slopes, strict=True)}
    outer = cross_entropy(logits(ahead, x[rows[3:]]), y[rows[3:]])
    meta = torch.autograd.grad(outer, list(leaves.values()))
    expected = {k: w[k] - slope for k, slope in zip(w, meta, strict=True)}
    assert close(simulate(chosen).server, expected, tolerance)
    first = simulate(setup(PerFedAvg(alpha=alpha), federation((5,)), **FULL_BATCH, optimizer=OptimizerConfig(lr=1.0)))
    assert (gap(first.server, expected) > 1e-4) is (order != "first")


def test_halves_cover_a_batch_once_padded_or_not() -> None:
    for real in range(1, 9):
        values = torch.arange(8.0)
        plain = halves(Batch(values[:real], torch.arange(real)))
        padded = halves(Batch(values, torch.arange(8), torch.arange(8) < real))
        seen = [half.x.tolist() for half in plain]
        assert [half.x[half.mask].tolist() for half in padded] == seen
        assert len(seen[0]) == (real + 1) // 2
        assert seen[0] + (seen[1] if real > 1 else []) == list(range(real))
        assert real > 1 or seen == [[0.0], [0.0]]


def test_perfedavg_refuses_what_it_does_not_know() -> None:
    with pytest.raises(UnknownName, match="hessian_free"):
        PerFedAvg(order="hessian")
    with pytest.raises(ConfigError, match="alpha must be at least 0"):
        PerFedAvg(alpha=-0.1)


# ---- APFL


def test_apfls_limits_are_fedavg_and_local() -> None:
    options: dict[str, Any] = {"rounds": 3, "cohort": 0.8}
    fedavg, local = setup(FedAvg(), **options), setup(Local(), **options)
    server, alone = simulate(fedavg), simulate(local)
    for alpha in (0.0, 0.3, 1.0):
        chosen = setup(APFL(alpha=alpha), **options)
        state = simulate(chosen)
        assert close(state.server, server.server)
        if alpha == 0:
            assert close(models(chosen, state), models(fedavg, server))
        if alpha == 1:
            assert close(models(chosen, state), models(local, alone))


def mixture(v: trees.Tree, w: trees.Tree, alpha: float) -> trees.Tree:
    return {k: alpha * v[k] + (1 - alpha) * w[k] for k in v}


def test_two_rounds_of_apfl_by_hand() -> None:
    """Adaptive alpha: a step on it first, from the mixture's gradient; then w and v at their old values."""
    lr, rate = 0.2, 0.7
    options: dict[str, Any] = {**FULL_BATCH, "rounds": 2, "optimizer": OptimizerConfig(lr=lr)}
    chosen = setup(APFL(alpha=0.4, alpha_lr=rate), federation((5, 9)), **options)
    w = initial(chosen)
    own, alphas = [w, w], [0.4, 0.4]
    for _ in range(2):
        trained = []
        for k in (0, 1):
            x, y = samples(chosen, k)
            plain = partial(entropy, x, y)

            def along(a: trees.Tree, v: trees.Tree, w: trees.Tree, f: Any) -> Tensor:
                return f(mixture(v, w, a["a"]))  # type: ignore[no-any-return]

            start = {"a": torch.tensor(alphas[k], dtype=torch.float64)}
            moved = descend(partial(along, v=own[k], w=w, f=plain), start, rate, ["a"])
            alphas[k] = float(moved["a"].clamp(0, 1))

            def mixed(v: trees.Tree, w: trees.Tree, alpha: float, f: Any) -> Tensor:
                return f(mixture(v, w, alpha))  # type: ignore[no-any-return]

            own[k] = descend(partial(mixed, w=w, alpha=alphas[k], f=plain), own[k], lr)
            trained.append(descend(plain, w, lr))
        w = {name: (5 * trained[0][name] + 9 * trained[1][name]) / 14 for name in w}
    state = simulate(chosen)
    assert close(state.server, w)
    assert close(trees.part(state.memory, "personal"), trees.stack(own), 1e-7)  # alpha starts in single precision
    assert state.memory["alpha"].tolist() == pytest.approx(alphas, abs=1e-6)
    assert alphas[0] != pytest.approx(0.4, abs=1e-4)
    shown = [mixture(own[k], w, alphas[k]) for k in (0, 1)]
    assert close(models(chosen, state), trees.stack(shown), 1e-6)


def entropy(x: Tensor, y: Tensor, w: trees.Tree) -> Tensor:
    return cross_entropy(logits(w, x), y)


def test_alpha_stays_a_share() -> None:
    chosen = setup(APFL(alpha=0.9, alpha_lr=1e3), rounds=4)
    shares = simulate(chosen).memory["alpha"]
    assert 0 <= float(shares.min()) <= float(shares.max()) <= 1
    assert {0.0, 1.0} & set(shares.tolist())
    with pytest.raises(ConfigError, match=r"\[0, 1\]"):
        APFL(alpha=1.5)
