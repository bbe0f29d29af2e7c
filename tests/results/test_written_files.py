"""Files are written whole or not at all, digit by digit, beside the versions and the commit they come from."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from fedbench.core.files import read_csv, replacing, write_csv, write_json
from fedbench.runs import fingerprint
from tests.results.toys import names


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
