"""A result is what made it: of other samples it is another run, of other code it is not shown without a word."""

from __future__ import annotations

import ast
import functools
import json
import logging
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

import numpy as np
import pytest

from fedbench.core import source
from fedbench.core.errors import Stale
from fedbench.core.source import Definition
from fedbench.engine.setup import Setup
from fedbench.engine.workers import serve
from fedbench.runs import execution, fingerprint
from fedbench.runs.config import RunConfig
from fedbench.runs.folder import folder_of
from tests.helpers.codes import PARTS, edit
from tests.helpers.labelled_formats import write_labelled
from tests.helpers.runs import config, interrupt_after
from tests.helpers.tiers import tiered

TRAIN, TEST = (np.arange(n) % 10 for n in (300, 100))


pytestmark = pytest.mark.usefixtures("fresh_codes")


def of_files(tmp_path: Path, name: str, shift: int, *overrides: str) -> RunConfig:
    """A run on a data set in real files, whose labels are `shift`ed."""
    root = tmp_path / name
    if not root.exists():
        write_labelled("mnist", root, (TRAIN + shift * (TRAIN % 2)) % 10, TEST)
    data = ["dataset=mnist", f"dataset.root={root}", "dataset.partial=true", "dataset.limit=null"]
    return config(tmp_path / "runs", *data, "protocol.rounds=2", *overrides)


@pytest.mark.slow
def test_other_samples_make_another_run(tmp_path: Path) -> None:
    """Two folders of files under one name: neither the result nor Local of one is shown for the other."""
    runs = [of_files(tmp_path, name, shift, "method=fedavg") for name, shift in (("a", 0), ("b", 3))]
    assert runs[0].key == runs[1].key
    first, second = (execution.execute(run) for run in runs)
    assert first.folder != second.folder
    assert first.row["data"] != second.row["data"]
    locals_ = {folder_of(run.local).path for run in runs}
    assert len(locals_) == 2
    assert all((folder / "result.json").is_file() for folder in locals_)


def test_a_run_on_replaced_files_does_not_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBENCH_CACHE", str(tmp_path / "cache"))
    run = of_files(tmp_path, "a", 0, "method=local", "checkpoint.rounds=1")
    with monkeypatch.context() as patch:
        interrupt_after(patch, 1)
        with pytest.raises(KeyboardInterrupt):
            execution.execute(run)
    before = folder_of(run)
    assert before.status() == "partial"
    shutil.rmtree(tmp_path / "a")
    after = folder_of(of_files(tmp_path, "a", 3, "method=local", "checkpoint.rounds=1"))
    assert after.path != before.path
    assert after.status() == "new"


@pytest.mark.parametrize("damaged", [False, True])
def test_a_result_is_shown_where_its_data_are_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, damaged: bool
) -> None:
    run = of_files(tmp_path, "a", 0, "method=local")
    made = execution.execute(run)
    if damaged:
        for file in (tmp_path / "a").rglob("*-ubyte*"):
            file.write_bytes(b"")
    else:
        shutil.rmtree(tmp_path / "a")
    assert execution.execute(run).row == made.row
    assert "it may be of other samples, as its data cannot be read: " in caplog.text
    assert ("is no idx file" if damaged else "is in none of these folders") in caplog.text


@pytest.mark.slow
def test_of_two_results_whose_data_are_gone_the_one_of_the_path_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDBENCH_DATA", raising=False)  # where MNIST itself may be
    runs = [of_files(tmp_path, name, shift, "method=local") for name, shift in (("a", 0), ("b", 3))]
    made = [execution.execute(run) for run in runs]
    for name in "ab":
        shutil.rmtree(tmp_path / name)
    assert [execution.execute(run).row for run in runs] == [each.row for each in made]
    elsewhere = runs[0].changed(dataset={**runs[0].plain["dataset"], "root": str(tmp_path / "c")})
    assert execution.execute(elsewhere).row == made[1].row, "the last, where the path tells nothing"


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_what_is_in_the_row_and_the_folder(tmp_path: Path) -> None:
    run = config(tmp_path, "method=fedcollab", "method/base=ditto", "method.discriminator.rounds=1")
    result = execution.execute(run)
    row = json.loads((result.folder / "result.json").read_text())
    assert [part.partition(":")[0] for part in row["code"].split()] == list(PARTS)
    assert result.folder.name == f"seed0-{run.key[:8]}-{row['data'][:6]}"
    assert (result.folder / "code.txt").read_text().strip() == row["code"]


def test_a_method_inside_another_counts() -> None:
    """FedCollab over Ditto is made by Ditto's code too, FedCollab over FedAvg is not."""
    plain, inside = (
        dict(part.split(":") for part in fingerprint.code_of(config(Path("runs"), *chosen)).split())
        for chosen in (["method=fedcollab"], ["method=fedcollab", "method/base=ditto"])
    )
    assert plain["method"] != inside["method"]
    assert {k: v for k, v in plain.items() if k != "method"} == {k: v for k, v in inside.items() if k != "method"}


