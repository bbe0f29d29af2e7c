"""What a local step takes of a network and of a method, counted once on toys and remembered in the cache."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedbench.config.schema import LocalConfig, ProtocolConfig
from fedbench.core.cache import cached_arrays
from fedbench.core.errors import FedbenchError
from fedbench.data.dataset import Dataset
from fedbench.data.federation import Federation
from fedbench.data.partition import Partition
from fedbench.engine.method import Method
from fedbench.engine.pick.arithmetic import ACTIVATION_PASSES, WEIGHT_PASSES, StepWork, leaf_bytes
from fedbench.engine.pick.footprint import ACTIVATION_COPIES, COPIES, activation_bytes
from fedbench.engine.setup import Setup
from fedbench.methods.fedavg import FedAvg
from fedbench.models.base import Model
from fedbench.models.small import LeNet5
from fedbench.models.vision import Vision

FORMAT = 3  # raised when what is counted changes
COUNTED = 4  # samples of the mini-batch that a step is counted on; products grow in proportion


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


def network_of(model: Model, data: Dataset) -> Network:
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


def shares_of(method: Method, local: LocalConfig) -> StepWork:
    """What a step of `method` takes over what a plain one takes, both counted with LeNet5, remembered.

    FedAvg's where the method cannot begin without its preparation.
    """
    local = dataclasses.replace(local, batch_size=COUNTED)
    plain = _on_lenet5(FedAvg(), local)
    try:
        found = _on_lenet5(method, local)
    except FedbenchError:
        found = plain
    flops, operations, kernels = (found / plain).tolist()
    return StepWork(flops, flops, operations, kernels)


def _on_lenet5(method: Method, local: LocalConfig) -> NDArray[np.float64]:
    """Products, operations and kernels of a step of `method`, remembered."""
    what = (FORMAT, torch.__version__, _kind(method), local)
    data = Dataset(
        "toy", np.zeros((1, 3, 32, 32), np.uint8), np.zeros(1, np.int64), 1, 10, (0.5,) * 3, (0.5,) * 3
    )

    def count() -> dict[str, np.ndarray]:
        found = StepWork.of(_toy(method, LeNet5(batch_norm=True), data, local))
        return {"counted": np.array([found.flops, found.operations, found.kernels])}

    return cached_arrays(_key("method", what), count)["counted"]


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
