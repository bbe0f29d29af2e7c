"""Base of methods that run another one inside: its client hooks are used as they are, servers differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from fedbench.config.groups import registry
from fedbench.config.schema import LocalConfig
from fedbench.core.batch import Batch, Population
from fedbench.core.errors import ConfigError, FedbenchError
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, ClientHook, Clock, Stage
from fedbench.engine.method import Method
from fedbench.models.task import Task


def fedavg() -> Mapping[str, Any]:
    """The method inside unless another is chosen, as `method/base=NAME`."""
    return {"name": "fedavg"}


@dataclass(frozen=True)
class Inside(Method):
    """A method inside another: the field `base`, or what `inner` is overridden with; a subclass gives the servers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(chosen := self._base, Mapping):
            try:
                object.__setattr__(self, "base", registry("method").build(chosen))
            except FedbenchError as error:  # which names the keys of a method that is not inside another
                raise type(error)(str(error).replace("method.", "method.base.", 1)) from error
        if not isinstance(self.inner, Method):
            raise ConfigError(f"method.base must name a method, got {chosen!r}; e.g. method/base=fedavg")
        if after := self.inner.prepare_round:
            raise ConfigError(
                f"{type(self.inner).__name__} prepares after {after} rounds; inside another method it must do so "
                "before the first, see its settings under method.base"
            )

    @property
    def _base(self) -> Any:
        return getattr(self, "base", None)  # a field of the subclasses that let it be chosen

    @property
    def inner(self) -> Method:
        """The method inside."""
        return cast("Method", self._base)

    @property
    def averages(self) -> bool:
        """As the inner method."""
        return self.inner.averages

    @property
    def reads_data(self) -> frozenset[ClientHook]:
        """As the inner method."""
        return self.inner.reads_data

    @property
    def reads_validation(self) -> frozenset[ClientHook]:
        """As the inner method."""
        return self.inner.reads_validation

    @property
    def draws_from(self) -> tuple[str, ...]:
        """As the inner method."""
        return self.inner.draws_from

    def start(self, client: Client) -> Tree:
        """As the inner method."""
        return self.inner.start(client)

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        """As the inner method."""
        return self.inner.stages(local, clock)

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """As the inner method."""
        return self.inner.loss(work, client, batch)

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """As the inner method."""
        return self.inner.finish(work, client)

    def compress(self, upload: Tree) -> Tree:
        """As the inner method."""
        return self.inner.compress(upload)

    def model(self, work: Tree, client: Client) -> Tree:
        """As the inner method."""
        return self.inner.model(work, client)

    def personal(self, client: Client) -> Tree:
        """As the inner method."""
        return self.inner.personal(client)

    def predict(self, model: Tree, x: Tensor, task: Task) -> Tensor:
        """As the inner method."""
        return self.inner.predict(model, x, task)

    def draw(self, generator: torch.Generator, steps: int, client: Client) -> Tree:
        """As the inner method."""
        return self.inner.draw(generator, steps, client)

    def adapt(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        """As the inner method."""
        return self.inner.adapt(local, clock)

    # ---- what it has several servers for, put together

    def rows_of(self, servers: Mapping[int, Tree], place: Tensor, population: Population) -> Tensor | None:
        """The inner method's W [N, N], row i as in `servers[place[i]]` (`place` [N]); None where it has none."""
        whole = torch.zeros(population.clients, population.clients, dtype=torch.float64)
        for k, server in servers.items():
            matrix = self.inner.collaboration(server, population)
            if matrix is None:
                return None
            whole[place == k] = matrix.cpu().to(whole.dtype)[place == k]
        return whole

    def records_of(self, servers: Mapping[str, Tree]) -> Mapping[str, Tensor]:
        """What the inner method keeps of each of `servers`, under its name and the server's."""
        kept = {key: self.inner.record(server) for key, server in servers.items()}
        return {name + key: leaf for key, own in kept.items() for name, leaf in own.items()}
