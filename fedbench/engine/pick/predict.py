"""Peak memory of training a cohort, found by running the engine on tensors that have shapes but no contents.

Everything is the run's own: the engine, the method's hooks, the optimiser. Only the samples and the models are fake
(torch's FakeTensor), so nothing is computed or allocated, on whatever device. The first and the last step of each
stage are run: a full batch, and a short one.
"""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedbench.core import trees
from fedbench.core.trees import Tree
from fedbench.data.federation import Federation, Ragged
from fedbench.engine.contract import Client, Clock, Stage
from fedbench.engine.pick.trial import opening
from fedbench.engine.setup import Drawn, Setup, drawn
from fedbench.engine.train.looped import LoopedTrainer
from fedbench.engine.train.stacked import StackedTrainer
from fedbench.engine.train.trainer import Trainer

PLACE_BYTES = 9  # of a sample's place in the batches to come: its index, and whether it is one
PLANNING_BYTES = 33  # while they are drawn, on the CPU: four indices, and whether it is one


class Ledger(TorchDispatchMode):
    """Bytes of the tensors that are made inside and still alive, on one device, and their peak."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device.type
        self.live = self.peak = 0
        self._known: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run `function` and note what it made."""
        given = [each for each in tree_leaves((args, kwargs or {})) if isinstance(each, Tensor)]
        if function is torch.ops.aten._local_scalar_dense.default and isinstance(given[0], FakeTensor):
            return (
                given[0].dtype.is_complex or 1
            )  # what an engine reads off is whether a loss is finite: it is
        made = function(*args, **(kwargs or {}))
        inputs = {each.untyped_storage()._cdata for each in given}
        for each in tree_leaves(made):
            if isinstance(each, Tensor) and each.device.type == self.device:
                self._note(each.untyped_storage(), inputs)
        return made

    def _note(self, storage: torch.UntypedStorage, inputs: set[int]) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in inputs or key in self._known:  # a view, or written in place
            return

        def gone(_: object) -> None:
            self.live -= size
            del self._known[key]

        self._known[key] = weakref.ref(storage, gone)
        self.live += size
        self.peak = max(self.peak, self.live)


def peak_bytes(trainer: Trainer, ids: Sequence[int]) -> int:
    """Largest memory that training clients `ids` with an engine takes on the device, messages and memory included."""
    setup = trainer.setup
    clients, clock = torch.tensor(ids), Clock(0, setup.protocol.rounds)
    message, memory = opening(setup, clients, clock)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    real = {client: (trees.row(message, k), trees.row(memory, k)) for k, client in enumerate(ids)}
    probe = copy.copy(trainer)
    probe.setup = replace(
        setup, federation=_fake_federation(setup.federation, mode), source=partial(_ends, setup, real)
    )
    held = trees.map_leaves(mode.from_tensor, message), trees.map_leaves(mode.from_tensor, memory)
    with Ledger(setup.federation.device) as ledger:
        probe.train(clients, *held, clock)
    copies = [leaf for tree in held for leaf in tree.values() if not trees.is_shared(leaf)]
    inputs = sum(trees.leaf_bytes(leaf) for leaf in copies)
    places = _places(trainer, ids)
    peak = int(ledger.peak) + PLACE_BYTES * places + _ahead(trainer, ids)
    return inputs + (max(peak, PLANNING_BYTES * places) if ledger.device == "cpu" else peak)


def _places(trainer: Trainer, ids: Sequence[int]) -> int:
    """Places for samples in the mini-batches, of all clients trained at once, that a prediction leaves out."""
    steps = max(trainer.setup.steps(client) for client in ids)
    together = min(len(ids), trainer.chunk) if isinstance(trainer, StackedTrainer) else 1
    return max(0, steps - 2) * trainer.setup.protocol.local.batch_size * together


def _ahead(trainer: Trainer, ids: Sequence[int]) -> int:
    """Bytes of the samples that the looped engine gathers at once, but for the two batches of a prediction."""
    if not isinstance(trainer, LoopedTrainer):
        return 0
    federation, steps = trainer.setup.federation, max(trainer.setup.steps(client) for client in ids)
    used = (
        min(steps, 2 * trainer.gathered_batches) - 2
    )  # the batches before lie there until the new ones are made
    stored = min(steps, trainer.gathered_batches) - 2
    batch = trainer.setup.protocol.local.batch_size * math.prod(federation.shape)
    return batch * (max(0, used) * federation.dtype.itemsize + max(0, stored) * federation.x.itemsize)


def _ends(
    setup: Setup,
    real: Mapping[int, tuple[Tree, Tree]],
    _fake: Setup,
    client: int,
    stage: Stage,
    view: Client,
    purpose: str,
) -> Drawn:
    """First and last that are `drawn`; a method that draws may look at the real message and memory of a client."""
    message, memory = real[client]
    order, noise = drawn(setup, client, stage, replace(view, message=message, memory=memory), purpose)
    ends = [0, len(order) - 1] if len(order) > 1 else [*range(len(order))]
    return [order[step] for step in ends], {name: leaf[ends] for name, leaf in noise.items()}


def _fake_federation(federation: Federation, mode: FakeTensorMode) -> Federation:
    fake = copy.copy(federation)
    for name in ("x", "y", "mean", "inverse", "offset", "black"):
        setattr(fake, name, mode.from_tensor(getattr(federation, name)))
    fake.sets = {
        name: Ragged(mode.from_tensor(each.values), each.offsets) for name, each in federation.sets.items()
    }
    return fake
