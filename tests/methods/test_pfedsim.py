"""pFedSim and f-FedAP: phases, similarities and distances by hand, limits, and batch normalisation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from fedbench.core import trees
from fedbench.core.errors import FedbenchError
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.engine.method import Method
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation
from fedbench.engine.state import State
from fedbench.engine.train.looped import LoopedTrainer
from fedbench.methods.fedap import FedAP, closeness
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedbn import FedBN
from fedbench.methods.local import Local
from fedbench.methods.pfedsim import PFedSim
from fedbench.models.lenet5 import LeNet5
from fedbench.testing.runs import equal, everything
from tests.methods.toys import close, federation, gap, models, setup, simulate

SIZES = (6, 13, 8, 21)


def final(method: Method, **options: Any) -> Tree:
    chosen = setup(method, federation(SIZES), **{"rounds": 4, **options})
    return models(chosen, simulate(chosen))


def normalised(method: Method, **options: Any) -> Setup:
    """A toy with batch normalisation."""
    return setup(method, federation(SIZES, (1, 16, 16)), LeNet5(batch_norm=True), **{"epochs": 1, **options})


def steps(chosen: Setup, rounds: int) -> tuple[Simulation, State]:
    simulation = Simulation(chosen, LoopedTrainer(chosen))
    state = simulation.begin()
    for _ in range(rounds):
        simulation.step(state)
    return simulation, state


# ---- pFedSim


@pytest.mark.parametrize("cohort", [1.0, 0.5])
def test_generalisation_is_fedavg(cohort: float) -> None:
    fedavg = final(FedAvg(), cohort=cohort)
    assert close(final(PFedSim(rho=1.0), cohort=cohort), fedavg)
    assert close(final(PFedSim(rho=1.0, scored="own"), cohort=cohort), fedavg)
    assert gap(final(PFedSim(rho=0.5), cohort=cohort), fedavg) > 1e-4


def test_generalisation_lasts_the_floor_of_rho_t_rounds() -> None:
    assert [PFedSim(rho=0.5).warm(Clock(t, 5)) for t in range(5)] == [True, True, False, False, False]


@pytest.mark.parametrize("scored", ["mixed", "own"])
def test_its_beginning_is_that_of_any_rho_to_the_bit(scored: str) -> None:
    """Models, memory, scores after every round and bytes."""
    for rho, rounds in ((0.5, 2), (0.9, 4), (1.0, 5)):
        method = PFedSim(rho=rho, scored=scored)
        done, common = method.beginning(6)
        assert done == rounds
        found, expected = (
            steps(normalised(each, rounds=6, eval_every=1, cohort=0.5), done)[1] for each in (method, common)
        )
        assert equal(everything(found), everything(expected))
        assert (found.bytes_up, found.bytes_down) == (expected.bytes_up, expected.bytes_down)
    assert PFedSim(rho=0.0).beginning(6)[0] == PFedSim(rho=0.1).beginning(6)[0] == 0


def test_with_all_weight_on_itself_it_is_local() -> None:
    assert close(final(PFedSim(rho=0.0, self_weight=1e15)), final(Local()), 1e-7)


def similarity(a: np.ndarray, b: np.ndarray, log_of_mean: bool) -> float:
    """Eq. 3 class by class, or the code's."""
    cosines = [
        float(x @ y / (np.linalg.norm(x) * np.linalg.norm(y) + 1e-8)) for x, y in zip(a, b, strict=True)
    ]
    if log_of_mean:
        return -math.log(1 - max(0.0, float(np.mean(cosines))))
    return float(np.mean([-math.log(1 - max(0.0, c)) for c in cosines]))


@pytest.mark.parametrize("log_of_mean", [False, True])
def test_similarities_and_mixtures_by_hand(log_of_mean: bool) -> None:
    method = PFedSim(rho=0.25, log_of_mean=log_of_mean, self_weight=2.0)
    chosen = setup(method, federation(SIZES), rounds=4, cohort=0.5, epochs=4)
    simulation, state = steps(chosen, 1)
    phi = np.zeros((4, 4))
    for done in (1, 2, 3):
        simulation.step(state)
        cohort = chosen.draw_cohort(Clock(done, 4)).tolist()
        heads = state.server["model/head.weight"].numpy()
        for i in cohort:
            for j in cohort:
                if i != j:
                    phi[i, j] = similarity(heads[i], heads[j], log_of_mean)
    assert len({phi[i, j] > 0 for i in range(4) for j in range(4) if i != j}) == 2  # some pairs never met
    np.testing.assert_allclose(state.server["phi"].numpy(), phi, rtol=1e-9)
    np.fill_diagonal(phi, 2.0)
    weights = phi / phi.sum(1, keepdims=True)
    received = models(chosen, state)
    for name, leaf in trees.part(state.server, "model").items():
        mixed = np.tensordot(weights, leaf.numpy(), axes=1)
        expected = leaf.numpy() if name.startswith("head") else mixed
        np.testing.assert_allclose(received[name].numpy(), expected, atol=1e-12)


def test_the_code_scores_the_model_a_client_trained_last() -> None:
    method = PFedSim(rho=0.25, scored="own")
    chosen = setup(method, federation(SIZES), rounds=4, cohort=0.5)
    simulation, state = steps(chosen, 1)
    general = trees.row(models(chosen, state), 0)
    seen: set[int] = set()
    for done in (1, 2):
        simulation.step(state)
        seen |= set(chosen.draw_cohort(Clock(done, 4)).tolist())
        assert len(seen) == 2 * done
        found, stored = models(chosen, state), trees.part(state.server, "model")
        for client in range(4):
            expected = trees.row(stored, client) if client in seen else general
            assert close(trees.row(found, client), expected)


