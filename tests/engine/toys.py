"""Optimisers, trainers and runs that tests of engines share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from fedbench.config.schema import OptimizerConfig
from fedbench.core.trees import Tree
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import State
from fedbench.engine.stacked import Program, StackedTrainer
from fedbench.engine.trainer import Trainer
from tests.methods.toys import gap, simulate

SGD = OptimizerConfig(lr=0.05)
HEAVY = OptimizerConfig(lr=0.05, momentum=0.9, weight_decay=1e-2)
CLIPPED = OptimizerConfig(lr=0.05, momentum=0.5, weight_decay=1e-2, clip=0.5)
ADAM = OptimizerConfig(name="adam", lr=1e-3, weight_decay=1e-3)
CPU = torch.device("cpu")


def trainers(chosen: Setup) -> list[Trainer]:
    return [LoopedTrainer(chosen), StackedTrainer(chosen, 2), StackedTrainer(chosen, 9)]


def both(chosen: Setup) -> tuple[State, State]:
    """The run by either engine, checked to agree."""
    looped, stacked = simulate(chosen), simulate(chosen, StackedTrainer(chosen, 3))
    assert gap(looped.server, stacked.server) < 1e-9
    assert gap(looped.memory, stacked.memory) < 1e-9
    for a, b in zip(looped.history.records, stacked.history.records, strict=True):
        assert a.tallies["local"].correct.tolist() == b.tallies["local"].correct.tolist()
    return looped, stacked


def traced(program: Program, rows: int, full: bool) -> Callable[[], None]:
    """The operations of the step as traced now, independent of what Python would do the next time."""
    inputs, state = program.inputs(), program.state()
    leaves = [*inputs.values(), *state.values()]

    def step(given: list[Tensor]) -> None:
        parts = zip(inputs, given, strict=False), zip(state, given[len(inputs) :], strict=True)
        program.over(*map(dict, parts)).step(rows, full=full)

    graph = make_fx(step)([leaf.clone() for leaf in leaves])
    return partial(graph, leaves)


def equal(a: Any, b: Tree) -> bool:
    return set(a) == set(b) and all(a[k].dtype == b[k].dtype and torch.equal(a[k], b[k]) for k in b)
