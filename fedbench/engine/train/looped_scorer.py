"""Scoring one model after another: right answers per class on a client's sets, and on what all clients share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from fedbench.core.trees import Tree
from fedbench.engine.train.trainer import Counted, Counts, Engine, count_correct

EVALUATION_BATCH = 1024  # samples a forward pass
CONVOLVED_BATCH = 256  # the same for convolutions on a CPU, whose outputs must stay in its cache

KeyT = TypeVar("KeyT")


class LoopedScorer(Engine):
    """The part of a trainer that scores clients' models one by one."""

    @property
    def filters(self) -> torch.memory_format:
        """The layout of convolution weights while they are at work.

        On a CPU convolutions and pooling run up to 1.5 times as fast with channels last; networks with batch
        normalisation do not gain, and ResNet-18 loses.
        """
        fast = self.setup.federation.device.type == "cpu" and not self.setup.task.buffers
        return torch.channels_last if fast else torch.contiguous_format

    @torch.no_grad()
    def count(self, client: int, model: Tree, score: Sequence[str], known: Known | None = None) -> Counts:
        """(correct, total) per class of `model` on each set in `score`, float64 [K]."""
        counts: dict[int, Counted] = {} if known is None else known.of(model)
        parts = self.setup.scored.parts_of(client) if "global" in score else []
        wanted: dict[str | int, Tensor] = {
            name: self.setup.scored.indices(name, client) for name in score if name != "global"
        }
        wanted |= {part: self.setup.scored.parts[part] for part in parts if part not in counts}
        found = self._count(model, wanted) if wanted else {}
        counts |= {part: found[part] for part in parts if part in found}
        whole = total([counts[part] for part in parts], self.setup.task.classes, self.setup.federation.device)
        return {name: whole if name == "global" else found[name] for name in score}

    def _count(self, model: Tree, sets: Mapping[KeyT, Tensor]) -> dict[KeyT, Counted]:
        """Counts of `model` on each of several sets of samples, given by their indices."""
        federation, task, method = self.setup.federation, self.setup.task, self.setup.method
        model = dict(model)
        lay_out(model, self.filters)
        convolves = any(leaf.dim() == 4 for leaf in model.values())
        at_once = CONVOLVED_BATCH if convolves and federation.device.type == "cpu" else EVALUATION_BATCH
        counts: dict[KeyT, Counted] = {}
        for name, samples in sets.items():
            each: list[Counted] = []
            for indices in samples.split(at_once) if len(samples) else ():
                x, y = federation.gather(indices)
                each.append(count_correct(method.predict(model, x, task), y, task.classes))
            counts[name] = total(each, task.classes, federation.device)
        return counts


def total(each: Sequence[Counted], classes: int, device: torch.device) -> Counted:
    """The sum of several counts; zeros [K] without any."""
    correct, tested = (torch.zeros(classes, dtype=torch.float64, device=device) for _ in range(2))
    for hits, seen in each:
        correct += hits
        tested += seen
    return correct, tested


def lay_out(work: Tree, layout: torch.memory_format) -> None:
    """Put copies of the four-dimensional leaves of `work` into the dictionary, in `layout`."""
    for name, leaf in work.items():
        if leaf.dim() == 4:  # contiguous() would leave weights of a single input channel as they are
            work[name] = torch.empty_like(leaf, memory_format=layout).copy_(leaf)


class Known:
    """What the model scored last got on the parts of the set that all clients share, so as not to score them again.

    A part is always scored in the same mini-batches, whatever is known: results do not depend on who was scored before.
    """

    def __init__(self) -> None:
        self.model: Tree = {}  # kept, so that no other model takes its place in memory
        self.counts: dict[int, Counted] = {}

    def of(self, model: Tree) -> dict[int, Counted]:
        """The counts of `model`, to be added to: those known if it is the very one asked for last, not a copy."""
        same = model.keys() == self.model.keys() and all(
            (leaf.data_ptr(), leaf.shape, leaf.stride())
            == (self.model[name].data_ptr(), self.model[name].shape, self.model[name].stride())
            for name, leaf in model.items()
        )
        if not same:
            self.model, self.counts = model, {}
        return self.counts


def stack_counts(each: Sequence[Counts]) -> Counts:
    """Counts of single clients [K] as [C, K]."""
    return {
        name: (torch.stack([one[name][0] for one in each]), torch.stack([one[name][1] for one in each]))
        for name in (each[0] if each else {})
    }
