"""What a run asks of a device, known without one and without its data: steps, operations, bytes, memory, seconds."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import re
from dataclasses import dataclass

import numpy as np
import torch

from fedbench.config.schema import LocalConfig, ProtocolConfig, TestConfig
from fedbench.core.cache import cached_arrays
from fedbench.core.errors import FedbenchError
from fedbench.core.rng import torch_rng
from fedbench.data.dataset import Dataset, DataSource
from fedbench.data.federation import Federation
from fedbench.data.partition import Partition
from fedbench.data.partitions.base import PartitionSpec
from fedbench.data.split import make_partition
from fedbench.engine import schedule
from fedbench.engine.contract import Clock
from fedbench.engine.method import Method
from fedbench.engine.pick.arithmetic import (
    ACTIVATION_PASSES,
    ARITHMETIC_SHARE,
    WEIGHT_PASSES,
    Peaks,
    StepWork,
    leaf_bytes,
)
from fedbench.engine.pick.footprint import ACTIVATION_COPIES, COPIES, SHARE, activation_bytes
from fedbench.engine.setup import Setup
from fedbench.methods.fedavg import FedAvg
from fedbench.models.base import Model
from fedbench.models.lenet5 import LeNet5
from fedbench.models.vision import Vision
from fedbench.runs.config import RunConfig
from fedbench.tables.outline import outlined

FORMAT = 2  # raised when what is counted changes
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
        network, share = _network(run.model, data), _shares(run.method, protocol.local)
        plain = network.step(protocol.local.batch_size)
        return cls(
            protocol.rounds,
            cohort,
            protocol.rounds * longest,
            protocol.rounds * cohort * float(steps.sum(1).mean()),
            evaluations,
            evaluations * _scored(run, data, partition),
            plain.times(share),
            plain,
            protocol.local.batch_size,
            network.client_bytes(protocol.local.batch_size),
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


@dataclass(frozen=True)
class Network:
    """What a plain step takes, counted on a small mini-batch."""

    flops: float  # of a sample
    operations: float
    kernels: float
    leaves: float  # bytes of the model
    layers: float  # bytes of all layers' outputs for a sample
    pixels: float  # bytes of a sample

    def step(self, batch: int) -> StepWork:
        """Of a mini-batch of `batch` samples."""
        moved = WEIGHT_PASSES * self.leaves + ACTIVATION_PASSES * self.layers * batch
        return StepWork(self.flops * batch, moved, self.operations, self.kernels)

    def client_bytes(self, batch: int) -> int:
        """Roughly what training a client takes: see footprint.client_bytes."""
        return int(COPIES * self.leaves + ACTIVATION_COPIES * batch * (self.layers + self.pixels))


def _network(model: Model, data: Dataset) -> Network:
    """Of `model` on the samples of `data`, remembered."""
    shape = data.x.shape[1:]
    what = (FORMAT, torch.__version__, model, shape, data.classes, data.x.dtype)

    def count() -> dict[str, np.ndarray]:
        setup = _toy(FedAvg(), model, data, LocalConfig())
        found, leaves = StepWork.of(setup), leaf_bytes(setup.task)
        layers = activation_bytes(setup.task.fresh(), setup.task.shape, COUNTED) / COUNTED
        counted = (found.flops / COUNTED, found.operations, found.kernels)
        return {"counted": np.array([*counted, leaves, layers, 4 * math.prod(shape)])}

    return Network(*cached_arrays(_key("network", what), count)["counted"].tolist())


def _shares(method: Method, local: LocalConfig) -> StepWork:
    """What a step of `method` takes over what a plain one takes, both counted with LeNet5, remembered.

    FedAvg's where the method cannot begin without its preparation.
    """
    what = (FORMAT, torch.__version__, _kind(method), local)
    data = Dataset(
        "toy", np.zeros((1, 3, 32, 32), np.uint8), np.zeros(1, np.int64), 1, 10, (0.5,) * 3, (0.5,) * 3
    )

    def count() -> dict[str, np.ndarray]:
        plain = StepWork.of(_toy(FedAvg(), LeNet5(batch_norm=True), data, local))
        try:
            found = StepWork.of(_toy(method, LeNet5(batch_norm=True), data, local))
        except FedbenchError:
            found = plain
        pairs = ((getattr(found, name), getattr(plain, name)) for name in ("flops", "operations", "kernels"))
        return {"counted": np.array([mine / theirs for mine, theirs in pairs])}

    flops, operations, kernels = cached_arrays(_key("method", what), count)["counted"].tolist()
    return StepWork(flops, flops, operations, kernels)


def _kind(method: Method) -> str:
    """Its description without numbers that weigh something: they do not change what a step takes."""
    return re.sub(r"\d*\.\d+(e-?\d+)?", "", repr(method))


def _key(kind: str, what: tuple[object, ...]) -> str:
    return f"{kind}-{hashlib.sha256(repr(what).encode()).hexdigest()[:16]}"


def _toy(method: Method, model: Model, data: Dataset, local: LocalConfig) -> Setup:
    """A method and a network on two clients with two small mini-batches each, of samples like those of `data`."""
    network = dataclasses.replace(model, pretrained=False) if isinstance(model, Vision) else model
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
    protocol = ProtocolConfig(rounds=2, local=dataclasses.replace(local, batch_size=COUNTED))
    return Setup(method, network.task(federation.shape, data.classes), federation, protocol, 0)
