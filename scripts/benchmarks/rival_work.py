"""What a rival is given to do, and its answer: shared by the benchmark and the programs the rivals' interpreters run.

It imports torch alone, so that an environment without fedbench can load it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class Work:
    """R rounds of FedAvg: the data, the network with its initial weights, and the settings."""

    net: nn.Module  # plain torch.nn modules, so that it unpickles anywhere
    x: Tensor  # uint8 [n, C, H, W], or float32 and normalised after `load`; clients end to end
    y: Tensor  # int64 [n]
    offsets: Tensor  # int64 [N + 1]: client i owns the rows offsets[i]:offsets[i + 1]
    test_x: Tensor  # as x
    test_y: Tensor
    shift: Tensor  # [1, C, 1, 1]: a normalised image is (x - shift) * scale
    scale: Tensor
    cohorts: Tensor  # int64 [R, C]: each round's clients
    epochs: int
    batch_size: int
    lr: float
    momentum: float

    @property
    def clients(self) -> int:
        """N."""
        return len(self.offsets) - 1

    def client(self, index: int) -> tuple[Tensor, Tensor]:
        """(x, y) of all samples of a client."""
        begin, end = self.offsets[index : index + 2].tolist()
        return self.x[begin:end], self.y[begin:end]

    @torch.no_grad()
    def accuracy(self, net: nn.Module) -> float:
        """Share of the test samples that `net` classifies correctly."""
        blocks = zip(self.test_x.split(500), self.test_y.split(500), strict=True)
        return sum(int((net(x).argmax(1) == y).sum()) for x, y in blocks) / len(self.test_y)


@dataclass
class Answer:
    """What a contestant did."""

    seconds: list[float]  # of each round; the first is a warm-up
    steps: int  # client-steps of all rounds
    accuracy: float  # of the final global model on the test samples

    def write(self, path: str | Path) -> None:
        """Store as JSON."""
        Path(path).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: str | Path) -> Answer:
        """What `write` stored.

        Raises:
            ValueError: no such answer in the file.
        """
        found: Any = json.loads(Path(path).read_text(encoding="utf-8"))
        try:
            answer = cls([float(each) for each in found["seconds"]], found["steps"], found["accuracy"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path} holds no answer: {error!r}") from error
        if len(answer.seconds) < 2:
            raise ValueError(f"{path} holds {len(answer.seconds)} rounds; the first is a warm-up")
        return answer


def load(path: str | Path, device: str) -> Work:
    """The work on `device`, images normalised once: a rival finds its data preloaded."""
    work = Work(**torch.load(path, weights_only=False))
    for name in ("y", "test_y", "shift", "scale"):
        setattr(work, name, getattr(work, name).to(device))
    for name in ("x", "test_x"):
        images = getattr(work, name).to(device, torch.float32)
        setattr(work, name, images.sub_(work.shift).mul_(work.scale))
    work.net.to(device)
    return work
