"""Bases of methods that run another one inside: its client hooks are used as they are, servers differ."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from fedbench.config.groups import registry
from fedbench.config.schema import LocalConfig
from fedbench.core.batch import Batch
from fedbench.core.errors import ConfigError, FedbenchError
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, ClientHook, Clock, Stage
from fedbench.engine.method import Method
from fedbench.models.task import Task


@dataclass(frozen=True)
class Inside(Method):
    """A method inside another; a subclass gives the servers."""

    @property
    @abstractmethod
    def inner(self) -> Method:
        """The method inside the coalitions."""

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


@dataclass(frozen=True)
class AnyBase(Inside):
    """Any method inside, chosen as `method/base=NAME`."""

    base: Any = field(default_factory=lambda: {"name": "fedavg"})  # the method inside

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.base, Mapping):
            try:
                object.__setattr__(self, "base", registry("method").build(self.base))
            except FedbenchError as error:  # which names the keys of a method that is not inside another
                raise type(error)(str(error).replace("method.", "method.base.", 1)) from error
        if not isinstance(self.base, Method):
            raise ConfigError(f"method.base must name a method, got {self.base!r}; e.g. method/base=fedavg")

    @property
    def inner(self) -> Method:
        """The base method, built."""
        return cast("Method", self.base)
