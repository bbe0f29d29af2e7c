"""The preparation of a method: clients to train alone, their samples, and a meter for their traffic."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fedbench.core import source
from fedbench.core.batch import Batch, Population
from fedbench.core.cache import Arrays, cached_arrays
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock, Cohort, Meter, Preparation
from fedbench.engine.setup import Setup
from fedbench.engine.trainer import Trainer
from fedbench.models.task import Task


@dataclass(eq=False)
class EnginePreparation(Preparation):
    """A preparation on an engine."""

    setup: Setup
    trainer: Trainer
    clock: Clock
    late: Tensor | None = None  # the clients to prepare, where they are those that no round met; int64 [C]
    meter: Meter = field(default_factory=Meter)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    seconds: float = 0.0  # seconds that earlier runs took for cached results

    @property
    def seed(self) -> int:
        return self.setup.seed

    @property
    def task(self) -> Task:
        return self.setup.task

    @property
    def population(self) -> Population:
        return self.setup.population

    @property
    def everyone(self) -> Cohort:
        everyone = self.setup.everyone
        if self.late is None:
            return self.setup.cohort(everyone, self.clock)
        known = everyone[: self.setup.protocol.seen(len(everyone))]
        return replace(self.setup.cohort(self.late, self.clock), served=known)

    def round(
        self, message: Tree, memory: Tree, *, rounds: int = 1, sends: Callable[[Tree], Tree] | None = None
    ) -> Tree:
        ids = self.everyone.ids
        self.meter.down += self.setup.traffic(message, ids)
        for passed in range(rounds):
            clock = replace(self.clock, round=self.clock.round + passed)
            message = self.trainer.train(ids, message, memory, clock).uploads
        return self.received(torch.vmap(sends)(message) if sends is not None else message)

    def received(self, uploads: Tree) -> Tree:
        self.meter.received(uploads)
        return uploads

    def samples(self, *, unit: bool = False, modality: int = 0) -> Batch:
        federation = self.setup.modalities[modality].federation
        train, members = federation.sets["train"], self.setup.task.modality_of(self.setup.everyone) == modality
        owned = train.values[members.repeat_interleave(train.sizes).to(federation.device)]
        x, y = federation.gather(owned)
        return Batch(federation.unit(owned) if unit else x, y)

    def once(self, code: Callable[..., object], given: Sequence[object], make: Callable[[Meter], Arrays]) -> Arrays:
        began, fresh = time.perf_counter(), []

        def made() -> Arrays:
            fresh.append(True)
            meter = Meter()
            arrays, crossed = make(meter), np.array([meter.up, meter.down])
            return {**arrays, "bytes": crossed, "seconds": np.array(time.perf_counter() - began)}

        found = {name: np.array(each) for name, each in cached_arrays(shared_key(code, given), made).items()}
        up, down = found.pop("bytes").tolist()
        self.meter.up, self.meter.down = self.meter.up + up, self.meter.down + down
        seconds = float(found.pop("seconds"))
        if not fresh:
            self.seconds += seconds - (time.perf_counter() - began)
        return found

    def keep(self, name: str, array: np.ndarray) -> None:
        self.arrays[name] = np.asarray(array)


def shared_key(code: Callable[..., object], given: Sequence[object]) -> str:
    """Return a key that changes with any of `given`, a tensor's device and content, with `code`, and with torch.

    It also depends on the number of threads, which sets the order of sums.
    """
    made_by = source.digest([f"{code.__module__}:{code.__qualname__}"])
    digest = hashlib.sha256(f"{made_by} {torch.__version__} {torch.get_num_threads()}".encode())
    for each in given:
        if isinstance(each, Tensor):
            digest.update(f"|{each.dtype} {list(each.shape)} {each.device.type} ".encode())
            digest.update(each.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        else:
            digest.update(f"|{each!r}".encode())
    return f"{code.__name__}-{digest.hexdigest()[:16]}"
