"""Experiment trackers: what each library is told, read back with the library; their failures never end a run."""

from __future__ import annotations

import dataclasses
import logging
import socket
import sys
import threading
import time
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbench.config.schema import MlflowConfig, SettingsConfig
from fedbench.data.datasets.small_images import Digits
from fedbench.engine.history import Labels, Observer, Record
from fedbench.metrics import Tally
from fedbench.runs import execution, trackers
from fedbench.runs.trackers import MlflowTracker, TensorBoardTracker, Tracker, WandbTracker
from tests.runs.toys import KEY, LABELS

CONFIG = {"method": {"name": "fedavg", "mu": 0.125}}


@pytest.fixture(autouse=True)
def none_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "LEFT", set())


ALL = (WandbTracker, TensorBoardTracker, MlflowTracker)


def made(kind: type[Tracker], folder: Path, **changed: Any) -> Tracker:
    """The tracker as a run has it that only enables it."""
    options = {**dataclasses.asdict(getattr(SettingsConfig(), kind.name)), **changed}
    return kind(KEY, folder, CONFIG, **{name: value for name, value in options.items() if name != "enabled"})


def a_record(done: int) -> Record:
    tally = Tally(np.array([6, done]), np.array([10, 4]))
    return Record(done, {"local": tally}, 100 * done, 200 * done, {"train": 0.5}, 1.0)


def tell(tracker: Tracker, *, resumed: int = 0, rounds: tuple[int, ...] = (1, 2)) -> None:
    tracker.start(LABELS, 2, resumed)
    for done in rounds:
        tracker.record(a_record(done))
    tracker.finish({"key": KEY, "acc": 55.0, "ipr": None, "rsd": float("nan")})
    tracker.close()


