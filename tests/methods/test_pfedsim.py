"""pFedSim: phases, similarities and mixtures by hand, limits, and batch normalisation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from fedbench.core import trees
from fedbench.engine.contract import Clock
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.local import Local
from fedbench.methods.pfedsim import PFedSim
from fedbench.testing.checks import equal, everything
from tests.methods.toys import FOUR, close, federation, final, gap, models, normalised, setup, simulate, steps


@pytest.mark.parametrize("cohort", [1.0, 0.5])
def test_generalisation_is_fedavg(cohort: float) -> None:
    options: dict[str, Any] = {"cohort": cohort, "rounds": 4}
    fedavg = final(FedAvg(), **options)
    assert close(final(PFedSim(rho=1.0), **options), fedavg)
    assert close(final(PFedSim(rho=1.0, scored="own"), **options), fedavg)
    assert gap(final(PFedSim(rho=0.5), **options), fedavg) > 1e-4


def test_generalisation_lasts_the_floor_of_rho_t_rounds() -> None:
    assert [PFedSim(rho=0.5).warm(Clock(t, 5)) for t in range(5)] == [True, True, False, False, False]


@pytest.mark.parametrize("scored", ["mixed", "own"])
def test_its_generalisation_is_that_of_any_rho_to_the_bit(scored: str) -> None:
    """Models, memory, scores after every round and bytes, but for the last such round, which scores mixtures."""
    for rho, rounds in ((0.5, 2), (0.9, 4), (1.0, 5)):
        found, expected = (
            steps(normalised(each, rounds=6, eval_every=1, cohort=0.5), rounds)[1]
            for each in (PFedSim(rho=rho, scored=scored), PFedSim(rho=1.0, scored=scored))
        )
        assert equal(everything(found), everything(expected))
        assert (found.bytes_up, found.bytes_down) == (expected.bytes_up, expected.bytes_down)


def test_with_all_weight_on_itself_it_is_local() -> None:
    assert close(final(PFedSim(rho=0.0, self_weight=1e15), rounds=4), final(Local(), rounds=4), 1e-7)


def similarity(a: np.ndarray, b: np.ndarray, log_of_mean: bool) -> float:
    """Eq. 3 class by class, or the code's."""
    cosines = [float(x @ y / (np.linalg.norm(x) * np.linalg.norm(y) + 1e-8)) for x, y in zip(a, b, strict=True)]
    if log_of_mean:
        return -math.log(1 - max(0.0, float(np.mean(cosines))))
    return float(np.mean([-math.log(1 - max(0.0, c)) for c in cosines]))


@pytest.mark.parametrize("log_of_mean", [False, True])
def test_similarities_and_mixtures_by_hand(log_of_mean: bool) -> None:
    method = PFedSim(rho=0.25, log_of_mean=log_of_mean, self_weight=2.0)
    chosen = setup(method, federation(FOUR), rounds=4, cohort=0.5, epochs=4)
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
    chosen = setup(method, federation(FOUR), rounds=4, cohort=0.5)
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
    chosen = setup(PFedSim(rho=0.0), federation(FOUR))
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
