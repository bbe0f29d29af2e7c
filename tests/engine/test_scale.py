"""What a round costs does not depend on how many clients are registered."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedbench.config.schema import LocalConfig, OptimizerConfig, ProtocolConfig
from fedbench.core.rng import torch_rng
from fedbench.data.dataset import Dataset
from fedbench.data.federation import Federation
from fedbench.data.partition import Partition
from fedbench.engine.contract import Clock
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.method import Method
from fedbench.engine.schedule import _distinct
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation
from fedbench.engine.stacked import StackedTrainer
from fedbench.engine.trainer import Trainer
from fedbench.methods.ditto import Ditto
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.ifca import IFCA
from fedbench.models.small import MLP

MANY, COHORT = 20_000, 4


class Largest(TorchDispatchMode):
    """The most elements that a tensor made inside holds (views of what was there before do not count)."""

    elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        made = function(*args, **(kwargs or {}))
        for each in tree_leaves(made):
            if isinstance(each, torch.Tensor) and each.untyped_storage().data_ptr() not in before:
                self.elements = max(self.elements, each.untyped_storage().nbytes() // each.element_size())
        return made


def registered(clients: int, method: Method) -> Setup:
    """`clients` clients of one sample each, some of them cohort."""
    x = np.random.default_rng(0).integers(0, 256, (clients + 1, 1, 2, 2)).astype(np.uint8)
    y = np.arange(clients + 1) % 3
    data = Dataset("toy", x, y, clients, 3, (0.5,), (0.25,))
    own = [np.array([client]) for client in range(clients)]
    none = [np.zeros(0, dtype=np.int64)] * clients
    partition = Partition("toy", 0, "toy", 3, own, none, [np.array([clients])] * clients)
    protocol = ProtocolConfig(
        rounds=9,
        cohort=COHORT,
        eval_every=9,
        local=LocalConfig(),
        optimizer=OptimizerConfig(),
        score="trained",
    )
    federation = Federation(data, partition)
    return Setup(method, MLP(hidden=(3,)).task(federation.shape, 3), federation, protocol, 0)


@pytest.mark.parametrize("method", [FedAvg(), IFCA(k=2), Ditto()])
@pytest.mark.parametrize("engine", [LoopedTrainer, lambda setup: StackedTrainer(setup, COHORT)])
def test_no_tensor_of_a_round_is_as_long_as_the_list_of_clients(engine: Any, method: Method) -> None:
    chosen = registered(MANY, method)
    trainer: Trainer = engine(chosen)
    simulation = Simulation(chosen, trainer)
    state = simulation.begin()
    simulation.step(state)  # a table of rows is made once
    with Largest() as seen:
        simulation.step(state)
    assert 0 < seen.elements < 1000


@pytest.mark.parametrize("clients", [MANY, 100])
def test_cohorts_are_distinct_and_their_own(clients: int) -> None:
    chosen = registered(clients, FedAvg())
    drawn = [chosen.draw_cohort(Clock(each, 9)).tolist() for each in range(9)]
    assert drawn == [chosen.draw_cohort(Clock(each, 9)).tolist() for each in range(9)]
    assert len({tuple(ids) for ids in drawn}) == 9
    for ids in drawn:
        assert len(set(ids)) == COHORT
        assert ids == sorted(ids)
        assert 0 <= ids[0] <= ids[-1] < clients


def test_every_set_of_clients_is_as_likely() -> None:
    generator = torch_rng(0, "test")
    sets = [tuple(_distinct(5, 2, generator).tolist()) for _ in range(4000)]
    counts = [sets.count((a, b)) for a in range(5) for b in range(a + 1, 5)]
    assert sum(counts) == 4000
    assert min(counts) > 330, "400 expected, standard deviation 19"
    assert max(counts) < 470
