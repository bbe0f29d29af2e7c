"""What a method may use when it prepares, and the meter of what crosses the network then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.cache import Arrays
from fedbench.core.trees import Tree
from fedbench.engine.contract import Cohort
from fedbench.models.task import Task


@dataclass
class Meter:
    """Bytes that crossed the network, counted from the trees that did."""

    up: int = 0
    down: int = 0

    def sent(self, messages: Tree) -> None:
        """Leaves [C, ...] went to C clients."""
        self.down += sum(map(trees.leaf_bytes, messages.values()))

    def received(self, uploads: Tree) -> None:
        """Leaves [C, ...] came from C clients."""
        self.up += sum(map(trees.leaf_bytes, uploads.values()))


class Preparation(Protocol):
    """What a method may use once, see Method.prepare_round. Whatever crosses the network here is counted.

    `meter` counts what a method simulates by itself.
    """

    meter: Meter

    @property
    def seed(self) -> int:
        """Keys what the method draws, with a purpose of its own: see core.rng."""

    @property
    def task(self) -> Task:
        """The clients' network."""

    @property
    def population(self) -> Population:
        """What is known of all clients."""

    @property
    def everyone(self) -> Cohort:
        """All clients as a cohort of this moment."""

    def round(
        self, message: Tree, memory: Tree, *, rounds: int = 1, sends: Callable[[Tree], Tree] | None = None
    ) -> Tree:
        """What every client uploads [N, ...] after local work on its row of `message` and `memory` [N, ...].

        With more `rounds` it starts each from what came out of the one before, without the others or the server.
        `sends`: what of its upload (one client's, no axis) it sends; None: all.

        Raises:
            Diverged: a client's loss, upload or memory is not finite.
        """

    def received(self, uploads: Tree) -> Tree:
        """`uploads` [N, ...], which every client sends of itself, counted."""

    def samples(self, *, unit: bool = False, kind: int = 0) -> Batch:
        """All training samples of a kind's clients, those of the first first.

        As its network reads them: normalised, or pixels in [0, 1] (`unit`).
        """

    def once(
        self, code: Callable[..., object], given: Sequence[object], make: Callable[[Meter], Arrays]
    ) -> Arrays:
        """What `make` returns; if a run before had the same from the same `given`, that, kept in the cache.

        `given` is all that the result depends on (tensors, or what `repr` tells apart), `code` the function that makes
        it. Traffic, which `make` counts by the meter that it is given, and seconds are as if it were made here.
        """

    def keep(self, name: str, array: np.ndarray) -> None:
        """Save an array (a distance matrix, cluster centres) with the run."""
