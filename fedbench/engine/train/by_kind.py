"""Training a cohort of several kinds of client: kind by kind, each on an engine of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from fedbench.core import trees
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.engine.setup import Setup
from fedbench.engine.train.trainer import Counts, Engine, Outcome, Trainer, on_host, settled


def by_kind(setup: Setup, engines: Sequence[Engine]) -> Trainer:
    """The engine for `setup` of those for its kinds: the only one, or all of them in turn."""
    return engines[0] if len(engines) == 1 else KindsTrainer(setup, engines)


class KindsTrainer(Trainer):
    """Any engine for each kind; what they give is put back in the cohort's order.

    All are set to work before the host waits for what any of them gives.
    """

    def __init__(self, setup: Setup, engines: Sequence[Engine]) -> None:
        """`engines` are of the setups of `setup.kinds`."""
        super().__init__(setup)
        self.engines = tuple(engines)

    def train(
        self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str] = ()
    ) -> Outcome:
        """See Trainer.train."""
        each = list(self._each(ids, message, memory))
        launched = [
            (engine.setup, ids[chosen], engine.launch(ids[chosen], *given, clock, score))
            for chosen, engine, given in each
        ]
        after = self.setup.draw_cohort(clock.next)
        kind = self.setup.task.kind_of(after)
        for place, engine in enumerate(self.engines):
            engine.setup.draw_ahead(after[kind == place], clock.next)
        parts = [(chosen, part) for (chosen, _, _), part in zip(each, settled(launched, clock), strict=True)]

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
            (chosen, engine.launch_scoring(ids[chosen], *given, clock, score))
            for chosen, engine, given in self._each(ids, message, memory)
        ]
        return on_host(_whole(parts, len(ids)), ids, clock)

    def close(self) -> None:
        """See Trainer.close."""
        for engine in self.engines:
            engine.close()

    def _each(
        self, ids: Tensor, message: Tree, memory: Tree
    ) -> Iterator[tuple[Tensor, Engine, tuple[Tree, Tree]]]:
        """(which of the cohort, their engine, their messages and memories) of each kind in the cohort."""
        kind = self.setup.task.kind_of(ids)
        for place, engine in enumerate(self.engines):
            chosen = kind == place
            if bool(chosen.any()):
                own = engine.setup.task.own
                yield chosen, engine, (trees.rows(own(message), chosen), trees.rows(own(memory), chosen))


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
