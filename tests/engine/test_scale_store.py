"""Client memory in a mapped file: the same bits as in memory, whatever happens to the run."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedbench.config.schema import HardwareConfig
from fedbench.core import trees
from fedbench.core.errors import CheckpointError, FedbenchError
from fedbench.core.rng import torch_rng
from fedbench.core.trees import Tree
from fedbench.engine import state as states
from fedbench.engine.clients import storage
from fedbench.engine.clients.storage import Storage
from fedbench.engine.clients.store import ClientStore
from fedbench.engine.method import Method
from fedbench.engine.simulation import Simulation
from fedbench.engine.state import State
from fedbench.engine.train.looped import LoopedTrainer
from fedbench.methods.apfl import APFL
from fedbench.methods.ditto import Ditto
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.scaffold import Scaffold
from fedbench.runs import execution as run
from tests.helpers.runs import config, kill_and_rerun, rows, same_models
from tests.methods.toys import setup

CPU = torch.device("cpu")
KEY = "key"


def in_file(folder: Path, most: int = 5) -> Storage:
    return Storage(most, "file", path=folder / "memory.rows")


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


# ---- a store of its own


def initial(clients: int = 9) -> Tree:
    """A shared leaf, one of each client's own, odd types, a scalar, and nothing at all."""
    draw = torch_rng(0, "test")
    return {
        "weight": torch.randn(3, 5, generator=draw).expand(clients, 3, 5),
        "own": torch.arange(float(clients), dtype=torch.float64),
        "flag": torch.tensor([True, False]).expand(clients, 2),
        "half": torch.randn(3, generator=draw).bfloat16().expand(clients, 3),
        "count": torch.tensor(3).expand(clients),
        "nothing": torch.zeros(clients, 0),
    }


def random_rows(count: int, draw: torch.Generator) -> Tree:
    return {
        "weight": torch.randn(count, 3, 5, generator=draw),
        "own": torch.randn(count, generator=draw, dtype=torch.float64),
        "flag": torch.rand(count, 2, generator=draw) > 0.5,
        "half": torch.randn(count, 3, generator=draw).bfloat16(),
        "count": torch.randint(9, (count,), generator=draw),
        "nothing": torch.zeros(count, 0),
    }


def filled(place: Storage, saves: bool) -> tuple[ClientStore, Tree]:
    """A store after many cohorts, and a plain dense table after the same ones."""
    start, draw = initial(), torch_rng(1, "test")
    store, dense = ClientStore(start, 9, place, CPU), trees.clone(start)
    for _ in range(30):
        ids = torch.randperm(9, generator=draw)[:4]
        new = random_rows(4, draw)
        store.put(ids, new)
        dense = trees.put(dense, ids, new)
        if saves:
            store.state()
            store.settle()
        probe = torch.randperm(9, generator=draw)[:5]
        assert equal(store.take(probe), trees.take(dense, probe))
    return store, dense


def equal(a: Any, b: Tree) -> bool:
    return set(a) == set(b) and all(a[k].dtype == b[k].dtype and torch.equal(a[k], b[k]) for k in b)


@pytest.mark.parametrize("saves", [False, True])
@pytest.mark.parametrize("kind", ["host", "device", "file"])
def test_a_store_is_the_table_it_stands_for(kind: str, saves: bool, tmp_path: Path) -> None:
    store, dense = filled(Storage(9, kind, path=tmp_path / "rows"), saves)
    assert equal(store, dense)
    again = ClientStore.restore(store.state(), 9, Storage(9, kind, path=tmp_path / "rows"), CPU)
    assert equal(again, dense)


def test_who_never_trained_shares_the_initial_memory() -> None:
    store = ClientStore(initial(), 9, Storage(9), CPU)
    assert trees.is_shared(store.take(torch.tensor([0, 3]))["weight"])
    store.put(torch.tensor([3]), random_rows(1, torch_rng(0, "test")))
    assert trees.is_shared(store.take(torch.tensor([0, 4]))["weight"])
    assert len(store.state()["rows/weight"]) == 1, "a checkpoint has the rows that were written"


def test_a_store_owns_its_memory() -> None:
    start, ids = initial(), torch.tensor([2])
    store = ClientStore(start, 9, Storage(9), CPU)
    new = random_rows(1, torch_rng(0, "test"))
    store.put(ids, new)
    kept = trees.clone(store)
    start["own"].zero_()
    new["weight"].zero_()
    store.take(ids)["weight"].zero_()
    assert equal(store, kept)


def test_a_leaf_that_is_not_given_stays() -> None:
    store = ClientStore(initial(), 9, Storage(9), CPU)
    store.put(torch.tensor([4]), {"own": torch.tensor([7.0], dtype=torch.float64)})
    assert store["own"].tolist() == [0, 1, 2, 3, 7, 5, 6, 7, 8]
    assert torch.equal(store["weight"], initial()["weight"])


def test_what_is_too_large_for_memory_goes_to_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "free_bytes", lambda _: 1000)
    path = tmp_path / "rows"
    assert Storage(25, path=path).chosen(10, CPU) == "device"
    assert Storage(26, path=path).chosen(10, CPU) == "file"
    assert Storage(26, path=path, share=0.5).chosen(10, CPU) == "device"
    assert Storage(26).chosen(10, CPU) == "host", "without a folder there is no choice"
    free = {"cuda": 100, "cpu": 1000}
    monkeypatch.setattr(storage, "free_bytes", lambda device: free[device.type])
    assert Storage(20, path=path).chosen(10, torch.device("cuda")) == "host"
    monkeypatch.setattr(storage, "free_bytes", lambda _: 2**50)
    assert Storage(2**10, path=path).chosen(2**21, CPU) == "device"
    assert Storage(2**10 + 1, path=path).chosen(2**21, CPU) == "file", "a checkpoint would take too long"


def test_only_rows_that_a_run_can_write_count(tmp_path: Path) -> None:
    chosen = setup(Ditto(), rounds=2, cohort=0.4)  # two of five clients a round
    assert Storage.of(chosen).most == 4
    place = Storage.of(chosen, HardwareConfig(scratch=str(tmp_path / "fast")), tmp_path / "run")
    other = Storage.of(chosen, HardwareConfig(scratch=str(tmp_path / "fast")), tmp_path / "run2")
    assert place.path
    assert place.path.parent == tmp_path / "fast"
    assert place.path != other.path, "runs may share a scratch folder"


# ---- whole simulations


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


def test_a_file_takes_the_space_of_few_versions(tmp_path: Path) -> None:
    """Places that no checkpoint relies on any more are used again."""
    store, _ = filled(Storage(9, "file", path=tmp_path / "rows"), saves=True)
    assert store._rows is not None
    used = set(range(store._rows.capacity)) - set(store._rows._free)
    assert len(used) <= 9
    assert max(used) < 2 * 9 + 4


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


@contextmanager
def no_file_above(size: int) -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_is_one_line_not_a_crash(tmp_path: Path) -> None:
    store = ClientStore(initial(), 9, in_file(tmp_path), CPU)
    with no_file_above(1000), pytest.raises(FedbenchError, match=r"memory.rows .*; make room, .*scratch"):
        store.put(torch.tensor([1]), random_rows(1, torch_rng(0, "test")))


# ---- runs


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


def test_checksums_tell_rows_apart() -> None:
    from fedbench.engine.clients.store import checksums

    found = checksums(torch.tensor([[1, 2], [2, 1], [1, 2]], dtype=torch.uint8))
    assert found[0] == found[2] != found[1]
    assert found.dtype == np.int64
