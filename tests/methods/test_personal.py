"""pFedHN and kNN-Per: rounds by hand, scikit-learn's neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from torch import nn

from fedbench.config.schema import OptimizerConfig, TestConfig
from fedbench.core import trees
from fedbench.core.errors import FedbenchError
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.method import Method
from fedbench.engine.simulation import Simulation
from fedbench.engine.stacked import StackedTrainer
from fedbench.methods.fedamp import FedAMP
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedfomo import FedFomo
from fedbench.methods.knnper import KNNPer
from fedbench.methods.pfedhn import PFedHN
from tests.methods.toys import (
    FOUR,
    close,
    cross_entropy,
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


def test_padded_and_trained_models_score_alike_in_both_engines() -> None:
    for score in ("received", "trained"):
        options = {"rounds": 2, "score": score, "test": TestConfig(sets="both")}
        chosen = setup(KNNPer(k=3, weight=0.8, scale=0.01), federation((1, 21, 4)), **options)
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
