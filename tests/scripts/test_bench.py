"""The benchmark itself: equal work, wrong engines found, results of one workload beside those run before."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedbench.data.dataset import Availability
from fedbench.engine.setup import Setup

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """scripts/bench.py as a module, with one core, so that no processes are started."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    found = importlib.import_module("bench")
    monkeypatch.setattr(found.rounds.contestants, "available_workers", lambda: 1)
    yield found
    for name in [name for name in sys.modules if name == "bench" or name.split(".")[0] == "benchmarks"]:
        del sys.modules[name]


def tiny(bench: Any) -> Any:
    workloads = sys.modules["benchmarks.workloads"]
    overrides = ("model=mlp", "protocol=quick", "protocol.local.epochs=1", *workloads.SGD)
    return workloads.Workload(
        "T", "three clients", (*overrides, "protocol.cohort=all"), (70, 33, 5), (1, 8, 8)
    )


@pytest.mark.slow
def test_contestants_do_equal_work_and_reach_equal_weights(bench: Any) -> None:
    row = bench.rounds.run(tiny(bench), torch.device("cpu"), 1, quick=False)
    batch = tiny(bench).setup(torch.device("cpu")).protocol.local.batch_size
    assert row["client_steps"] == sum(-(-size // batch) for size in (70, 33, 5))
    assert set(row["rate"]) == {"looped", "stacked", "plain", "merged"}
    assert all(gap <= 1e-12 for gap in row["largest_difference"].values())
    assert 0 < row["calibrated"]["looped"] < 1


def test_an_engine_that_trains_something_else_is_not_timed(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lazy(bench.rounds.contestants.LoopedTrainer):  # type: ignore[misc, name-defined]
        """Skips the optimiser's steps."""

        def descend(self, *_: Any) -> list[Any]:
            return [torch.zeros(())]

    monkeypatch.setattr(bench.rounds.contestants, "LoopedTrainer", Lazy)
    with pytest.raises(AssertionError, match=r"engines differ from the plain loop: \{'looped'"):
        bench.rounds.run(tiny(bench), torch.device("cpu"), 1, quick=False)


def test_a_workload_run_again_leaves_the_others(bench: Any, tmp_path: Path) -> None:
    result = {"machine": "AMD, 2 cores", "device": "cpu", "version_torch": "2.11", "date": "2026-01-01"}
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
    bench.store({**result, "rounds": [row]}, tmp_path)
    assert bench.earlier(result, tmp_path) == {"rounds": [row]}
    assert bench.earlier({**result, "device": "cuda"}, tmp_path) == {"rounds": []}, "another device's file"
    (written,) = tmp_path.glob("*.md")
    assert "| W1 | 100 | 150 | - | - | - | - | 300 | 1.50 (looped) | 0.5 | 10 | 0.2 |" in written.read_text(
        encoding="utf-8"
    )
    assert json.loads(written.with_suffix(".json").read_text(encoding="utf-8"))["rounds"] == [row]


@pytest.mark.slow
def test_five_seeds_together_give_what_they_give_apart(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = bench.seeds.run(tiny(bench), torch.device("cpu"), 1, quick=False)
    assert set(found["seconds"]) == {"one", "apart", "together"}
    assert found["largest_difference"] <= 1e-5
    joint = sys.modules["fedbench.engine.seeds"]
    monkeypatch.setattr(joint.joint_setup, "seed_of", lambda *_: 0)  # all clients as those of seed 0
    with pytest.raises(AssertionError, match="differ from five apart"):
        bench.seeds.run(tiny(bench), torch.device("cpu"), 1, quick=False)


def test_a_protocols_phases_are_weighed_by_how_often_they_come(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
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

    monkeypatch.setattr(bench.phases, "Simulation", Simulated)
    found = bench.phases.run(
        "pFedSim", "cpu", ("dataset=digits", "model=mlp", "partition.num_clients=3", "partition.min_size=10")
    )
    assert found["seconds"] == {"train": 8.0, "server": 1.0, "evaluate": 10.0}
    assert found["shares"] == {"train": 80.0, "server": 10.0, "evaluate": 10.0}
    (line,) = sys.modules["benchmarks.render"].phases_table({"cases": [found], "load_before": 0.0})[5:]
    assert line == "| pFedSim | 10 rounds | 80 % | 10 % | 10 % |"


def test_a_protocols_phases_are_those_of_a_run(bench: Any) -> None:
    found = bench.phases.run("FedCollab, label shift", "cpu", ("dataset=digits",))
    assert all(seconds > 0 for seconds in found["seconds"].values())
    assert sum(found["shares"].values()) == pytest.approx(100, abs=0.2)


def test_phases_are_left_out_where_their_data_set_is_missing(
    bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = Availability(ready=False, where="", looked=(), how="run this to get it")
    monkeypatch.setattr(bench.phases, "images", lambda: missing)
    monkeypatch.setattr(sys, "argv", ["bench.py", "--only", "PHASES", "--out", str(tmp_path)])
    assert bench.main() == 0
    assert "run this to get it" in capsys.readouterr().out
    (stored,) = tmp_path.glob("*.json")
    assert "phases" not in json.loads(stored.read_text())
