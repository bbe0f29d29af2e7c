"""The folder of a run: what is in it, what is left of runs that ended early, and the table of many."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fedbench.core import checked, files
from fedbench.core.errors import Damaged, FedbenchError, FolderInUse
from fedbench.core.files import as_csv, as_json, as_npz, read_csv, replacing, write_bytes, write_csv
from fedbench.data.partition import Partition
from fedbench.data.partitions.file import read_arrays
from fedbench.engine import checkpoint
from fedbench.engine.history import History, Labels, Record
from fedbench.metrics import Tally
from fedbench.papers.measures import ArrayMean, Clients
from fedbench.runs import fingerprint
from fedbench.runs.folder import RESULT, RunFolder, files_of
from fedbench.runs.run import Run, collect, reaches
from tests.helpers.damage import DAMAGES, tried
from tests.helpers.runs import deterministic
from tests.helpers.tiers import sampled
from tests.runs.toys import KEY, LABELS, a_history, a_record, names, write_all


class TestRunFolder:
    def test_other_runs_folders_may_go_while_they_are_looked_for(self, tmp_path, monkeypatch):
        """As those do that end without a file, for want of their samples."""

        def gone(*_: object) -> None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")

        (tmp_path / "digits" / "dir0.1" / "fedavg").mkdir(parents=True)
        monkeypatch.setattr(os, "scandir", gone)
        assert RunFolder(tmp_path, KEY, LABELS).path.name == "seed3-01234567"

    def test_the_life_of_a_run(self, tmp_path):
        folder = RunFolder(tmp_path / "runs", KEY, LABELS)
        assert folder.path == tmp_path / "runs" / "digits" / "dir0.1" / "fedavg" / "seed3-01234567"
        assert folder.status() == "new"
        assert not (tmp_path / "runs").exists()
        row = write_all(folder, a_history())
        assert folder.status() == "finished"
        assert names(folder.path) == [
            "checksums.json",
            "clients.csv",
            "collaboration.csv",
            "collaboration.npz",
            "config.yaml",
            "environment.json",
            "model.safetensors",
            "partition.csv",
            "partition.npz",
            "result.json",
            "rounds.csv",
            "tallies.npz",
        ]
        found = folder.result()
        assert found == {key: None if value != value else value for key, value in row.items()}
        assert folder.scores()["acc"].tolist() == [0.6, 0.5]
        assert folder.environment() == json.loads((folder.path / "environment.json").read_text()) != {}
        assert checkpoint.read_checkpoint(folder.path / "model.safetensors", key=KEY)[0]["w"].tolist() == [1, 1]
        with np.load(folder.path / "collaboration.npz") as arrays:
            assert arrays["W"].tolist() == [[1.0, 0.0], [1 / 3, 2 / 3]]
        with np.load(folder.path / "tallies.npz") as arrays:
            assert arrays["tally/local/correct"][2].tolist() == [8.0, 2.0]
        rows = read_csv(folder.path / "rounds.csv")
        for written, original in zip(rows, a_history().rows(), strict=True):
            assert {key: float(value) for key, value in written.items()} == original
        folder.clear()
        assert folder.status() == "new"
        assert folder.environment() == {}, "a run that begins here may be another machine's"
        assert not list(folder.path.glob("collaboration.*")), "the next run may have none"

    def test_two_runs_differ_in_nothing_but_timings(self, tmp_path):
        folders = [RunFolder(tmp_path / name, KEY, LABELS) for name in "ab"]
        for pace, folder in enumerate(folders):
            write_all(folder, History([a_record(done, seconds=0.1 + pace) for done in range(3)]))
        a, b = (folder.path for folder in folders)
        for name in ("clients.csv", "collaboration.csv", "collaboration.npz", "tallies.npz", "config.yaml"):
            assert (a / name).read_bytes() == (b / name).read_bytes(), name
        one, two = folders[0].result(), folders[1].result()
        assert one != two
        assert deterministic(one) == deterministic(two)
        left, right = (read_csv(path / "rounds.csv") for path in (a, b))
        assert [deterministic(row) for row in left] == [deterministic(row) for row in right]

    def test_a_run_that_wrote_nothing_leaves_nothing(self, tmp_path):
        with pytest.raises(RuntimeError), RunFolder(tmp_path / "runs", KEY, LABELS):
            raise RuntimeError
        assert names(tmp_path) == []

    def test_left_over_files_of_a_killed_writer_are_removed(self, tmp_path):
        folder = RunFolder(tmp_path, KEY, LABELS)
        folder.path.mkdir(parents=True)
        (folder.path / ".tmp-99-ab-rounds.csv").write_text("half")
        (folder.path / "rounds.csv").write_text("whole")
        with folder:
            assert names(folder.path) == [".lock", "rounds.csv"]

    def test_killed_between_result_and_checkpoint(self, tmp_path):
        folder = RunFolder(tmp_path, KEY, LABELS)
        with folder:
            checkpoint.write_checkpoint(folder.checkpoint, {}, {}, key=KEY)
            write_bytes(folder.path / "result.json", as_json({"key": KEY}))
        assert folder.status() == "finished"
        with folder:
            assert not folder.checkpoint.exists()

    def test_unusable_results_are_refused_in_one_line(self, tmp_path):
        folder = RunFolder(tmp_path, KEY, LABELS)
        folder.path.mkdir(parents=True)
        for text, reason in (
            ("{", r"result\.json is damaged \(it is no JSON\); .*rm -r"),
            ("[]", "it holds no object"),
            ('{"key": "fedcba98"}', "another configuration"),
        ):
            (folder.path / "result.json").write_text(text)
            with pytest.raises(FedbenchError, match=reason):
                folder.result()
        (folder.path / "result.json").write_text(json.dumps({"key": KEY, "clients": 2}))
        for text in ("", "client,acc\n", "client,score\n0,1\n", "client,acc\n0,much\n", "client,acc\n0,1\n"):
            (folder.path / "clients.csv").write_text(text)
            with pytest.raises(Damaged, match=r"clients.csv is damaged .*; .*rm -r"):
                folder.scores()

    def test_any_label_becomes_a_folder_inside_the_runs(self, tmp_path):
        for seed, name in enumerate(("../../etc", "a/b", "..", ".", "", "x" * 300, "nul\0", "ü [red]")):
            labels = Labels(name, name, "m", name, "p", seed)
            path = RunFolder(tmp_path, KEY, labels).path
            assert path.resolve().is_relative_to(tmp_path)
            assert len(path.relative_to(tmp_path).parts) == 4
            path.mkdir(parents=True)

    def test_a_matrix_that_is_not_square(self, tmp_path):
        with RunFolder(tmp_path, KEY, LABELS) as folder, pytest.raises(ValueError, match=r"\[N, N\]"):
            folder.write_collaboration(np.ones((2, 3)))


class TestCollect:
    def test_finished_runs_of_several_folders(self, tmp_path, caplog):
        history = a_history()
        for name, seed in (("one", 0), ("one", 1), ("two", 2)):
            labels = Labels("digits", "homo", "mlp", "fedavg", "quick", seed)
            write_all(RunFolder(tmp_path / name, f"{seed}{KEY}", labels), history)
        with RunFolder(tmp_path / "one", "unfinished", LABELS) as folder:
            checkpoint.write_checkpoint(folder.checkpoint, {}, {})
        broken = tmp_path / "two" / "result.json"
        broken.write_text("{")
        broken.with_name("config.yaml").touch()
        with caplog.at_level(logging.WARNING, "fedbench"):
            table = collect([tmp_path / "one", tmp_path / "two", tmp_path / "one"])
        told = [each for each in caplog.records if "two/result.json" in each.getMessage()]
        assert len(told) == 1
        assert table["seed"].tolist() == [0, 1, 2]
        assert table["acc"].tolist() == [pytest.approx(55.0)] * 3
        assert table["ipr"].isna().all()
        assert table.select_dtypes("number").shape[1] > 15
        first = table.iloc[0]["path"]
        assert collect([f"{first}/result.json"])["key"].tolist() == [f"0{KEY}"]

    def test_nothing_and_nowhere(self, tmp_path):
        assert isinstance(collect([tmp_path]), pd.DataFrame)
        assert collect([tmp_path]).empty
        with pytest.raises(FedbenchError, match="no such folder"):
            collect([tmp_path / "missing"])

    def test_a_file_that_is_no_result_is_no_run(self, tmp_path):
        (tmp_path / "notes.txt").touch()
        with pytest.raises(FedbenchError, match=r"^no runs at .*notes\.txt: there is no such folder$"):
            collect([tmp_path / "notes.txt"])


class TestLock:
    def test_a_second_process_is_turned_away_and_a_dead_one_is_not_in_the_way(self, tmp_path):
        folder = RunFolder(tmp_path, KEY, LABELS)
        # The holder forks a worker that outlives it, as a killed run's worker processes do.
        holder = (
            "import os, sys, time\n"
            "from fedbench.runs.folder import RunFolder\n"
            "from fedbench.engine.history import Labels\n"
            f"folder = RunFolder({str(tmp_path)!r}, {KEY!r}, {LABELS!r}).__enter__()\n"
            "child = os.fork()\n"
            "if child == 0:\n    print(os.getpid(), flush=True); os.close(1)\n"  # forked, and past what fork calls
            "time.sleep(60)\n"
        )
        process = subprocess.Popen([sys.executable, "-c", holder], stdout=subprocess.PIPE, text=True)
        child = int(process.stdout.readline())
        try:
            with pytest.raises(FolderInUse, match=f"in use by process {process.pid} on .*; wait") as error:
                folder.__enter__()
            assert "\n" not in str(error.value)
            process.send_signal(signal.SIGKILL)
            process.wait()
            with folder:
                folder.write("config.yaml", b"seed: 3\n")
        finally:
            os.kill(child, signal.SIGKILL)
            process.stdout.close()

    def test_the_lock_holds_inside_a_process_too_and_ends_with_the_block(self, tmp_path):
        with RunFolder(tmp_path, KEY, LABELS):
            with pytest.raises(FedbenchError, match="in use") as error:
                RunFolder(tmp_path, KEY, LABELS).__enter__()
            assert not isinstance(error.value, FolderInUse), "waiting for oneself would never end"
            with ThreadPoolExecutor() as pool, pytest.raises(FolderInUse, match="in use"):  # another thread may wait
                pool.submit(RunFolder(tmp_path, KEY, LABELS).__enter__).result()
            with RunFolder(tmp_path, "another key", LABELS):
                pass
        with RunFolder(tmp_path, KEY, LABELS):
            pass

    @pytest.mark.parametrize("reason", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
    def test_without_locks_on_the_file_system_a_file_holds_it(self, reason, tmp_path, monkeypatch):
        def flock(*_):
            raise OSError(reason, os.strerror(reason))

        monkeypatch.setattr(fcntl, "flock", flock)
        with RunFolder(tmp_path, KEY, LABELS) as folder:
            folder.write("config.yaml", b"x: 1\n")
            with pytest.raises(FedbenchError, match=r"in use by process .* its disk has no locks"):
                RunFolder(tmp_path, KEY, LABELS).__enter__()
        with RunFolder(tmp_path, KEY, LABELS):
            pass

    def test_a_lock_that_is_a_link_is_refused_and_its_target_untouched(self, tmp_path):
        folder = RunFolder(tmp_path / "runs", KEY, LABELS)
        folder.path.mkdir(parents=True)
        target = tmp_path / "precious"
        for text in ("keep me", None):  # with a target, and without
            target.unlink() if text is None else target.write_text(text)
            (folder.path / ".lock").unlink(missing_ok=True)
            (folder.path / ".lock").symlink_to(target)
            with pytest.raises(FedbenchError, match=r"\.lock: it is a symbolic link; remove it"):
                folder.__enter__()
            assert (target.read_text() if target.exists() else None) == text

    @pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EDQUOT])
    def test_a_lock_that_cannot_be_written_is_one_line(self, reason, tmp_path, monkeypatch):
        def full(*_):
            raise OSError(reason, os.strerror(reason))

        folder = RunFolder(tmp_path, KEY, LABELS)
        monkeypatch.setattr(os, "ftruncate", full)
        with pytest.raises(FedbenchError, match=rf"cannot lock .*\.lock: {os.strerror(reason)}"):
            folder.__enter__()
        monkeypatch.undo()
        with folder:
            pass


DAMAGED_KEY = "0123456789abcdef"
DAMAGED_LABELS = Labels("digits", "homo", "mlp", "fedavg", "quick", 0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A finished run, every kind of file in it."""
    folder = RunFolder(tmp_path_factory.mktemp("runs"), DAMAGED_KEY, DAMAGED_LABELS)
    counts = [(3, 4, 1), (5, 5, 2)]
    records = [
        Record(n, {"local": Tally(np.array(each), np.array([6, 6, 6]))}, n * 10, n * 20, {"train": n * 1.5})
        for n, each in enumerate(counts)
    ]
    samples = [np.arange(3 * i, 3 * i + 3) for i in range(3)]
    nothing = [np.zeros(0, dtype=np.int64)] * 3
    partition = Partition("homo", 0, "digits-0", 2, samples, nothing, [each + 9 for each in samples])
    with folder:
        folder.write("config.yaml", b"method: {name: fedavg, mu: 0.125}\nprotocol: {rounds: 2}\n")
        folder.write("environment.json", as_json({"command": ["fedbench"]}))
        folder.write_partition(partition, [{"client": 0, "train": 3}])
        folder.write_history(History(records))
        folder.write("clients.csv", as_csv([{"client": i, "acc": 12.5 * i, "gain": 0.5} for i in range(3)]))
        folder.write_collaboration(np.eye(3))
        folder.write("arrays.npz", as_npz({"distances": np.arange(9.0).reshape(3, 3)}))
        models = {"server/w": torch.arange(6.0).reshape(2, 3)}
        folder.finish({"acc": 12.5, "ipr": float("nan"), "clients": 3, "seed": 0}, models)
    return folder