@pytest.mark.slow  # it starts a service
@pytest.mark.filterwarnings("ignore")  # wandb's own
def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    tracker = made(WandbTracker, tmp_path / "run")
    tell(tracker)
    assert not tracker.failed
    import wandb

    wandb.teardown()  # its service writes the log in the background until it ends
    (log,) = (tmp_path / "run").glob("wandb/offline-run-*/*.wandb")
    content = log.read_bytes()
    for text in (b"acc_on_local_pooled", b"fedavg seed 3", b"digits/dir0.1/mlp/quick", b"0.125"):
        assert text in content
    assert KEY in log.name


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_events(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracker = made(TensorBoardTracker, tmp_path)
    tell(tracker)
    assert not tracker.failed
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    curve = events.Scalars("acc_on_local")
    assert [event.step for event in curve] == [1, 2]
    assert [event.value for event in curve] == pytest.approx([42.5, 55.0])
    assert [event.value for event in events.Scalars("final/acc")] == [55.0]
    assert "final/ipr" not in events.Tags()["scalars"]
    assert any("fedavg seed 3" in name for name in events.Tags()["tensors"])


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_has_one_point_a_round_of_a_run_that_goes_on(tmp_path: Path) -> None:
    """Of round 3 it had been told when the run was stopped, which its checkpoint after round 2 knows nothing of."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    first = made(TensorBoardTracker, tmp_path)
    first.start(LABELS, 4, 0)
    for done in (1, 2, 3):
        first.record(a_record(done))
    first.close()
    tell(made(TensorBoardTracker, tmp_path), resumed=2, rounds=(3, 4))
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("acc_on_local")] == [1, 2, 3, 4]
    tell(made(TensorBoardTracker, tmp_path), rounds=(1, 2))  # force=true
    again = EventAccumulator(str(tmp_path / "tensorboard"))
    again.Reload()
    assert [event.step for event in again.Scalars("acc_on_local")] == [1, 2]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mlflow_runs(tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}" if _has("sqlalchemy") else (tmp_path / "mlruns").as_uri()
    first = made(MlflowTracker, tmp_path, uri=uri)
    first.start(LABELS, 2, 0)
    first.record(a_record(1))
    first.close()
    assert not first.failed
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("fedbench").experiment_id
    (run,) = client.search_runs([experiment])
    assert run.info.status == "FAILED"  # it did not finish
    tell(made(MlflowTracker, tmp_path, uri=uri), resumed=1, rounds=(2,))
    (run,) = client.search_runs([experiment])
    assert run.info.status == "FINISHED"
    assert run.data.params["method.mu"] == "0.125"
    assert run.data.metrics["final_acc"] == 55.0
    curve = client.get_metric_history(run.info.run_id, "acc_on_local")
    assert [(point.step, point.value) for point in curve] == [
        (1, pytest.approx(42.5)),
        (2, pytest.approx(55.0)),
    ]


def test_a_run_that_begins_anew_takes_the_place_of_its_folder_s_in_mlflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = dict[str, Any]()

    def create_run(_: str, tags: dict[str, str], run_name: str) -> Any:
        number = f"{len(kept)}-{Path(tags['folder']).name}"
        kept[number] = types.SimpleNamespace(
            info=types.SimpleNamespace(run_id=number), data=types.SimpleNamespace(tags=tags)
        )
        return kept[number]

    def nothing(*_: Any, **__: Any) -> None:
        pass

    client = types.SimpleNamespace(
        get_experiment_by_name=lambda _: types.SimpleNamespace(experiment_id="1"),
        search_runs=lambda _, query: [each for each in reversed(kept.values()) if each.data.tags["key"] in query],
        create_run=create_run, delete_run=kept.pop, log_param=nothing, log_metric=nothing, set_terminated=nothing,
    )  # fmt: skip
    library = types.SimpleNamespace(MlflowClient=lambda **_: client)
    monkeypatch.setitem(sys.modules, "mlflow.tracking", library)
    for folder, resumed, left in (
        ("a", 0, ["0-a"]),
        ("b", 0, ["0-a", "1-b"]),
        ("b", 1, ["0-a", "1-b"]),
        ("a", 0, ["1-b", "1-a"]),
    ):
        tell(made(MlflowTracker, Path(folder), uri="x"), resumed=resumed)
        assert list(kept) == left
    monkeypatch.chdir(tmp_path)  # where another has a folder of the same relative name
    tell(made(MlflowTracker, Path("a"), uri="x"), resumed=0)
    assert list(kept) == ["1-b", "1-a", "2-a"]


def test_a_run_of_other_samples_has_a_record_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()
    monkeypatch.setattr(trackers, "TRACKERS", {"mlflow": lambda key, *_, **__: asked.append(key) or Observer()})
    settings = SettingsConfig(progress="none", mlflow=MlflowConfig(enabled=True))
    chosen: Any = types.SimpleNamespace(settings=settings, plain={}, dataset=Digits())
    for data in ("0123456789", "abcdefghij"):
        folder: Any = types.SimpleNamespace(path=tmp_path, key=KEY, data=data)
        execution.observers(chosen, folder)
    assert asked == [f"{KEY}-012345", f"{KEY}-abcdef"]


def _has(module: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(module) is not None


@pytest.mark.parametrize("tracker", ALL)
def test_a_missing_library_is_told_once(
    tracker: type[Tracker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in ("wandb", "torch.utils.tensorboard", "mlflow.tracking"):
        monkeypatch.setitem(sys.modules, module, None)
    with caplog.at_level(logging.WARNING, "fedbench"):
        tell(made(tracker, tmp_path))
    assert len(caplog.records) == 1
    assert f"{tracker.name} logging is off" in caplog.text


class WandbRun:
    """Stands for wandb's run: keeps the exit codes, and cannot reach its server when it logs."""

    def __init__(self, codes: list[int]) -> None:
        self.codes = codes
        self.config: dict[str, Any] = {}
        self.summary: dict[str, Any] = {}

    def module(self) -> Any:
        return types.SimpleNamespace(init=lambda **_: self, Settings=dict)

    def define_metric(self, *names: str, **options: str) -> None:
        pass

    def log(self, row: dict[str, Any]) -> None:
        raise ConnectionError("no network")

    def finish(self, exit_code: int) -> None:
        self.codes.append(exit_code)


@pytest.mark.parametrize(("mode", "resume"), [("online", [None, "allow"]), ("offline", [None, None])])
def test_wandb_goes_on_with_a_run_where_it_can_know_what_was_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, resume: list[str | None]
) -> None:
    """A run that is resumed has the id of the one that was stopped; one that begins anew takes the place of that."""
    asked, codes = list[dict[str, Any]](), list[int]()

    def init(**given: Any) -> WandbRun:
        asked.append(given)
        return WandbRun(codes)

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init, Settings=dict))
    for resumed in (0, 2):
        tracker = made(WandbTracker, tmp_path, mode=mode)
        tracker.start(dataclasses.replace(LABELS, protocol=120 * "x", variant=120 * "y"), 3, resumed)
        tracker.close()
    assert [(given["id"], given["resume"], given["mode"]) for given in asked] == [(KEY, each, mode) for each in resume]
    assert max(len(given[name]) for given in asked for name in ("name", "group")) <= 128, "or wandb refuses it"


