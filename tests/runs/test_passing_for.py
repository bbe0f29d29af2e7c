"""What may not pass for something else: other samples of the same dates, moved folders, code edited meanwhile."""

from __future__ import annotations

import gzip
import logging
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedbench.core import source
from fedbench.core.errors import FedbenchError
from fedbench.runs import execution, fingerprint
from fedbench.runs.folder import folder_of
from tests.helpers.codes import forget
from tests.helpers.labelled_formats import write_labelled
from tests.helpers.runs import config, interrupt_after

TRAIN, TEST = (np.arange(n) % 10 for n in (300, 100))


pytestmark = pytest.mark.usefixtures("fresh_codes")


@pytest.mark.slow
def test_files_replaced_with_their_dates_kept_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `cp -p`, `rsync -a` and tar do it; the files of MNIST are all as long as each other."""
    monkeypatch.setenv("FEDBENCH_CACHE", str(tmp_path / "cache"))
    data = ["dataset=mnist", f"dataset.root={tmp_path / 'a'}", "dataset.partial=true", "dataset.limit=null"]
    for name, shift in (("a", 0), ("b", 1)):
        write_labelled("mnist", tmp_path / name, (TRAIN + shift) % 10, TEST)
        for file in (tmp_path / name).rglob("*.gz"):
            file.with_suffix("").write_bytes(gzip.decompress(file.read_bytes()))
            file.unlink()
    for file in (tmp_path / "a").rglob("*"):
        os.utime(tmp_path / "b" / file.relative_to(tmp_path / "a"), ns=(1, file.stat().st_mtime_ns))
    before = execution.execute(config(tmp_path / "runs", *data, "method=local"))
    sizes = {file.name: file.stat().st_size for file in (tmp_path / "a").rglob("*") if file.is_file()}
    shutil.copytree(tmp_path / "b", tmp_path / "a", copy_function=shutil.copy2, dirs_exist_ok=True)
    assert sizes == {file.name: file.stat().st_size for file in (tmp_path / "a").rglob("*") if file.is_file()}
    after = execution.execute(config(tmp_path / "runs", *data, "method=local"))
    assert after.row["data"] != before.row["data"]


def test_a_run_s_folder_does_not_pass_for_that_of_other_samples(tmp_path: Path) -> None:
    run = config(tmp_path, "method=local")
    made = execution.execute(run).folder
    other = config(tmp_path, "method=local", "dataset.limit=199")
    shutil.move(made, folder_of(other).path)
    with pytest.raises(FedbenchError, match="belongs to another configuration; delete"):
        execution.execute(other)
    shutil.move(folder_of(other).path, made)
    row = execution.execute(run).row
    renamed = folder_of(run)
    renamed.data = "0" * 12  # as if the samples were others: the folder's name holds six of these digits
    with pytest.raises(FedbenchError, match="was made with other samples; delete"):
        renamed.result()
    assert execution.execute(run).row == row


def test_hashes_that_were_lost_are_no_reason_to_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = config(tmp_path, "method=local", "checkpoint.rounds=1")
    with monkeypatch.context() as patch:
        interrupt_after(patch, 1)
        with pytest.raises(KeyboardInterrupt):
            execution.execute(run)
    file = folder_of(run).path / "code.txt"
    whole = file.read_bytes()
    for damaged in (None, whole[: whole.index(b" engine")], whole.replace(b" ", b"\n", 1), whole[::-1]):
        file.unlink(missing_ok=True)
        if damaged is not None:
            file.write_bytes(damaged)
        assert fingerprint.changed(folder_of(run).code, fingerprint.code_of(run)), damaged
    with caplog.at_level(logging.WARNING, "fedbench"):
        made = execution.execute(run)
    assert "was begun by other code (code.txt changed since)" in caplog.text
    assert made.code_changed == ("code.txt",)
    (made.folder / "code.txt").unlink()
    assert execution.execute(run).code_changed == ("code.txt",), "it stands in the row as well"


def test_code_that_is_edited_while_a_process_runs_is_not_what_made_its_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A notebook: what was imported runs on, whatever the file says; the hash is of the file."""
    run = config(tmp_path, "method=local")
    execution.execute(run)
    assert not caplog.records
    with monkeypatch.context() as patch:
        patch.setattr(source, "BEGAN", source.file_of("fedbench.methods.local").stat().st_mtime - 1)
        with caplog.at_level(logging.WARNING, "fedbench"):
            execution.execute(run)
        assert "the code of method was edited after this process began, which still runs the old code" in caplog.text
        forget()  # as a process that reads the file for the first time now
        again = execution.execute(run.changed(stale="rerun"))
    forget()
    assert "method" in fingerprint.changed(again.row["code"], fingerprint.code_of(run))
    assert "method" in execution.execute(run).code_changed


def test_a_file_from_the_future_was_not_edited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that was set back."""
    definitions = {source.Definition("fedbench.methods.local", "Local")}
    assert not source.edited(definitions)
    monkeypatch.setattr(source, "BEGAN", 0.0)
    assert source.edited(definitions)
    monkeypatch.setattr(source.time, "time", lambda: 1.0)
    assert not source.edited(definitions)
