"""Whatever arrays a file of a split holds: a split that keeps its promises, or one line of ours."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedbench.config.schema import TestConfig as Protocol
from fedbench.core.errors import FedbenchError
from fedbench.data.federation import Federation
from fedbench.data.partition import SETS, Partition, make_partition
from fedbench.data.partitions import PARTITIONS
from tests.helpers.examples import FORTY, line_of, tried

integers = st.lists(st.integers(-2, 60), max_size=6).map(lambda values: np.array(values, dtype=np.int64))
anything = st.one_of(
    st.just(np.array(1.5)),
    st.just(np.array("text")),
    st.just(np.array(["a", "b"])),
    st.just(np.array([2**64 - 1, 3], dtype=np.uint64)),
    st.just(np.array([np.nan])),
    st.just(np.array([True])),
    st.just(np.array(0, dtype="datetime64[s]")),
    st.just(np.zeros((2, 0))),
    st.just(np.array([1 + 2j])),
    st.lists(st.floats(), max_size=3).map(np.array),
    st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), min_size=1, max_size=3).map(np.array),
    integers,
)
named = st.one_of(
    st.builds("{}_{}".format, st.sampled_from(SETS), st.integers(0, 2)),
    st.sampled_from(
        ["rotation", "corners", "label_map", "dataset", "label", "seed", "classes", "nonsense", "train_01"]
    ),
)


@pytest.mark.slow
@given(
    st.fixed_dictionaries({"train_0": st.just(np.arange(5)), "test_0": st.just(np.arange(5, 9))}),
    st.dictionaries(named, anything, max_size=4),
    st.booleans(),
    st.sampled_from([Protocol(), Protocol("global"), Protocol(val_fraction=0.5), Protocol(fraction=0.0)]),
)
@example({"train_0": np.arange(5), "test_0": np.arange(5, 9)}, {"rotation": np.array(["a"])}, False, Protocol())
@example({"train_0": np.arange(5), "test_0": np.arange(5, 9)}, {"rotation": np.array([np.nan])}, False, Protocol())
@example({"train_0": np.arange(5), "test_0": np.arange(5, 9)}, {"corners": np.array("text")}, False, Protocol())
@tried(10)
def test_any_arrays_as_a_split(
    whole: dict[str, np.ndarray], other: dict[str, np.ndarray], shared: bool, protocol: Protocol
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "split.npz"
        np.savez(path, **{**whole, **other})
        try:
            assert Partition.load(path).classes >= 0
        except FedbenchError as error:
            line_of(error)
        try:
            spec = PARTITIONS.build({"name": "file", "path": str(path), "shared": shared})
            partition = make_partition(spec, FORTY, protocol, 0)
            federation = Federation(FORTY, partition)
        except FedbenchError as error:
            line_of(error)
            return
    trained = {int(sample) for part in (*partition.train, *partition.val) for sample in part}
    assert not trained & {int(sample) for part in partition.test for sample in part}
    assert bool((federation.x.to(float).isfinite()).all())
    assert all(0 <= int(label) < FORTY.classes for label in federation.y)
    for name in ("train", "test"):
        given_arrays = {**whole, **other}
        for client in range(len(partition)):
            if f"{name}_{client}" in given_arrays and "test_0" in given_arrays and protocol.val_fraction == 0:
                assert getattr(partition, name)[client].tolist() == sorted(given_arrays[f"{name}_{client}"].tolist())
