"""Small networks for sequences: word vectors for token ids, convolutions over time for series."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from fedbench.config.fields import at_least
from fedbench.core.errors import ConfigError
from fedbench.data.dataset import Dataset
from fedbench.models.layers import GlobalMean
from fedbench.models.modalities import WordEmbedding
from fedbench.models.task import Model

# fastText (Joulin et al., EACL 2017) on single words: the mean of a sample's word vectors, and a linear classifier.


@dataclass(frozen=True)
class EmbeddingNet(Model):
    """Mean of word vectors, classifier."""

    vocabulary: int = at_least(2, 8192)  # token ids lie below it; model=auto: the vocabulary of the data
    width: int = at_least(1, 64)  # width of a word vector

    @property
    def label(self) -> str:
        """The label, such as "embedding8192x64"."""
        return f"embedding{self.vocabulary}x{self.width}"

    @property
    def tokens(self) -> int:
        return self.vocabulary

    def view(self, dataset: Dataset) -> Dataset:
        if not 0 < dataset.tokens <= self.vocabulary:
            found = f"has some up to {dataset.tokens - 1}" if dataset.tokens else "has none"
            way = f"model.vocabulary={dataset.tokens}" if dataset.tokens else "dataset=npz with dataset.kind=tokens"
            raise ConfigError(
                f"model=embedding reads token ids below {self.vocabulary}, {dataset.name} {found}; take {way}"
            )
        return dataset

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        """Stages: embedding, head."""
        stages = {"embedding": WordMean(self.vocabulary, self.width), "head": nn.Linear(self.width, classes)}
        return nn.Sequential(OrderedDict(stages))


class WordMean(WordEmbedding):
    """Token numbers as floats, x [B, 1, 1, L], to the mean [B, width] of the vectors of those above 0."""

    def forward(self, x: Tensor) -> Tensor:
        """Look up and reduce."""
        return super().forward(x).sum(-1) / (x.flatten(1) > 0).sum(-1, keepdim=True).clamp(min=1)


# Convolutions over time with pooling, as HARCNN of PFLlib. The mean over time in the place of linear layers has as many
# weights for long series as for short ones.


@dataclass(frozen=True)
class CNN1d(Model):
    """Three convolutions over time, the mean over time, classifier."""

    label: ClassVar[str] = "cnn1d"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        """Stages: conv, pool, head; for series [C, 1, T]."""
        layers: list[nn.Module] = []
        channels, steps = shape[0], shape[2]
        for place, (width, kernel) in enumerate(((32, 5), (64, 5), (64, 3))):
            layers += [nn.Conv2d(channels, width, (1, kernel), padding=(0, kernel // 2)), nn.ReLU()]
            halved = place < 2 and steps > 1
            layers += [nn.MaxPool2d((1, 2))] if halved else []
            steps //= 1 + halved
            channels = width
        stages = {"conv": nn.Sequential(*layers), "pool": GlobalMean(), "head": nn.Linear(channels, classes)}
        return nn.Sequential(OrderedDict(stages))
