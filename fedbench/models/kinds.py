"""Several kinds of client in one federation: each with a network and a view of the data of its own.

FedSaC's Table 2: four clients see photographs, four their captions; all share the classifier layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import nn

from fedbench.config.domain import at_least, one_of
from fedbench.config.groups import registry
from fedbench.core.errors import ConfigError, FedbenchError
from fedbench.data.dataset import Ints
from fedbench.data.partition import Partition
from fedbench.models.base import Model


@dataclass(frozen=True)
class Kinds(Model):
    """The clients of the first kind come first, and so on."""

    called: str = "kinds"  # in tables
    kinds: Any = field(default_factory=dict)  # name of a kind -> its network
    clients: tuple[int, ...] = at_least(1, ())  # of each kind; empty: equally many, up to one
    # "all": the clients of all kinds divide the data among them; "each": those of each kind divide the whole data, so
    # that the first client of each kind holds the same samples, in its own view
    divide: str = one_of("all", "each")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.kinds, Mapping) or len(self.kinds) < 2:
            raise ConfigError(
                "model.kinds must name at least two kinds of client, as {image: {name: cub_cnn}, text: {name: textcnn}}"
            )
        if wrong := next((name for name in self.kinds if not name.isidentifier() or name == "head"), None):
            raise ConfigError(f"model.kinds: '{wrong}' cannot name a kind; use letters, and not 'head'")
        if self.clients and len(self.clients) != len(self.kinds):
            raise ConfigError(
                f"model.clients={list(self.clients)} must have a number for each of {len(self.kinds)} kinds"
            )
        object.__setattr__(self, "kinds", {name: _built(name, each) for name, each in self.kinds.items()})
        for place, each in (("", self), *((f"kinds.{name}.", net) for name, net in self.kinds.items())):
            if each.classifier != "own":
                raise ConfigError(
                    f"model.{place}classifier={each.classifier}: clients of several kinds share the last layer and no "
                    "other; use classifier=own"
                )

    @property
    def label(self) -> str:
        """What it is called, how its clients are dealt, and who divides the data."""
        numbers = "-".join(map(str, ("", *self.clients)))
        return self.called + numbers + "-each" * (self.divide == "each")

    @property
    def networks(self) -> Mapping[str, Model]:
        """See Model.networks."""
        networks: dict[str, Model] = self.kinds
        return networks

    def dealt(self, partition: Partition) -> tuple[Partition, Ints]:
        """See Model.dealt.

        Raises:
            ConfigError: a kind has no client, or `clients` are not as many as there are.
        """
        count = len(self.kinds)
        if self.divide == "each":
            partition = partition.repeated(count)
        numbers = self.clients or tuple(map(len, np.array_split(np.arange(len(partition)), count)))
        if 0 in numbers:
            alone = list(self.kinds)[numbers.index(0)]
            raise ConfigError(
                f"kind '{alone}' has no client: {len(partition)} for {count} kinds; raise partition.num_clients"
            )
        if sum(numbers) != len(partition):
            raise ConfigError(
                f"model.clients={list(numbers)} are {sum(numbers)}, the federation has {len(partition)} clients; "
                "change one of them"
            )
        return partition, np.repeat(np.arange(count), numbers)

    def lacking(self) -> str:
        """See Model.lacking."""
        return "; ".join(filter(None, (each.lacking() for each in self.kinds.values())))

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        """There is no network for all clients.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(f"model {self.label} is one network for each kind of client; choose one of them")


def _built(name: str, given: Any) -> Model:
    if isinstance(given, Model):
        return given
    if not isinstance(given, Mapping):
        raise ConfigError(f"model.kinds.{name} must be a network, as {{name: cub_cnn}}, got {given!r}")
    try:
        model: Model = registry("model").build(given)
    except FedbenchError as error:  # which names the keys of a model that is the only one
        raise type(error)(str(error).replace("model.", f"model.kinds.{name}.", 1)) from error
    return model
