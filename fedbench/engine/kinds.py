"""A federation of several kinds of client, each with a network, a view of the data and batch shapes of its own.

Each kind has a setup that knows all clients by their numbers, and is used for its own only. The trees of a server and
of a cohort hold the leaves of all kinds; a leaf's row is nan where the client does not have it, so that a private leaf
which crossed would be seen in every number after it. What is sent, and counted, are the leaves that a client has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.config.groups import registry
from fedbench.config.schema import ProtocolConfig
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.data.dataset import Dataset
from fedbench.data.federation import Federation
from fedbench.data.partition import Partition
from fedbench.engine.contract import Client, Clock
from fedbench.engine.method import Method
from fedbench.engine.setup import Setup
from fedbench.models.base import Model
from fedbench.models.modalities import JointTask
from fedbench.models.task import check_input


@dataclass(frozen=True, eq=False)
class KindSetup(Setup):
    """The setup of one kind's clients; the method was checked with all of them."""

    members: int = 0  # clients of the kind

    def __post_init__(self) -> None:
        return

    @property
    def at_once(self) -> int:
        """Clients of a round, at most."""
        return min(self.members, super().at_once)


@dataclass(frozen=True, eq=False)
class KindsSetup(Setup):
    """What a simulation of several kinds needs; their sizes and labels are those of any kind's federation."""

    parts: tuple[Setup, ...] = ()

    def __post_init__(self) -> None:
        """As of any setup.

        Raises:
            ConfigError: the method's server cannot serve clients whose networks differ.
        """
        super().__post_init__()
        check_kinds(self.method, len(self.parts))

    @property
    def kinds(self) -> tuple[Setup, ...]:
        """The setup of each kind."""
        return self.parts

    def client(
        self, client: int, message: Tree, memory: Tree, clock: Clock, heard: Tree | None = None
    ) -> Client:
        """See Setup.client."""
        kind = self.parts[int(self.task.kind_of(torch.tensor([client])))]
        return kind.client(client, kind.task.own(message), kind.task.own(memory), clock, heard)


def check_kinds(method: Method, kinds: int) -> None:
    """Refuse a method that cannot serve clients of so many kinds.

    Raises:
        ConfigError: with the reason, and the methods that can.
    """
    if kinds < 2 or not (reason := method.alike_only):
        return
    methods = registry("method")
    able = [name for name in methods if methods.get(name).unlike]
    raise ConfigError(
        f"{reason}, here clients are of {kinds} kinds whose networks differ; choose one of {', '.join(able)}, "
        "where method=per_kind runs any method/base=NAME inside each kind that does not prepare with all data"
    )


def assemble(
    method: Method,
    model: Model,
    dataset: Dataset,
    partition: Partition,
    protocol: ProtocolConfig,
    seed: int,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    *,
    bf16: bool = False,
) -> Setup:
    """The setup of `partition`'s clients with the networks of `model`, trained in bfloat16 if `bf16`.

    Raises:
        ConfigError: a network does not fit the data, a kind has no client, the method does not fit the kinds.
    """
    partition, kind = model.dealt(partition)
    networks = model.networks
    federations = [Federation(each.view(dataset), partition, device, dtype) for each in networks.values()]
    protocol.cohort_size(len(partition))
    tasks = [
        each.task(federation.shape, federation.classes, bf16=bf16)
        for each, federation in zip(networks.values(), federations, strict=True)
    ]
    batch = protocol.local.batch_size
    for place, (task, federation) in enumerate(zip(tasks, federations, strict=True)):
        sizes = federation.population.sizes[torch.from_numpy(kind == place)]
        check_input(task, min(int(n) % batch or batch for n in sizes))
    if len(tasks) == 1:
        return Setup(method, tasks[0], federations[0], protocol, seed)
    return joined(
        method, JointTask(tasks, list(networks), torch.from_numpy(kind)), federations, protocol, seed
    )


def joined(
    method: Method, task: JointTask, federations: Sequence[Federation], protocol: ProtocolConfig, seed: int
) -> KindsSetup:
    """The setup of the clients of `task`, whose samples each of `federations` has in one kind's view."""
    members: Tensor = torch.bincount(task.kind_of(torch.arange(federations[0].clients)))
    parts = tuple(
        KindSetup(method, own, federation, protocol, seed, members=int(count))
        for own, federation, count in zip(task.kinds, federations, members, strict=True)
    )
    return KindsSetup(method, task, federations[0], protocol, seed, parts=parts)
