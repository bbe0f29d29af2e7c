"""What the papers' authors publish beside the papers: a partition, distances, values client by client.

All is FedCollab's (Bao et al., ICML 2023), of the public repository baowenxuan/FedCollab, for its only data_seed, 0:

- `fedcollab_label_shift_seed0.npz`: the partition of label shift, made by their src/data_partition.py: sample numbers
  in Fashion-MNIST's train split followed by its test split. Read with `partition=fedcollab_label_shift_seed0`.
- `fedcollab_label_shift_seed0_clients.csv`, `_rounds.csv`: history/fmnist, one run each of Local, FedAvg and FedCollab:
  test accuracy in percent of every client after 200 rounds, and its mean over clients after every round.
- `fedcollab_<scenario>_seed0_distances.csv`: divergence/, the estimated distances of each scenario.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedbench.core.errors import unknown
from fedbench.core.files import read_csv

FOLDER = Path(__file__).with_name("authors")
SCENARIOS = ("label_shift", "feature_shift", "concept_shift")
METHODS = ("local", "fedavg", "fedcollab")


def distances(scenario: str) -> np.ndarray:
    """The authors' distances between clients, float64 [20, 20], symmetric.

    Below 0 where their discriminators were worse than chance; their solver takes that as 0.

    Raises:
        UnknownName: none of SCENARIOS.
    """
    if scenario not in SCENARIOS:
        raise unknown("scenario", scenario, SCENARIOS)
    return np.loadtxt(FOLDER / f"fedcollab_{scenario}_seed0_distances.csv", delimiter=",")


def clients(method: str) -> np.ndarray:
    """Accuracy in percent of each client after 200 rounds of one of METHODS under label shift, float64 [20]."""
    return _column("clients", method)


def rounds(method: str) -> np.ndarray:
    """Accuracy in percent, the mean over clients, after each of the 200 rounds, float64 [200]."""
    return _column("rounds", method)


def _column(table: str, method: str) -> np.ndarray:
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    lines = read_csv(FOLDER / f"fedcollab_label_shift_seed0_{table}.csv")
    return np.array([float(line[method]) for line in lines])
