"""What describes a network: a frozen dataclass that builds it for an input shape and a number of classes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from fedbench.config.fields import Component, one_of
from fedbench.config.schema import added
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.data.dataset import Dataset, Ints
from fedbench.data.partition import Partition
from fedbench.models.task import SPLITS, Task


@dataclass(frozen=True, kw_only=True)
class Model(Component, ABC):
    """Base of all networks; a subclass's fields are its schema in the config."""

    section: ClassVar[str] = "model"

    # the last part of the network, where a method tells body from classifier: see models.task
    classifier: str = added(one_of(*SPLITS))

    @property
    @abstractmethod
    def label(self) -> str:
        """Short name for tables, with what differs from the default."""

    @abstractmethod
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        """The network for one input of `shape` [C, H, W]; stages named, the last called `head`."""

    def view(self, dataset: Dataset) -> Dataset:
        """What of the data this network reads as `x`: the images by default.

        Raises:
            ConfigError: the data set has nothing of the kind.
        """
        return dataset

    def begin(self) -> Tree:
        """Leaves that start from given values, such as ImageNet weights; the others are drawn. None by default."""
        return {}

    @property
    def tokens(self) -> int:
        """Number of words where a sample is token numbers; 0 where it is intensities."""
        return 0

    @property
    def networks(self) -> Mapping[str, Model]:
        """The network of each kind of client, by the kind's name: this one, of all."""
        return {"": self}

    def dealt(self, partition: Partition) -> tuple[Partition, Ints]:
        """(the partition among all clients, the kind of each [N]); where all are alike, as it was."""
        return partition, np.zeros(len(partition), dtype=np.int64)

    def lacking(self) -> str:
        """What `begin` needs that is not on this machine, and the way out; "" if nothing."""
        return ""

    def task(self, shape: tuple[int, ...], classes: int, *, bf16: bool = False) -> Task:
        """The network as a task, trained in bfloat16 if `bf16`.

        Raises:
            ConfigError: the network does not fit `shape`.
        """
        try:
            build = partial(self.build, shape, classes)
            return Task(build, shape, classes, self.begin, self.tokens, self.classifier, bf16=bf16)
        except (RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(
                f"model {self.label} does not fit inputs of shape {list(shape)}: {reason}; "
                "model=mlp fits any, others larger images"
            ) from error


def flat_size(stage: nn.Module, shape: tuple[int, ...]) -> int:
    """Number of values that `stage` yields for one input of `shape`, found by running it on no data."""
    with torch.no_grad():
        size: int = stage.to("meta")(torch.zeros(2, *shape, device="meta")).flatten(1).shape[1]
        return size
