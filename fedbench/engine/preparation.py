"""What a method is given once before round 0: clients to train alone, their samples, and a meter for what they send."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from fedbench.core.batch import Batch, Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock, Cohort, Meter, Preparation
from fedbench.engine.setup import Setup
from fedbench.engine.train.trainer import Trainer
from fedbench.models.task import Task


@dataclass(eq=False)
class Preparing(Preparation):
    """A preparation on an engine."""

    setup: Setup
    trainer: Trainer
    meter: Meter = field(default_factory=Meter)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def seed(self) -> int:
        """See Preparation."""
        return self.setup.seed

    @property
    def task(self) -> Task:
        """See Preparation."""
        return self.setup.task

    @property
    def population(self) -> Population:
        """See Preparation."""
        return self.setup.population

    @property
    def everyone(self) -> Cohort:
        """See Preparation."""
        return self.setup.cohort(self.setup.everyone, self._clock)

    @property
    def _clock(self) -> Clock:
        return Clock(0, self.setup.protocol.rounds)

    def round(
        self, message: Tree, memory: Tree, *, rounds: int = 1, sends: Callable[[Tree], Tree] | None = None
    ) -> Tree:
        """See Preparation."""
        ids = self.setup.everyone
        self.meter.down += self.setup.traffic(message, ids)
        for completed in range(rounds):
            clock = replace(self._clock, round=completed)
            message = self.trainer.train(ids, message, memory, clock).uploads
        return self.received(torch.vmap(sends)(message) if sends is not None else message)

    def received(self, uploads: Tree) -> Tree:
        """See Preparation."""
        self.meter.received(uploads)
        return uploads

    def samples(self, *, unit: bool = False, kind: int = 0) -> Batch:
        """See Preparation."""
        federation = self.setup.kinds[kind].federation
        train, members = federation.sets["train"], self.setup.task.kind_of(self.setup.everyone) == kind
        owned = train.values[members.repeat_interleave(train.sizes).to(federation.device)]
        x, y = federation.gather(owned)
        return Batch(federation.unit(owned) if unit else x, y)

    def keep(self, name: str, array: np.ndarray) -> None:
        """See Preparation."""
        self.arrays[name] = np.asarray(array)
