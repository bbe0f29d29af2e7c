"""Data that the papers' authors publish: a partition, distances, values client by client.

All is FedCollab's (Bao et al., ICML 2023), of the public repository baowenxuan/FedCollab, for its only data_seed, 0.
The partitions of feature and concept shift are drawn by the rule: fedbench.data.partitions.programs.

- `fedcollab_label_shift_seed0.npz`: the partition of label shift, made by their src/data_partition.py: sample numbers
  in Fashion-MNIST's train split followed by its test split. Read with `partition=fedcollab_label_shift_seed0`.
- `fedcollab_<scenario>_seed0_clients.csv`, `_rounds.csv`: history/, one run each of Local, FedAvg and FedCollab in each
  scenario: test accuracy in percent of every client at the end, after 200 rounds, in feature shift after 500, and its
  mean over clients after every round.
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

    Values below 0 come from discriminators that are worse than chance; the authors' solver takes them as 0.

    Raises:
        UnknownName: none of SCENARIOS.
    """
    return np.loadtxt(_file(scenario, "distances"), delimiter=",")


def clients(method: str, scenario: str = "label_shift") -> np.ndarray:
    """Accuracy in percent of each client after the last round of one of METHODS, float64 [20]."""
    return _column(scenario, "clients", method)


def rounds(method: str, scenario: str = "label_shift") -> np.ndarray:
    """Mean accuracy over clients in percent after each round, float64 [200], in feature shift [500]."""
    return _column(scenario, "rounds", method)


def _column(scenario: str, table: str, method: str) -> np.ndarray:
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    return np.array([float(line[method]) for line in read_csv(_file(scenario, table))])


def _file(scenario: str, table: str) -> Path:
    if scenario not in SCENARIOS:
        raise unknown("scenario", scenario, SCENARIOS)
    return FOLDER / f"fedcollab_{scenario}_seed0_{table}.csv"
