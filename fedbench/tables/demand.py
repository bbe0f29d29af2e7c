"""What a run asks of a device, known without one and without its data: steps, operations, bytes, memory, seconds."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedbench.config.schema import LocalConfig, TestConfig
from fedbench.core.rng import torch_rng
from fedbench.data.dataset import Dataset, DataSource, Ints
from fedbench.data.partition import Partition, make_partition
from fedbench.data.partitions.base import PartitionSpec
from fedbench.engine import schedule
from fedbench.engine.contract import Clock, Stage
from fedbench.engine.pick.arithmetic import ARITHMETIC_SHARE, Peaks, StepWork
from fedbench.engine.pick.footprint import SHARE
from fedbench.models.base import Model
from fedbench.runs.config import RunConfig
from fedbench.tables.counted import network_of, shares_of
from fedbench.tables.outline import outlined

COHORTS = 20  # drawn to know how long the longest of a cohort trains
FORWARD_SHARE = 1 / 3  # of a step's operations
SCORED_AT_ONCE = 8192  # samples
# Of the host for a client-step, measured on an EPYC (scripts/bench.py --only PROFILE): its mini-batch is drawn while
# the device works on the round before, and laid out when the round begins.
AHEAD_SECONDS = 0.6e-6
DRAW_SECONDS = 1.3e-6
ROUND_SECONDS = 5e-3  # of the server and of what else happens once a round


@dataclass(frozen=True)
class Seconds:
    """Of runs of one configuration, its seeds as rows of one program."""

    training: float
    drawing: float  # mini-batches, on the host, while the device waits
    scoring: float
    server: float

    @property
    def total(self) -> float:
        """One after the other."""
        return self.training + self.drawing + self.scoring + self.server


@dataclass(frozen=True)
class Demand:
    """Of one run."""

    rounds: int
    cohort: int  # clients a round
    cohort_steps: float  # of a stack of the cohort's clients, in all rounds
    client_steps: float
    evaluations: int
    scored: float  # samples, in all evaluations, each client's model on its own sets
    work: StepWork  # of a step
    forward: StepWork  # of the plain network's step, of which scoring is a part
    batch: int
    client_bytes: int  # of memory while a client trains

    @classmethod
    def of(cls, run: RunConfig) -> tuple[Demand, ...]:
        """Of each kind of client, which are trained one kind after the other; on outlines where data is missing.

        Raises:
            FedbenchError: the data's shape is not known, or the settings are impossible.
        """
        protocol = run.protocol
        whole, partition = _divided(run.dataset, run.partition, protocol.test, run.partition_seed)
        partition, kind = run.model.dealt(partition)
        share = protocol.cohort_size(len(partition)) / len(partition)
        return tuple(
            cls._of(run, model, model.view(whole), partition, np.flatnonzero(kind == place), share)
            for place, model in enumerate(run.model.networks.values())
        )

    @classmethod
    def _of(
        cls, run: RunConfig, model: Model, data: Dataset, partition: Partition, ids: Ints, share: float
    ) -> Demand:
        """Of the clients `ids`, of whom `share` take part in a round."""
        protocol, start = run.protocol, Clock(0, run.protocol.rounds)
        trained = _steps(run.method.stages(protocol.local, start), protocol.local, partition, ids)
        adapted = _steps(run.method.adapt(protocol.local, start), protocol.local, partition, ids)
        cohort = max(1, round(share * len(ids)))
        drawn = [
            torch.randperm(len(ids), generator=torch_rng(0, "demand", i))[:cohort] for i in range(COHORTS)
        ]
        longest = float(torch.stack([trained[each].max(0).values.sum() for each in drawn]).mean())
        evaluations = -(-protocol.rounds // protocol.eval_every)
        before = evaluations if protocol.score != "trained" else 0  # scorings that clients adapt for
        network, work = network_of(model, data), shares_of(run.method, protocol.local)
        plain = network.step(protocol.local.batch_size)
        return cls(
            protocol.rounds,
            cohort,
            protocol.rounds * longest + before * float(adapted.max(0).values.sum()),
            protocol.rounds * cohort * float(trained.sum(1).mean()) + before * float(adapted.sum()),
            evaluations,
            evaluations * _scored(run, data, partition, ids),
            plain.times(work),
            plain,
            protocol.local.batch_size,
            network.client_bytes(protocol.local.batch_size),
        )

    def after(self, done: int) -> Demand:
        """Of the rounds after the first `done`."""
        left = 1 - done / self.rounds
        return replace(
            self,
            rounds=self.rounds - done,
            cohort_steps=self.cohort_steps * left,
            client_steps=self.client_steps * left,
            evaluations=round(self.evaluations * left),
            scored=self.scored * left,
        )

    def memory(self, seeds: int) -> int:
        """Bytes that a round of all `seeds` takes, roughly, where all clients train at once."""
        return self.cohort * seeds * self.client_bytes

    def bound(self, device: Peaks, seeds: int) -> Literal["products", "memory", "kernels"]:
        """What takes longest in a captured step: its products, its bytes, or its kernels, each of a least time."""
        training = self.seconds(device, seeds, captured=True).training
        if self.client_steps * seeds * self.work.device_seconds(1, device) < training:
            return "kernels"
        whole = self.client_steps * seeds * self.work.flops / (ARITHMETIC_SHARE * device.float32)
        return "products" if whole >= training else "memory"

    def seconds(self, device: Peaks, seeds: int, *, captured: bool) -> Seconds:
        """Of `seeds` runs as one program on `device`, by its peaks; steps `captured` in CUDA graphs, or not."""
        chunks = max(1.0, self.memory(seeds) / (SHARE * device.memory))
        host = chunks * self.cohort_steps * self.work.host_seconds(captured=captured)
        ahead = self.client_steps * seeds * AHEAD_SECONDS
        device_ = self.client_steps * seeds * self.work.device_seconds(1, device)
        samples = self.scored * seeds
        passes = max(self.evaluations, samples / SCORED_AT_ONCE)
        asked = passes * FORWARD_SHARE * self.forward.host_seconds(captured=False)
        forward = samples / self.batch * FORWARD_SHARE * self.forward.device_seconds(1, device)
        return Seconds(
            max(host, device_, ahead),
            self.client_steps * seeds * DRAW_SECONDS,
            max(asked, forward),
            self.rounds * seeds * ROUND_SECONDS,
        )


@functools.lru_cache(maxsize=64)
def _divided(
    source: DataSource, spec: PartitionSpec, test: TestConfig, seed: int
) -> tuple[Dataset, Partition]:
    """The data, in outline where it is missing, and who has how much of it."""
    data = outlined(source)
    return data, make_partition(spec, data, test, seed)


def _steps(stages: Sequence[Stage], local: LocalConfig, partition: Partition, ids: Ints) -> Tensor:
    """Steps of each of the clients `ids` in each stage, [C, S]."""
    counts = [[float(schedule.steps(len(partition.train[k]), local, s)) for s in stages] for k in ids]
    return torch.tensor(counts).view(len(ids), len(stages))


def _scored(run: RunConfig, data: Dataset, partition: Partition, ids: Ints) -> float:
    """Samples that one evaluation of the clients `ids` passes forward."""
    test = run.protocol.test
    own = sum(len(partition.test[k]) + len(partition.val[k]) for k in ids)
    if test.sets in ("local", "common"):
        return own
    tests = len(data) - data.num_train
    shares = [
        len(np.unique(data.y[partition.train[k]])) / data.classes if test.weighting == "label_shares" else 1.0
        for k in ids
    ]
    return tests * sum(shares) + (own if test.sets == "both" else 0)
