"""The interface of engines: train a cohort, score it. The looped, stacked and workers engines implement it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from fedbench.core import trees
from fedbench.core.errors import Diverged
from fedbench.core.trees import Tree, fetched
from fedbench.engine.contract import Clock
from fedbench.engine.setup import Setup

# Training that diverged: told by losses, trees and scores that are not finite, and raised for the client they are of.
#
# Scores need no wait of their own for a device: a sample whose scores are not finite counts as nan, so counts tell.


def diverged(completed: int, who: str, what: str) -> Diverged:
    """Return the error for `what` of `who` in round number `completed` (0: before the first)."""
    return Diverged(
        f"training diverged in round {completed} on {who}: {what} not finite; lower protocol.optimizer.lr or set "
        "protocol.optimizer.clip, or lower the method's own learning rate"
    )


def norms_by_client(*trees: Tree) -> Tensor:
    """The norm of each floating point leaf [C, ...] of `trees`, which is finite if the leaf is, except on overflow."""
    floats = [leaf for tree in trees for leaf in tree.values() if leaf.is_floating_point()]
    return torch.stack(torch._foreach_norm(floats)) if floats else torch.zeros(1)


def check_finite(completed: int, ids: Tensor, loss: Tensor, *trees: Tree) -> None:
    """Raise Diverged for the first of the clients `ids` [C] whose `loss` [C] or row of `trees` is not finite."""
    leaves = [(name, leaf) for tree in trees for name, leaf in tree.items()]
    for row, client in enumerate(ids.tolist()):
        bad = [name for name, leaf in leaves if not bool(leaf[row].isfinite().all())]
        if bad or not bool(loss[row].isfinite()):
            what = f"leaf '{bad[0]}' is" if bad else "the training loss is"
            raise diverged(completed, f"client {client}", what)


def samples(scores: Tensor) -> Tensor:
    """The weight of each sample with `scores` [..., K], float64 [...]: 1, or nan if a score is not finite."""
    wrong = ~scores.isfinite().all(-1)
    return torch.ones_like(wrong, dtype=torch.float64).masked_fill(wrong, torch.nan)


def explained(scores: Tensor, y: Tensor) -> Counted:
    """(points, total) of each sample of regression, float64 [...]: 1 - (scores [..., 1] - y [...])^2, and 1.

    If y has variance 1, the mean of the points is its explained share. Both are nan for scores that are not finite.
    """
    total = samples(scores)
    return total - (scores.squeeze(-1).double() - y).square(), total


def check_scores(completed: int, ids: Tensor, totals: Sequence[Tensor]) -> None:
    """Raise Diverged for the first of the clients `ids` [C] with a nan in its row of a total [C, K], on the CPU."""
    wrong = [total.isnan().any(1) for total in totals]
    if wrong and bool((rows := torch.stack(wrong).any(0)).any()):
        raise diverged(completed, f"client {int(ids[rows][0])}", "its model's scores are")


# (correct, total) by true class, each float64 [K], or [C, K] of several clients; nan where scores are not finite.
# Of regression, which has one class, correct is the sum of points: see `explained`.
Counted = tuple[Tensor, Tensor]
# By test set. Where a metric needs the scores of each sample, also (these [n, K] or [C, n, K], nothing) by `outputs_of`
# the set: n is the largest number of samples that a client has in it, and what is beyond its own is 0.
Counts = dict[str, Counted]


def outputs_of(name: str) -> str:
    """The name of a set's scores among counts."""
    return f"outputs/{name}"


def as_outputs(scores: Tensor, most: int) -> Counted:
    """Scores [..., n, K] as the entry of `Counts`, with room for `most` samples."""
    return functional.pad(scores, (0, 0, 0, most - scores.shape[-2])), scores.new_zeros(*scores.shape[:-2], 0)


@dataclass(frozen=True)
class Outcome:
    """A trained cohort: first axis C everywhere."""

    uploads: Tree
    memory: Tree
    loss: Tensor  # float64 [C], mean training loss over the local steps (nan where no step had a loss)
    counts: Counts = field(default_factory=dict)  # scores after local training, of the sets asked for