def _rows(folder: RunFolder) -> Any:
    return collect([folder.path], config=True).to_dict("records")


READERS: dict[str, Callable[[RunFolder], Any]] = {
    "result.json": lambda run: run.result(),
    "clients.csv": lambda run: (run.scores(), Clients(0, 1).value(Run(run.path), None)),
    "rounds.csv": lambda run: (Run(run.path).rounds, reaches(Run(run.path), 0.8, "local")),
    "tallies.npz": lambda run: Run(run.path).tallies,
    "arrays.npz": lambda run: ArrayMean("distances").value(Run(run.path), None),
    "collaboration.npz": lambda run: Run(run.path).W,
    "partition.npz": lambda run: read_arrays(run.path / "partition.npz"),
    "config.yaml": lambda run: files_of(run.path).read("config.yaml"),
    "model.safetensors": lambda run: checkpoint.read_checkpoint(run.path / "model.safetensors"),
    checked.MANIFEST: lambda run: (run.result(), run.scores(), files_of(run.path).npz("tallies.npz")),
}
PARTLY = (
    checked.MANIFEST,
    "model.safetensors",
)  # have bytes that say nothing, as spaces that fill up a header


@pytest.mark.parametrize("name", sampled(READERS, every=4))
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
        run.scores()
    manifest = (run.path / checked.MANIFEST).read_bytes()
    (run.path / checked.MANIFEST).unlink()  # as of an earlier version
    with pytest.raises(Damaged, match=r"clients\.csv is damaged \(it does not hold as many clients as result\.json"):
        run.scores()
    file.write_bytes(whole)
    (run.path / checked.MANIFEST).write_bytes(manifest)


