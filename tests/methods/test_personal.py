"""pFedHN, kNN-Per, pFedMe, Per-FedAvg and APFL beside their rounds: votes, halves, proximal points, statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from torch import nn

from fedbench.config.schema import OptimizerConfig, TestConfig
from fedbench.core import trees
from fedbench.core.batch import Batch
from fedbench.core.errors import ConfigError, FedbenchError, UnknownName
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.method import Method
from fedbench.engine.simulation import Simulation
from fedbench.engine.stacked import StackedTrainer
from fedbench.methods.apfl import APFL
from fedbench.methods.fedamp import FedAMP
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedfomo import FedFomo
from fedbench.methods.knnper import KNNPer
from fedbench.methods.perfedavg import PerFedAvg, halves
from fedbench.methods.pfedhn import PFedHN
from fedbench.methods.pfedme import PFedMe
from fedbench.models.small import LeNet5
from tests.methods.quadratics import CURVED, POINTS, UNEQUAL, minima, quadratic
from tests.methods.toys import (
    FOUR,
    close,
    cross_entropy,
    features,
    federation,
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


# ---- kNN-Per


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


# pFedMe's proximal point and its two models; options of pFedMe, APFL and Per-FedAvg that presets leave out.


def test_as_trained_pfedme_may_score_w() -> None:
    chosen = quadratic(PFedMe(scored="w"), UNEQUAL, POINTS)
    work = {"shared/head.bias": torch.zeros(2), "personal/head.bias": torch.ones(2)}
    client = chosen.client(0, initial(chosen), {}, Clock(1, 1))
    assert chosen.method.model(work, client)["head.bias"].tolist() == [0.0, 0.0]
    assert PFedMe().model(work, client)["head.bias"].tolist() == [1.0, 1.0]


def test_many_inner_steps_reach_the_proximal_point() -> None:
    """argmin a/2 ||theta - e||^2 + lambda/2 ||theta - w||^2 = (a e + lambda w) / (a + lambda)."""
    method = PFedMe(lam=3.0, inner_steps=200, personal_lr=0.1)
    chosen = quadratic(method, UNEQUAL, POINTS, CURVED, rounds=1, iterations=1, optimizer=OptimizerConfig(lr=0.1))
    w, e = initial(chosen)["head.bias"].numpy(), minima(chosen).numpy()
    found = models(chosen, simulate(chosen))["head.bias"].numpy()
    for k in range(3):
        assert found[k] == pytest.approx((CURVED[k] * e[k] + 3 * w) / (CURVED[k] + 3), abs=1e-12)


def test_statistics_of_theta_outlive_a_restart() -> None:
    """A theta that never leaves w has seen the same batches, restarted or not."""
    options: dict[str, Any] = {"rounds": 1, "epochs": 1, "batch": 4, "model": LeNet5(batch_norm=True)}
    first, second = (
        simulate(setup(PFedMe(lam=0.0, personal_lr=0.0, restart=restart), federation((13, 9), (1, 16, 16)), **options))
        for restart in (True, False)
    )
    assert close(first.server, second.server, 1e-12)
    assert close(first.memory, second.memory, 1e-12)


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


# ---- Per-FedAvg


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


def test_alpha_stays_a_share() -> None:
    chosen = setup(APFL(alpha=0.9, alpha_lr=1e3), rounds=4)
    shares = simulate(chosen).memory["alpha"]
    assert 0 <= float(shares.min()) <= float(shares.max()) <= 1
    assert {0.0, 1.0} & set(shares.tolist())
    with pytest.raises(ConfigError, match=r"\[0, 1\]"):
        APFL(alpha=1.5)
