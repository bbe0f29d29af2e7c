"""A run that cannot be scored says so, before it trains where that can be known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedbench.cli.program import main
from fedbench.config.schema import TestConfig as Protocol
from fedbench.core.errors import ConfigError
from fedbench.data.datasets.synthetic import Synthetic
from fedbench.data.partition import make_partition
from fedbench.data.partitions.label import Homogeneous
from fedbench.engine.history import History, Labels, Record
from fedbench.metrics import Tally
from fedbench.runs.run import Reading, summarise


def test_a_client_a_sample_is_refused_before_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "dataset=digits",
        "partition=homo",
        "partition.num_clients=1797",
        f"runs_dir={tmp_path}/runs",
    ]
    assert main([*command, "progress=none", "protocol.rounds=1"]) == 2
    error = capsys.readouterr().err
    assert "leaves none of 1797 clients a test sample" in error
    assert "protocol.test.fraction, or fewer clients" in error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("sets", ["local", "both", "common"])
def test_every_kind_of_run_that_scores_clients_on_their_own_samples(sets: str) -> None:
    data = Synthetic(train=20, test=10, classes=2).load()
    with pytest.raises(ConfigError, match="none of 20 clients a test sample"):
        make_partition(Homogeneous(num_clients=20), data, Protocol(sets=sets), 0)
    make_partition(Homogeneous(num_clients=20), data, Protocol(sets="global"), 0)
    make_partition(Homogeneous(num_clients=19), data, Protocol(sets=sets), 0)  # one has two samples


def test_validation_samples_that_nobody_gets() -> None:
    data = Synthetic(train=20, test=10, classes=2).load()
    with pytest.raises(ConfigError, match=r"none of 10 clients a val sample.*protocol\.test\.val_fraction"):
        make_partition(Homogeneous(num_clients=10), data, Protocol(val_fraction=0.2), 0)


def test_only_clients_without_test_samples_were_scored() -> None:
    """What the draw of clients decides is known at the end only: no result then, instead of one without a number."""
    nobody = Tally(np.zeros(2), np.zeros(2))
    history = History([Record(1, {"local": nobody}, 1, 1, {})])
    with pytest.raises(ConfigError, match=r"no client that was scored .* local test set"):
        summarise(Labels(*"dpmfq", 0), "key", history, Reading(), partition_hash="")
