"""Runs with client memory in a mapped file: the same bits as in memory, whatever happens to the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedbench.core.errors import CheckpointError
from fedbench.engine import simulation as states
from fedbench.engine.client_state import Storage
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.method import Method
from fedbench.engine.simulation import Simulation, State
from fedbench.methods.apfl import APFL
from fedbench.methods.ditto import Ditto
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.scaffold import Scaffold
from fedbench.runs import execution as run
from tests.engine.toys import CPU, equal, in_file
from tests.helpers.runs import config, kill_and_rerun, rows, same_models
from tests.methods.toys import setup

KEY = "key"


def simulation(method: Method, place: Storage | None = None, rounds: int = 6) -> Simulation:
    chosen = setup(method, rounds=rounds, cohort=0.4)
    return Simulation(chosen, LoopedTrainer(chosen), storage=place)


def advance(simulation: Simulation, state: State, to: int) -> State:
    while state.round < to:
        simulation.step(state)
    return state


def same(a: State, b: State) -> bool:
    """Server, memory and scores, bit for bit."""
    first, second = states.models(a), states.models(b)
    return set(first) == set(second) and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("method", [Ditto(), Scaffold(), APFL()])
def test_a_run_with_a_file_equals_one_in_memory(method: Method, tmp_path: Path) -> None:
    here, there = simulation(method), simulation(method, in_file(tmp_path))
    states = advance(here, here.begin(), 6), advance(there, there.begin(), 6)
    assert states[1].memory.mapped
    assert not states[0].memory.mapped
    assert same(*states)
    totals = [[t.correct.tolist() for r in s.history.records for t in r.tallies.values()] for s in states]
    assert totals[0] == totals[1]


@pytest.mark.parametrize("kind", ["file", "host"])
def test_a_checkpoint_is_whole_however_far_the_run_went_on(kind: str, tmp_path: Path) -> None:
    """Rows written after a checkpoint may not touch those it relies on, round after round."""
    place = Storage(5, kind, path=tmp_path / "memory.rows")
    whole = simulation(Ditto(), rounds=12)
    expected = [advance(whole, whole.begin(), to) for to in range(1, 13)]
    going = simulation(Ditto(), place, rounds=12)
    state = going.begin()
    for saved in (1, 4, 5, 9):
        advance(going, state, saved)
        states.save(tmp_path / "checkpoint", state, KEY)
        advance(going, state, saved + 2)  # this process "dies" here
        state = states.load(tmp_path / "checkpoint", KEY, CPU, place)
        assert same(state, expected[saved - 1])
        state = states.load(tmp_path / "checkpoint", KEY, CPU, place)
    assert same(advance(going, state, 12), expected[-1])


def test_a_save_that_fails_leaves_the_earlier_checkpoint_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, saved = in_file(tmp_path), tmp_path / "checkpoint"
    going = simulation(Ditto(), place)
    state = advance(going, going.begin(), 2)
    states.save(saved, state, KEY)
    kept = states.models(state)
    advance(going, state, 3)
    with monkeypatch.context() as patch:
        patch.setattr(states.checkpoint, "save_file", broken)
        with pytest.raises(CheckpointError):
            states.save(saved, state, KEY)
    advance(going, state, 5)
    assert equal(states.models(states.load(saved, KEY, CPU, place)), kept)


def broken(*_: Any) -> None:
    raise OSError("disk full")


def test_a_checkpoint_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    sizes = {}
    for kind in ("host", "file"):
        place = Storage(5, kind, path=tmp_path / kind)
        going = simulation(Ditto(), place)
        state = going.begin()
        for rounds in (1, 6):
            states.save(tmp_path / "checkpoint", advance(going, state, rounds), KEY)
            tree, _ = states.checkpoint.load(tmp_path / "checkpoint")
            sizes[kind, rounds] = sum(v.nbytes for k, v in tree.items() if k.startswith("memory/"))
    width = state.memory.layout.width
    assert sizes["host", 6] - sizes["host", 1] >= 3 * width - 100
    assert sizes["file", 6] - sizes["file", 1] <= 3 * 24


@pytest.mark.parametrize("damage", ["flipped", "short", "missing"])
def test_damaged_rows_are_refused_in_one_line(damage: str, tmp_path: Path) -> None:
    place, path = in_file(tmp_path), tmp_path / "memory.rows"
    going = simulation(Ditto(), place)
    state = advance(going, going.begin(), 4)
    states.save(tmp_path / "checkpoint", state, KEY)
    slot = int(state.memory._slots.max())
    content = bytearray(path.read_bytes())
    content[slot * state.memory.layout.width + 5] ^= 4
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(content if damage == "flipped" else content[: slot * state.memory.layout.width])
    with pytest.raises(CheckpointError, match=r"memory.rows: .*; delete .* to start over") as error:
        states.models(states.load(tmp_path / "checkpoint", KEY, CPU, place))
    assert "\n" not in str(error.value)


FILE = ["hardware.client_memory=file"]


def test_a_run_removes_its_file_unless_it_broke_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = [*FILE, f"hardware.scratch={tmp_path / 'scratch'}", "method=ditto", "save_models=true"]
    whole = run.execute(config(tmp_path / "whole", "method=ditto", "save_models=true"))
    played = Simulation.step

    def interrupted(self: Simulation, state: State) -> None:
        if state.round == 2 and isinstance(self.setup.method, Ditto):
            raise KeyboardInterrupt
        played(self, state)

    for rule, left in (("checkpoint.seconds=0", 0), ("checkpoint.rounds=1", 1)):
        with monkeypatch.context() as patch:
            patch.setattr(Simulation, "step", interrupted)
            with pytest.raises(KeyboardInterrupt):
                run.execute(config(tmp_path / "parts", *chosen, rule))
        assert len(list((tmp_path / "scratch").iterdir())) == left, rule
    parts = run.execute(config(tmp_path / "parts", *chosen))
    assert rows(parts.folder) == rows(whole.folder)
    assert same_models(parts.folder, whole.folder)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_stateless_run_has_no_file(tmp_path: Path) -> None:
    going = simulation(FedAvg(), in_file(tmp_path))
    state = advance(going, going.begin(), 2)
    states.save(tmp_path / "checkpoint", state, KEY)
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint"]


def test_hardware_is_no_part_of_what_a_run_is(tmp_path: Path) -> None:
    plain, mapped = config(tmp_path), config(tmp_path, *FILE, "hardware.client_memory_share=0.1")
    assert run.run_key(plain) == run.run_key(mapped)


@pytest.mark.slow
def test_a_killed_run_with_a_file_goes_on_to_the_same_rows(tmp_path: Path) -> None:
    overrides = ["method=ditto", "protocol.rounds=30", "protocol.cohort=50%", *FILE]
    overrides += ["checkpoint.rounds=1", "save_models=true"]
    assert kill_and_rerun(tmp_path, overrides, kills=2, seed=1) == 2
    assert not list(tmp_path.rglob("memory.rows"))
