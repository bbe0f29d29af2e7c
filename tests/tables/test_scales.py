"""Scales: what they take from the papers' runs, and that they never add."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedbench.core.errors import ConfigError
from fedbench.tables import plan
from fedbench.tables.spec import Scale, load_scale
from tests.tables.wishes import table, wish

pytestmark = pytest.mark.usefixtures("nothing_prepared")


def test_scale_reduces_rounds_work_evaluations_and_data(tmp_path: Path) -> None:
    scale = Scale("small", rounds=0.1, epochs=2, evaluations=1, seeds=1, limit=500)
    spec_ = table(base=["protocol.rounds=30", "protocol.local.epochs=5", "protocol.eval_every=1"])
    (job,) = plan.make(spec_, wish(tmp_path, scale=scale)).entries[0].jobs
    protocol = job.config.protocol
    assert (protocol.rounds, protocol.local.epochs, protocol.eval_every) == (3, 2, 3)
    assert job.config.dataset.label == "digits-500"


def test_scale_shrinks_clients_and_a_cohort_that_is_a_count_together(tmp_path: Path) -> None:
    for cohort, left in (("30", "6"), ("3", "1"), ("10%", "10%"), ("all", "all")):
        spec_ = table(base=["partition.num_clients=100", f"protocol.cohort={cohort}"])
        job = plan.make(spec_, wish(tmp_path, scale=Scale("small", clients=20))).entries[0].jobs[0]
        assert (job.config.partition.num_clients, job.config.protocol.cohort) == (20, left)  # type: ignore[attr-defined]


def test_what_the_user_says_stands_against_the_scale(tmp_path: Path) -> None:
    """Else the table would be titled with what did not run."""
    changed = ("protocol.rounds=7", "dataset.limit=123")
    asked = wish(tmp_path, scale=load_scale("smoke"), changed=changed, columns=("here",))
    config = plan.make(table(), asked).entries[0].jobs[0].config
    assert config.protocol.rounds == 7
    assert config.plain["dataset"]["limit"] == 123


def test_scale_never_adds_work(tmp_path: Path) -> None:
    scale = Scale("large", rounds=0.01, epochs=9, iterations=50, limit=10**9)
    spec_ = table(base=["protocol.rounds=1", "protocol.local.iterations=7"])
    config = plan.make(spec_, wish(tmp_path, scale=scale)).entries[0].jobs[0].config
    assert (config.protocol.rounds, config.protocol.local.iterations) == (1, 7)


@pytest.mark.parametrize("name", ["paper", "half", "quick", "smoke"])
def test_scales_load(name: str) -> None:
    assert load_scale(name).name == name


def test_paper_scale_changes_nothing() -> None:
    from omegaconf import OmegaConf

    from fedbench.config.compose import compose

    plain = OmegaConf.to_container(compose(), resolve=True)
    assert load_scale("paper").overrides(plain) == []  # type: ignore[arg-type]


def test_a_scale_of_more_than_the_paper_is_refused() -> None:
    with pytest.raises(ConfigError, match="share of the rounds"):
        Scale("double", rounds=2.0)
