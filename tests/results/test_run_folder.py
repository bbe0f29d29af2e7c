"""The folder of a run: what is in it, what is left of runs that ended early, and the table of many."""

from __future__ import annotations

import json
import logging

import numpy as np
import pandas as pd
import pytest

from fedbench.core.errors import CheckpointError, Damaged, FedbenchError
from fedbench.core.files import read_csv, write_json
from fedbench.engine import checkpoint
from fedbench.engine.history import History, Labels, deterministic
from fedbench.runs.folder import RunFolder
from fedbench.runs.run import collect
from tests.results.toys import KEY, LABELS, a_history, a_record, names, write_all


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
