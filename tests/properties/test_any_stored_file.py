"""Whatever happens to a file that fedbench wrote: its own content, one line of ours, or (caches) made again."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from fedbench.core import cache, checked, files
from fedbench.core.checked import CheckedFiles, ChecksummedFolder
from fedbench.core.errors import CheckpointError, Damaged, FedbenchError
from fedbench.data.partitions.file import read_arrays
from fedbench.engine import checkpoint
from fedbench.papers import store
from fedbench.runs.folder import numeric_rows
from tests.helpers.any_damage import Damage, damages, holding, read_or_refused
from tests.helpers.examples import line_of, tried

CLIENTS = {
    "train_0": np.arange(5),
    "train_1": np.arange(5, 9),
    "test_0": np.array([9]),
    "test_1": np.array([10]),
}


@pytest.mark.slow
@given(damages())
@tried(8)
def test_any_partition_file(damage: Damage) -> None:
    whole = files.as_npz(CLIENTS)
    with holding(damage(whole), "split.npz") as path:
        found = read_or_refused(path, read_arrays)
        if found is not None:
            assert {name: array.tolist() for name, array in found.items()} == {
                name: array.tolist() for name, array in CLIENTS.items()
            }


@pytest.mark.slow
@given(damages())
@tried(8)
def test_any_checkpoint(damage: Damage) -> None:
    tree = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor([True, False]), "c": torch.zeros(0)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.safetensors"
        checkpoint.write_checkpoint(path, tree, {"round": 3}, key="k")
        path.write_bytes(damage(path.read_bytes()))
        found = read_or_refused(path, lambda file: checkpoint.read_checkpoint(file, key="k"), CheckpointError)
        if found is not None:
            assert {name: leaf.tolist() for name, leaf in found[0].items()} == {
                name: leaf.tolist() for name, leaf in tree.items()
            }
            assert found[1] == {"round": 3}


SEALED = {
    "result.json": files.as_json({"acc": 12.5, "clients": 3, "key": "0123"}),
    "clients.csv": files.as_csv([{"client": i, "acc": 12.5 * i} for i in range(3)]),
    "tallies.npz": files.as_npz({"round": np.arange(3), "loss": np.array([0.5, np.nan, np.inf])}),
}
READ: dict[str, Callable[[CheckedFiles, str], Any]] = {
    "result.json": CheckedFiles.json,
    "clients.csv": lambda folder, name: numeric_rows(folder, name, "acc"),
    "tallies.npz": lambda folder, name: {key: each.tolist() for key, each in folder.npz(name).items()},
}


@pytest.mark.slow
@given(damages(), st.sampled_from(sorted(SEALED)), st.booleans())
@tried(8)
def test_any_sealed_file(damage: Damage, name: str, of_manifest: bool) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = ChecksummedFolder(Path(place), "make it again")
        folder.write(SEALED)
        whole = repr(READ[name](folder, name))
        path = Path(place) / (checked.MANIFEST if of_manifest else name)
        path.write_bytes(damage(path.read_bytes()))
        found = read_or_refused(path, lambda _: READ[name](folder, name), Damaged)
        assert found is None or repr(found) == whole


@pytest.mark.slow
@given(damages(), st.sampled_from(sorted(SEALED)))
@tried(8)
def test_any_file_of_a_version_without_checksums(damage: Damage, name: str) -> None:
    """Its content cannot be vouched for, but it is of the right kind or refused."""
    with holding(damage(SEALED[name]), name) as path:
        found = read_or_refused(path, lambda file: READ[name](ChecksummedFolder(file.parent, "again"), name), Damaged)
        if name == "clients.csv" and found is not None:
            assert all(float(row["acc"] or "nan") is not None for row in found)


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), st.just("x" * 99)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["name", "rows", "label", "x"]), inner, max_size=3),
    ),
    max_leaves=6,
)
TABLE: dict[str, Any] = {
    "spec": {
        "name": "toy",
        "title": "Toy",
        "paper": "",
        "table": "",
        "metrics": [{"name": "acc"}],
        "rows": [{"label": "FedAvg"}],
        "columns": [{"label": "digits"}],
    },
    "circumstances": {"seconds": 3.5, "changed": [], "varied": []},
    "cells": [{"row": "FedAvg", "column": "digits", "metric": "acc", "values": [12.5], "seeds": [0], "keys": ["k"]}],
}


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _places(item, (*path, key))


def _with(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    if isinstance(value, dict):
        return {**value, path[0]: _with(value[path[0]], path[1:], new)}
    return [_with(item, path[1:], new) if i == path[0] else item for i, item in enumerate(value)]


@pytest.mark.slow
@given(
    st.sampled_from(list(_places(TABLE))),
    json_values,
    st.sampled_from(["3", "3.5", "x", "", "-1", "1e400", "nan"]),
)
@example(("cells",), [], "3.5")
@tried(8)
def test_any_table_of_a_version_without_checksums(place: tuple[Any, ...], value: Any, clients: str) -> None:
    content = _with(TABLE, place, value)
    with holding(files.as_json(content if isinstance(content, dict) else {"x": content}), store.TABLE) as path:
        path.with_name(store.ROWS).write_text(f"row,column,clients\nFedAvg,digits,{clients}\n")
        try:
            table = store.read_table(path.parent)
        except FedbenchError as error:
            line_of(error)
        else:
            assert all(isinstance(value, float) for cell in table.cells for value in cell.values)
            assert all(number > 0 for number in table.clients.values())


@pytest.mark.slow
@given(damages(), st.sampled_from(["x.npy", "empty.npy", checked.MANIFEST]))
@tried(4)
def test_any_cache_heals(damage: Damage, name: str) -> None:
    values = {"x": np.arange(12).reshape(3, 4), "empty": np.zeros((0, 2), np.uint8)}
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDBENCH_CACHE", folder)
        cache.cached_arrays("toy", lambda: values)
        path = Path(folder) / "prepared" / "toy" / name
        path.write_bytes(damage(path.read_bytes()))
        for _ in range(2):
            found = cache.cached_arrays("toy", lambda: values)
            assert {key: (each.dtype, each.tolist()) for key, each in found.items()} == {
                key: (each.dtype, each.tolist()) for key, each in values.items()
            }
