"""W1-W4: rounds of local training, each described by the overrides of an ordinary run."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch

from fedbench.config.compose import compose
from fedbench.data.dataset import Dataset
from fedbench.data.datasets.synthetic import Synthetic
from fedbench.data.federation import Federation
from fedbench.data.partition import Partition
from fedbench.engine.setup import Setup
from fedbench.runs.config import resolve

UNSCORED = (
    "method=fedavg",
    "protocol.rounds=1000",
    "protocol.eval_every=1000",
    "protocol.test.val_fraction=0.0",
)
SGD = ("protocol.optimizer.lr=0.01", "protocol.optimizer.momentum=0.0")


@dataclass(frozen=True)
class Workload:
    """A round to be timed."""

    name: str
    what: str
    overrides: tuple[str, ...]
    sizes: tuple[int, ...]  # training samples of each client
    shape: tuple[int, int, int]  # [C, H, W]
    small_cohort: int | None = None  # clients a round with --quick
    test: int = 10  # test samples, where accuracies are compared too

    def setup(
        self, device: torch.device, *, quick: bool = False, dtype: torch.dtype = torch.float32
    ) -> Setup:
        """Data, network and method; procedural images stand for the data, whose values cost nothing."""
        cohort = [f"protocol.cohort={self.small_cohort}"] if quick and self.small_cohort else []
        config = resolve(compose([*self.overrides, *UNSCORED, *cohort]))
        dataset, partition = self._federation()
        federation = Federation(dataset, partition, device, dtype)
        return Setup(config.method, config.model.task(self.shape, 10), federation, config.protocol, 0)

    def _federation(self) -> tuple[Dataset, Partition]:
        channels, height, _ = self.shape
        total = sum(self.sizes)
        dataset = Synthetic(train=total, test=self.test, channels=channels, size=height).load()
        bounds = np.cumsum([0, *self.sizes])
        order = np.random.default_rng(0).permutation(total)
        owned = [np.sort(order[a:b]) for a, b in itertools.pairwise(bounds)]
        none = [np.zeros(0, dtype=np.int64) for _ in owned]
        tests = [np.arange(total, total + 10) for _ in owned]
        return dataset, Partition("bench", 0, dataset.name, 10, owned, none, tests)


LENET = (
    "model=lenet5",
    "protocol=quick",
    "protocol.local.epochs=5",
    "protocol.local.batch_size=32",
    *SGD,
)

WORKLOADS = {
    "W1": Workload(
        "W1",
        "LeNet5, 3 x 32 x 32, 100 clients of 500, 10 a round, 5 epochs, batch 32",
        (*LENET, "protocol.cohort=10"),
        (500,) * 100,
        (3, 32, 32),
        small_cohort=2,
    ),
    "W1C": Workload(
        "W1C",
        "W1 with all 100 clients a round",
        (*LENET, "protocol.cohort=all"),
        (500,) * 100,
        (3, 32, 32),
        small_cohort=2,
    ),
    "W2": Workload(
        "W2",
        "FedCollab's label shift: MLP 784-200-200-10, ten clients of 2100 and ten of 14, 1 epoch, batch 32",
        ("model=mlp", "protocol=fedcollab_label_shift"),
        (2100,) * 10 + (14,) * 10,
        (1, 28, 28),
    ),
    "W3": Workload(
        "W3",
        "ResNet-18, 3 x 32 x 32, 10 clients of 500, all a round, 1 epoch, batch 32",
        (
            "model=resnet18",
            "model.pretrained=false",
            "protocol=quick",
            "protocol.cohort=all",
            "protocol.local.epochs=1",
            "protocol.local.batch_size=32",
            *SGD,
        ),
        (500,) * 10,
        (3, 32, 32),
        small_cohort=2,
    ),
    "W4": Workload(
        "W4",
        "FedAvg's CNN (FedReMa's), 1 x 28 x 28, 100 clients of 500, all a round, 5 epochs, batch 50",
        (
            "model=fedrema_cnn",
            "protocol=quick",
            "protocol.cohort=all",
            "protocol.local.epochs=5",
            "protocol.local.batch_size=50",
            *SGD,
        ),
        (500,) * 100,
        (1, 28, 28),
        small_cohort=2,
    ),
}
