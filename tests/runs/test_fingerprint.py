"""A result is what made it: of other samples it is another run, of other code it is not shown without a word."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedbench.core.errors import Stale
from fedbench.runs import execution, fingerprint
from fedbench.runs.config import RunConfig, run_key
from tests.helpers.codes import PARTS, edit
from tests.helpers.labelled_formats import write_labelled
from tests.helpers.runs import config, interrupt_after

TRAIN, TEST = (np.arange(n) % 10 for n in (300, 100))


pytestmark = pytest.mark.usefixtures("fresh_codes")


def of_files(tmp_path: Path, name: str, shift: int, *overrides: str) -> RunConfig:
    """A run on a data set in real files, whose labels are `shift`ed."""
    root = tmp_path / name
    if not root.exists():
        write_labelled("mnist", root, (TRAIN + shift * (TRAIN % 2)) % 10, TEST)
    data = ["dataset=mnist", f"dataset.root={root}", "dataset.partial=true", "dataset.limit=null"]
    return config(tmp_path / "runs", *data, "protocol.rounds=2", *overrides)


def test_other_samples_make_another_run(tmp_path: Path) -> None:
    """Two folders of files under one name: neither the result nor Local of one is shown for the other."""
    runs = [of_files(tmp_path, name, shift, "method=fedavg") for name, shift in (("a", 0), ("b", 3))]
    assert run_key(runs[0]) == run_key(runs[1])
    first, second = (execution.execute(run) for run in runs)
    assert first.folder != second.folder
    assert first.row["data"] != second.row["data"]
    locals_ = {execution.folder_of(run.local).path for run in runs}
    assert len(locals_) == 2
    assert all((folder / "result.json").is_file() for folder in locals_)


def test_a_run_on_replaced_files_does_not_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBENCH_CACHE", str(tmp_path / "cache"))
    run = of_files(tmp_path, "a", 0, "method=local", "checkpoint.rounds=1")
    with monkeypatch.context() as patch:
        interrupt_after(patch, 1)
        with pytest.raises(KeyboardInterrupt):
            execution.execute(run)
    before = execution.folder_of(run)
    assert before.status() == "partial"
    shutil.rmtree(tmp_path / "a")
    after = execution.folder_of(of_files(tmp_path, "a", 3, "method=local", "checkpoint.rounds=1"))
    assert after.path != before.path
    assert after.status() == "new"


def test_a_result_is_shown_where_its_data_are_gone(tmp_path: Path) -> None:
    run = of_files(tmp_path, "a", 0, "method=local")
    made = execution.execute(run)
    shutil.rmtree(tmp_path / "a")
    assert execution.execute(run).row == made.row


@pytest.mark.parametrize("part", PARTS)
def test_a_result_of_other_code_is_shown_with_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    run = config(tmp_path, "method=local")
    first = execution.execute(run)
    assert execution.execute(run).row == first.row
    assert not caplog.records
    edit(monkeypatch, part)
    with caplog.at_level(logging.WARNING, "fedbench"):
        assert execution.execute(run).row == first.row
    (record,) = caplog.records
    assert f"was made by other code ({part} changed since); stale=rerun makes it again" in record.getMessage()
    with pytest.raises(Stale, match=f"{part} changed since.*stale=rerun makes it again, stale=show keeps it"):
        execution.execute(run.changed(stale="error"))
    again = execution.execute(run.changed(stale="rerun"))
    assert again.row["code"] != first.row["code"]
    assert again.row["score"] == first.row["score"]
    caplog.clear()
    execution.execute(run.changed(stale="error"))  # it is of today's code now
    assert not caplog.records


def test_a_stale_local_is_told_and_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    execution.execute(config(tmp_path, "method=local"))
    edit(monkeypatch, "engine")
    with caplog.at_level(logging.WARNING, "fedbench"):
        execution.execute(config(tmp_path, "method=fedavg"))
    assert ["local" in record.getMessage() for record in caplog.records] == [True]
    with pytest.raises(Stale, match="local"):
        execution.execute(config(tmp_path, "method=ditto", "stale=error"))
    execution.execute(config(tmp_path, "method=ditto", "stale=rerun"))
    execution.execute(config(tmp_path, "method=ditto", "stale=error"))


def test_a_checkpoint_of_other_code_goes_on_with_a_word_and_stays_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = config(tmp_path, "method=local", "checkpoint.rounds=1")
    with monkeypatch.context() as patch:
        interrupt_after(patch, 1)
        with pytest.raises(KeyboardInterrupt):
            execution.execute(run)
    edit(monkeypatch, "method")
    with pytest.raises(Stale, match="was begun by other code"):
        execution.execute(run.changed(stale="error"))
    with caplog.at_level(logging.WARNING, "fedbench"):
        row = execution.execute(run).row
    assert ["was begun by other code" in record.getMessage() for record in caplog.records] == [True]
    assert fingerprint.changed(row["code"], fingerprint.code_of(run)) == ["method"]


def test_codes_that_give_the_same_numbers_are_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = config(tmp_path / "runs", "method=local")
    first = execution.execute(run).row["code"]
    edit(monkeypatch, "engine")
    old, new = (dict(part.split(":") for part in code.split())["engine"] for code in (first, fingerprint.code_of(run)))
    same = tmp_path / "same.csv"
    same.write_text(f"part,old,new,reason\nengine,{old},middle,moved\nengine,middle,{new},renamed\n")
    monkeypatch.setattr(fingerprint, "SAME_NUMBERS", same)
    fingerprint._same.cache_clear()
    assert fingerprint.changed(first, fingerprint.code_of(run)) == []
    execution.execute(run.changed(stale="error"))
    assert not caplog.records


def test_what_is_in_the_row_and_the_folder(tmp_path: Path) -> None:
    run = config(tmp_path, "method=fedcollab", "method/base=ditto", "method.discriminator.rounds=1")
    result = execution.execute(run)
    row = json.loads((result.folder / "result.json").read_text())
    assert [part.partition(":")[0] for part in row["code"].split()] == list(PARTS)
    assert result.folder.name == f"seed0-{run_key(run)[:8]}-{row['data'][:6]}"
    assert (result.folder / "code.txt").read_text().strip() == row["code"]


def test_a_method_inside_another_counts() -> None:
    """FedCollab over Ditto is made by Ditto's code too, FedCollab over FedAvg is not."""
    plain, inside = (
        dict(part.split(":") for part in fingerprint.code_of(config(Path("runs"), *chosen)).split())
        for chosen in (["method=fedcollab"], ["method=fedcollab", "method/base=ditto"])
    )
    assert plain["method"] != inside["method"]
    assert {k: v for k, v in plain.items() if k != "method"} == {k: v for k, v in inside.items() if k != "method"}
