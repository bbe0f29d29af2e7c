"""A run is built from its plain config, and so is a changed one."""

from __future__ import annotations

import pytest

from fedbench.config.compose import compose
from fedbench.core.errors import ConfigError, UnknownName
from fedbench.papers.plan import Job, local_reference
from fedbench.runs.config import RunConfig, from_plain, resolve

CHOSEN = ("dataset=digits", "method=fedcollab", "method/base=ditto", "partition=dir0.5", "force=true")


def made(*more: str) -> RunConfig:
    return resolve(compose([*CHOSEN, *more]))


def other(method: str) -> RunConfig:
    """The same run of a method with no other inside."""
    return resolve(compose([*(text for text in CHOSEN if not text.startswith("method")), method]))


def test_a_changed_run_is_the_run_of_the_changed_config() -> None:
    run = made()
    for changed, composed in (
        (run.changed(seed=3), made("seed=3")),
        (run.changed(method=other("method=ifca").plain["method"]), other("method=ifca")),
        (run.changed(protocol={**run.plain["protocol"], "rounds": 7}), made("protocol.rounds=7")),
    ):
        assert changed == composed == from_plain(composed.plain)
        assert changed.labels == composed.labels
        assert changed.key == composed.key != run.key
    assert run == made(), "the run itself is as it was"


def test_what_a_change_leaves_alone_is_not_built_again() -> None:
    run = made()
    changed = run.changed(seed=3)
    assert all(getattr(changed, group) is getattr(run, group) for group in ("dataset", "partition", "method"))


def test_a_change_is_validated() -> None:
    with pytest.raises(UnknownName, match="nearest: seed"):
        made().changed(sed=3)
    with pytest.raises(ConfigError, match="seed must be at least 0"):
        made().changed(seed=-1)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ((), ()),
        (("seed=4",), ("seed=4",)),
        (("seed=4", "partition_seed=2"), ("seed=4", "partition_seed=2")),
        (("seed=4", "reference_seed=9"), ("seed=9", "partition_seed=4")),
        (("seed=4", "partition_seed=2", "reference_seed=9"), ("seed=9", "partition_seed=2")),
    ],
)
def test_a_run_is_compared_with_one_local_run(more: tuple[str, ...], expected: tuple[str, ...]) -> None:
    run = made("protocol.rounds=7", "save_models=true", *more)
    local = resolve(compose(["dataset=digits", "partition=dir0.5", "protocol.rounds=7", "method=local", *expected]))
    assert run.local is not None
    assert run.local.key == local.key
    assert not run.local.settings.force
    assert not run.local.settings.save_models
    assert run.local.local is None
    twin = local_reference(Job((*CHOSEN, "protocol.rounds=7", "save_models=true", *more), run))
    assert twin.config.key == resolve(compose(twin.overrides)).key == local.key
    assert not any("ditto" in text or "reference_seed=9" in text for text in twin.overrides)


def test_a_local_run_of_another_rate_is_named_as_it_is_run() -> None:
    texts = (*CHOSEN, "protocol.rounds=7", "protocol.optimizer.lr=0.05", "reference_lr=0.2")
    job = Job(texts, resolve(compose(list(texts))))
    twin = local_reference(job)
    assert twin.config.key == resolve(compose(twin.overrides)).key
    assert twin.config.protocol.optimizer.lr == 0.2
    assert twin.config.protocol.rounds == 7
