"""What is known of methods' results, on real images: digits, and Fashion-MNIST where it is installed."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from fedbench.config import compose
from fedbench.core import trees
from fedbench.core.errors import DataMissing
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.simulation import Simulation
from fedbench.runs.building import build
from fedbench.runs.config import resolve
from tests.methods.toys import models

SKEWED = ("dataset=digits", "partition=dir0.1", "protocol.rounds=8", "protocol.local.epochs=2")
SHIFTED = ("protocol.rounds=8", "protocol.local.epochs=5")
SIZES = ("partition.large=60", "partition.small=40", "partition.test=20")
FEATURE = ("dataset=digits", "partition=feature_shift", *SIZES)  # rotations
CONCEPT = ("dataset=digits", "partition=concept_shift", *SIZES)  # permuted labels
LABEL = ("dataset=digits", "partition=label_shift", "partition.min_small=8")  # labels in disjoint halves
TYPES = [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5


@functools.cache
def trained(*overrides: str) -> tuple[float, list[int]]:
    """(mean accuracy over clients, number of the model that each client receives) after the last round."""
    run = resolve(compose.compose(["protocol=quick", "protocol.eval_every=99", *overrides]))
    setup = build(run)
    simulation = Simulation(setup, LoopedTrainer(setup))
    state = simulation.begin()
    while not simulation.done(state):
        simulation.step(state)
    tally = state.history.last.tallies["local"]
    received = trees.flatten(models(setup, state))
    groups: Any = torch.unique(received, dim=0, return_inverse=True)[1]
    return float((tally.correct / tally.total).mean()), groups.tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    ["local", "finetune", "fedper", "fedbabu", "ditto", "pfedsim", "fedproto", "knnper"],
)
def test_personalised_methods_beat_fedavg_under_strong_label_skew(method: str) -> None:
    fedavg = trained(*SKEWED, "method=fedavg")[0]
    assert trained(*SKEWED, f"method={method}")[0] > fedavg + 0.05


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shift", "method", "count"),
    [
        (FEATURE, "kmeans", 4),
        (FEATURE, "fesem method.pretrain_rounds=1 method.drawn=false", 4),
        (CONCEPT, "kmeans", 4),
        (CONCEPT, "ifca", 3),  # two of the four models, all drawn at random, begin alike for two types
        (LABEL, "kmeans", 4),
        (LABEL, "ifca", 2),
        (LABEL, "fedcollab", 2),  # two types differ by one label of four: near enough for so few samples
    ],
)
def test_planted_groups_are_found(shift: tuple[str, ...], method: str, count: int) -> None:
    accuracy, groups = trained(*shift, *SHIFTED, *f"method={method}".split())
    pairs = set(zip(TYPES, groups, strict=True))
    assert len(pairs) == 4, "clients of one type are together"
    assert len(set(groups)) == count
    assert accuracy > trained(*shift, *SHIFTED, "method=fedavg")[0] + 0.05


@pytest.mark.slow
def test_fedcluster_cuts_fashion_mnists_label_shift_as_planted() -> None:
    """FedCollab's structure: the small clients' two types stay together."""
    try:
        _, groups = trained(
            *("dataset=fashion_mnist", "partition=label_shift", "partition.scale=0.25"),
            *("protocol.rounds=30", "protocol.local.epochs=1"),  # as FedCollab: one epoch a round
            "method=fedcluster",
        )
    except DataMissing as missing:
        pytest.skip(str(missing))
    assert len(set(groups)) == 3
    assert len(set(zip([0] * 5 + [1] * 5 + [2] * 10, groups, strict=True))) == 3
