"""Sweeps whose jobs run in other processes lose neither a row nor a failure; tuning sees validation data only."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from fedbench.cli.program import main
from fedbench.config import sources
from fedbench.core.errors import ConfigError, FedbenchError
from fedbench.sweeps import jobs, session
from fedbench.sweeps.jobs import JobOutcome
from fedbench.sweeps.session import combinations, remaining
from fedbench.sweeps.tuning import Trial, Tuning, _conclude, _run, distribution, split, tune

SHORT = ("dataset=digits", "protocol=quick", "protocol.rounds=1", "hardware=cpu", "hardware.engine=looped")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDBENCH_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))  # for the processes
    return tmp_path


def joblib() -> list[str]:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="hydra-joblib-launcher is not installed")
    return ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]


def submitit() -> list[str]:
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="hydra-submitit-launcher is not installed")
    return ["hydra/launcher=submitit_local", "hydra.launcher.timeout_min=2"]


def ray() -> list[str]:
    pytest.importorskip("ray", reason="Ray is not installed")
    return ["hydra/launcher=ray"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning:ray", "ignore::ResourceWarning", "ignore::DeprecationWarning:ray")
@pytest.mark.parametrize("launcher", [joblib, submitit, ray])
def test_rows_and_failures_come_back(launcher: object, elsewhere: Path, capfd: pytest.CaptureFixture[str]) -> None:
    chosen = launcher()  # type: ignore[operator]
    assert main(["-m", *chosen, "method=fedprox,local", "seed=0,1", "method.mu=0.5", *SHORT]) == 2
    captured = capfd.readouterr()
    refused = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    assert len(refused) == 2  # local has no mu, once a seed
    assert all("unknown key of method 'local'" in line for line in refused)
    table = captured.out[captured.out.rindex("┡") :]
    assert "fedprox" in table
    assert " 2 │" in table, "both seeds"
    assert not (elsewhere / "runs" / ".sweeps").exists()


@pytest.mark.slow
def test_tuning_repeats_seeds_and_needs_validation_samples(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna", reason="optuna is not installed")
    command = [
        "-m",
        "hydra/sweeper=optuna",
        "hydra.sweeper.trials=3",
        "method=fedprox",
        "method.mu=interval(0,1)",
    ]
    assert main([*command, *SHORT]) == 2
    assert "protocol.test.val_fraction" in capsys.readouterr().err
    validated = [*command, "protocol.test.val_fraction=0.3", "seed=0,1", "sweep.name=tuned", "progress=none"]
    assert main([*validated, *SHORT]) == 0
    assert "best: method.mu=0." in capsys.readouterr().out
    (folder,) = (elsewhere / "results" / "sweeps").iterdir()
    with (folder / "trials.csv").open() as file:
        trials = list(csv.DictReader(file))
    assert [(row["trial"], row["seeds"]) for row in trials] == [("0", "2"), ("1", "2"), ("2", "2")]
    assert len({row["method.mu"] for row in trials}) == 3
    written = {"trials.csv", "best.txt", "runs.csv", "figure.svg", "figure.png"}
    assert {file.name for file in folder.iterdir()} == written


def test_a_trial_is_judged_by_validation_accuracy_only() -> None:
    rows = [{"score": 99.0, "acc_on_val": 40.0, "acc_on_val_pooled": 10.0, "average": "client"} for _ in range(2)]
    rows[1]["acc_on_val"] = 60.0
    assert Trial(0, {}, [JobOutcome(row=row) for row in rows]).score == 50
    pooled = [{**row, "average": "pooled"} for row in rows]
    assert Trial(0, {}, [JobOutcome(row=row) for row in pooled]).score == 10
    failed = Trial(0, {}, [JobOutcome(row=rows[0]), JobOutcome(failure="diverged")])
    assert failed.score != failed.score, "a trial with a failed seed has no score"


def judged(number: int, validation: float | None, test: float = 0.0) -> Trial:
    row = None if validation is None else {"acc_on_val": validation, "score": test, "average": "client"}
    return Trial(number, {"+method.mu": number / 10}, [JobOutcome(row=row)])


def test_the_best_trial_has_the_highest_validation_accuracy(capsys: pytest.CaptureFixture[str]) -> None:
    """Of two alike the earlier; a failed one is none, and the best on test data is none either."""
    validation = [40.0, None, 70.0, 60.0, 10.0, 70.0, 50.0]
    trials = [judged(number, value, 99.0 - number) for number, value in enumerate(validation)]
    assert _conclude(trials, ["+method.mu"]) == {"+method.mu": 0.2}
    said = capsys.readouterr().out
    shown = re.findall(r"^│ +(\d) │ +(\S+) │ +(\S+) │$", said, re.MULTILINE)
    best = [("2", "70.00"), ("5", "70.00"), ("3", "60.00"), ("6", "50.00"), ("0", "40.00")]
    assert shown == [(number, f"0.{number}" if number != "0" else "0.0", value) for number, value in best]
    assert said.startswith("best of 7 trials")
    assert said.endswith("best: method.mu=0.2\nits test score, which chose nothing: 97.00 %\n")
    with pytest.raises(FedbenchError, match="every run of the trials failed; what failed is said above"):
        _conclude([judged(0, None)], ["+method.mu"])
    with pytest.raises(FedbenchError, match="no trial has a validation score; an earlier run may lack it"):
        _conclude([Trial(0, {}, [JobOutcome(row={"score": 1.0})])], [])


def test_a_list_among_the_values_of_a_trial_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"acc_on_val": 70.0, "score": 60.0}
    _conclude([Trial(0, {"protocol.augment": "[flip]"}, [JobOutcome(row=row)])], ["protocol.augment"])
    assert re.search(r"^│ +0 │ +\[flip\] │ +70\.00 │$", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.slow
def test_a_tuning_of_other_runs_with_the_same_name_is_moved_aside(tmp_path: Path, capsys: Any) -> None:
    for key, trial in (("k1", 40.0), ("k1", 50.0), ("k2", 60.0)):
        found = judged(1, trial)
        (outcome,) = found.outcomes
        sweep = {"sweep": {"name": "mine", "folder": str(tmp_path)}}
        row = {**(outcome.row or {}), "key": key, "data": ""}
        found.outcomes = [replace(outcome, row=row, plain=sweep)]
        _conclude([found], ["+method.mu"])
    assert capsys.readouterr().out.count("held another sweep") == 1
    kept = {path.parent.name: path.read_text().splitlines()[1] for path in tmp_path.rglob("trials.csv")}
    assert kept == {"mine-optuna": "1,0.1,60.0,1", "mine-optuna-before-1": "1,0.1,50.0,1"}


def test_what_is_no_share_is_left_to_the_runs_to_refuse() -> None:
    pytest.importorskip("optuna", reason="optuna is not installed")
    sweeper = OmegaConf.create({"config": {"protocol": {"test": {"val_fraction": "abc"}}}})
    with pytest.raises(ConfigError, match="nothing to tune"):
        tune(sweeper, [], {})
    sweeper.config.protocol.test.val_fraction = 0
    with pytest.raises(ConfigError, match="needs validation samples"):
        tune(sweeper, [], {})


def test_trials_that_run_at_once_get_the_outcomes_of_their_own_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def launched(_: Any, batch: Sequence[Sequence[str]], first: int) -> list[JobOutcome]:
        asked.append((batch, first))
        return [JobOutcome(row={"of": each}) for each in batch]

    monkeypatch.setattr(session, "launched", launched)
    batch = [Trial(number, {"+method.mu": number / 10}) for number in (4, 5)]
    with jobs.keeping() as kept:
        _run(None, batch, ["dataset=digits"], [[f"seed={seed}"] for seed in range(3)], 12)
    wanted = [[["dataset=digits", f"+method.mu={mu}", f"seed={seed}"] for seed in range(3)] for mu in (0.4, 0.5)]
    assert [[dict(each.row or {})["of"] for each in trial.outcomes] for trial in batch] == wanted
    assert asked == [([*wanted[0], *wanted[1]], 12)]
    assert kept == [outcome for trial in batch for outcome in trial.outcomes]


def test_a_sampler_is_told_validation_accuracies_to_raise_and_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five trials of two seeds, two trials at once, of which the second fails."""
    optuna = pytest.importorskip("optuna", reason="optuna is not installed")
    studies, asked, told, create = list[Any](), list[Any](), list[str](), optuna.create_study

    def create_study(**given: Any) -> Any:
        studies.append(create(**given))
        return studies[-1]

    def launched(_: Any, batch: Sequence[Sequence[str]], first: int) -> list[JobOutcome]:
        asked.append((first, len(batch)))
        told.append(cast("Any", jobs._count.get()).line(first))
        rates = [float(dict(text.split("=") for text in each)["method.mu"]) for each in batch]
        rows = [{"acc_on_val": 100 * rate, "score": -rate} for rate in rates]
        return [JobOutcome(row=None if first + index == 3 else row) for index, row in enumerate(rows)]

    monkeypatch.setattr(optuna, "create_study", create_study)
    monkeypatch.setattr(session, "launched", launched)
    sweeper: Any = SimpleNamespace(
        config=SimpleNamespace(protocol=SimpleNamespace(test=SimpleNamespace(val_fraction=1)))
    )
    given = OverridesParser.create().parse_overrides(["method.mu=interval(0.0,1.0)", "seed=0,1"])
    best = tune(sweeper, given, {"trials": 5, "at_once": 2, "sampler": "random"})
    assert asked == [(0, 4), (4, 4), (8, 2)]
    assert told == ["run 1 of 10", "run 5 of 10", "run 9 of 10"]
    (study,) = studies
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "FAIL", *["COMPLETE"] * 3]
    rates = [trial.params["method.mu"] for trial in study.trials if trial.state.name == "COMPLETE"]
    assert [trial.value for trial in study.trials if trial.value is not None] == pytest.approx([100 * r for r in rates])
    assert best == study.best_trial.params == {"method.mu": max(rates)}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sampler": "grid"}, "hydra.sweeper.sampler 'grid'"),
        ({"trials": 0}, "at least 1"),
        ({"at_once": 0}, "at least 1"),
    ],
)
def test_settings_of_tuning_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(FedbenchError, match=message):
        Tuning(**settings)
    assert Tuning(trials=1, at_once=1, sampler="random").seed == 0


