"""Chunks that do not fit in memory: halved, and trained again, with the same result."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedbench.core.errors import FedbenchError
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.simulation import Simulation, State
from fedbench.engine.stacked import Chunk, StackedTrainer
from fedbench.engine.trainer import Trainer
from fedbench.methods.fedavg import FedAvg
from tests.methods.toys import setup


class Small(StackedTrainer):
    """A device that holds `capacity` clients and fails only after some of their work is done."""

    capacity = 1
    tried: list[int]

    def _train(self, chunk: Chunk, score: Any) -> Any:
        outcome = super()._train(chunk, score)
        self.tried.append(len(chunk.ids))
        if len(chunk.ids) > self.capacity:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return outcome


def small(chunk: int, capacity: int, **options: Any) -> Small:
    trainer = Small(setup(FedAvg(), **options), chunk)
    trainer.capacity, trainer.tried = capacity, []
    return trainer


def trained(trainer: Trainer, rounds: int = 2) -> State:
    simulation = Simulation(trainer.setup, trainer)
    state = simulation.begin()
    for _ in range(rounds):
        simulation.step(state)
    return state


def test_a_chunk_that_does_not_fit_is_halved_and_the_run_goes_on() -> None:
    trainer = small(chunk=8, capacity=1, rounds=2)
    state = trained(trainer)
    assert trainer.tried == [5, 2, *[1] * 5, *[1] * 5], "halved from the clients there were, and it stays so"
    expected = trained(LoopedTrainer(setup(FedAvg(), rounds=2)))
    for name, leaf in expected.server.items():
        torch.testing.assert_close(state.server[name], leaf, rtol=1e-9, atol=1e-9)


def test_clients_of_chunks_before_the_failure_are_not_trained_again() -> None:
    trainer = small(chunk=4, capacity=2, rounds=1)
    trained(trainer, rounds=1)
    assert trainer.tried == [4, 2, 2, 1]


def test_one_client_that_does_not_fit_is_refused_in_one_line() -> None:
    with pytest.raises(FedbenchError, match=r"does not hold the training of one client; use"):
        trained(small(chunk=2, capacity=0))
