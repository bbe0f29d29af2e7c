"""What clients keep between rounds: the rows that a plain table [N, ...] has, in a run and through a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedbench.core import trees
from fedbench.core.errors import CheckpointError
from fedbench.core.rng import torch_rng
from fedbench.core.trees import Tree
from fedbench.engine import client_state
from fedbench.engine import simulation as states
from fedbench.engine.client_state import ClientMemory
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.simulation import Simulation, State
from fedbench.methods.ditto import Ditto
from tests.engine.toys import CPU, equal
from tests.methods.toys import setup

KEY = "key"


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


def test_leaves_lie_in_order_however_the_first_ones_did() -> None:
    memory = ClientMemory({"turned": torch.arange(12.0).view(3, 4).t()}, 4, CPU)
    memory.put(torch.tensor([2]), {"turned": torch.ones(1, 3)})
    assert memory["turned"].is_contiguous()
    assert memory["turned"].tolist() == [[0, 4, 8], [1, 5, 9], [1, 1, 1], [3, 7, 11]]


def random_rows(count: int, draw: torch.Generator) -> Tree:
    return {
        "weight": torch.randn(count, 3, 5, generator=draw),
        "own": torch.randn(count, generator=draw, dtype=torch.float64),
        "flag": torch.rand(count, 2, generator=draw) > 0.5,
        "half": torch.randn(count, 3, generator=draw).bfloat16(),
        "count": torch.randint(9, (count,), generator=draw),
        "nothing": torch.zeros(count, 0),
    }


def test_it_is_the_table_it_stands_for() -> None:
    """After any cohorts it holds what a dense table holds after them, and so does what a checkpoint restores."""
    start, draw = initial(), torch_rng(1, "test")
    memory, dense = ClientMemory(start, 9, CPU), trees.clone(start)
    for _ in range(30):
        ids = torch.randperm(9, generator=draw)[:2]
        new = random_rows(2, draw)
        memory.put(ids, new)
        dense = trees.put(dense, ids, new)
        probe = torch.randperm(9, generator=draw)[:5]
        assert equal(memory.take(probe), trees.take(dense, probe))
        assert equal(ClientMemory.restore(memory.state(), 9, CPU), dense)
    assert equal(memory, dense)


def test_who_never_trained_shares_the_initial_memory() -> None:
    memory = ClientMemory(initial(), 9, CPU)
    assert trees.is_shared(memory.take(torch.tensor([0, 3]))["weight"])
    memory.put(torch.tensor([3]), random_rows(1, torch_rng(0, "test")))
    assert trees.is_shared(memory.take(torch.tensor([0, 4]))["weight"])
    assert len(memory.state()["rows/weight"]) == 1, "a checkpoint has the rows that were written"


def test_one_row_of_all_clients_stays_one_in_another_precision() -> None:
    """A change of type, as a move to a GPU, would lay out a model for every client."""
    _, memory = states.initial(setup(Ditto()))
    assert memory["personal/head.weight"].dtype == torch.float64
    assert all(map(trees.is_shared, memory.values()))


def test_it_owns_its_rows() -> None:
    start, ids = initial(), torch.tensor([2])
    memory = ClientMemory(start, 9, CPU)
    new = random_rows(1, torch_rng(0, "test"))
    memory.put(ids, new)
    kept = trees.clone(memory)
    start["own"].zero_()
    new["weight"].zero_()
    memory.take(ids)["weight"].zero_()
    assert equal(memory, kept)


def test_a_leaf_that_is_not_given_stays() -> None:
    memory = ClientMemory(initial(), 9, CPU)
    memory.put(torch.tensor([4]), {"own": torch.tensor([7.0], dtype=torch.float64)})
    assert memory["own"].tolist() == [0, 1, 2, 3, 7, 5, 6, 7, 8]
    assert torch.equal(memory["weight"], initial()["weight"])


def test_a_leaf_without_a_place_is_refused() -> None:
    with pytest.raises(ValueError, match=r"but not \['more'\]"):
        ClientMemory(initial(), 9, CPU).put(torch.tensor([4]), {"more": torch.zeros(1)})


def test_rows_that_a_device_has_no_room_for_are_kept_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The meta device stands for a GPU."""
    memory = ClientMemory({"weight": torch.zeros(4, 25, device="meta")}, 4, torch.device("meta"))
    for free, home in ((1600, "meta"), (1599, "cpu")):
        monkeypatch.setattr(client_state, "free_bytes", lambda _, free=free: free)
        assert memory._home().type == home


def simulation(rounds: int = 6) -> Simulation:
    chosen = setup(Ditto(), rounds=rounds, cohort=0.4)
    return Simulation(chosen, LoopedTrainer(chosen))


def advance(simulation: Simulation, state: State, to: int) -> State:
    while state.round < to:
        simulation.step(state)
    return state


@pytest.mark.slow
def test_a_checkpoint_is_whole_however_far_the_run_went_on(tmp_path: Path) -> None:
    whole, going = simulation(12), simulation(12)
    expected = [advance(whole, whole.begin(), to) for to in range(1, 13)]
    state = going.begin()
    for saved in (1, 4, 5, 9):
        states.save_state(tmp_path / "checkpoint", advance(going, state, saved), KEY)
        advance(going, state, saved + 2)  # this process "dies" here
        state = states.load_state(tmp_path / "checkpoint", KEY, CPU)
        assert equal(states.models(state), states.models(expected[saved - 1]))
    assert equal(states.models(advance(going, state, 12)), states.models(expected[-1]))


def test_a_save_that_fails_leaves_the_earlier_checkpoint_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved, going = tmp_path / "checkpoint", simulation()
    state = advance(going, going.begin(), 2)
    states.save_state(saved, state, KEY)
    kept = states.models(state)
    with monkeypatch.context() as patch:
        patch.setattr(states.checkpoint, "save_file", broken)
        with pytest.raises(CheckpointError):
            states.save_state(saved, advance(going, state, 3), KEY)
    assert equal(states.models(states.load_state(saved, KEY, CPU)), kept)


def broken(*_: Any) -> None:
    raise OSError("disk full")


def test_rows_carry_no_graph_and_nobody_takes_no_bytes() -> None:
    memory = ClientMemory({"weight": torch.zeros(2, 3)}, 2, CPU)
    memory.put(torch.tensor([1]), {"weight": torch.ones(1, 3, requires_grad=True)})
    assert not memory.take(torch.tensor([0, 1]))["weight"].requires_grad
    assert (memory.row_bytes, ClientMemory({"weight": torch.zeros(0, 3)}, 0, CPU).row_bytes) == (12, 0)