def test_space_is_read_from_overrides() -> None:
    optuna = pytest.importorskip("optuna", reason="optuna is not installed")
    texts = ["a=1", "b=interval(0,1)", "c=tag(log,interval(0.1,1))", "d=range(1,8,2)", "e=x,y", "seed=0,1"]
    parsed = OverridesParser.create().parse_overrides(texts)
    fixed, repeats, space = split(parsed, optuna.distributions)
    assert fixed == ["a=1"]
    assert repeats == [["seed=0"], ["seed=1"]]
    assert space["c"].log
    assert not space["b"].log
    assert (space["d"].low, space["d"].high, space["d"].step) == (1, 7, 2)
    assert space["e"].choices == ("x", "y")
    assert distribution(parsed[3], optuna.distributions) == space["d"]
    for text in ("tag(log,interval(0,1.5))", "interval(2.0,1.0)"):
        with pytest.raises(ConfigError, match=r"^method\.mu: .*low") as refused:
            split(OverridesParser.create().parse_overrides([f"method.mu={text}"]), optuna.distributions)
        assert "\n" not in str(refused.value)


def test_a_grid_is_every_combination_and_has_no_intervals() -> None:
    def parsed(*texts: str) -> list[Override]:
        return OverridesParser.create().parse_overrides(list(texts))

    found = combinations(parsed("a=1,2", "b=x", "c=range(2)", "b=y"))
    assert found == [[a, "b=y", c] for a in ("a=1", "a=2") for c in ("c=0", "c=1")]
    assert combinations(parsed("seed=0,0,1,0")) == [["seed=0"], ["seed=1"]], "the same run once"
    with pytest.raises(ConfigError, match=r"method.mu: a grid needs values.*optuna"):
        combinations(parsed("method.mu=interval(0,1)"))


