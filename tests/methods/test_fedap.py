"""f-FedAP: its warm-up, distances of statistics by hand."""

from __future__ import annotations

import math

import pytest
import torch

from fedbench.core import trees
from fedbench.core.errors import FedbenchError
from fedbench.methods.fedap import FedAP, closeness
from fedbench.methods.fedbn import FedBN
from fedbench.methods.pfedsim import PFedSim
from tests.methods.toys import close, models, normalised, simulate, steps


def test_the_warm_up_is_fedbn() -> None:
    everything = {"rounds": 3, "cohort": 0.5}
    chosen, fedbn = normalised(FedAP(warmup=1.0), **everything), normalised(FedBN(), **everything)
    assert close(models(chosen, simulate(chosen)), models(fedbn, simulate(fedbn)))


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
    assert {k: v for k, v in state.server.items() if "running" in k}.keys() == {f"statistics/{k}" for k in mean}
    weights = chosen.method.collaboration(state.server, chosen.population)
    assert weights is not None
    assert close(weights, closeness(mean, 0.5))
    simulation.step(state)
    assert close(chosen.method.collaboration(state.server, chosen.population), weights)  # type: ignore[arg-type]
    received, stored = models(chosen, state), trees.part(state.server, "model")
    for name, leaf in stored.items():
        assert close(received[name], torch.tensordot(weights, leaf, dims=1))
    assert not any(name.split("/")[-1] in chosen.task.groups["@norm"] for name in stored)


def test_impossible_settings_are_refused() -> None:
    for method, wrong in ((PFedSim, {"rho": 1.5}), (PFedSim, {"scored": "x"}), (FedAP, {"momentum": -1.0})):
        with pytest.raises(FedbenchError):
            method(**wrong)  # type: ignore[arg-type]
