"""Sweeps on the command line: every combination, failures, what varied, where they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig

from fedbench.cli.program import main
from fedbench.config import compose
from fedbench.core.errors import DataMissing
from fedbench.runs import estimate
from fedbench.runs.config import RunConfig, resolve
from fedbench.sweeps import jobs
from fedbench.sweeps.jobs import JobOutcome
from fedbench.sweeps.session import _compare, conclude, markdown, table, tidy, variants
from tests.helpers.runner import FakeRunner
from tests.helpers.toys import ToyAverage

pytestmark = pytest.mark.usefixtures("elsewhere")


def test_sweep_runs_every_combination_and_leaves_no_litter(
    toy: Path, executed: FakeRunner, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-m", "seed=0,1", "method=fedavg", "partition=dir0.1,dir0.5"]) == 0
    ran = [(run.seed, run.labels["partition"]) for run in executed]
    assert sorted(ran) == [(s, p) for s in (0, 1) for p in ("dir0.1", "dir0.5")]
    assert list(elsewhere.iterdir()) == []
    text = capsys.readouterr().out
    assert text.count("50.50 ± 0.71") == 2


def test_a_named_sweep_needs_several_runs(toy: Path, executed: FakeRunner, capsys: pytest.CaptureFixture[str]) -> None:
    """A single run would keep nothing under that name."""
    assert main(["sweep.name=mine"]) == 2
    assert capsys.readouterr().err == "error: sweep.name=mine needs a sweep; add -m: python -m fedbench -m ...\n"
    assert not list(executed)


@pytest.mark.parametrize("axis", ["x", "by"])
def test_an_axis_that_is_not_set_is_refused_before_the_runs(
    axis: str, toy: Path, executed: FakeRunner, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-m", "seed=0,1", "method=fedavg", "sweep.name=mine", f"sweep.{axis}=metod"]) == 2
    assert capsys.readouterr().err == f"error: unknown sweep.{axis} 'metod'; nearest: method\n"
    assert not list(executed)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("sweep.y=accc", "unknown sweep.y 'accc'; nearest: acc"),
        ("sweep.y=method", "unknown sweep.y 'method'"),
        ("sweep.y=acc_on_locl", "unknown sweep.y 'acc_on_locl'; nearest: acc_on_local"),
        ("sweep.y=acc sweep.figure=curves", "unknown sweep.y 'acc'; nearest: acc_on_"),
        (
            "sweep.y=auroc_on_local sweep.figure=curves",
            "sweep.y=auroc_on_local is in no run; add protocol.metrics=[auroc]",
        ),
        ("sweep.y=acc_best_val", "sweep.y=acc_best_val is in no run; add protocol.test.val_fraction=0.2"),
        ("sweep.y=acc_on_global", "sweep.y=acc_on_global is in no run; add protocol.test.sets=both"),
        ("sweep.y=acc_on_common", "sweep.y=acc_on_common is in no run; add protocol.test.sets=common"),
        ("sweep.y=acc_unseen_5", "sweep.y=acc_unseen_5 is in no run; add protocol.unseen=1"),
        ("sweep.y=ipr reference=none", "sweep.y=ipr is in no run; add reference=local"),
        ("sweep.y=null", "sweep (y): Incompatible value null"),
        ("sweep.figure=pie", "unknown sweep.figure 'pie'"),
        (
            "sweep.figure=heatmap",
            "sweep.figure=heatmap needs two swept keys, no seeds, got none; set sweep.figure=lines",
        ),
        (
            "sweep.figure=heatmap partition=dir0.1,dir0.5",
            "sweep.figure=heatmap needs two swept keys, no seeds, got part",
        ),
        ("sweep.name=a,b", "sweep.name is of the whole sweep, got several values; give one"),
        ("partition=glob(nothing*)", "partition=glob(nothing*): there is no value to combine; give one at least"),
    ],
)
def test_a_figure_without_its_numbers_is_refused_before_the_runs(
    given: str, reason: str, toy: Path, executed: FakeRunner, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-m", "seed=0,1", "method=fedavg", *given.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {reason}")
    assert not list(executed)


@pytest.mark.parametrize(
    "given",
    [
        "sweep.y=auroc protocol.metrics=[acc],[auroc]",
        "sweep.y=acc_on_val_pooled protocol.test.val_fraction=0.2",
        "sweep.y=seconds_train sweep.figure=curves",
        "sweep.y=acc_on_common protocol.test.sets=both",
        "sweep.figure=heatmap sweep.x=seed partition=dir0.1,dir0.5",
    ],
)
def test_a_figure_that_some_runs_give_is_none_of_these(
    given: str, toy: Path, executed: FakeRunner, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["-m", "seed=0,1", "method=fedavg", *given.split()])
    assert list(executed)


def test_a_number_that_a_method_records_is_drawn(
    toy: Path, executed: FakeRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ToyAverage, "record", lambda *_: {"their_number": 1}, raising=False)
    assert main(["-m", "seed=0,1", "method=fedavg", "sweep.y=their_number"]) == 0
    assert len(executed) == 2


@pytest.mark.slow
def test_sweep_glob_finds_the_files_only(toy: Path, executed: FakeRunner) -> None:
    assert main(["-m", "method=glob(*)"]) == 0
    assert [run.labels["method"] for run in executed] == ["fedavg", "fedcollab", "fedprox", "fedprox_code"]


@pytest.mark.slow
@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_flag_may_stand_anywhere(toy: Path, executed: FakeRunner, place: int) -> None:
    arguments = ["seed=0,1", "method=fedavg"]
    arguments.insert(place, "-m")
    assert main(arguments) == 0
    assert sorted(run.seed for run in executed) == [0, 1]


@pytest.mark.slow
def test_sweep_goes_on_after_a_failure_and_tells(
    toy: Path,
    executed: FakeRunner,
    capsys: pytest.CaptureFixture[str],
) -> None:
    executed.fail(DataMissing("gone"), 1)
    assert main(["-m", "seed=0,1,2"]) == 2
    assert [run.seed for run in executed] == [0, 2]
    captured = capsys.readouterr()
    assert captured.err == "error: seed=1: gone\n"
    assert "51.00 ± 1.41" in captured.out


@pytest.mark.slow
def test_compose_inside_a_running_job(toy: Path, executed: FakeRunner) -> None:
    seen = []

    def before(run: RunConfig) -> None:
        outer = GlobalHydra.instance().hydra
        seen.append(resolve(compose.compose(["method=fedavg", f"seed={run.seed}"])).labels["method"])
        assert GlobalHydra.instance().hydra is outer
        assert outer is not None
        assert HydraConfig.get().job.name == "fedbench"

    executed.before = before
    assert main(["-m", "seed=0,1"]) == 0
    assert seen == ["fedavg", "fedavg"]


def test_variants_name_what_a_sweep_varied() -> None:
    jobs = [
        {"seed": seed, "method": "fedprox", "method.mu": mu, "protocol.rounds": "5", "partition": "dir0.1"}
        for mu in ("0.1", "1")
        for seed in ("0", "1")
    ]
    assert variants(jobs) == ["mu=0.1", "mu=0.1", "mu=1", "mu=1"]
    assert variants([*jobs, {"method": "fedavg"}])[-1] == ""
    assert variants([{"seed": "0"}, {"seed": "1"}]) == ["", ""]
    assert variants([{"reference_lr": "0.1"}, {"reference_lr": "1"}]) == ["reference_lr=0.1", "reference_lr=1"]


def test_a_dry_run_names_what_a_sweep_varies(toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Else two runs were one line, and which is finished could not be told."""
    monkeypatch.setattr(estimate, "plan_lines", lambda _runs, variants: variants)
    assert main(["-m", "method=fedprox,fedavg", "method.mu=0.5,1", "reference=none", "--dry-run"]) == 2
    said = capsys.readouterr()
    assert said.out == "mu=0.5\nmu=1\n"
    assert said.err.startswith("error: method=fedavg method.mu=0.5 reference=none: ")


