"""Every protocol against the numbers of its paper; impossible ones refused."""

from __future__ import annotations

from typing import Any

import pytest

from fedbench.config import compose, groups
from fedbench.config.schema import ProtocolConfig
from fedbench.core.errors import FedbenchError
from fedbench.runs.config import resolve

# (rounds, cohort, epochs, iterations, batch, optimizer, lr, momentum, weight decay, clip)
WORK = {
    "fedsac": (50, 1.0, None, 200, 64, "sgd", 0.01, 0.9, 1e-5, None),
    "fedsac_code": (50, 1.0, None, 200, 128, "sgd", 0.01, 0.9, 1e-5, None),
    "fedsac_cifar100": (50, 1.0, None, 400, 64, "sgd", 0.01, 0.9, 1e-5, None),
    "fedsac_cifar100_code": (50, 1.0, None, 400, 128, "sgd", 0.01, 0.9, 1e-5, None),
    "fedsac_large": (50, 10, None, 200, 64, "sgd", 0.01, 0.9, 1e-5, None),
    "fedsac_cub": (30, 1.0, None, 200, 64, "adam", 1e-3, 0.0, 1e-5, None),
    "pfedsim": (200, 0.1, 5, None, 32, "sgd", 0.01, 0.0, 0.0, None),
    "sosicfl_simplecnn": (500, 30, 5, None, 50, "sgd", 0.02, 0.5, 5e-4, None),
    "sosicfl_simplecnn_paper": (500, 30, 5, None, 50, "sgd", 0.02, 0.5, 0.5, None),
    "sosicfl_squeezenet": (500, 10, 1, None, 32, "sgd", 0.001, 0.9, 0.0, None),
    "sosicfl_mobilenet": (500, 10, 5, None, 64, "sgd", 0.01, 0.9, 1e-4, None),
    "sosicfl_resnet18": (200, 10, 5, None, 32, "sgd", 0.01, 0.9, 1e-4, None),
    "sosicfl_resnet18_text": (100, 10, 5, None, 32, "sgd", 0.01, 0.9, 1e-4, None),
    "fedrema": (500, 1.0, 5, None, 100, "sgd", 0.01, 0.9, 0.0, 10.0),
    "fedrema_final": (500, 1.0, 5, None, 100, "sgd", 0.01, 0.9, 0.0, 10.0),
    "fedcollab_label_shift": (200, 1.0, 1, None, 32, "sgd", 0.1, 0.0, 0.0, None),
    "fedcollab_feature_shift": (500, 1.0, 1, None, 32, "sgd", 0.01, 0.0, 0.0, None),
    "fedcollab_concept_shift": (200, 1.0, 1, None, 32, "sgd", 0.001, 0.0, 0.0, None),
    "quick": (20, 1.0, 1, None, 32, "sgd", 0.1, 0.0, 0.0, None),
}
# (augment, test sets, weighting, pool, fraction, validation, score, average, report, per client)
READING: dict[str, tuple[Any, ...]] = {
    "fedsac": (
        ("crop4", "flip"),
        "global",
        "label_shares",
        False,
        0.0,
        0.2,
        "received",
        "client",
        "best_val",
        True,
    ),
    "fedsac_cub": ((), "global", "label_shares", False, 0.0, 0.2, "received", "client", "best_val", True),
    "pfedsim": ((), "local", "none", True, 0.5, 0.0, "received", "pooled", "last", False),
    "sosicfl": ((), "common", "none", False, 0.2, 0.0, "received", "client", "best_test", False),
    "fedrema_final": ((), "local", "none", False, 0.2, 0.0, "received", "pooled", "mean_last_5", False),
    "fedrema": ((), "local", "none", False, 0.2, 0.0, "received", "pooled", "best_test", False),
    "fedcollab": ((), "local", "none", True, 0.2, 0.0, "received", "client", "last", False),
    "quick": ((), "local", "none", True, 0.2, 0.0, "received", "client", "last", False),
}
FILES = sorted(file.stem for file in (groups.conf_dir() / "protocol").glob("*.yaml"))


def protocol(*overrides: str) -> ProtocolConfig:
    return resolve(compose.compose(overrides)).protocol


def test_every_protocol_has_its_numbers_here() -> None:
    assert sorted(WORK) == FILES


@pytest.mark.parametrize("name", FILES)
def test_protocols_are_their_papers(name: str) -> None:
    p = protocol(f"protocol={name}")
    o = p.optimizer
    work = (p.rounds, p.cohort, p.local.epochs, p.local.iterations, p.local.batch_size)
    assert (*work, o.name, o.lr, o.momentum, o.weight_decay, o.clip) == WORK[name]
    t = p.test
    reading = (
        p.augment,
        t.sets,
        t.weighting,
        t.pool,
        t.fraction,
        t.val_fraction,
        p.score,
        p.average,
        p.report,
        p.per_client,
    )
    family = max((each for each in READING if name.startswith(each)), key=len)
    assert reading == READING[family]
    assert p.name == name


@pytest.mark.parametrize("name", FILES)
def test_every_file_says_where_its_numbers_come_from(name: str) -> None:
    text = (groups.conf_dir() / "protocol" / f"{name}.yaml").read_text()
    assert text.startswith("# ")
    source = ("FedSaC", "pFedSim", "SosicFL", "FedReMa", "FedCollab", "smoke run")
    assert any(word in text.splitlines()[0] for word in source)


def test_papers_partitions_fit_their_protocols() -> None:
    """The cohort of each setting is a count or share of the partition's clients."""
    assert protocol("protocol=pfedsim").cohort_size(100) == 10
    assert protocol("protocol=pfedsim").cohort_size(120) == 12  # DomainNet
    assert protocol("protocol=sosicfl_simplecnn").cohort_size(100) == 30
    assert protocol("protocol=fedsac_large").cohort_size(50) == 10
    assert protocol("protocol=fedrema").cohort_size(20) == 20


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("protocol.cohort=0", "positive"),
        ("protocol.cohort=10.5", "number of clients"),
        ("protocol.augment=[crop4,mirror]", "unknown protocol.augment 'mirror'"),
        ("protocol.test.fraction=1", r"\[0, 1\)"),
        ("protocol.report=best_val", "val_fraction > 0"),
        ("protocol.local.epochs=null", "epochs or iterations"),
        ("protocol.score=later", "unknown protocol.score 'later'"),
    ],
)
def test_impossible_protocols_are_refused(override: str, reason: str) -> None:
    with pytest.raises(FedbenchError, match=reason):
        protocol(override)