def test_a_run_of_an_earlier_version_is_taken_as_it_is_and_said_so(
    run: RunFolder, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checked, "_told", [])
    before = run.result(), run.scores()["acc"].tolist()
    manifest = (run.path / checked.MANIFEST).read_bytes()
    (run.path / checked.MANIFEST).unlink()
    caplog.set_level(logging.WARNING)
    assert (run.result(), run.scores()["acc"].tolist()) == before
    assert [record.message.count("checksums.json") for record in caplog.records] == [1]
    (run.path / checked.MANIFEST).write_bytes(manifest)


def test_a_run_killed_just_before_its_result_starts_clean(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, DAMAGED_KEY, DAMAGED_LABELS)
    with folder:
        folder.write("clients.csv", as_csv([{"client": 0, "acc": 1.0}]))
        folder.finish({"clients": 1})
    (folder.path / RESULT).unlink()
    with RunFolder(tmp_path, DAMAGED_KEY, DAMAGED_LABELS) as again:
        assert not (again.path / checked.MANIFEST).exists()


# Files are written whole or not at all, digit by digit, beside the versions and the commit they come from.


class TestFiles:
    def test_a_writer_that_fails_leaves_the_old_file_and_no_other(self, tmp_path):
        path = tmp_path / "a.csv"
        write_csv(path, [{"x": 1}])
        with pytest.raises(FileNotFoundError), replacing(path) as temporary:  # noqa: PT012
            temporary.write_text("half")
            (tmp_path / "missing").read_text()
        assert path.read_text() == "x\n1\n"
        assert names(tmp_path) == ["a.csv"]

    def test_csv_floats_are_read_back_exactly(self, tmp_path):
        values = [0.1 + 0.2, 1 / 3, 5e-324, 1e300, np.float64(2) / 3, -0.0, math.inf]
        write_csv(tmp_path / "a.csv", [{"x": value} for value in values])
        lines = (tmp_path / "a.csv").read_text().splitlines()[1:]
        assert [float(line).hex() for line in lines] == [float(value).hex() for value in values]

    def test_csv_columns_are_the_union_and_text_is_quoted(self, tmp_path):
        write_csv(tmp_path / "a.csv", [{"x": 1}, {"y": 'a,"b"\n', "x": None}])
        assert read_csv(tmp_path / "a.csv") == [{"x": "1", "y": ""}, {"x": "", "y": 'a,"b"\n'}]

    def test_text_that_looks_like_a_number_stays_text(self):
        """Hashes of digits, or with one e, and names that pandas takes for a missing value; empty is missing."""
        words = ["577465436624", "4e9580300111", "012345678901", "1e5", "nan", "NA", "None", "-0", "true", ""]
        for word in words:
            rows = [{"key": word, "acc": 0.1 + 0.2, "ipr": math.nan, "count": 3}] * 2
            frame = files.frame_of(as_csv(rows), ["key", "not there"])
            assert frame["key"].fillna("").tolist() == [word, word]
            assert frame["acc"].tolist() == pytest.approx([0.3, 0.3])
            assert frame["ipr"].isna().all()
            assert frame["count"].tolist() == [3, 3]

    def test_json_is_standard(self):
        text = as_json({"a": math.nan, "b": [math.inf, 1.5], "c": {"d": np.float64("nan")}})
        assert json.loads(text, parse_constant=pytest.fail) == {"a": None, "b": [None, 1.5], "c": {"d": None}}


class TestEnvironment:
    def test_names_the_versions(self):
        found = fingerprint.environment()
        assert found["version_torch"] == torch.__version__
        assert found["command"] == sys.argv
        assert found["threads"] == torch.get_num_threads()
        json.dumps(found)

    def test_commit_only_of_the_checkout_itself(self, tmp_path):
        def git(*arguments):
            identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
            subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)

        package = tmp_path / "fedbench"
        installed = tmp_path / "venv" / "fedbench"
        for folder in (package, installed):
            folder.mkdir(parents=True)
            (folder / "a.py").write_text("1")
        assert fingerprint.source_commit(package) == ("", False)
        git("init")
        table = tmp_path / "results" / "table.md"
        table.parent.mkdir()
        table.write_text("before")
        git("add", "fedbench", "results")
        git("commit", "-m", "x")
        commit, dirty = fingerprint.source_commit(package)
        assert len(commit) == 40
        assert not dirty
        table.write_text("after")
        assert fingerprint.source_commit(package) == (commit, False), "a result is no code"
        (package / "a.py").write_text("2")
        assert fingerprint.source_commit(package) == (commit, True)
        assert fingerprint.source_commit(installed) == ("", False)