def test_a_swept_key_of_the_protocol_names_rows_of_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    """What all runs have stands above the table, else steps could not be read across."""
    outcomes = []
    for lr, changed in (("0.1", "rounds=6"), ("0.01", "rounds=6, optimizer.lr=0.01, augment=[flip, crop]")):
        row = {"method": "fedavg", "protocol": f"quick ({changed})", "seed": 0, "acc": 50.0}
        outcomes.append(JobOutcome({"protocol.rounds": "6", "protocol.optimizer.lr": lr, "protocol.augment": lr}, row))
    _compare(outcomes)
    text = capsys.readouterr().out
    assert text.count("method") == 1
    assert text.startswith("quick (rounds=6)\n")
    assert re.search(r"fedavg protocol.optimizer.lr=0.1 .*\n.*fedavg protocol.optimizer.lr=0.01 ", text)


def test_two_options_of_one_label_are_two_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """As of a method's YAML without `preset:`, whose label is that of its base: their mean is of no method."""
    rows = [("fedprox", "fedprox", 50.0), ("mine", "fedprox", 60.0), ("fedavg", "fedavg", 70.0)]
    outcomes = [
        JobOutcome({"method": option, "seed": str(seed)}, {"method": label, "seed": seed, "acc": acc + seed})
        for option, label, acc in rows
        for seed in (0, 1)
    ]
    _compare(outcomes)
    text = capsys.readouterr().out
    for option, _, acc in rows:
        assert re.search(rf"{option} +│ +2 │ {acc + 0.5:.2f} ± 0.71 ", text)


