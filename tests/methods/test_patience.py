"""FedCollab's discriminators: when they are checked and end, which samples they see, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from fedbench.core.errors import ConfigError, UnknownName
from fedbench.core.rng import torch_rng
from fedbench.methods.fedcollab import distances
from fedbench.methods.fedcollab.distances import DiscriminatorConfig, Patience


def test_discriminator_has_the_papers_size() -> None:
    """Table 5 counts 105,001 parameters: 512 features and 10 labels into 200, both with a bias, then 1."""
    weights = distances.initial(512, 10, 200, torch_rng(0, "test"))
    assert sum(w.numel() for w in weights.values()) == 105_001
    assert 0.95 / 512**0.5 < float(weights["Wx"].abs().max()) <= 1 / 512**0.5


def test_patience_on_scores_by_hand() -> None:
    scores = [[0.5, 0.6, 0.7], [0.5, 0.7, 0.6], [0.5, 0.6, 0.8], [0.9, 0.6, 0.7]]
    stops = [[False] * 3, [False] * 3, [True, False, False], [False, True, False]]
    patience, free = Patience(3, 2), Patience(3, 0)
    for row, stop in zip(scores, stops, strict=True):
        assert patience.update(torch.tensor(row, dtype=torch.float64)).tolist() == stop
        assert free.update(torch.tensor(row, dtype=torch.float64)).tolist() == [False] * 3
    assert patience.best.tolist() == [0.9, 0.7, 0.8]
    patience.keep(torch.tensor([True, False, True]))
    assert patience.best.tolist() == [0.9, 0.8]


def test_rounds_that_are_checked() -> None:
    assert list(DiscriminatorConfig(rounds=35).checks()) == [35]
    assert list(DiscriminatorConfig(rounds=35, report="best").checks()) == [1, 11, 21, 31]


def test_split_keeps_label_shares() -> None:
    y = torch.tensor([5] * 2 + [6] * 4 + [7] * 4 + [8] * 4)  # a small client of the paper's label shift
    train, valid = distances.split(torch.arange(14), y, 7, 0, 0)
    assert y[train].bincount(minlength=9)[5:].tolist() == [1, 2, 2, 2]
    assert sorted(torch.cat([train, valid]).tolist()) == list(range(14))
    tied = torch.tensor([0, 0, 1, 1, 1, 2])  # 3 of 6: one of label 0; 1.5 and 0.5 go one up, one down
    picks = {tuple(tied[_train(tied, s)].bincount(minlength=3).tolist()) for s in range(20)}
    assert picks == {(1, 2, 0), (1, 1, 1)}


def _train(y: Tensor, seed: int) -> Tensor:
    return distances.split(torch.arange(len(y)), y, len(y) // 2, seed, 0)[0]


def test_batches_are_different_samples_of_either_client() -> None:
    draws = distances.batches(40, 8, np.random.default_rng(0))
    seen = np.stack([next(draws) for _ in range(200)])
    assert (seen[:, :8] < 40).all()
    assert (seen[:, 8:] >= 40).all()
    assert seen.max() == 79
    assert all(len(set(row)) == 16 for row in seen.tolist())
    assert np.bincount(seen.ravel(), minlength=80).min() > 15  # 40 expected of each


def test_an_unknown_report_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match="report 'bests'; nearest: best"):
        DiscriminatorConfig(report="bests")


@pytest.mark.parametrize(("field", "value"), [("rounds", 0), ("lr", -0.1), ("patience", -1)])
def test_impossible_values_are_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=field):
        DiscriminatorConfig(**{field: value})  # type: ignore[arg-type]
