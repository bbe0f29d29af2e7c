"""What a local step asks of a device, counted without one, and what known devices give: seconds by arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from fedbench.core.errors import unknown
from fedbench.engine.contract import Clock
from fedbench.engine.pick.calibrate import Cut
from fedbench.engine.pick.footprint import activation_bytes
from fedbench.engine.pick.trial import opening
from fedbench.engine.setup import Setup
from fedbench.engine.train.looped import LoopedTrainer
from fedbench.engine.train.stacked import StackedTrainer
from fedbench.engine.train.trainer import Trainer
from fedbench.models.task import Task

# Of the peaks that small batched products and pointwise kernels reach.
ARITHMETIC_SHARE, BANDWIDTH_SHARE = 0.4, 0.6
EAGER_SECONDS = 8e-6  # that the host needs for an operation under vmap and grad: 7 to 9 us were seen
CAPTURED_SECONDS = 2.2e-6  # that a kernel takes at least within a CUDA graph
WEIGHT_PASSES = 5  # forward, backward, gradient written, gradient read, weight written
ACTIVATION_PASSES = 4  # written and read forward, its gradient written and read


@dataclass(frozen=True)
class Peaks:
    """What a device can do at most: operations a second, dense, and bytes a second; and its memory."""

    float32: float
    tf32: float
    bandwidth: float
    memory: float  # bytes


# NVIDIA's data sheets (H200, H100 and A100: SXM; L4; RTX 4090: the Ada whitepaper), without sparsity.
DEVICES = {
    "h200": Peaks(67e12, 494e12, 4.8e12, 141e9),
    "h100": Peaks(67e12, 494e12, 3.35e12, 80e9),
    "a100": Peaks(19.5e12, 156e12, 2.04e12, 80e9),
    "l4": Peaks(30.3e12, 60e12, 0.3e12, 24e9),
    "rtx4090": Peaks(82.6e12, 82.6e12, 1.01e12, 24e9),
}


def peaks(name: str) -> Peaks:
    """Those of the device called `name`.

    Raises:
        UnknownName: it is not among DEVICES.
    """
    if name not in DEVICES:
        raise unknown("device", name, DEVICES)
    return DEVICES[name]


def found_peaks(device: torch.device) -> Peaks | None:
    """Those of a GPU of this machine; None for one that is not among DEVICES, and for a CPU."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device).lower().replace(" ", "")
    return next((DEVICES[each] for each in DEVICES if each in name), None)


@dataclass(frozen=True)
class StepWork:
    """What a client's local step takes, all stages of the method taken together, and a step of a stack of clients."""

    flops: float  # of products and convolutions, forward and backward
    bytes: float  # to and from the device's memory at least: weights and layer outputs
    operations: float  # dispatched for a step of a stack of clients, however many they are
    kernels: float  # those among them that are no views

    @classmethod
    def of(cls, setup: Setup) -> StepWork:
        """Counted while the largest client trains, one step of each stage and two, on `setup`'s device.

        Products that the method does once a round (on all data, say) are spread over the round's steps.
        """
        ((flops,), (once,), planned) = _a_step(setup, LoopedTrainer, _flops)
        (operations, kernels), _, _ = _a_step(setup, partial(StackedTrainer, chunk=1), _operations)
        return cls(flops + once / planned, least_bytes(setup), operations, kernels)

    def times(self, share: StepWork) -> StepWork:
        """Each of its numbers times that of `share`."""
        return StepWork(*(a * b for a, b in zip(astuple(self), astuple(share), strict=True)))

    def seconds(self, clients: float, device: Peaks, *, captured: bool) -> float:
        """Of a step of a stack of `clients` on `device`: what its host, its arithmetic or its memory takes longest."""
        return max(self.host_seconds(captured=captured), self.device_seconds(clients, device))

    def host_seconds(self, *, captured: bool) -> float:
        """To ask for a step, operation by operation or as a graph, whose kernels take a least time each."""
        return CAPTURED_SECONDS * self.kernels if captured else EAGER_SECONDS * self.operations

    def device_seconds(self, clients: float, device: Peaks) -> float:
        """Of the arithmetic or of the memory, whichever takes longer."""
        arithmetic = self.flops * clients / (ARITHMETIC_SHARE * device.float32)
        return max(arithmetic, self.bytes * clients / (BANDWIDTH_SHARE * device.bandwidth))


def least_bytes(setup: Setup) -> float:
    """To and from memory in a plain step, were every layer a kernel that reads its input and writes its output."""
    layers = activation_bytes(setup.task.fresh(), setup.task.shape, setup.protocol.local.batch_size)
    return float(WEIGHT_PASSES * leaf_bytes(setup.task) + ACTIVATION_PASSES * layers)


def leaf_bytes(task: Task) -> int:
    """Of one model."""
    return sum(leaf.numel() * leaf.element_size() for leaf in task.fresh().state_dict().values())


def _a_step(
    setup: Setup,
    build: Callable[[Setup], Trainer],
    count: Callable[[Callable[[], object]], tuple[float, ...]],
) -> tuple[list[float], list[float], int]:
    """(what `count` finds in a step, what beside the steps of a client's round, how many steps that has)."""
    client = setup.population.sizes.topk(1).indices
    clock = Clock(0, setup.protocol.rounds)
    message, memory = opening(setup, client, clock)

    def counted(steps: int) -> tuple[tuple[float, ...], Cut]:
        cut = Cut(steps)
        trainer = build(replace(setup, source=cut))
        return count(lambda: trainer.train(client, message, memory, clock)), cut

    (one, few), (two, more) = counted(1), counted(2)
    added = max(1, more.taken - few.taken)  # none where a round has one step: then all of it is that step's
    steps = [(b - a if more.taken > few.taken else a) / added for a, b in zip(one, two, strict=True)]
    once = [max(0.0, a - step * few.taken) for a, step in zip(one, steps, strict=True)]
    return steps, once, max(1, few.planned)


def _flops(work: Callable[[], object]) -> tuple[float]:
    """Operations of products and convolutions in `work`."""
    mapping = {torch.ops.aten.convolution_backward: _backward_flops}
    with FlopCounterMode(display=False, custom_mapping=mapping) as found:
        work()
    return (float(found.get_total_flops()),)


def _backward_flops(
    grad: Sequence[int], x: Sequence[int], weight: Sequence[int], *settings: Any, **_: Any
) -> int:
    """Of a convolution's backward pass, from shapes: those of the forward pass for each gradient that is asked for.

    torch's own count forgets `groups`: twenty times too much for MobileNetV2, whose layers are depthwise.
    """
    transposed, asked = bool(settings[4]), settings[7]
    forward = 2 * x[0] * math.prod(weight) * math.prod((x if transposed else grad)[2:])
    return int(forward * sum(asked[:2]))


def _operations(work: Callable[[], object]) -> tuple[float, float]:
    """(operations dispatched by `work`, those that are no views)."""
    with _Operations() as found:
        work()
    return float(found.total), float(found.kernels)


class _Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = self.kernels = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.total += 1
        self.kernels += not func.is_view
        return func(*args, **(kwargs or {}))
