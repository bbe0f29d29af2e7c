"""A store of client memory in a mapped file: the rows that a table in memory has."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from fedbench.config.schema import HardwareConfig
from fedbench.core import trees
from fedbench.core.errors import FedbenchError
from fedbench.core.rng import torch_rng
from fedbench.core.trees import Tree
from fedbench.engine import client_state
from fedbench.engine.client_state import ClientStore, Storage
from fedbench.methods.ditto import Ditto
from tests.engine.toys import CPU, equal, in_file
from tests.methods.toys import setup


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
    monkeypatch.setattr(client_state, "free_bytes", lambda _: 1000)
    path = tmp_path / "rows"
    assert Storage(25, path=path).chosen(10, CPU) == "device"
    assert Storage(26, path=path).chosen(10, CPU) == "file"
    assert Storage(26, path=path, share=0.5).chosen(10, CPU) == "device"
    assert Storage(26).chosen(10, CPU) == "host", "without a folder there is no choice"
    free = {"cuda": 100, "cpu": 1000}
    monkeypatch.setattr(client_state, "free_bytes", lambda device: free[device.type])
    assert Storage(20, path=path).chosen(10, torch.device("cuda")) == "host"
    monkeypatch.setattr(client_state, "free_bytes", lambda _: 2**50)
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


def test_a_file_takes_the_space_of_few_versions(tmp_path: Path) -> None:
    """Places that no checkpoint relies on any more are used again."""
    store, _ = filled(Storage(9, "file", path=tmp_path / "rows"), saves=True)
    assert store._rows is not None
    used = set(range(store._rows.capacity)) - set(store._rows._free)
    assert len(used) <= 9
    assert max(used) < 2 * 9 + 4


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


def test_checksums_tell_rows_apart() -> None:
    from fedbench.engine.client_state import checksums

    found = checksums(torch.tensor([[1, 2], [2, 1], [1, 2]], dtype=torch.uint8))
    assert found[0] == found[2] != found[1]
    assert found.dtype == np.int64
