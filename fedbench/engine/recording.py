"""Recorders store more than the scores of a run. They read a finished round and change nothing.

Arrays are stored with the run's as record/NAME/PART [T, ...], one entry for each recorded round, and these rounds as
record/NAME/round [T]. A checkpoint holds them, so an interrupted run loses none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedbench.core import rng, trees
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock, Cohort
from fedbench.engine.setup import Setup, first_round_inputs

PREFIX = "record"
ROUND = "round"
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class RoundContext:
    """A finished round: what crossed the network, and the server's state after it."""

    setup: Setup
    cohort: Cohort
    message: Tree  # [C, ...]
    memory: Tree  # [C, ...], after training
    uploads: Tree  # [C, ...]
    server: Tree  # after aggregation

    @property
    def round(self) -> int:
        """Rounds completed, this one included."""
        return self.cohort.clock.round + 1

    @cached_property
    def models(self) -> Tree:
        """Return each client's trained network [C, ...], from its upload, its memory or the message, in this order.

        Raises:
            ConfigError: the method does not train a single network on each client.
        """
        task = self.setup.task
        names = task.parameters | task.buffers
        known = {**self.message, **self.memory, **self.uploads}
        if not names <= set(known):
            raise ConfigError("its clients do not train one network each")
        return {name: known[name] for name in sorted(names)}

    def generator(self, purpose: str) -> torch.Generator:
        """The recorder's own random generator, which affects no draw of the run."""
        return rng.torch_rng(self.setup.seed, f"{PREFIX}/{purpose}", self.round)

    def square(self, matrix: Tensor) -> np.ndarray:
        """Return values [..., C, C] between the cohort's clients as [..., N, N] between all; nan if one is absent."""
        count = self.setup.federation.clients
        found = np.full((*matrix.shape[:-2], count, count), np.nan)
        ids = self.cohort.ids.numpy()
        found[..., ids[:, None], ids] = matrix.double().cpu().numpy()
        return found


@dataclass(frozen=True)
class Recorder(ABC):
    """Records after `rounds` completed rounds; without them after every round if `always`, else after the last."""

    rounds: tuple[int, ...] = ()

    name: ClassVar[str]
    always: ClassVar[bool] = False
    several: ClassVar[bool] = False  # whether it serves clients of several modalities, whose networks differ

    @abstractmethod
    def look(self, moment: RoundContext) -> Arrays:
        """The arrays of this round, by part.

        Raises:
            ConfigError: the method does not have what is recorded.
        """

    def fits(self, moment: RoundContext) -> None:
        """Raise the error that `look` would raise, at less cost if looking is expensive."""
        self.look(moment)

    def due(self, completed: int, rounds: int) -> bool:
        """Whether to record after `completed` rounds of `rounds`."""
        return completed in self.rounds if self.rounds else self.always or completed == rounds

    def key(self, part: str) -> str:
        """The name of an array in the run's folder."""
        return f"{PREFIX}/{self.name}/{part}"

    def added(self, arrays: Arrays, moment: RoundContext) -> dict[str, np.ndarray]:
        """Return `arrays` of a run together with those of this round."""
        found = {**self.look(moment), ROUND: np.array(moment.round)}
        added = dict(arrays)
        for part, array in found.items():
            name, entry = self.key(part), np.stack([array])
            added[name] = np.concatenate([added[name], entry]) if name in added else entry
        return added

    def lacks(self, arrays: Arrays, completed: int, rounds: int) -> bool:
        """Whether `arrays` of a run after `completed` rounds of `rounds` lack a round that is due."""
        wanted = {done for done in range(1, completed + 1) if self.due(done, rounds)}
        return not wanted <= set(np.asarray(arrays.get(self.key(ROUND), [])).tolist())


@torch.no_grad()
def check(recorder: Recorder, setup: Setup) -> None:
    """Try a recorder on two clients that have not trained.

    Raises:
        ConfigError: it records something that method or clients lack.
    """
    if (modalities := len(setup.modalities)) > 1 and not recorder.several:
        raise ConfigError(
            f"record={recorder.name} compares clients of one modality, here are {modalities} modalities: leave it out"
        )
    try:
        recorder.fits(_trial(setup))
    except ConfigError as error:
        raise ConfigError(f"record={recorder.name} does not fit {type(setup.method).__name__}: {error}") from error


def _trial(setup: Setup) -> RoundContext:
    ids, clock = torch.arange(min(2, setup.federation.clients)), Clock(0, setup.protocol.rounds)
    message, memory = first_round_inputs(setup, ids, clock)
    server, _ = setup.method.init(setup.task, setup.population, rng.torch_rng(setup.seed, "init"))
    ended = []
    for client in ids.tolist():
        view = setup.client(client, trees.row(message, client), trees.row(memory, client), clock)
        pair = setup.method.finish(setup.method.start(view), view)
        ended.append([(ids == client, trees.expand(tree, 1)) for tree in pair])
    uploads, kept = (trees.spread(each, len(ids)) for each in zip(*ended, strict=True))
    return RoundContext(setup, setup.cohort(ids, clock), message, kept, uploads, setup.federation.placed(server))
