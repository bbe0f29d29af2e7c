"""The benchmarks: equal work, wrong engines found, what a case reports, and results beside those of before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedbench.engine import simulation
from fedbench.engine.setup import Setup

ROOT = Path(__file__).parents[2]
HEAD = {
    "machine": "AMD, 2 cores",
    "device": "cpu",
    "version_torch": "2.11",
    "date": "2026-01-01",
    "commit": "abc",
}
CPU = torch.device("cpu")
RIVAL = """
from functools import partial

from benchmarks import rivals, rounds
from fedbench.engine.contract import Clock

rounds.available_workers = rivals.available_workers = lambda: 1
rivals.TEST = 200
work = ("model=mlp", "model.hidden=[32]", "protocol=quick", "protocol.cohort=2", "protocol.local.epochs=2")
work += ("protocol.local.batch_size=16", "protocol.optimizer.lr=0.1", "protocol.optimizer.momentum=0.0")
rounds.WORKLOADS["T"] = rounds.Workload("T", "three clients", work, (300, 217, 50), (1, 16, 16))


def train(name, device, count, _):
    setup = rivals.setup_of(name, device)
    net = rivals.network(setup)
    found = []
    for number in range(count):
        ids = setup.draw_cohort(Clock(number, setup.protocol.rounds))
        steps = rounds.schedule_of(setup, ids, number)
        found.append(rounds.timed(partial(rounds.plain_round, setup, net, ids, steps), setup.federation.device))
    seconds, steps = zip(*found)
    return rivals.Answer(list(seconds), sum(steps), rivals.accuracy(setup, net))


if __name__ == "__main__":
    rivals.main("Fake", "torch", train)
"""


@pytest.fixture
def bench(load: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """scripts/bench.py as a module, with one core, so that no processes are started."""
    found = load("bench")
    monkeypatch.setattr(found.rounds, "available_workers", lambda: 1)
    return found


def tiny(bench: Any) -> Any:
    overrides = ("model=mlp", "protocol=quick", "protocol.local.epochs=1", *bench.rounds.SGD)
    return bench.rounds.Workload("T", "three clients", (*overrides, "protocol.cohort=all"), (70, 33, 5), (1, 8, 8))


# --- rounds of local training


@pytest.mark.slow
def test_contestants_do_equal_work_and_reach_equal_weights(bench: Any) -> None:
    row = bench.rounds.run(tiny(bench), CPU, 1, quick=False)
    batch = tiny(bench).setup(CPU).protocol.local.batch_size
    assert row["client_steps"] == sum(-(-size // batch) for size in (70, 33, 5))
    assert set(row["rate"]) == {"looped", "stacked", "plain", "merged"}
    assert all(gap <= 1e-12 for gap in row["largest_difference"].values())


def test_an_engine_that_trains_something_else_is_not_timed(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Lazy(bench.rounds.LoopedTrainer):  # type: ignore[misc, name-defined]
        """Skips the optimiser's steps."""

        def descend(self, *_: Any) -> list[Any]:
            return [torch.zeros(())]

    monkeypatch.setattr(bench.rounds, "LoopedTrainer", Lazy)
    with pytest.raises(AssertionError, match=r"engines differ from the plain loop: \{'looped'"):
        bench.rounds.run(tiny(bench), CPU, 1, quick=False)


def test_a_workload_run_again_leaves_the_others(bench: Any, tmp_path: Path) -> None:
    row = {
        "workload": "W1",
        "what": "LeNet5",
        "client_steps": 8,
        "rate": {"plain": 100.0, "looped": 150.0, "merged": 300.0},
        "best": "looped",
        "vs_plain": {"looped": 1.5},
        "stacking_efficiency": 0.5,
        "peak_mib": 10,
        "load_before": 0.25,
        "quick": False,
    }
    found = {**HEAD, "machine": bench.machine(), "load_before": 1.0}
    for name in ("W2", "W1"):
        bench.put(found, "rounds", {**row, "workload": name})
    bench.store(found, tmp_path)
    begun = bench.begun("cpu", tmp_path)
    assert [each["workload"] for each in begun["rounds"]] == ["W1", "W2"]
    assert begun["version_torch"] == torch.__version__
    bench.put(begun, "rounds", {**row, "peak_mib": 11})
    assert [each["peak_mib"] for each in begun["rounds"]] == [11, 10]
    assert bench.begun("cuda", tmp_path)["rounds"] == [], "another device's file"
    (page,) = tmp_path.glob("*.md")
    assert "| W1: LeNet5 | 100 | 1.50 | - | 0.50 | 10 | 1.0 |" in page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_rounds_in_several_processes(bench: Any) -> None:
    found = bench.rounds.at_once(bench.rounds._two_clients, 2, 2, "W2")
    assert [len(each) for each in found] == [2, 2], "without the warm-up"
    assert all(seconds > 0 for each in found for seconds in each)