class Trainer(ABC):
    """Trains and scores clients of one simulation."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.tell: Callable[[float], None] = lambda _: None  # is told which share of a round is trained

    @abstractmethod
    def train(self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str] = ()) -> Outcome:
        """Local work of clients `ids` [C] given messages and memories [C, ...], with gradients on or off.

        `score` names the sets (local, val, global) on which each client's trained model is scored.

        Raises:
            Diverged: a client's loss, upload, memory or scores are not finite.
        """

    @abstractmethod
    def evaluate(self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str]) -> Counts:
        """Scores of the personal models of clients `ids` [C] as received.

        Raises:
            Diverged: a model's scores are not finite.
        """

    def close(self) -> None:
        """Release processes and buffers."""
        return


class Engine(Trainer):
    """A trainer of clients of one modality, which first gives the device all its work and then waits for it."""

    @abstractmethod
    def dispatch(self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str] = ()) -> Outcome:
        """As `train`, before `synchronize`: the host does not wait."""

    @abstractmethod
    def dispatch_scoring(self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str]) -> Counts:
        """`evaluate`, with counts that may still be on the device."""

    def train(self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str] = ()) -> Outcome:
        launched = self.dispatch(ids, message, memory, clock, score)
        return synchronize([(self.setup, ids, launched)], clock)[0]

    def evaluate(self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str]) -> Counts:
        return on_host(self.dispatch_scoring(ids, message, memory, clock, score), ids, clock)


def synchronize(parts: Sequence[tuple[Setup, Tensor, Outcome]], clock: Clock) -> list[Outcome]:
    """Return the outcomes of clients `ids` [C] of each setup; the host waits for the device, once for all parts.

    Raises:
        Diverged: a client's loss, upload, memory or scores are not finite.
    """
    flat = [[norms_by_client(each.uploads, each.memory), each.loss, *_flat(each.counts)] for _, _, each in parts]
    home = iter(fetched([leaf for part in flat for leaf in part]))
    found = []
    for (setup, ids, outcome), part in zip(parts, flat, strict=True):
        norms, loss, *scored = [next(home) for _ in part]
        counts = _named(outcome.counts, scored)
        stages = setup.method.stages(setup.protocol.local, clock)
        learned = torch.tensor([setup.learns(client, stages) for client in ids.tolist()])
        if not bool(norms.isfinite().all()) or not bool(loss[learned].isfinite().all()):
            losses = loss.masked_fill(~learned, 0)
            check_finite(clock.round + 1, ids, losses, outcome.uploads, outcome.memory)
        check_scores(clock.round + 1, ids, [total for _, total in counts.values()])
        found.append(Outcome(outcome.uploads, outcome.memory, loss, counts))
    return found


def on_host(counts: Counts, ids: Tensor, clock: Clock) -> Counts:
    """Copy `counts` of clients `ids` [C], scored at `clock`, to the CPU at once.

    Raises:
        Diverged: a model's scores are not finite.
    """
    found = _named(counts, fetched(_flat(counts)))
    check_scores(clock.round, ids, [total for _, total in found.values()])
    return found


def _flat(counts: Counts) -> list[Tensor]:
    return [part for pair in counts.values() for part in pair]


def _named(like: Counts, flat: Sequence[Tensor]) -> Counts:
    return {name: (flat[2 * place], flat[2 * place + 1]) for place, name in enumerate(like)}


def count_correct(scores: Tensor, labels: Tensor, classes: int) -> Counted:
    """(correct, total) per true class, float64 [K], of scores [B, K] against labels, int64 [B].

    The total of a class is nan if the scores of one of its samples are not finite. For a quantity see `explained`.
    """
    if labels.is_floating_point():
        correct, total = explained(scores, labels)
        return correct.sum().view(1), total.sum().view(1)
    kinds = 2 * labels + (scores.argmax(dim=-1) == labels)
    counts = torch.zeros(2 * classes, dtype=torch.float64, device=labels.device)
    # Not bincount, for which a GPU makes the host wait.
    counts = counts.index_add_(0, kinds, samples(scores)).view(classes, 2)
    return counts[:, 1], counts.sum(1)


def by_modality(setup: Setup, engines: Sequence[Engine]) -> Trainer:
    """Return the engine for `setup` from those of its modalities: the only one, or all of them in turn."""
    return engines[0] if len(engines) == 1 else ModalitiesTrainer(setup, engines)


class ModalitiesTrainer(Trainer):
    """One engine for each modality; their results are put back in the cohort's order.

    All get their work before the host waits for any of them.
    """

    def __init__(self, setup: Setup, engines: Sequence[Engine]) -> None:
        """`engines` are of the setups of `setup.modalities`."""
        super().__init__(setup)
        self.engines = tuple(engines)

    def train(self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str] = ()) -> Outcome:
        each = list(self._each(ids, message, memory))
        for place, (_, engine, _) in enumerate(each):
            engine.tell = partial(self._tell, place, len(each))
        launched = [
            (engine.setup, ids[chosen], engine.dispatch(ids[chosen], *given, clock, score))
            for chosen, engine, given in each
        ]
        parts = [(chosen, part) for (chosen, _, _), part in zip(each, synchronize(launched, clock), strict=True)]
        return rejoined(parts, len(ids))

    def evaluate(self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str]) -> Counts:
        parts = [
            (chosen, engine.dispatch_scoring(ids[chosen], *given, clock, score))
            for chosen, engine, given in self._each(ids, message, memory)
        ]
        return on_host(_whole(parts, len(ids)), ids, clock)

    def close(self) -> None:
        for engine in self.engines:
            engine.close()

    def _tell(self, modality: int, modalities: int, share: float) -> None:
        self.tell((modality + share) / modalities)

    def _each(self, ids: Tensor, message: Tree, memory: Tree) -> Iterator[tuple[Tensor, Engine, tuple[Tree, Tree]]]:
        """Return (mask of clients, their engine, their messages and memories) of each modality in the cohort."""
        modality = self.setup.task.modality_of(ids)
        for place, engine in enumerate(self.engines):
            chosen = modality == place
            if bool(chosen.any()):
                own = engine.setup.task.own
                yield chosen, engine, (trees.rows(own(message), chosen), trees.rows(own(memory), chosen))


def rejoined(parts: Sequence[tuple[Tensor, Outcome]], count: int) -> Outcome:
    """Return the outcome of a cohort of `count` clients from those of its parts, each with its clients' mask [C]."""

    def whole(tree: Callable[[Outcome], Tree]) -> Tree:
        return trees.spread([(chosen, tree(each)) for chosen, each in parts], count)

    counts = _whole([(chosen, each.counts) for chosen, each in parts], count)
    loss = whole(lambda each: {"loss": each.loss})["loss"]
    return Outcome(whole(lambda each: each.uploads), whole(lambda each: each.memory), loss, counts)


def _whole(parts: Sequence[tuple[Tensor, Counts]], count: int) -> Counts:
    """The counts of `count` clients from those of each part."""
    names = parts[0][1].keys()
    halves = [
        trees.spread(((chosen, {name: counts[name][half] for name in names}) for chosen, counts in parts), count)
        for half in (0, 1)
    ]
    return {name: (halves[0][name], halves[1][name]) for name in names}
