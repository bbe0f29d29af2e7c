"""What a run leaves behind: history, folder, rows, tables, logs; and what survives interruptions."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import logging
import math
import os
import signal
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from rich.console import Console

from fedbench.core.errors import CheckpointError, Damaged, FedbenchError, FolderInUse
from fedbench.core.files import read_csv, replacing, write_csv, write_json
from fedbench.metrics.accuracy import Tally
from fedbench.results import checkpoint, environment, units
from fedbench.results.console import comparison_table, run_table
from fedbench.results.folder import RunFolder
from fedbench.results.gather import collect
from fedbench.results.history import History, Record, deterministic
from fedbench.results.observer import Labels, Observer, Observers
from fedbench.results.progress import Progress
from fedbench.results.summary import Reading, client_rows, summarise

LABELS = Labels("digits", "dir0.1", "mlp", "fedavg", "quick", 3)
KEY = "0123456789abcdef"


def tally(correct, total):
    return Tally(np.array(correct), np.array(total))


def a_record(done, correct=(6, 1), seconds=0.1, **options):
    tallies = {
        "local": tally(list(correct), [10, 2]),
        "val": tally([done % 3, min(done, 1)], [4, 3]),
        "common": tally([30 + done % 50], [90]),
    }
    spent = {"train": seconds * done, "evaluate": 0.25}
    return Record(done, tallies, 100 * done, 200 * done, options.get("phases", spent), 1.0 / (done + 1))


def a_history():
    scores = [(0, 0), (5, 1), (8, 2), (6, 1)]
    return History([a_record(done, correct) for done, correct in enumerate(scores)])


class TestHistory:
    def test_rows_by_hand(self):
        row = a_history().rows()[3]
        assert row == {
            "round": 3,
            "acc_on_local": pytest.approx(55.0),
            "acc_on_local_pooled": pytest.approx(700 / 12),
            "acc_on_val": pytest.approx(100 / 6),
            "acc_on_val_pooled": pytest.approx(100 / 7),
            "acc_on_common": pytest.approx(3300 / 90),
            "train_loss": 0.25,
            "bytes_up": 300,
            "bytes_down": 600,
            "seconds_train": pytest.approx(0.3),
            "seconds_evaluate": 0.25,
            "seconds_total": pytest.approx(0.55),
        }

    def test_client_rows(self):
        rows = a_history().client_rows()
        assert len(rows) == 8
        assert rows[5] == {
            "round": 2,
            "client": 1,
            "acc_on_local": 100.0,
            "acc_on_val": pytest.approx(100 / 3),
        }

    def test_survives_a_checkpoint_bit_for_bit(self, tmp_path):
        history = a_history()
        odd = {
            "local": tally([0.1 + 0.2, 0], [0.7, 0])
        }  # weighted counts, another set of sets, another phase
        history.add(Record(7, odd, 2**40, 2**62, {"prepare": 1e-9}, math.nan))
        tree, meta = history.state()
        assert {leaf.dtype for leaf in tree.values()} == {torch.int64, torch.float64}
        checkpoint.save(tmp_path / "c", {**tree, "server/w": torch.ones(2)}, {"history": meta})
        loaded, found = checkpoint.load(tmp_path / "c")
        restored = History.restore(loaded, found["history"])
        assert repr(restored.rows()) == repr(history.rows())
        assert repr(restored.client_rows()) == repr(history.client_rows())
        for old, new in zip(history.records, restored.records, strict=True):
            assert old.seconds == new.seconds
            assert list(old.tallies) == list(new.tallies)
            for name in old.tallies:
                assert old.tallies[name].correct.tobytes() == new.tallies[name].correct.tobytes()
                assert old.tallies[name].total.tobytes() == new.tallies[name].total.tobytes()
        restored.add(Record(8, odd, 2**40, 2**62, {}))

    def test_an_empty_history_survives(self):
        assert len(History.restore(*History().state())) == 0

    def test_refuses_disorder(self):
        history = a_history()
        with pytest.raises(ValueError, match="after round 3"):
            history.add(a_record(3))
        with pytest.raises(ValueError, match="bytes went down"):
            history.add(Record(9, {"local": tally([1], [2])}, 0, 10**6, {}))
        with pytest.raises(ValueError, match="at least one tally"):
            history.add(Record(9, {}, 10**6, 10**6, {}))

    def test_reports_use_only_rounds_that_scored_the_set(self):
        history = a_history()
        history.add(Record(4, {"global": tally([1, 2], [4, 4])}, 400, 800, {}))
        assert history.test_sets() == ("local", "global", "common")
        assert history.report("local", "last").rounds.tolist() == [[3, 3]]
        assert history.report("global", "last").rounds.tolist() == [[4, 4]]
        assert history.report("local", "best_val").rounds.tolist() == [[2, 2]]


class TestSummary:
    def test_by_hand(self):
        local = np.array([0.6, 0.75])
        row = summarise(
            LABELS,
            KEY,
            a_history(),
            Reading("best_test"),
            partition_hash="ph",
            local=local,
            versions={"v": "1"},
        )
        assert (row["method"], row["seed"], row["key"], row["partition_hash"]) == ("fedavg", 3, KEY, "ph")
        assert (row["clients"], row["rounds"], row["test_set"], row["v"]) == (2, 3, "local", "1")
        assert (row["report_first"], row["report_last"]) == (2, 2)
        assert row["acc"] == row["score"] == pytest.approx(90.0)
        assert row["acc_pooled"] == pytest.approx(1000 / 12)
        assert row["ipr"] == 100.0
        assert row["rsd"] == pytest.approx(2.5)  # gains 20 and 25
        assert row["acc_last"] == pytest.approx(55.0)
        assert row["acc_best_test"] == pytest.approx(90.0)
        assert row["acc_best_val"] == pytest.approx(90.0)
        assert row["acc_mean_last_5"] == pytest.approx((50 + 90 + 55) / 3)
        assert row["acc_on_common"] == pytest.approx(3300 / 90)
        assert (row["bytes_up"], row["bytes_down"]) == (300, 600)
        assert row["seconds_total"] == pytest.approx(0.55)

    def test_pooled_protocol_scores_pooled(self):
        row = summarise(LABELS, KEY, a_history(), Reading("last", "pooled"), partition_hash="")
        assert row["score"] == row["acc_pooled"] == pytest.approx(700 / 12)
        assert math.isnan(row["ipr"])
        assert math.isnan(row["rsd"])

    def test_per_client_best_validation(self):
        # client 0 is best on validation data at round 2, client 1 first at round 1
        row = summarise(LABELS, KEY, a_history(), Reading("best_val", per_client=True), partition_hash="")
        assert (row["report_first"], row["report_last"]) == (1, 2)
        assert row["acc"] == pytest.approx((80 + 50) / 2)
        assert row["acc_on_common"] == pytest.approx(3200 / 90)  # mean validation accuracy is best at round 2
        rounds = [
            row["round"] for row in client_rows(a_history(), Reading("best_val", per_client=True), sizes={})
        ]
        assert rounds == [2, 1]

    def test_client_rows(self):
        rows = client_rows(
            a_history(),
            Reading("last"),
            sizes={"train": [40, 8], "test": [10, 2]},
            local=np.array([0.5, 0.5]),
        )
        assert rows[0] == {
            "client": 0,
            "size_train": 40,
            "size_test": 10,
            "round": 3,
            "acc": 60.0,
            "acc_local": 50.0,
            "gain": pytest.approx(10.0),
        }
        assert rows[1]["gain"] == 0.0
        alone = client_rows(a_history(), Reading("last"), sizes={})
        assert math.isnan(alone[0]["gain"])


def names(folder):
    return sorted(file.name for file in folder.iterdir())


class Split:
    def save(self, path):
        np.savez(path, a=np.arange(3))


def write_all(folder, history):
    reading = Reading("last")
    with folder:
        folder.write_config("seed: 3\n")
        folder.write_environment(environment.environment())
        folder.write_partition(Split(), [{"client": 0, "train": 5}])
        checkpoint.save(folder.checkpoint, {}, {}, key=folder.key)
        assert folder.status() == "partial"
        folder.write_history(history)
        folder.write_clients(client_rows(history, reading, sizes={"train": [4, 5]}))
        folder.write_collaboration(np.array([[1.0, 0.0], [1 / 3, 2 / 3]]))
        row = summarise(folder.labels, folder.key, history, reading, partition_hash="ph")
        folder.finish(row, {"w": torch.ones(2)})
    return row


class TestRunFolder:
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
        assert folder.accuracies().tolist() == [0.6, 0.5]
        assert checkpoint.load(folder.path / "model.safetensors", key=KEY)[0]["w"].tolist() == [1, 1]
        with np.load(folder.path / "collaboration.npz") as arrays:
            assert arrays["W"].tolist() == [[1.0, 0.0], [1 / 3, 2 / 3]]
        with np.load(folder.path / "tallies.npz") as arrays:
            assert arrays["tally/local/correct"][2].tolist() == [8.0, 2.0]
        rows = read_csv(folder.path / "rounds.csv")
        for written, original in zip(rows, a_history().rows(), strict=True):
            assert {key: float(value) for key, value in written.items()} == original
        folder.clear()
        assert folder.status() == "new"

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

    def test_a_second_process_is_turned_away_and_a_dead_one_is_not_in_the_way(self, tmp_path):
        folder = RunFolder(tmp_path, KEY, LABELS)
        # The holder forks a worker that outlives it, as a killed run's worker processes do.
        holder = (
            "import os, sys, time\n"
            "from fedbench.results.folder import RunFolder\n"
            "from fedbench.results.observer import Labels\n"
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
                folder.write_config("seed: 3\n")
        finally:
            os.kill(child, signal.SIGKILL)
            process.stdout.close()

    def test_the_lock_holds_inside_a_process_too_and_ends_with_the_block(self, tmp_path):
        with RunFolder(tmp_path, KEY, LABELS):
            with pytest.raises(FedbenchError, match="in use") as error:
                RunFolder(tmp_path, KEY, LABELS).__enter__()
            assert not isinstance(error.value, FolderInUse), "waiting for oneself would never end"
            with RunFolder(tmp_path, "another key", LABELS):
                pass
        with RunFolder(tmp_path, KEY, LABELS):
            pass

    @pytest.mark.parametrize("reason", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
    def test_without_locks_on_the_file_system_it_runs_unlocked(self, reason, tmp_path, monkeypatch):
        def flock(*_):
            raise OSError(reason, os.strerror(reason))

        monkeypatch.setattr(fcntl, "flock", flock)
        with RunFolder(tmp_path, KEY, LABELS) as folder, RunFolder(tmp_path, KEY, LABELS):
            folder.write_config("x: 1\n")

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

    def test_a_lock_that_cannot_be_written_is_one_line(self, tmp_path, monkeypatch):
        def full(*_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        folder = RunFolder(tmp_path, KEY, LABELS)
        monkeypatch.setattr(os, "ftruncate", full)
        with pytest.raises(FedbenchError, match=r"cannot lock .*\.lock: No space left on device"):
            folder.__enter__()
        monkeypatch.undo()
        with folder:
            pass

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
            checkpoint.save(folder.checkpoint, {}, {}, key=KEY)
            write_json(folder.path / "result.json", {"key": KEY})
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
                folder.accuracies()

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

    def test_json_is_standard(self, tmp_path):
        write_json(tmp_path / "a.json", {"a": math.nan, "b": [math.inf, 1.5], "c": {"d": np.float64("nan")}})
        text = (tmp_path / "a.json").read_text()
        assert json.loads(text, parse_constant=pytest.fail) == {"a": None, "b": [None, 1.5], "c": {"d": None}}


class TestEnvironment:
    def test_names_the_versions(self):
        found = environment.environment()
        assert found["version_torch"] == torch.__version__
        assert found["command"] == sys.argv
        assert found["threads"] == torch.get_num_threads()
        json.dumps(found)

    def test_commit_only_of_the_checkout_itself(self, tmp_path):
        def git(*arguments):
            identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
            subprocess.run(
                ["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True
            )

        package = tmp_path / "fedbench"
        installed = tmp_path / "venv" / "fedbench"
        for folder in (package, installed):
            folder.mkdir(parents=True)
            (folder / "a.py").write_text("1")
        assert environment.source_commit(package) == ("", False)
        git("init")
        table = tmp_path / "results" / "table.md"
        table.parent.mkdir()
        table.write_text("before")
        git("add", "fedbench", "results")
        git("commit", "-m", "x")
        commit, dirty = environment.source_commit(package)
        assert len(commit) == 40
        assert not dirty
        table.write_text("after")
        assert environment.source_commit(package) == (commit, False), "a result is no code"
        (package / "a.py").write_text("2")
        assert environment.source_commit(package) == (commit, True)
        assert environment.source_commit(installed) == ("", False)


def printed(renderable, width=200):
    stream = io.StringIO()
    Console(file=stream, width=width).print(renderable)
    return stream.getvalue()


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class TestProgress:
    def run(self, console, clock, rounds=25, resumed=0, **options):
        progress = Progress(console, clock=clock, **options)
        progress.start(LABELS, rounds, resumed)
        for name in ("prepare", "train"):
            progress.phase(name)
        for done in range(resumed + 1, rounds + 1):
            clock.now += 2.0
            if done % 5 == 0:
                progress.record(a_record(done))
            progress.advance(done)
        return progress

    def test_plain_lines_about_every_tenth(self):
        stream, clock = io.StringIO(), Clock()
        self.run(Console(file=stream, width=40), clock)
        lines = stream.getvalue().splitlines()
        assert lines[0] == "fedavg seed 3 on digits, dir0.1, mlp: 25 rounds"
        assert lines[1] == "preparing"
        assert [line.split()[1].rstrip(",") for line in lines[2:]] == [
            f"{n}/25" for n in (3, 6, 9, 12, 15, 18, 21, 24, 25)
        ]
        assert lines[2] == "round 3/25, 44.0 s left"
        assert lines[3] == "round 6/25, acc 55.00 % after round 5, 38.0 s left", "nothing was scored since"
        assert lines[6] == "round 15/25, acc 55.00 %, 20.0 s left"
        assert lines[-1] == "round 25/25, acc 55.00 %"

    def test_time_left_of_a_resumed_run_counts_only_its_own_rounds(self):
        stream, clock = io.StringIO(), Clock()
        self.run(Console(file=stream), clock, resumed=20)
        lines = stream.getvalue().splitlines()
        assert "resumed after round 20" in lines[0]
        assert [line.split()[1].rstrip(",") for line in lines[2:]] == ["21/25", "24/25", "25/25"]
        assert lines[2].endswith(", 8.00 s left")

    def test_bar_on_a_terminal(self):
        stream = io.StringIO()
        console = Console(file=stream, width=120, force_terminal=True)
        progress = self.run(console, Clock())
        progress.close()
        text = stream.getvalue()
        for part in ("fedavg seed 3", "25/25", "acc 55.00 %", "train"):
            assert part in text
        assert text.rstrip("\n").endswith("\x1b[?25h")  # the cursor is back
        progress.close()

    def test_none_prints_nothing(self):
        stream = io.StringIO()
        progress = self.run(Console(file=stream), Clock(), mode="none")
        progress.finish(summarise(LABELS, KEY, a_history(), Reading(), partition_hash=""))
        assert stream.getvalue() == ""

    def test_closing_table(self):
        row = summarise(LABELS, KEY, a_history(), Reading(), partition_hash="", local=np.array([0.5, 0.5]))
        row = {**row, "bytes_up": 1_234_567, "seconds_train": 75.2, "variant": "[bold]"}
        text = printed(run_table(row))
        for part in (
            "fedavg",
            "[bold]",
            "seed 3",
            "55.00",
            "58.33",
            "50.00",
            "5.00",
            "1.23 MB",
            "1 min 15 s",
        ):
            assert part in text
        stream = io.StringIO()
        Progress(Console(file=stream, width=100)).finish(row)
        assert "1.23 MB" in stream.getvalue()


def a_row(method, seed, acc, **more):
    row = {"dataset": "digits", "partition": "dir0.1", "model": "mlp", "protocol": "quick", "method": method}
    return row | {"seed": seed, "key": f"{method}{seed}{more}", "acc": acc, "acc_pooled": acc} | more


class TestComparison:
    def cells(self, rows):
        table = comparison_table(rows)
        return [
            [str(cell) for cell in row]
            for row in zip(*(column.cells for column in table.columns), strict=True)
        ]

    def test_mean_and_sample_deviation_over_seeds(self):
        rows = [a_row("fedavg", seed, acc, ipr=50.0, rsd=None) for seed, acc in enumerate((80.0, 82.0, 87.0))]
        assert self.cells(rows) == [
            ["digits, dir0.1, mlp, quick", "", "", "", "", ""],
            ["  fedavg", "3", "83.00 ± 3.61", "83.00 ± 3.61", "50.00 ± 0.00", "-"],
        ]

    def test_best_is_bold_and_ties_as_printed_share_it(self):
        rows = [
            a_row("a", 0, 90.001, ipr=10.0, rsd=3.0),
            a_row("b", 0, 90.002, ipr=20.0, rsd=1.0),
            a_row("c", 0, 80.0, ipr=None, rsd=math.nan),
        ]
        table = comparison_table(rows)
        bold = {
            column.header: [str(cell) for cell in column.cells if getattr(cell, "style", "") == "bold"]
            for column in table.columns
        }
        assert bold["Acc %"] == ["90.00", "90.00"]
        assert bold["IPR %"] == ["20.00"]
        assert bold["RSD pp"] == ["1.00"]

    def test_sections_variants_and_mixtures(self):
        rows = [
            a_row("a", 0, 1.0),
            a_row("a", 0, 1.0),  # the same run collected twice
            a_row("a", 0, 3.0, variant="mu=1"),
            a_row("b", 0, 5.0),
            a_row("b", 0, 6.0, lr=0.1),  # another configuration under the same names
            a_row("a", 0, 7.0, partition="homo"),
        ]
        cells = self.cells(rows)
        assert [row[:3] for row in cells] == [
            ["digits, dir0.1, mlp, quick", "", ""],
            ["  a", "1", "1.00"],
            ["  a mu=1", "1", "3.00"],
            ["  b", "1 (2 runs)", "5.50 ± 0.71"],
            ["digits, homo, mlp, quick", "", ""],
            ["  a", "1", "7.00"],
        ]

    def test_names_are_not_markup(self):
        assert "[red]x[/nope]" in printed(comparison_table([a_row("[red]x[/nope]", 0, 1.0)]))

    def test_nothing(self):
        assert "method" in printed(comparison_table([]))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (1234567, "1.23 MB"),
        (999_999_999, "1.00 GB"),
        (3.2e15, "3200.00 TB"),
    ],
)
def test_human_bytes(value, text):
    assert units.human_bytes(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0.00 s"),
        (9.999, "10.0 s"),
        (59.999, "1 min 00 s"),
        (3599.6, "1 h 00 min"),
        (7384, "2 h 03 min"),
        (math.inf, "-"),
    ],
)
def test_human_seconds(value, text):
    assert units.human_seconds(value) == text


class Recorder(Observer):
    def __init__(self, calls):
        self.calls = calls

    def start(self, labels, rounds, resumed_from):
        self.calls.append(("start", rounds, resumed_from))

    def phase(self, name):
        self.calls.append(("phase", name))

    def advance(self, done):
        self.calls.append(("advance", done))

    def record(self, record):
        self.calls.append(("record", record.round))

    def finish(self, result):
        self.calls.append(("finish", result["key"]))

    def close(self):
        self.calls.append(("close",))


def tell(observer):
    observer.start(LABELS, 3, 1)
    observer.phase("train")
    observer.advance(2)
    observer.record(a_record(2))
    observer.finish({"key": KEY})
    observer.close()


def test_observers_are_told_everything_in_order():
    calls = []
    tell(Observer())
    tell(Observers([Recorder(calls), Observer(), Recorder(calls)]))
    names = [("start", 3, 1), ("phase", "train"), ("advance", 2), ("record", 2), ("finish", KEY), ("close",)]
    assert calls == [name for name in names for _ in range(2)]


class TestCollect:
    def test_finished_runs_of_several_folders(self, tmp_path, caplog):
        history = a_history()
        for name, seed in (("one", 0), ("one", 1), ("two", 2)):
            labels = Labels("digits", "homo", "mlp", "fedavg", "quick", seed)
            write_all(RunFolder(tmp_path / name, f"{seed}{KEY}", labels), history)
        with RunFolder(tmp_path / "one", "unfinished", LABELS) as folder:
            checkpoint.save(folder.checkpoint, {}, {})
        broken = tmp_path / "two" / "result.json"
        broken.write_text("{")
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


def test_a_folder_never_hands_out_a_checkpoint_of_another_configuration(tmp_path):
    mine, other = (RunFolder(tmp_path, "01234567" + end, LABELS) for end in ("aa", "bb"))
    assert mine.path == other.path  # equal in the eight digits that the folder shows
    with mine:
        checkpoint.save(mine.checkpoint, {}, {}, key=mine.key)
    with other, pytest.raises(CheckpointError, match="another configuration"):
        checkpoint.load(other.checkpoint, key=other.key)