@pytest.mark.parametrize(
    "kind",
    [
        "joblib.externals.loky.process_executor:TerminatedWorkerError",
        "submitit.core.utils:UncompletedJobError",
        "ray.exceptions:WorkerCrashedError",
    ],
)
def test_a_job_whose_process_died_is_named_in_one_line(kind: str, tmp_path: Path) -> None:
    module, _, name = kind.partition(":")
    died = getattr(pytest.importorskip(module), name)
    launcher = SimpleNamespace(launch=lambda *_, **__: [jobs._dead(died() if "ray" in kind else died("killed"))])
    (returned,) = jobs.launch(launcher, tmp_path, [["+method.mu=1", "seed=0"]], 0)
    outcome = session.outcome_of(returned)
    assert outcome.overrides == {"method.mu": "1", "seed": "0"}
    assert outcome.failure.startswith(
        "error: +method.mu=1 seed=0: a job ended without a result (the same command resumes"
    )
    assert "\n" not in outcome.failure


def test_what_a_job_of_submitit_printed_before_it_died_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "runs" / ".sweeps" / "one"
    config = SimpleNamespace(hydra=SimpleNamespace(sweep=SimpleNamespace(dir=str(folder))))

    def results() -> None:
        raise RuntimeError("killed")

    with session.scratch(config):
        (tmp_path / "err").write_text("out of memory")
        job = SimpleNamespace(job_id="7_0", paths=SimpleNamespace(stderr=tmp_path / "err"), results=results)
        (dead,) = jobs._SubmititJob(job, folder).results()
    log = folder / "submitit-7_0.log"
    assert log.read_text() == "out of memory"
    assert f"what it printed: {log}" in capsys.readouterr().err
    with pytest.raises(RuntimeError, match="killed"):
        _ = dead.return_value


