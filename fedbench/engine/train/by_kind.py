"""Training a cohort of several kinds of client: kind by kind, each on an engine of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from fedbench.core import trees
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.engine.setup import Setup
from fedbench.engine.train.trainer import Counts, Outcome, Trainer


def by_kind(setup: Setup, trainers: Sequence[Trainer]) -> Trainer:
    """The engine for `setup` of those for its kinds: the only one, or all of them in turn."""
    return trainers[0] if len(trainers) == 1 else KindsTrainer(setup, trainers)


class KindsTrainer(Trainer):
    """Any engine for each kind; what they give is put back in the cohort's order."""

    def __init__(self, setup: Setup, trainers: Sequence[Trainer]) -> None:
        """`trainers` are of the setups of `setup.kinds`."""
        super().__init__(setup)
        self.trainers = tuple(trainers)

    def train(
        self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str] = ()
    ) -> Outcome:
        """See Trainer.train."""
        parts = [
            (chosen, trainer.train(ids[chosen], *given, clock, score))
            for chosen, trainer, given in self._each(ids, message, memory)
        ]

        def whole(tree: Callable[[Outcome], Tree]) -> Tree:
            return trees.spread([(chosen, tree(each)) for chosen, each in parts], len(ids))

        counts = _whole([(chosen, each.counts) for chosen, each in parts], len(ids))
        loss = whole(lambda each: {"loss": each.loss})["loss"]
        return Outcome(whole(lambda each: each.uploads), whole(lambda each: each.memory), loss, counts)

    def evaluate(
        self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str]
    ) -> Counts:
        """See Trainer.evaluate."""
        parts = [
            (chosen, trainer.evaluate(ids[chosen], *given, clock, score))
            for chosen, trainer, given in self._each(ids, message, memory)
        ]
        return _whole(parts, len(ids))

    def close(self) -> None:
        """See Trainer.close."""
        for trainer in self.trainers:
            trainer.close()

    def _each(
        self, ids: Tensor, message: Tree, memory: Tree
    ) -> Iterator[tuple[Tensor, Trainer, tuple[Tree, Tree]]]:
        """(which of the cohort, their engine, their messages and memories) of each kind in the cohort."""
        kind = self.setup.task.kind_of(ids)
        for place, trainer in enumerate(self.trainers):
            chosen = kind == place
            if bool(chosen.any()):
                own = trainer.setup.task.own
                yield chosen, trainer, (trees.rows(own(message), chosen), trees.rows(own(memory), chosen))


def _whole(parts: Sequence[tuple[Tensor, Counts]], count: int) -> Counts:
    """The counts of `count` clients from those of each kind."""
    names = parts[0][1].keys()
    halves = [
        trees.spread(
            ((chosen, {name: counts[name][half] for name in names}) for chosen, counts in parts), count
        )
        for half in (0, 1)
    ]
    return {name: (halves[0][name], halves[1][name]) for name in names}
