"""FedSaC's networks for CUB-200-2011 (appendix B.3): images and captions, representations of the same width.

The paper gives the layers' number (four convolutions for images, five for text, then the classification layer) and the
representation's dimension, 256. Widths, kernels and pooling are ours:
CubCNN: four times conv k3 pad 1 (32, 64, 128, 256 channels), pool 2, ReLU; mean over the map.
TextCNN (after Kim, EMNLP 2014): embedding of 128; five convolutions k3 pad 1 over time (128, 128, 256, 256, 256
channels), pool 2 after the first two, ReLU; maximum over time. A sample is [1, 1, L] token numbers, all captions of an
image one after the other; 0 is padding and embedded as zero.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedbench.config.domain import at_least
from fedbench.config.schema import added
from fedbench.core.errors import ConfigError
from fedbench.data.dataset import Dataset
from fedbench.models.base import Model
from fedbench.models.blocks import GlobalMean, MaxPool2

WIDTH = 256  # of the representation, in both


@dataclass(frozen=True)
class CubCNN(Model):
    """Four convolutions, a global mean and the classifier."""

    width: int = added(at_least(8, WIDTH))  # of the representation; the layers before it shrink with it

    @property
    def label(self) -> str:
        """The name, and another width."""
        return "cub_cnn" + f"-{self.width}" * (self.width != WIDTH)

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        """Stages: conv, pool, head."""
        layers: list[nn.Module] = []
        channels = shape[0]
        for width in (self.width // 8, self.width // 4, self.width // 2, self.width):
            layers += [nn.Conv2d(channels, width, 3, padding=1), MaxPool2(), nn.ReLU()]
            channels = width
        stages = {
            "conv": nn.Sequential(*layers),
            "pool": GlobalMean(),
            "head": nn.Linear(self.width, classes),
        }
        return nn.Sequential(OrderedDict(stages))


@dataclass(frozen=True)
class TextCNN(Model):
    """Embedding, five convolutions over time, a maximum over time and the classifier."""

    vocabulary: int = at_least(2, 8192)  # token numbers lie below it
    width: int = added(at_least(8, WIDTH))  # of the representation; the layers before it shrink with it

    @property
    def label(self) -> str:
        """The name, and another width."""
        return "textcnn" + f"-{self.width}" * (self.width != WIDTH)

    @property
    def tokens(self) -> int:
        """See Model.tokens."""
        return self.vocabulary

    def view(self, dataset: Dataset) -> Dataset:
        """The captions of each image, one after the other: x [n, 1, 1, captions words] of token numbers."""
        if dataset.text is None:
            raise ConfigError(
                f"model=textcnn reads captions, {dataset.name} was loaded without any: take dataset=captioned, or "
                "dataset=cub with dataset.text=true"
            )
        if len(dataset.vocabulary) > self.vocabulary:
            raise ConfigError(
                f"{dataset.name} has {len(dataset.vocabulary)} words; set model.vocabulary to at least that"
            )
        tokens = dataset.text.astype(np.float32).reshape(len(dataset), 1, 1, -1)
        return dataclasses.replace(
            dataset, x=tokens, mean=(0.0,), std=(1.0,), scale=1.0, text=None, vocabulary=()
        )

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        """Stages: embedding, conv, pool, head.

        Raises:
            ConfigError: samples that are no captions.
        """
        if len(shape) != 3 or shape[:2] != (1, 1):
            raise ConfigError(
                f"model=textcnn reads token numbers of shape [1, 1, L], not images {list(shape)}"
            )
        layers: list[nn.Module] = []
        half = self.width // 2
        channels = half
        for place, width in enumerate((half, half, self.width, self.width, self.width)):
            layers.append(nn.Conv1d(channels, width, 3, padding=1))
            layers += [nn.MaxPool1d(2)] if place < 2 else []
            layers.append(nn.ReLU())
            channels = width
        stages = {
            "embedding": WordEmbedding(self.vocabulary, half),
            "conv": nn.Sequential(*layers),
            "pool": GlobalMax(),
            "head": nn.Linear(self.width, classes),
        }
        return nn.Sequential(OrderedDict(stages))


class WordEmbedding(nn.Module):
    """Token numbers as floats, x [B, 1, 1, L], to vectors [B, width, L]; zero for token 0."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(vocabulary, width))

    def forward(self, x: Tensor) -> Tensor:
        """Look up and mask."""
        tokens = x.flatten(1).round().long()
        vectors = self.weight[tokens] * (tokens > 0).unsqueeze(-1)
        return vectors.transpose(1, 2)


class GlobalMax(nn.Module):
    """Maximum over time: [B, C, L] -> [B, C]."""

    def forward(self, x: Tensor) -> Tensor:
        """Reduce."""
        return x.amax(-1)
