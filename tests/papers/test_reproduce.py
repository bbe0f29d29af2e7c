"""`python -m fedbench reproduce`, from the command line to the files, on digits."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedbench.cli import program
from fedbench.config.compose import compose
from fedbench.config.messages import INCOMPLETE
from fedbench.core.errors import FolderInUse
from fedbench.papers import reproduce, spec, store
from fedbench.papers.selection import Selection
from fedbench.runs.config import RunConfig, resolve
from fedbench.runs.execution import execute
from tests.helpers.tiers import sampled

SMALL = ["table=fedcollab_t1", "scale=smoke", "substitute=digits", "columns=1", "rows=Local,FedAvg", "jobs=1"]


def run(tmp_path: Path, *more: str) -> int:
    return program.main(
        ["reproduce", *SMALL, f"results={tmp_path / 'results'}", f"runs_dir={tmp_path / 'runs'}", *more]
    )


def filled(tmp_path: Path) -> store.TableResult:
    (folder,) = store.table_folders(tmp_path / "results").values()
    return store.read_table(folder)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_runs_what_is_missing_and_fills_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "seeds=2") == 0
    table = filled(tmp_path)
    cell = table.cell("FedAvg", "Label shift", "acc")
    rows = store.read_rows(store.table_folders(tmp_path / "results")["fedcollab_t1/smoke-digits"])
    assert cell.seeds == (0, 1)
    assert list(cell.values) == [float(row["score"]) for row in rows if row["row"] == "FedAvg"]
    assert cell.published is not None
    assert cell.published.mean == 46.64
    assert "digits" in table.title
    assert "smoke" in table.title
    assert math.isnan(table.cell("Local", "Label shift", "ipr").mean)
    # The same runs by themselves give the same numbers.
    overrides = ["method=fedavg", "dataset=digits", "partition=label_shift", "model=mlp"]
    alone = ["protocol=fedcollab_label_shift", "protocol.rounds=2", "protocol.eval_every=2", "seed=1"]
    row = execute(resolve(compose([*overrides, *alone, f"runs_dir={tmp_path / 'other'}"]))).row
    assert row["score"] == cell.values[1]

    capsys.readouterr()
    assert run(tmp_path, "seeds=2") == 0
    said = capsys.readouterr().out
    assert "4 finished, 0 failed, 0 to do" in said
    assert "\ncomplete: 2 of 2 cells asked for are in " in said
    clients = store.read_arrays(store.table_folders(tmp_path / "results")["fedcollab_t1/smoke-digits"], store.CLIENTS)
    assert sorted(clients) == [f"{row}|Label shift|{seed}" for row in ("FedAvg", "Local") for seed in (0, 1)]
    assert clients["FedAvg|Label shift|1"].mean() == pytest.approx(cell.values[1], rel=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_run_that_another_process_is_at_is_no_failure_and_is_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(_: RunConfig) -> None:
        raise FolderInUse("in use by process 1")

    with monkeypatch.context() as patch:
        patch.setattr("fedbench.runs.execution.execute", taken)
        assert run(tmp_path) == INCOMPLETE
    said = capsys.readouterr()
    assert said.err.count("not finished: all 2 cells: another process is running it") == 1
    assert "incomplete: 0 of 2 cells asked for are in " in said.out
    assert ", 2 failed or not finished" in said.out
    assert run(tmp_path) == 0, "it is tried again without retry=true"


def test_a_table_without_a_cell_is_refused_and_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedbench.papers.plan._lacking", lambda *_: "data missing (run this to get it)")
    assert run(tmp_path) == 2
    assert "can be filled here: not run: data missing (run this to get it)" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


def test_dry_run_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "--dry-run") == 0
    out, err = capsys.readouterr()
    assert err == "timing the runs on this machine ...\n"
    assert "2 to do" in out
    for word in ("time", "memory", "disk"):
        assert f"\n{word}: about" in out
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "results").exists()


def test_what_no_outcome_could_decide_is_said_before_it_is_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedbench.papers.plan._lacking", lambda *_: "data missing (run this to get it)")

    def told(*more: str, table: str = "fedcollab_t3") -> list[str]:
        program.main(["reproduce", f"table={table}", f"results={tmp_path}", "--dry-run", *more])
        lines = " ".join(capsys.readouterr().out.split()).split("undecidable with these seeds, whatever the outcome: ")
        return [line.partition(" could decide")[0] for line in lines[1:]]

    some = "2 cells (Ignore quantities / Label shift; Ignore distances / Label shift)"
    assert told() == [f"IPR % of {some}; 9 to 19 seeds on both sides"]
    counts = {"Acc %": "2 seeds", "IPR %": "3 to 19 seeds on both sides", "RSD": "2 seeds"}
    assert told("seeds=1") == [f"{label} of all 3 cells; {count}" for label, count in counts.items()]
    assert told("scale=quick") == [], "no verdicts there"
    coarse = "Similarity of 1 cell (DataSimilarity / i and i'); no number of seeds on both sides"
    assert told("seeds=3", table="pfedsim_t2") == [coarse], "1 as printed leaves no room"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_column_whose_data_is_missing_leaves_the_table_incomplete(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons = {"Feature shift": "data missing (run this to get it)"}
    monkeypatch.setattr("fedbench.papers.plan._lacking", lambda _, column, __: reasons.get(column.label, ""))
    assert run(tmp_path, "columns=1,2", "rows=Local") == INCOMPLETE
    assert "incomplete: 1 of 2 cells asked for are in " in (said := capsys.readouterr().out)
    assert ", 1 cannot be run here" in said
    assert run(tmp_path, "rows=Local") == 0, "the other column is not asked for"


def test_a_mean_is_missing_as_long_as_one_of_its_parts_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = spec.load_spec("fedcollab_t1")
    mean = spec.ColumnSpec("both", published={"dataset": "none"}, mean=("Label shift", "Feature shift"))
    monkeypatch.setattr(spec, "load_spec", lambda _: dataclasses.replace(table, columns=(mean, *table.columns)))
    monkeypatch.setattr(reproduce, "make_runs", lambda *_, **__: None)
    monkeypatch.setattr("fedbench.papers.estimate.estimate_lines", lambda *_: [])
    assert run(tmp_path, "rows=Local") == INCOMPLETE
    said = capsys.readouterr().out
    assert "\n3 cells, 2 runs of seeds 0: " in said
    assert "incomplete: 0 of 3 cells asked for are in " in said


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_failed_cell_has_its_reason_and_does_not_stop_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["rows=FedAvg,Ditto", "protocol.optimizer.lr=1e30"]
    assert run(tmp_path, *more) == INCOMPLETE
    table = filled(tmp_path)
    for row in ("FedAvg", "Ditto"):
        cell = table.cell(row, "Label shift", "acc")
        assert cell.values == ()
        assert "Diverged" in cell.reason
    capsys.readouterr()
    run(tmp_path, *more)
    said = capsys.readouterr()
    assert "0 to do" in said.out  # it would fail again
    assert all(line.endswith("; retry=true tries it again") for line in said.err.splitlines() if "failed: " in line)
    assert "; retry=true tries it again\n" in said.err
    run(tmp_path, *more, "retry=true", "--dry-run")
    assert "3 to do" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    sampled(
        [
            (["table=fedcolab_t1"], "fedcollab_t1"),
            (["fedcolab_t1"], "unknown table 'fedcolab_t1'; nearest: fedcollab_t1"),
            (["--dryrun", "fedcollab_t1"], "'--dryrun' is no KEY=VALUE"),
            (["table=fedcollab_t1", "scale=quik"], "quick"),
            (["table=fedcollab_t1", "rows=FedAgv"], "FedAvg"),
            (["table=fedcollab_t1", "nonsense"], "KEY=VALUE"),
            (["table=fedcollab_t1", "seeds=many"], "seeds"),
            (["table=fedcollab_t1", "protocl.rounds=3"], "protocl"),
            (["table=fedcollab_t1", "--dry-run", "seed=3"], "use seeds=[3]"),
            (["table=fedcollab_t1", "--dry-run", "++seed=3"], "use seeds=[3]"),
            (["table=fedcollab_t1", "--dry-run", "force=true"], "stale=rerun"),
            (["scale=quick"], "table"),
            (["table=fedcollab_t1", "--dry-run", "jobs=-2"], "jobs=-2: give the number of runs at once"),
            (["table=fedcollab_t1", "--dry-run", "jobs=4", "launcher=joblib"], "(joblib: launcher.n_jobs)"),
            (["table=fedcollab_t1", "--dry-run", "launcher=jobib"], "unknown hydra/launcher 'jobib'; nearest: joblib"),
            (
                ["table=fedcollab_t1", "--dry-run", "launcher=joblib", "launcher.njobs=2"],
                "nearest: hydra.launcher.n_jobs",
            ),
        ],
        every=3,
    ),
)
def test_wrong_requests_are_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["reproduce", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_a_table_may_be_named_without_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[object]()
    monkeypatch.setattr(reproduce, "reproduce", lambda selection: asked.append(selection) or 0)
    assert [program.main(["reproduce", name, "--dry-run"]) for name in ("fedsac_t1", "table=fedsac_t1")] == [0, 0]
    assert asked[0] == asked[1]


def test_without_a_filled_table_nothing_is_drawn_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["redraw", str(tmp_path / "none")]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith(f"error: nothing is filled below {tmp_path / 'none'}; ")
    assert not any(tmp_path.iterdir())


def test_a_launcher_is_named_in_one_word() -> None:
    words = ["table=fedcollab_t1", "launcher=ray", "launcher.num_gpus=0.5", "hydra.launcher.num_cpus=1"]
    selection, _ = reproduce.select(words)
    assert selection.launcher == ("hydra/launcher=ray", "hydra.launcher.num_gpus=0.5", "hydra.launcher.num_cpus=1")
    assert reproduce.select(["launcher=ray", "fedsac_f1"], reproduce.FIGURE_KEYS)[0].launcher == ("hydra/launcher=ray",)


@pytest.mark.parametrize("name", ["2024_01_15", "2026-11-28", "010", "1e3", "on"])
def test_the_name_of_a_folder_is_no_number(name: str) -> None:
    assert reproduce.select([f"results={name}"])[0].results == name


def test_a_dry_run_says_which_published_values_are_missing() -> None:
    table = spec.load_spec("fedrema_t4")
    assert list(reproduce._mirrored(table)) == []
    assert list(reproduce._mirrored(spec.load_spec("fedrema_t1_open"))) == []  # whose values another table has
    assert list(reproduce._mirrored(spec.load_spec("fedcollab_t1"))) == []  # where Local has no gain over itself
    first, *rest = table.rows
    other = dataclasses.replace(table, rows=(dataclasses.replace(first, label="Mine"), *rest))
    lines = list(reproduce._mirrored(other))
    cells = len(table.columns) * len(table.metrics)
    assert lines[0].startswith(f"no published value: {cells} cells")
    assert lines[1] == "fedrema,T4,cifar10,five_groups_s0.2,Mine,acc,MEAN,STD,"
    assert sum(line.startswith("published, and in no cell") and first.label in line for line in lines) == cells


def test_runs_of_local_which_others_need_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [
        SimpleNamespace(failure="", config=SimpleNamespace(labels={"method": name})) for name in ("fedavg", "local")
    ]
    planned = SimpleNamespace(missing=lambda: jobs, cells=[SimpleNamespace(jobs=jobs)])
    asked: list[Any] = []

    def run_all(waves: Any, launcher: Any, _watch: Any) -> None:
        asked.append((waves, launcher))
        raise InterruptedError  # what follows is the table

    monkeypatch.setattr("fedbench.papers.execute.run_all", run_all)
    monkeypatch.setattr(reproduce, "plan_of", lambda _: (planned, None))
    monkeypatch.setattr(reproduce, "announce", lambda *_: None)
    with pytest.raises(InterruptedError):
        reproduce.reproduce(Selection("toy", jobs=1))
    assert asked == [(([jobs[1]], [jobs[0]]), [])]


@pytest.mark.parametrize(
    ("jobs", "card", "named", "expected"),
    [
        (0, False, (), (["hydra/launcher=joblib", "hydra.launcher.n_jobs=7"], 7)),
        (0, True, (), ([], 1)),
        (1, False, (), ([], 1)),
        (3, True, (), (["hydra/launcher=joblib", "hydra.launcher.n_jobs=3"], 3)),
        (0, False, ("hydra/launcher=ray",), (["hydra/launcher=ray"], 7)),
    ],
)
def test_runs_go_to_the_launcher_that_is_named_or_to_a_process_each(
    jobs: int, card: bool, named: tuple[str, ...], expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many at once as there are cores, on a GPU one, unless it is said."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: card)
    monkeypatch.setattr("fedbench.engine.workers.available_workers", lambda: 7)
    assert reproduce.launcher_of(Selection(overrides=named, jobs=jobs)) == expected