# --- phases of a run


def test_a_protocols_phases_are_weighed_by_how_often_they_come(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of 8 s of training and 1 s of server work; scoring takes 10 s and comes every tenth of them."""

    class Simulated:
        """Whose first round takes a hundred times as long."""

        def __init__(self, setup: Setup, _trainer: object) -> None:
            assert setup.protocol.eval_every == 1

        def begin(self) -> Any:
            return SimpleNamespace(seconds={"train": 0.0, "server": 0.0, "evaluate": 0.0})

        def step(self, state: Any) -> None:
            scale = 100 if state.seconds["train"] == 0 else 1
            for phase, seconds in (("train", 8.0), ("server", 1.0), ("evaluate", 10.0)):
                state.seconds[phase] += scale * seconds

    monkeypatch.setattr(bench.server, "Simulation", Simulated)
    found = bench.server.phases(
        "pFedSim", "cpu", ("dataset=digits", "model=mlp", "partition.num_clients=3", "partition.min_size=10")
    )
    assert found["seconds"] == {"train": 8.0, "server": 1.0, "evaluate": 10.0}
    assert found["shares"] == {"train": 80.0, "server": 10.0, "evaluate": 10.0}
    page = bench.markdown({**HEAD, "phases": {"cases": [found], "load_before": 0.0}})
    assert page.endswith("| pFedSim | 10 rounds | 80 % | 10 % | 10 % |\n")


@pytest.mark.slow
def test_a_protocols_phases_are_those_of_a_run(bench: Any) -> None:
    found = bench.server.phases("FedCollab, label shift", "cpu", ("dataset=digits",))
    assert all(seconds > 0 for seconds in found["seconds"].values())
    assert sum(found["shares"].values()) == pytest.approx(100, abs=0.2)


def test_phases_are_left_out_where_their_data_set_is_missing(
    bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench.server, "has_images", lambda: False)
    monkeypatch.setattr(sys, "argv", ["bench.py", "--only", "PHASES", "--out", str(tmp_path)])
    assert bench.main() == 0
    assert "left out: python -m fedbench prepare fashion_mnist" in capsys.readouterr().out
    (stored,) = tmp_path.glob("*.json")
    assert "phases" not in json.loads(stored.read_text())


# --- scale


@pytest.mark.slow
def test_cases_of_scale_become_a_table(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.scale, "TIMED", 1)
    monkeypatch.setattr(bench.scale, "POOL", 50)
    few, many = (bench.scale.rounds(n, 2, "fedavg", "cpu", "mlp") for n in (4, 400))
    assert many["round_mib"] == few["round_mib"] > 0
    own = bench.scale.rounds(6, 2, "ditto", "cpu", "mlp")
    rows = {"by_clients": [few, many], "by_cohort": [few], "stateful": [own]}
    loaded = {name: [{**row, "load_before": 0.5} for row in each] for name, each in rows.items()}
    assert "| 400 | 2 |" in bench.scale.markdown(HEAD | loaded)


def test_committed_results_show_that_a_rounds_memory_does_not_depend_on_the_number_of_clients() -> None:
    files = sorted((ROOT / "results" / "bench" / "scale").glob("*.json"))
    assert files
    for file in files:
        rows = json.loads(file.read_text(encoding="utf-8"))["by_clients"]
        sizes = [row["round_mib"] for row in rows]
        assert max(sizes) < 1.05 * min(sizes)
        assert rows[-1]["clients"] >= 100_000


def test_what_many_clients_cost_besides_training(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the time of a clock that the scoring of each group moves on by a second."""
    monkeypatch.setattr(bench.scale, "SCORED", 2)
    clock = [0.0]
    monkeypatch.setattr(bench.scale.time, "process_time", lambda: clock[0])

    def received(*given: Any) -> Any:
        clock[0] += 1
        return simulation.received(*given)

    monkeypatch.setattr(bench.scale, "received", received)
    row = bench.scale.registry({"method": "ditto", "clients": 1024})
    assert (row["method"], row["clients"], row["round_s"], row["scoring_s"]) == ("ditto", 1024, 0, 4)
    assert row["npz_mib"] > 0
    assert "| ditto | 1024 |" in bench.scale.rows_table([row])


def test_the_load_of_a_case_is_that_before_it(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loads = iter([0.25, 9.0])
    monkeypatch.setattr(os, "getloadavg", lambda: (next(loads), 0.0, 0.0))
    assert bench.scale.alone(dict, {"clients": 4}) == {"clients": 4, "load_before": 0.25}


# --- other frameworks


@pytest.mark.slow
def test_a_rival_that_does_the_same_is_compared(tmp_path: Path) -> None:
    """Plain PyTorch in a process of its own stands for another framework."""
    program = tmp_path / "fake.py"
    program.write_text(RIVAL, encoding="utf-8")
    paths = os.pathsep.join([str(ROOT), str(ROOT / "scripts")])
    subprocess.run(
        [sys.executable, str(program), "T", "--repeats=3", f"--out={tmp_path}"],
        check=True,
        env=os.environ | {"PYTHONPATH": paths},
    )
    (stored,) = tmp_path.glob("*.json")
    (row,) = json.loads(stored.read_text(encoding="utf-8"))["rivals"]
    (theirs,) = row["rivals"]
    assert (theirs["rival"], theirs["against"], theirs["processes"]) == ("Fake", "looped", 1)
    assert theirs["ratio"] > 0
    assert row["client_steps"] > 0
    assert theirs["accuracy"] > 0.5


@pytest.mark.parametrize(
    ("steps", "accuracy", "message"),
    [
        ((8, 8), (0.9, 0.93), None),
        ((8, 7), (0.9, 0.9), "unequal work"),
        ((8, 8), (0.9, 0.8), "unequal results"),
        ((8, 8), (0.1, 0.1), "unequal results"),  # neither learned: their agreement says nothing
    ],
)
def test_equal_work(
    load: Callable[[str], Any], steps: tuple[int, int], accuracy: tuple[float, float], message: str | None
) -> None:
    rivals = load("benchmarks.rivals")
    answers = {
        who: rivals.Answer([1.0, 1.0], count, score) for who, count, score in zip("ab", steps, accuracy, strict=True)
    }
    if message is None:
        rivals.equal_work(answers)
    else:
        with pytest.raises(AssertionError, match=message):
            rivals.equal_work(answers)


def test_ratio_compares_equal_numbers_of_processes(bench: Any, load: Callable[[str], Any]) -> None:
    """A rival's fastest round but its warm-up, over the mean of the engine's before and after."""
    rivals = load("benchmarks.rivals")
    rivals.available_workers = lambda: 2
    answer = rivals.Answer
    taken = [
        {"looped": answer([9.0, 4.0, 4.0], 30, 0.9), "workers": answer([9.0, 2.0, 2.0], 30, 0.9)},
        {"looped": answer([9.0, 6.0, 6.0], 30, 0.9), "workers": answer([9.0, 3.0, 3.0], 30, 0.9)},
    ]
    theirs = {1: answer([9.0, 10.0, 12.0], 30, 0.9), 2: answer([99.0, 10.0, 10.0], 30, 0.9)}
    rows: list[dict[str, Any]] = []
    for count, found in theirs.items():
        about = {"rival": "pfl", "version": "0.6.0", "processes": count}
        row = rivals.compared("T", about, found, taken) | {"load_before": 0.5}
        rows = [*rivals.others([*rows, row], row), row]  # as if it had been measured twice
    assert [[each["against"], each["ratio"]] for row in rows for each in row["rivals"]] == [
        ["looped", 2.0],
        ["workers", 4.0],
    ]
    page = bench.markdown({**HEAD, "rivals": rows})
    assert "| T | pfl 0.6.0 | 1 | 10.00 (11.00) | looped 5.00 (5.00) | 2.00 | 0.900, ours 0.900 | 0.5 |" in page