@pytest.mark.slow
def test_sweep_over_methods_gives_each_its_own_keys(
    toy: Path, executed: FakeRunner, capsys: pytest.CaptureFixture[str]
) -> None:
    """The default method has no mu: the jobs' own methods count."""
    assert main(["-m", "method=fedprox,fedprox_code", "method.mu=0.5,0.7"]) == 0
    ran = [(run.labels["method"], vars(run.method)["mu"]) for run in executed]
    assert ran == [("fedprox", 0.5), ("fedprox", 0.7), ("fedprox_code", 0.5), ("fedprox_code", 0.7)]
    assert "fedprox_code mu=0.7" in capsys.readouterr().out


@pytest.mark.slow
def test_sweep_over_methods_refuses_a_key_where_it_is_unknown(
    toy: Path, executed: FakeRunner, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-m", "method=fedavg,fedprox", "method.mu=0.5"]) == 2
    assert [(run.labels["method"], vars(run.method)["mu"]) for run in executed] == [("fedprox", 0.5)]
    said = capsys.readouterr()
    assert said.err.startswith("error: method=fedavg method.mu=0.5: unknown key of method 'fedavg'")
    assert said.err.count("\n") == 1
    assert said.out.endswith("1 of 2 runs failed; what failed is said above\n"), "the same command cannot do better"


@pytest.mark.slow
def test_what_may_go_well_the_next_time_is_tried_by_the_same_command(
    toy: Path, executed: FakeRunner, capsys: pytest.CaptureFixture[str]
) -> None:
    executed.fail(RuntimeError("a defect"), 1)
    main(["-m", "seed=0,1"])
    assert (
        "1 of 2 runs failed; what failed is said above, and the same command tries it again" in capsys.readouterr().out
    )


def test_runs_that_were_there_already_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """Of all that were asked for, those that failed among them."""

    def said(*earlier: bool) -> str:
        rows = [{"method": "fedavg", "seed": seed, "acc": 50.0} for seed in range(len(earlier))]
        failed = JobOutcome({"seed": "9"}, code=1, failure="broke", shown=True)
        conclude([*(JobOutcome(row=row, earlier=e) for row, e in zip(rows, earlier, strict=True)), failed])
        return capsys.readouterr().out

    assert "\n2 of 4 runs were there already; force=true repeats them\n1 of 4 runs failed" in said(True, False, True)
    assert "already" not in said(False, False)


def test_sweep_over_methods_reports_what_hydra_cannot_read(
    toy: Path, executed: FakeRunner, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-m", "method=fedavg,[", "method.mu=0.5"]) == 2
    assert capsys.readouterr().err.startswith("error: cannot read 'method=fedavg,['")


@pytest.mark.slow
def test_a_sweep_says_where_it_stands(toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    runner = FakeRunner()
    monkeypatch.setattr("fedbench.runs.execution.execute", runner.execute)
    assert main(["-m", "method=fedavg", "seed=0,1,2"]) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("run ")]
    assert told[0] == "run 1 of 3"
    assert re.fullmatch(r"run 3 of 3, about .* left", told[2])
    assert main(["-m", "method=fedavg", "seed=0,1,2", "progress=none"]) == 0
    assert "run 1" not in capsys.readouterr().out


def test_time_left_counts_the_runs_that_were_made() -> None:
    count = jobs.SweepCount(first=10, jobs=4, made=[2.0, 4.0])
    assert count.line(12) == "run 3 of 4, about 6.00 s left"
    assert jobs.SweepCount(0, 2).line(0) == "run 1 of 2"


def test_a_mean_over_some_clients_or_runs_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Below a sweep's table, in its Markdown, and in a cell that not every run fills."""
    full = {"acc": 50.0, "clients": 20, "of_clients": 20, "ipr": 10.0, "clients_ipr": 20, "clients_on_val": 20}
    rows = [{**full, "method": "fedper", "clients": 18, "clients_ipr": 17, "seed": 0}]
    rows += [{**full, "method": "fedper", "seed": 1, "ipr": None}, {**full, "method": "fedavg", "seed": 0}]
    rows += [{**full, "method": "local", "seed": 0, "ipr": None, "clients_ipr": None, "clients_on_val": 3}]
    outcomes = [JobOutcome({"method": str(row["method"]), "seed": str(row["seed"])}, row) for row in rows]
    _compare(outcomes)
    text = capsys.readouterr().out
    assert "10.00 (1 of 2 runs)" in text
    assert text.count(" clients") == 3
    assert "fedper: Acc over 18 of 20 clients, IPR over 17 of 20 clients\nlocal: val over 3 of 20 clients\n" in text
    lines = table(tidy(outcomes, ["method"]), ["method"], "acc")
    written = markdown(lines, ["method"], {})
    assert "method=fedper: Acc over 18 of 20 clients, IPR over 17 of 20 clients\n" in written
    assert "fedavg:" not in text + written
