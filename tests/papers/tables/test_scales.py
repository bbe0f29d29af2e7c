"""Scales: what they take from the papers' runs, and that they never add."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fedbench.core.errors import ConfigError
from fedbench.papers import plan
from fedbench.papers.selection import Scale, load_scale
from fedbench.papers.spec import TableSpec
from fedbench.runs.config import RunConfig
from tests.papers.tables.selections import selection, table

pytestmark = pytest.mark.usefixtures("nothing_prepared")


@pytest.fixture
def at_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Scale, TableSpec], RunConfig]:
    """The config of the first cell of a table at a scale that has no YAML."""

    def first(scale: Scale, table: TableSpec) -> RunConfig:
        for module in ("plan", "selection"):
            monkeypatch.setattr(f"fedbench.papers.{module}.load_scale", lambda _: scale)
        return plan.make(table, selection(tmp_path, seeds=(0,))).cells[0].jobs[0].config

    return first


def test_scale_reduces_rounds_work_evaluations_and_data(
    at_scale: Callable[[Scale, TableSpec], RunConfig],
) -> None:
    scale = Scale("small", rounds=0.1, epochs=2, evaluations=1, seeds=1, limit=500)
    spec_ = table(base=["protocol.rounds=30", "protocol.local.epochs=5", "protocol.eval_every=1"])
    config = at_scale(scale, spec_)
    protocol = config.protocol
    assert (protocol.rounds, protocol.local.epochs, protocol.eval_every) == (3, 2, 3)
    assert config.dataset.label == "digits-500"


@pytest.mark.slow
def test_scale_shrinks_clients_and_a_cohort_that_is_a_count_together(
    at_scale: Callable[[Scale, TableSpec], RunConfig],
) -> None:
    for cohort, left in (("30", "6"), ("3", "1"), ("10%", "10%"), ("all", "all")):
        spec_ = table(base=["partition.num_clients=100", f"protocol.cohort={cohort}"])
        config = at_scale(Scale("small", clients=20), spec_)
        assert (config.partition.num_clients, config.protocol.cohort) == (20, left)  # type: ignore[attr-defined]


def test_what_the_user_says_stands_against_the_scale(tmp_path: Path) -> None:
    """Else the table would be titled with what did not run."""
    changed = ("protocol.rounds=7", "dataset.limit=123")
    chosen = selection(tmp_path, changed, scale="smoke", columns=("here",))
    config = plan.make(table(), chosen).cells[0].jobs[0].config
    assert config.protocol.rounds == 7
    assert config.plain["dataset"]["limit"] == 123


def test_scale_never_adds_work(at_scale: Callable[[Scale, TableSpec], RunConfig]) -> None:
    scale = Scale("large", rounds=0.01, epochs=9, iterations=50, limit=10**9)
    spec_ = table(base=["protocol.rounds=1", "protocol.local.iterations=7"])
    config = at_scale(scale, spec_)
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
