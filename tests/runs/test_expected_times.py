"""What a run or sweep takes is told before it begins; --dry-run tells it and makes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fedbench.cli.program import main
from fedbench.config.compose import compose
from fedbench.core.files import write_csv
from fedbench.runs import estimate
from fedbench.runs.building import build
from fedbench.runs.config import RunConfig, resolve
from fedbench.runs.execution import execute
from fedbench.runs.folder import ROUNDS, folder_of
from tests.helpers import real_formats

SMALL = ["protocol.rounds=4", "protocol.eval_every=4", "dataset.limit=200", "hardware=cpu", "hardware.engine=looped"]


Told = Callable[..., list[str]]


def config(place: Path, *overrides: str) -> RunConfig:
    return resolve(compose([*overrides, f"runs_dir={place}", "progress=none"]))


@pytest.fixture
def told(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Told:
    """What a command prints, with steps that take a second each, on a core that is shared by two."""
    monkeypatch.setattr(estimate, "pace", lambda *_: 1.0)
    monkeypatch.setattr(estimate, "contention", lambda: 2.0)

    def run(*arguments: str) -> list[str]:
        assert main([*arguments, *SMALL, f"runs_dir={tmp_path}"]) == 0
        return [line for line in capsys.readouterr().out.splitlines() if line]

    return run


def seconds(*overrides: str, place: Path) -> float:
    """Four rounds of all clients' steps, and what is scored at a third of a step, twice as long for the others."""
    run = config(place, *overrides, *SMALL)
    setup = build(run)
    steps = sum(setup.steps(client) for client in range(setup.federation.clients))
    return 2 * (4 * steps + estimate.scored_batches(setup, run) / 3)


def test_few_setups_are_kept_as_each_holds_its_samples(tmp_path: Path) -> None:
    times = estimate.RunTimes()
    configs = [config(tmp_path, *SMALL, "method=fedavg", f"partition=dir0.{k}") for k in range(1, estimate.SETUPS + 2)]
    built = [times.setup(each) for each in configs]
    assert times.setup(configs[-1].changed(seed=1)).federation is built[-1].federation, "seeds share it"
    assert times.setup(configs[1]).federation is built[1].federation, "and the last ones are kept"
    assert times.setup(configs[0]).federation is not built[0].federation