def test_a_failure_while_it_logs_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", WandbRun([]).module())
    with caplog.at_level(logging.WARNING, "fedbench"):
        tell(made(WandbTracker, tmp_path))
    assert len(caplog.records) == 1
    assert "no network" in caplog.text


class Stuck(Tracker):
    """Answers all but one thing, which never ends."""

    name = "stuck"
    library = "json"

    def __init__(self, *given: Any, at: str, asked: list[str]) -> None:
        super().__init__(*given, CONFIG)
        self.at, self.asked = at, asked

    def _answer(self, what: str) -> None:
        self.asked.append(what)
        if what == self.at:
            threading.Event().wait()

    def open(self, labels: Labels, rounds: int, resumed_from: int) -> None:
        self._answer("open")

    def log(self, round_: int, row: Mapping[str, Any]) -> None:
        self._answer("log")

    def summarise(self, result: Mapping[str, Any]) -> None:
        self._answer("summarise")

    def end(self, *, complete: bool) -> None:
        self._answer("end")


@pytest.mark.parametrize("at", ["open", "log", "summarise", "end"])
def test_one_that_does_not_answer_is_left_after_a_moment_and_told_once(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By Local and by the run that it is compared with."""
    monkeypatch.setattr(Tracker._guarded, "__defaults__", (0.05,))
    monkeypatch.setattr(trackers, "OPENING", 0.05)
    asked: list[str] = []
    began = time.monotonic()
    for _ in range(2):
        tell(Stuck(KEY, tmp_path, at=at, asked=asked))
    assert time.monotonic() - began < 20
    assert asked == ["open", "log", "log", "summarise", "end"][: {"open": 1, "log": 2, "summarise": 4, "end": 5}[at]]
    assert [record.getMessage() for record in caplog.records] == [
        "stuck logging is off for the rest of the run: no answer in 0.05 s"
    ]


@pytest.mark.slow  # MLflow takes seconds to import
@pytest.mark.parametrize("listens", [False, True])
def test_a_dead_address_does_not_hold_up_a_run(
    listens: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A port that nobody listens at, and one that takes connections and never answers."""
    import mlflow.tracking  # noqa: F401 - its import has no limit

    for name in trackers.MLFLOW:
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        uri = f"http://127.0.0.1:{server.getsockname()[1]}"
        if not listens:
            server.close()
        began = time.monotonic()
        for _ in range(2):
            tell(made(MlflowTracker, tmp_path, uri=uri))
        assert time.monotonic() - began < 60
    (record,) = [each for each in caplog.records if each.name == "fedbench"]
    assert "mlflow logging is off for the rest of the run: " in record.getMessage()


@pytest.mark.parametrize("complete", [True, False])
def test_an_interrupted_run_is_marked_as_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, complete: bool
) -> None:
    codes: list[int] = []
    monkeypatch.setitem(sys.modules, "wandb", WandbRun(codes).module())
    tracker = made(WandbTracker, tmp_path)
    tracker.start(LABELS, 3, 0)
    if complete:
        tracker.finish({"acc": 1.0})
    tracker.close()
    assert codes == [0 if complete else 1]