def test_two_sweeps_that_begin_in_one_second_have_a_folder_each() -> None:
    """On two machines their processes may have one number."""
    sources.register_resolvers()
    assert len({OmegaConf.create({"name": "${fedbench.unique:}"}).name for _ in range(2)}) == 2


def test_the_command_line_takes_the_place_of_an_experiment_s_values() -> None:
    params = {"method.C": "0,1", "seed": "0,1", "partition": "homo"}
    assert remaining(params, ["++method.C=3", "seed=4"]) == {"partition": "homo"}


@pytest.mark.slow
def test_a_run_in_a_process_of_joblib_may_have_workers(elsewhere: Path) -> None:
    assert main(["-m", *joblib(), "method=local", *SHORT, "hardware.engine=workers"]) == 0


@pytest.mark.parametrize(
    ("asked", "runs", "started"), [(1000, 2, 2), (1000, 50, 3), (2, 50, 2), (-1, 50, 3), (1, 9, 1)]
)
def test_joblib_starts_no_more_processes_than_there_are_runs_and_cores(
    asked: int, runs: int, started: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("joblib.cpu_count", lambda: 3)
    monkeypatch.setattr("joblib.effective_n_jobs", lambda n: 3 if n < 0 else n)
    assert jobs._needed(asked, runs) == started


def test_a_launcher_of_joblib_is_told_how_many_processes_its_runs_need(tmp_path: Path) -> None:
    launcher = SimpleNamespace(joblib={"n_jobs": 1000, "verbose": 0}, launch=lambda *_, **__: [])
    jobs.launch(launcher, tmp_path / "s", [["seed=0"]], 0)
    assert launcher.joblib == {"n_jobs": 1, "verbose": 0}
