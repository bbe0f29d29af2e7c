"""First rounds that runs have in common: trained once, and no number is another for it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from fedbench.core.cache import cache_dir
from fedbench.engine.simulation import Simulation
from fedbench.engine.state import State
from fedbench.results.history import Record
from fedbench.results.observer import Observer
from fedbench.runs import beginning, fingerprint
from fedbench.runs import execution as run
from fedbench.runs.config import RunConfig
from fedbench.runs.together import execute_together
from tests.helpers.runs import interrupt_after, rows
from tests.runs.begun import ROUNDS, after, at, folder_of, kept

Trained = Callable[..., list[int]]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty one."""
    monkeypatch.setenv("FEDBENCH_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> Trained:
    """Executes a run, or several together, and returns which rounds were trained; Local's are not counted."""
    played, found = Simulation.step, []

    def counted(self: Simulation, state: State) -> None:
        if type(self.setup.method).__name__ != "Local":
            found.append(state.round + 1)
        played(self, state)

    def execute(*chosen: RunConfig) -> list[int]:
        found.clear()
        if len(chosen) == 1:
            run.execute(*chosen)
        else:
            execute_together(chosen)
        return list(found)

    monkeypatch.setattr(Simulation, "step", counted)
    return execute


def test_in_ascending_order_each_common_round_is_trained_once(tmp_path: Path, trained: Trained) -> None:
    together = [at(tmp_path / "together", rho) for rho in (0.3, 0.5, 0.9, 1.0)]
    assert [trained(each) for each in together] == [after(0), after(2), after(4), after(8)]
    assert kept() == []  # nobody goes on further than a run that is all beginning
    for each, rho in zip(together, (0.3, 0.5, 0.9, 1.0), strict=True):
        shutil.rmtree(cache_dir() / "beginnings", ignore_errors=True)
        alone = at(tmp_path / "alone", rho)
        assert trained(alone) == after(0)
        assert rows(folder_of(each)) == rows(folder_of(alone))
        spent = pd.read_csv(folder_of(each) / "rounds.csv")["seconds_train"].fillna(0)
        assert spent.is_monotonic_increasing
        assert spent[1] > 0


def test_seeds_together_begin_where_seeds_together_ended(tmp_path: Path, trained: Trained) -> None:
    seeds = ("hardware.engine=stacked",)
    together = {
        rho: [at(tmp_path / "together", rho, f"seed={s}", *seeds) for s in (0, 1)] for rho in (0.3, 0.5)
    }
    assert [sorted(trained(*runs)) for runs in together.values()] == [sorted(2 * after(n)) for n in (0, 2)]
    shutil.rmtree(cache_dir() / "beginnings")
    alone = [at(tmp_path / "alone", 0.5, f"seed={s}", *seeds) for s in (0, 1)]
    assert len(trained(*alone)) == 2 * ROUNDS
    for begun, whole in zip(together[0.5], alone, strict=True):
        assert rows(folder_of(begun)) == rows(folder_of(whole))


def test_a_longer_beginning_is_neither_used_nor_replaced(tmp_path: Path, trained: Trained) -> None:
    trained(at(tmp_path, 0.9))
    before = [file.read_bytes() for file in kept()]
    assert trained(at(tmp_path, 0.5)) == after(0)
    assert [file.read_bytes() for file in kept()] == before
    assert len(before) == 1


@pytest.mark.parametrize(
    "other",
    [
        "seed=1",
        "protocol.optimizer.lr=0.02",
        "method.scored=own",
        "hardware.engine=stacked",
        "record=[collaboration]",
    ],
)
def test_runs_that_differ_otherwise_share_nothing(tmp_path: Path, trained: Trained, other: str) -> None:
    trained(at(tmp_path, 0.3))
    assert trained(at(tmp_path, 0.5, other)) == after(0)
    assert len(kept()) == 2


def test_other_code_shares_nothing(tmp_path: Path, trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(at(tmp_path, 0.3))
    monkeypatch.setattr(fingerprint, "code_of", lambda _: "method:0123456789ab")
    assert trained(at(tmp_path, 0.5)) == after(0)
    monkeypatch.setattr(fingerprint, "code_of", lambda _: "method:0123456789abedited")
    assert trained(at(tmp_path, 0.7)) == after(0)
    assert len(kept()) == 2  # nobody knows what code that was


def test_other_samples_share_nothing(
    tmp_path: Path, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(at(tmp_path, 0.3))
    monkeypatch.setattr(fingerprint, "content", lambda _: "0123456789ab")
    assert trained(at(tmp_path, 0.5)) == after(0)


def test_observers_are_told_of_every_score(
    tmp_path: Path, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(at(tmp_path, 0.3))
    told: list[int] = []

    class Listener(Observer):
        def record(self, record: Record) -> None:
            told.append(record.round)

    chosen = at(tmp_path, 0.5)
    run.local_reference(chosen)
    monkeypatch.setattr(run, "observers", lambda *_: Listener())
    assert trained(chosen) == after(2)
    assert told == list(range(ROUNDS + 1))


def test_force_trains_every_round(tmp_path: Path, trained: Trained) -> None:
    trained(at(tmp_path, 0.3))
    assert trained(at(tmp_path, 0.5, "force=true")) == after(0)


def test_an_interrupted_run_goes_on_from_its_own_checkpoint(tmp_path: Path, trained: Trained) -> None:
    trained(at(tmp_path, 0.3))
    chosen = at(tmp_path, 0.7, "checkpoint.rounds=1")
    with pytest.MonkeyPatch.context() as patch:
        interrupt_after(patch, 5)
        with pytest.raises(KeyboardInterrupt):
            run.execute(chosen)
    shutil.rmtree(cache_dir() / "beginnings")
    assert trained(chosen) == after(5)
    assert trained(at(tmp_path, 0.9)) == after(6)  # which the resumed run kept
    run.execute(alone := at(tmp_path / "alone", 0.7, "force=true"))
    assert rows(folder_of(chosen)) == rows(folder_of(alone))


def test_a_damaged_beginning_is_trained_again(
    tmp_path: Path, trained: Trained, caplog: pytest.LogCaptureFixture
) -> None:
    trained(at(tmp_path, 0.3))
    (file,) = kept()
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert trained(at(tmp_path, 0.5)) == after(0)
    assert [each.message for each in caplog.records if "beginning" in each.message] != []
    assert trained(at(tmp_path, 0.9)) == after(4)


def test_what_is_large_for_the_disk_is_not_kept(
    tmp_path: Path, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beginning, "SHARE", 0.0)
    trained(at(tmp_path, 0.3))
    assert kept() == []


def test_rows_in_a_file_of_the_run_are_not_kept(tmp_path: Path, trained: Trained) -> None:
    trained(at(tmp_path, 0.3, "hardware.client_memory=file"))
    assert kept() == []


def test_a_method_without_a_beginning_keeps_nothing(tmp_path: Path, trained: Trained) -> None:
    trained(at(tmp_path, 0.3).changed(method={"name": "fedavg"}))
    assert kept() == []


def test_the_oldest_make_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run.execute(at(tmp_path, 0.5))
    (first,) = kept()
    free = shutil.disk_usage(tmp_path)._replace(free=first.stat().st_size * 15)  # room for one and a half
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    run.execute(at(tmp_path, 0.5, "seed=1"))
    (second,) = kept()
    assert second != first