def test_what_is_done_of_an_interrupted_run_is_no_file_of_an_earlier_version(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its files get their checksums when it is finished."""
    run = config(tmp_path, *SMALL, "method=fedavg")
    folder = folder_of(run)
    assert estimate._done(run) == 0
    folder.path.mkdir(parents=True)
    folder.checkpoint.touch()
    folder.begin()
    write_csv(folder.path / ROUNDS, [{"round": 0}, {"round": 2}])
    assert estimate._done(run) == 2
    assert not caplog.records


@pytest.mark.slow
def test_a_run_tells_its_own_time_and_that_of_the_local_that_it_lacks(told: Told, tmp_path: Path) -> None:
    each = seconds("method=fedavg", place=tmp_path / "other")
    lines = told("method=fedavg")
    assert lines[0] == f"about {estimate.rough_seconds(2 * each)} here: local 4 rounds, fedavg 4 rounds"
    assert sum(line.startswith("about ") for line in lines) == 1, "Local's is in it"
    assert told("method=fedprox")[0] == f"about {estimate.rough_seconds(each)} here: fedprox 4 rounds"
    assert told("method=fedcollab")[0].endswith("here: fedcollab 4 rounds beside its preparation")
    assert not any(line.startswith("about ") for line in told("method=fedavg")), "a finished run is shown"


@pytest.mark.slow
def test_a_dry_run_makes_nothing(told: Told, tmp_path: Path) -> None:
    each = seconds("method=fedavg", place=tmp_path / "other")
    lines = told("method=fedavg", "--dry-run")
    assert lines == [
        "fedavg seed 0 on digits-200, dir0.1, mlp200x200: to do",
        f"1 run, 0 there already, and 1 run of Local: about {estimate.rough_seconds(2 * each)} here, one by one",
    ]
    assert not list(tmp_path.rglob("result.json"))


@pytest.mark.slow
def test_a_sweep_tells_what_is_there_and_how_long_the_rest_takes(told: Told, tmp_path: Path) -> None:
    each = seconds("method=fedavg", place=tmp_path / "other")
    told("method=fedavg")
    lines = told("-m", "method=fedavg,fedprox", "seed=0,1", "--dry-run")
    assert [line.partition(": ")[2] for line in lines[:4]] == ["there already", "to do", "to do", "to do"]
    assert re.fullmatch(r"4 runs, 1 there already, and 1 run of Local: about .* here, one by one", lines[4])
    assert len(list(tmp_path.rglob("result.json"))) == 2
    lines = told("-m", "method=fedprox", "method.mu=0.5,1", "--dry-run")
    assert [line.partition(" on ")[0] for line in lines[:2]] == ["fedprox mu=0.5 seed 0", "fedprox mu=1 seed 0"]
    lines = told("-m", "method=fedavg,fedprox")
    assert lines[0] == f"2 runs, 1 there already: about {estimate.rough_seconds(each)} here, one by one"
    lines = told("-m", "method=fedavg,fedprox", "force=true", "--dry-run")
    assert [line.partition(": ")[2] for line in lines[:2]] == ["to do", "to do"], "force=true makes them again"
    assert lines[2] == f"2 runs, 0 there already: about {estimate.rough_seconds(2 * each)} here, one by one"
    assert told("method=fedavg", "force=true")[0].endswith(" here: fedavg 4 rounds")


def test_a_long_run_says_how_it_gets_shorter_and_what_is_left_of_an_interrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = config(tmp_path, "method=local", *SMALL)
    setup = build(run)
    monkeypatch.setattr(estimate, "pace", lambda *_: 1.0)
    monkeypatch.setattr(estimate, "SMALLER", 100)
    monkeypatch.setattr(estimate, "LONG", 1.0)
    assert estimate.expectation(run, setup).endswith("here: local 4 rounds; smaller: dataset.limit=100")
    monkeypatch.setattr(estimate, "_done", lambda *_: 3)
    assert "local 1 round;" in estimate.expectation(run, setup)

    def fails(*_: object) -> None:
        raise RuntimeError("a method that needs its preparation first")

    monkeypatch.setattr(estimate, "pace", fails)
    assert estimate.expectation(run, setup) == ""
    assert execute(run).row["rounds"] == 4


def test_the_steps_of_many_methods_are_timed_for_a_while_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[str] = []
    monkeypatch.setattr(estimate, "pace", lambda setup, _: timed.append(type(setup.method).__name__) or 1.0)
    times = estimate.RunTimes(patience=0.0)
    runs = [config(tmp_path, f"method={name}", *SMALL) for name in ("fedavg", "ditto", "fedprox")]
    assert all(times.expected(run) > 0 for run in runs)
    assert timed == ["FedAvg"]


@pytest.mark.slow
def test_the_page_s_command_on_cifar10_runs_on_files_of_its_format(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDBENCH_CACHE", str(tmp_path / "cache"))
    options = real_formats.write("cifar10", tmp_path / "root")
    page = (Path(__file__).parents[2] / "docs" / "runs.md").read_text(encoding="utf-8")
    command = next(line for line in page.splitlines() if line.startswith("python -m fedbench") and "cifar10" in line)
    words = command.split()[3:]
    small = [f"dataset.{key}={value}" for key, value in options.items() if key != "name"]
    small += ["protocol.rounds=1", "partition.num_clients=2", f"runs_dir={tmp_path / 'runs'}", "hardware=cpu"]
    assert main([*words, *small]) == 0
    said = capsys.readouterr()
    assert "2 runs, 0 there already: about " in said.out
    assert "cifar10, first use: reading files" in said.err
    assert len(list(tmp_path.rglob("result.json"))) == 2
