"""A run by either engine."""

from __future__ import annotations

from fedbench.engine.setup import Setup
from fedbench.engine.state import State
from fedbench.engine.train.stacked import StackedTrainer
from tests.methods.toys import gap, simulate


def both(chosen: Setup) -> tuple[State, State]:
    """The run by either engine, checked to agree."""
    looped, stacked = simulate(chosen), simulate(chosen, StackedTrainer(chosen, 3))
    assert gap(looped.server, stacked.server) < 1e-9
    assert gap(looped.memory, stacked.memory) < 1e-9
    for a, b in zip(looped.history.records, stacked.history.records, strict=True):
        assert a.tallies["local"].correct.tolist() == b.tallies["local"].correct.tolist()
    return looped, stacked