# The hashes of code cover what decides a run's numbers: every function that a run executes is in one, or is named.

SILENT = (  # packages and modules that a run executes and that decide none of its numbers
    "fedbench.config",  # settings, which the run key holds
    *(
        "fedbench.data.dataset",
        "fedbench.data.datasets",
        "fedbench.data.formats",
    ),  # their outcome is hashed itself
    *(f"fedbench.core.{name}" for name in ("cache", "checked", "errors", "files", "locks", "signals", "source")),
    *("fedbench.plots", "fedbench.recorders", "fedbench.runs", "fedbench.engine.history"),
    *(
        f"fedbench.engine.{name}" for name in ("hardware", "timing", "contract")
    ),  # which engine; all give the same numbers
    *("fedbench.engine.recording", "fedbench.data.files", "fedbench.testing"),
    "fedbench.engine.trial",  # a step that is forgotten: it finds what a method refuses
)
CHOOSING = {  # what refuses, or chooses an engine; all give the same numbers
    Definition("fedbench.engine.schedule", "all_steps"),
    Definition("fedbench.engine.setup", "first_round_inputs"),
    Definition("fedbench.engine.stacked", "capture_for"),
    Definition("fedbench.engine.workers", "available_workers"),
    Definition("fedbench.sample_metrics", "check_measures"),  # refuses
    Definition("fedbench.sample_metrics", "known"),
    Definition("fedbench", "__getattr__"),
}


@functools.cache
def spans(file: str) -> list[tuple[int, int, str]]:
    """(first line, last line, name) of the definitions at the top of a file."""
    body = ast.parse(Path(file).read_text()).body
    named = [node for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    return [
        (min(each.lineno for each in (node, *node.decorator_list)), node.end_lineno or 0, node.name) for node in named
    ]


@contextmanager
def traced() -> Iterator[set[Definition]]:
    """Fills the set that it yields with the definitions of ours that are executed, in this process's threads."""
    seen: set[CodeType] = set()
    found: set[Definition] = set()

    def look(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or code in seen:
            return
        seen.add(code)
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] == "fedbench" and code.co_filename != "<string>":  # not a dataclass's own
            for first, last, name in spans(code.co_filename):
                if first <= code.co_firstlineno <= last:
                    found.add(Definition(module, name))

    threading.setprofile(look)
    sys.setprofile(look)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def covered(run: RunConfig) -> set[Definition]:
    """All definitions in the hashes of a run's code."""
    own = {each for part, roots in fingerprint.roots_of(run).items() for each in fingerprint._covered(part, roots)[1]}
    return own if run.local is None else own | covered(run.local)


RUNS = {
    "looped": [
        "method=fedcollab",
        "method/base=ditto",
        "method.discriminator.rounds=2",
        "protocol.augment=[flip]",
    ],
    "workers": ["method=fedsac", "hardware.workers=2", "protocol.optimizer.clip=5"],
    "stacked": [
        "method=fedavg",
        "dataset=synthetic",
        "dataset.size=32",
        "model=lenet5_bn",
        "protocol.optimizer.momentum=0.9",
    ],
}


@pytest.mark.parametrize("engine", tiered(RUNS, quick=["looped"]))
def test_every_function_that_a_run_executes_is_in_a_hash(tmp_path: Path, engine: str) -> None:
    run = config(tmp_path, *RUNS[engine], f"hardware.engine={engine}")
    assert executed_uncovered(run) == set()


@pytest.mark.slow
def test_with_several_kinds_of_client_as_well(tmp_path: Path) -> None:
    run = config(tmp_path, "dataset=captioned", "model=small_pair", "method=fedsac_multimodal", "partition=homo")
    assert executed_uncovered(run) == set()


def executed_uncovered(run: RunConfig) -> set[Definition]:
    """What a run executes, in no hash, beside what is known to be silent."""
    with traced() as executed:
        execution.execute(run)
    loop = {Definition(*name.split(":")) for name in ("fedbench.engine.simulation:Simulation",)}
    assert loop <= executed, "the trace sees something"
    return {
        each
        for each in executed - covered(run) - fingerprint.SILENT - CHOOSING
        if not any(f"{each.module}.".startswith(f"{silent}.") for silent in SILENT)
    }


def test_what_a_worker_process_executes_is_in_the_engines_hash() -> None:
    engine = fingerprint._covered("engine", fingerprint.ENGINE)[1]
    assert {Definition(each.__module__, each.__name__) for each in (serve, Setup)} <= engine


def test_how_code_is_hashed_is_in_no_hash_so_it_may_learn_to_see_more() -> None:
    modules = {each.module for each in fingerprint._covered("engine", fingerprint.ENGINE)[1]}
    assert "fedbench.core.source" not in modules


@pytest.mark.parametrize("name", ["fairness", "report", "_best_val", "clip", "JointTask", "Flip", "History"])
def test_the_engines_hash_covers(name: str) -> None:
    assert name in {each.name for each in source.covered(fingerprint.ENGINE)[1]}
