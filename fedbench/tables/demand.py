"""What a run asks of a device, known without one and without its data: steps, operations, bytes, memory, seconds."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
from dataclasses import dataclass

import numpy as np
import torch

from fedbench.config.schema import TestConfig
from fedbench.core.cache import cached_arrays
from fedbench.core.rng import torch_rng
from fedbench.data.dataset import Dataset, DataSource
from fedbench.data.federation import Federation
from fedbench.data.partition import Partition
from fedbench.data.partitions.base import PartitionSpec
from fedbench.data.split import make_partition
from fedbench.engine import schedule
from fedbench.engine.contract import Clock
from fedbench.engine.method import Method
from fedbench.engine.pick.arithmetic import ARITHMETIC_SHARE, Peaks, StepWork, least_bytes
from fedbench.engine.pick.footprint import SHARE, client_bytes
from fedbench.engine.setup import Setup
from fedbench.methods.fedavg import FedAvg
from fedbench.runs.config import RunConfig
from fedbench.tables.outline import outlined

FORMAT = 1  # raised when what is counted changes
COUNTED = 4  # samples of the mini-batch that a step is counted on; products grow in proportion
COHORTS = 20  # drawn to know how long the longest of a cohort trains
FORWARD_SHARE = 1 / 3  # of a step's operations
SCORED_AT_ONCE = 8192  # samples
DRAW_SECONDS = 7e-6  # of the host for a client-step, whose mini-batch is drawn and laid out
ROUND_SECONDS = 5e-3  # of the server and of what else happens once a round


@dataclass(frozen=True)
class Seconds:
    """Of runs of one configuration, its seeds as rows of one program."""

    training: float
    drawing: float  # mini-batches, on the host
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
    def of(cls, run: RunConfig) -> Demand:
        """Counted on outlines where the data is missing.

        Raises:
            FedbenchError: the data's shape is not known, or the settings are impossible.
        """
        protocol = run.protocol
        whole, partition = _divided(run.dataset, run.partition, protocol.test, run.partition_seed)
        data = run.model.view(whole)
        stages = run.method.stages(protocol.local, Clock(0, protocol.rounds))
        steps = torch.tensor(
            [[float(schedule.steps(len(own), protocol.local, s)) for s in stages] for own in partition.train]
        )
        clients = len(steps)
        cohort = protocol.cohort_size(clients)
        drawn = [
            torch.randperm(clients, generator=torch_rng(0, "demand", i))[:cohort] for i in range(COHORTS)
        ]
        longest = float(torch.stack([steps[ids].max(0).values.sum() for ids in drawn]).mean())
        evaluations = -(-protocol.rounds // protocol.eval_every)
        setup = _toy(run, run.method, data)
        return cls(
            protocol.rounds,
            cohort,
            protocol.rounds * longest,
            protocol.rounds * cohort * float(steps.sum(1).mean()),
            evaluations,
            evaluations * _scored(run, data, partition),
            _counted(run, data, run.method),
            _counted(run, data, FedAvg()),
            protocol.local.batch_size,
            client_bytes(dataclasses.replace(setup, protocol=protocol)),
        )

    def memory(self, seeds: int) -> int:
        """Bytes that a round of all `seeds` takes, roughly, where all clients train at once."""
        return self.cohort * seeds * self.client_bytes

    def bound_by_arithmetic(self, device: Peaks, seeds: int) -> bool:
        """Whether products take longer than memory and, captured, the host."""
        flops = self.client_steps * seeds * self.work.flops / (ARITHMETIC_SHARE * device.float32)
        return flops >= self.seconds(device, seeds, captured=True).training

    def seconds(self, device: Peaks, seeds: int, *, captured: bool) -> Seconds:
        """Of `seeds` runs as one program on `device`, by its peaks; steps `captured` in CUDA graphs, or not."""
        chunks = max(1.0, self.memory(seeds) / (SHARE * device.memory))
        host = chunks * self.cohort_steps * self.work.host_seconds(captured=captured)
        device_ = self.client_steps * seeds * self.work.device_seconds(1, device)
        samples = self.scored * seeds
        passes = max(self.evaluations, samples / SCORED_AT_ONCE)
        asked = passes * FORWARD_SHARE * self.forward.host_seconds(captured=False)
        forward = samples / self.batch * FORWARD_SHARE * self.forward.device_seconds(1, device)
        return Seconds(
            max(host, device_),
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


def _scored(run: RunConfig, data: Dataset, partition: Partition) -> float:
    """Samples that one evaluation passes forward."""
    test = run.protocol.test
    own = sum(map(len, partition.test)) + sum(map(len, partition.val))
    if test.sets in ("local", "common"):
        return own
    tests = len(data) - data.num_train
    shares = [
        len(np.unique(data.y[ids])) / data.classes if test.weighting == "label_shares" else 1.0
        for ids in partition.train
    ]
    return tests * sum(shares) + (own if test.sets == "both" else 0)


def _toy(run: RunConfig, method: Method, data: Dataset) -> Setup:
    """The run's network and method on two clients with two small mini-batches each."""
    network = (
        dataclasses.replace(run.model, pretrained=False) if hasattr(run.model, "pretrained") else run.model
    )
    count = 2 * COUNTED
    pixels = np.random.default_rng(0).integers(0, 200, (3 * count, *data.x.shape[1:]))
    labels = np.arange(3 * count, dtype=np.int64) % data.classes
    small = dataclasses.replace(
        data,
        x=pixels.astype(data.x.dtype),
        y=labels,
        num_train=2 * count,
        domain=None,
        text=None,
        vocabulary=(),
    )
    owned = [np.arange(count), np.arange(count, 2 * count)]
    tests = [np.arange(2 * count, 3 * count)] * 2
    federation = Federation(small, Partition("toy", 0, small.name, data.classes, owned, tests, tests))
    local = dataclasses.replace(run.protocol.local, batch_size=COUNTED)
    protocol = dataclasses.replace(run.protocol, local=local, cohort="all", augment=())
    return Setup(method, network.task(federation.shape, data.classes), federation, protocol, 0)


def _kind(method: Method) -> str:
    """Its description without numbers that weigh something: they do not change what a step takes."""
    return re.sub(r"\d*\.\d+(e-?\d+)?", "", repr(method))


def _counted(run: RunConfig, data: Dataset, method: Method) -> StepWork:
    """What a step of `method` takes with the run's network and batch size, remembered.

    FedAvg's, where the method cannot begin without its preparation.
    """
    setup, local = _toy(run, method, data), run.protocol.local
    what = (FORMAT, torch.__version__, _kind(method), run.model, setup.task.shape, data.classes, local)

    def count() -> dict[str, np.ndarray]:
        found = StepWork.of(setup)
        return {"counted": np.array([found.flops, found.operations, found.kernels])}

    key = f"work-{hashlib.sha256(repr(what).encode()).hexdigest()[:16]}"
    try:
        flops, operations, kernels = cached_arrays(key, count)["counted"].tolist()
    except Exception:
        if isinstance(method, FedAvg):
            raise
        return _counted(run, data, FedAvg())
    real = dataclasses.replace(setup, protocol=dataclasses.replace(setup.protocol, local=local))
    return StepWork(flops * local.batch_size / COUNTED, least_bytes(real), operations, kernels)
