"""The files of a run, damaged at many places: refused in one line, never another number."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedbench.core import files
from fedbench.core.errors import Damaged
from fedbench.data.partition import Partition
from fedbench.data.partitions.file import read_arrays
from fedbench.engine import checkpoint
from fedbench.engine.history import History, Labels, Record
from fedbench.metrics import Tally
from fedbench.runs.folder import RESULT, RunFolder, files_of
from fedbench.runs.run import Run, collect
from fedbench.tables.measures import ArrayMean, Clients, reaches
from tests.helpers.damage import DAMAGES, tried

KEY = "0123456789abcdef"
LABELS = Labels("digits", "homo", "mlp", "fedavg", "quick", 0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A finished run, every kind of file in it."""
    folder = RunFolder(tmp_path_factory.mktemp("runs"), KEY, LABELS)
    counts = [(3, 4, 1), (5, 5, 2)]
    records = [
        Record(n, {"local": Tally(np.array(each), np.array([6, 6, 6]))}, n * 10, n * 20, {"train": n * 1.5})
        for n, each in enumerate(counts)
    ]
    samples = [np.arange(3 * i, 3 * i + 3) for i in range(3)]
    nothing = [np.zeros(0, dtype=np.int64)] * 3
    partition = Partition("homo", 0, "digits-0", 2, samples, nothing, [each + 9 for each in samples])
    with folder:
        folder.write_config("method: {name: fedavg, mu: 0.125}\nprotocol: {rounds: 2}\n")
        folder.write_environment({"command": ["fedbench"]})
        folder.write_partition(partition, [{"client": 0, "train": 3}])
        folder.write_history(History(records))
        folder.write_clients([{"client": i, "acc": 12.5 * i, "gain": 0.5} for i in range(3)])
        folder.write_collaboration(np.eye(3))
        folder.write_arrays({"distances": np.arange(9.0).reshape(3, 3)})
        models = {"server/w": torch.arange(6.0).reshape(2, 3)}
        folder.finish({"acc": 12.5, "ipr": float("nan"), "clients": 3, "seed": 0}, models)
    return folder


def _rows(folder: RunFolder) -> Any:
    return collect([folder.path], config=True).to_dict("records")


READERS: dict[str, Callable[[RunFolder], Any]] = {
    "result.json": lambda run: run.result(),
    "clients.csv": lambda run: (run.accuracies(), Clients(0, 1).value(Run(run.path), None)),
    "rounds.csv": lambda run: (Run(run.path).rounds, reaches(Run(run.path), 0.8, "local")),
    "tallies.npz": lambda run: Run(run.path).tallies,
    "arrays.npz": lambda run: ArrayMean("distances").value(Run(run.path), None),
    "collaboration.npz": lambda run: Run(run.path).W,
    "partition.npz": lambda run: read_arrays(run.path / "partition.npz"),
    "config.yaml": lambda run: files_of(run.path).read("config.yaml"),
    "model.safetensors": lambda run: checkpoint.load(run.path / "model.safetensors"),
    files.MANIFEST: lambda run: (run.result(), run.accuracies(), files_of(run.path).npz("tallies.npz")),
}
PARTLY = (
    files.MANIFEST,
    "model.safetensors",
)  # have bytes that say nothing, as spaces that fill up a header


@pytest.mark.parametrize("name", READERS)
def test_a_run_gives_its_own_numbers_or_none(run: RunFolder, name: str) -> None:
    found = tried(run.path / name, lambda: READERS[name](run))
    assert found["refused"] > 2 * DAMAGES
    assert set(found) <= ({"refused", "no difference"} if name in PARTLY else {"refused"})


def test_a_collected_run_is_left_out_when_it_is_damaged(run: RunFolder, caplog: Any) -> None:
    before, file = _rows(run), run.path / RESULT
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"12.5", b"21.5"))
    assert _rows(run) == []
    assert "result.json is damaged" in caplog.text
    file.write_bytes(whole)
    assert _rows(run) == before


def test_a_missing_client_is_one_clear_line(run: RunFolder) -> None:
    file = run.path / "clients.csv"
    whole = file.read_bytes()
    file.write_bytes(b"\n".join(whole.splitlines()[:-1]) + b"\n")
    with pytest.raises(Damaged, match=r"clients\.csv is damaged \(its checksum.*rm -r"):
        run.accuracies()
    manifest = (run.path / files.MANIFEST).read_bytes()
    (run.path / files.MANIFEST).unlink()  # as of an earlier version
    with pytest.raises(Damaged, match=r"clients\.csv is damaged \(it does not hold as many clients as result\.json"):
        run.accuracies()
    file.write_bytes(whole)
    (run.path / files.MANIFEST).write_bytes(manifest)


def test_a_run_of_an_earlier_version_is_taken_as_it_is_and_said_so(
    run: RunFolder, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_told", [])
    before = run.result(), run.accuracies().tolist()
    manifest = (run.path / files.MANIFEST).read_bytes()
    (run.path / files.MANIFEST).unlink()
    caplog.set_level(logging.WARNING)
    assert (run.result(), run.accuracies().tolist()) == before
    assert [record.message.count("checksums.json") for record in caplog.records] == [1]
    (run.path / files.MANIFEST).write_bytes(manifest)


def test_a_run_killed_just_before_its_result_starts_clean(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, KEY, LABELS)
    with folder:
        folder.write_clients([{"client": 0, "acc": 1.0}])
        folder.finish({"clients": 1})
    (folder.path / RESULT).unlink()
    with RunFolder(tmp_path, KEY, LABELS) as again:
        assert not (again.path / files.MANIFEST).exists()
