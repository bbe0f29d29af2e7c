"""pFedSim beside its rounds: when it generalises, classifiers that are equal, batch normalisation."""

from __future__ import annotations

import pytest
import torch

from fedbench.core import trees
from fedbench.methods.pfedsim import PFedSim
from fedbench.testing.checks import equal, everything
from tests.helpers.tiers import sampled
from tests.methods.toys import FOUR, federation, models, normalised, setup, simulate, steps


@pytest.mark.parametrize("scored", sampled(["mixed", "own"], every=2))
def test_its_generalisation_is_that_of_any_rho_to_the_bit(scored: str) -> None:
    """Models, memory, scores after every round and bytes, but for the last such round, which scores mixtures."""
    for rho, rounds in ((0.5, 2), (0.9, 4), (1.0, 5)):
        found, expected = (
            steps(normalised(each, rounds=6, eval_every=1, cohort=0.5), rounds)[1]
            for each in (PFedSim(rho=rho, scored=scored), PFedSim(rho=1.0, scored=scored))
        )
        assert equal(everything(found), everything(expected))
        assert (found.bytes_up, found.bytes_down) == (expected.bytes_up, expected.bytes_down)


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
