"""What a method refuses is refused before anything is trained: no run's folder is left, Local's neither.

For every method x optimiser x its state x cohort x precision, and with two kinds of client, of one round.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from fedbench.config import groups
from fedbench.config.compose import compose
from fedbench.core.errors import ConfigError, FedbenchError
from fedbench.engine.simulation import Simulation
from fedbench.engine.trial import check_cuts
from fedbench.runs.building import build
from fedbench.runs.config import resolve
from fedbench.runs.execution import execute
from tests.helpers.tiers import sampled, tiered
from tests.runs.test_kinds_run import TWO

SMALL = [
    *("dataset=synthetic", "dataset.train=40", "dataset.test=10", "dataset.channels=1", "dataset.size=8"),
    *("partition=homo", "partition.num_clients=3", "model=mlp", "protocol=quick", "protocol.rounds=1"),
    *("protocol.local.epochs=1", "protocol.local.batch_size=8", "progress=none", "hardware=cpu"),
    "hardware.engine=looped",
]
OPTIMIZERS = {"sgd": "", "momentum": "protocol.optimizer.momentum=0.9", "adam": "protocol.optimizer.name=adam"}
# Every pair of an optimiser and its state; cohort and precision take turns.
SETTINGS = [
    (*pair, cohort, precision)
    for pair, (cohort, precision) in zip(
        itertools.product(OPTIMIZERS, ("fresh", "kept")),
        itertools.cycle((("all", "float32"), ("2", "bf16"), ("2", "float32"), ("all", "bf16"))),
        strict=False,
    )
]
CASES = [(method, *setting) for method in groups.names("method") for setting in SETTINGS]
QUICK = [case for case in CASES if case[0] in ("scaffold", "fednova") and case[1:3] == ("adam", "kept")]


def refused(folder: Path, *overrides: str) -> str:
    """Why a run is refused, with nothing left of it; "" where it is made."""
    try:
        execute(resolve(compose([*overrides, f"runs_dir={folder / 'runs'}"])))
    except FedbenchError as error:
        assert not [*folder.rglob("*")]
        return str(error)
    return ""


@pytest.mark.parametrize(("method", "optimizer", "state", "cohort", "precision"), tiered(CASES, QUICK))
def test_a_refusal_leaves_nothing(
    method: str, optimizer: str, state: str, cohort: str, precision: str, tmp_path: Path
) -> None:
    chosen = [f"method={method}", f"protocol.optimizer.state={state}", f"protocol.cohort={cohort}"]
    chosen += [f"hardware.precision={precision}", "protocol.optimizer.lr=0.01", *filter(None, [OPTIMIZERS[optimizer]])]
    reason = refused(tmp_path, *SMALL, *chosen)
    assert bool(reason) >= (method in ("scaffold", "fednova") and optimizer == "adam"), "SGD alone has their equations"


@pytest.mark.parametrize("method", tiered(groups.names("method"), ["pfedhn"]))
def test_a_method_that_cannot_serve_two_kinds_leaves_nothing(method: str, tmp_path: Path) -> None:
    refused(tmp_path, *TWO, f"method={method}", "protocol.rounds=1", "protocol.score=received", "protocol.report=last")


@pytest.mark.parametrize(
    ("chosen", "reason"),
    sampled(
        [
            (
                ("method=fedcollab", "method/base=scaffold", "protocol.optimizer.name=adam"),
                "scaffold is defined for SGD",
            ),
            (
                ("method=scaffold", "protocol.optimizer.lr=0.000009"),
                "at 9e-06 its control variates keep too few digits",
            ),
            (("method=oracle", "method.coalition=[0,1]"), "each of 3 clients, it has 2 numbers"),
            (("method=fedcollab", "method.newcomers=[3]", "method.join_round=1"), "do not fit 3 clients"),
            (("method=fedcollab", "partition.num_clients=32"), "has too few training samples (1), as FedCollab"),
        ],
        every=3,
    ),
)
def test_a_rule_of_a_method_inside_another_or_of_a_preparation_counts(
    chosen: tuple[str, ...], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Simulation, "begin", lambda _: pytest.fail("it began"))
    assert reason in refused(tmp_path, *SMALL, *chosen)


DEEP = [
    *("dataset=synthetic", "dataset.channels=3", "dataset.size=32", "dataset.train=16", "dataset.test=4"),
    *("partition=homo", "partition.num_clients=2", "model=resnet18", "model.pretrained=false", "protocol=quick"),
    *("hardware=cpu", "protocol.rounds=1", "protocol.local.epochs=1", "progress=none"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "batch", "refuses"),
    [
        ("fedala", 2, True),  # once it has a model, it learns its weights from 80 % of a batch, of one sample here
        ("fedala", 5, False),  # of three samples from two
        ("perfedavg", 2, True),  # halves
        ("perfedavg", 4, False),
        ("perfedavg", 5, True),  # the last batch has three samples, and its second half one
        ("fedavg", 2, False),
    ],
)
def test_a_batch_that_a_method_cuts_to_one_sample_is_no_batch_to_normalise(
    method: str, batch: int, refuses: bool
) -> None:
    """Where the deepest map has one place, its normalised value is the bias, whatever the sample."""
    chosen = [f"method={method}", f"protocol.local.batch_size={batch}"]
    setup = build(resolve(compose([*DEEP, *chosen])))
    if refuses:
        short = int(min(n % batch or batch for n in setup.population.sizes.tolist()))
        expected = rf"of a mini-batch of {short} \(protocol.local.batch_size={batch}\), and batch normalisation gets"
        with pytest.raises(ConfigError, match=expected):
            check_cuts(setup)
    else:
        check_cuts(setup)