def test_equal_classifiers_have_a_finite_similarity() -> None:
    chosen = setup(PFedSim(rho=0.0), federation(SIZES))
    uploads = trees.expand(chosen.task.init(torch.Generator().manual_seed(0)), 4)
    for method in (PFedSim(rho=0.0), PFedSim(rho=0.0, log_of_mean=True)):
        found = method.similarity(uploads, chosen.task)
        assert bool(torch.isfinite(found).all())
        assert float(found.min()) > 15


def test_running_statistics_never_leave_a_client() -> None:
    chosen = normalised(PFedSim(), rounds=4)
    state = simulate(chosen)
    assert not any("running" in name for name in state.server)
    statistics = [name for name in state.memory if "running_mean" in name]
    assert statistics
    for name in statistics:
        assert float((state.memory[name][0] - state.memory[name][1]).abs().max()) > 1e-3
    received = models(chosen, state)
    assert all(torch.equal(received[name], state.memory[name]) for name in statistics)
    affine = [name for name in chosen.task.groups["@norm"] if name.endswith("weight")]
    assert all(f"model/{name}" in state.server for name in affine)


# ---- f-FedAP


def test_the_warm_up_is_fedbn() -> None:
    everything = {"rounds": 3, "cohort": 0.5}
    chosen, fedbn = normalised(FedAP(warmup=1.0), **everything), normalised(FedBN(), **everything)
    assert close(models(chosen, simulate(chosen)), models(fedbn, simulate(fedbn)))


def test_with_momentum_one_it_is_local() -> None:
    chosen, local = (normalised(each, rounds=2) for each in (FedAP(warmup=0.0, momentum=1.0), Local()))
    assert close(models(chosen, simulate(chosen)), models(local, simulate(local)))


def test_weights_by_hand() -> None:
    """Two layers, three clients."""
    statistics = {
        "a.running_mean": torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]]),
        "a.running_var": torch.tensor([[1.0, 4.0], [1.0, 4.0], [1.0, 4.0]]),
        "b.running_mean": torch.tensor([[0.0], [0.0], [0.0]]),
        "b.running_var": torch.tensor([[1.0], [1.0], [9.0]]),
    }
    far, near, other = 5.0, 1.0 + 2.0, math.sqrt(9 + 9) + 2.0  # d_01, d_02, d_12
    expected = [
        [0.3, 0.7 / far / (1 / far + 1 / near), 0.7 / near / (1 / far + 1 / near)],
        [0.7 / far / (1 / far + 1 / other), 0.3, 0.7 / other / (1 / far + 1 / other)],
        [0.7 / near / (1 / near + 1 / other), 0.7 / other / (1 / near + 1 / other), 0.3],
    ]
    found = closeness(statistics, 0.3)
    for row, truth in zip(found.tolist(), expected, strict=True):
        assert row == pytest.approx(truth)
    alike = closeness({k: v[[0, 0, 1]] for k, v in statistics.items()}, 0.5)
    assert alike[0].tolist() == pytest.approx([0.5, 0.5, 0.0])
    assert alike[2].tolist() == pytest.approx([0.25, 0.25, 0.5])
    assert closeness({k: v[:1] for k, v in statistics.items()}, 0.5).tolist() == [[1.0]]


def test_weights_are_of_the_statistics_at_the_end_of_the_warm_up() -> None:
    chosen = normalised(FedAP(warmup=0.5), rounds=4)
    simulation, state = steps(chosen, 2)
    mean = {k: v.clone() for k, v in state.memory.items() if "running" in k}
    assert {k: v for k, v in state.server.items() if "running" in k}.keys() == {
        f"statistics/{k}" for k in mean
    }
    weights = chosen.method.collaboration(state.server, chosen.population)
    assert weights is not None
    assert close(weights, closeness(mean, 0.5))
    simulation.step(state)
    assert close(chosen.method.collaboration(state.server, chosen.population), weights)  # type: ignore[arg-type]
    received, stored = models(chosen, state), trees.part(state.server, "model")
    for name, leaf in stored.items():
        assert close(received[name], torch.tensordot(weights, leaf, dims=1))
    assert not any(name.split("/")[-1] in chosen.task.groups["@norm"] for name in stored)


def test_without_batch_normalisation_features_are_compared() -> None:
    chosen = setup(FedAP(warmup=0.5), federation(SIZES), rounds=2)
    _, state = steps(chosen, 1)
    outcome = LoopedTrainer(chosen).train(
        torch.arange(4), models(chosen, steps(chosen, 0)[1]), {}, Clock(0, 2)
    )
    for client in range(4):
        x, _ = chosen.federation.gather(chosen.federation.indices("train", client))
        trained = {k: v[client] for k, v in outcome.uploads.items() if "/" not in k}
        z = torch.relu(x.flatten(1) @ trained["fc.0.weight"].t() + trained["fc.0.bias"])
        assert close(state.server["statistics/features.running_mean"][client], z.mean(0))
        assert close(state.server["statistics/features.running_var"][client], z.var(0, correction=0))


def test_impossible_settings_are_refused() -> None:
    for method, wrong in ((PFedSim, {"rho": 1.5}), (PFedSim, {"scored": "x"}), (FedAP, {"momentum": -1.0})):
        with pytest.raises(FedbenchError):
            method(**wrong)  # type: ignore[arg-type]
