"""Whatever data a partition is given, however small or ragged: a split that keeps its promises, or one line of ours."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, reject
from hypothesis import strategies as st

from fedbench.config.fields import LARGEST
from fedbench.config.schema import TestConfig as Protocol
from fedbench.core.errors import ConfigError, FedbenchError
from fedbench.data.dataset import Dataset
from fedbench.data.federation import Federation
from fedbench.data.partition import SETS, Partition, held_out, make_partition
from fedbench.data.partitions import PARTITIONS
from fedbench.data.partitions.base import PartitionSpec
from tests.helpers.examples import FORTY, line_of, tried

NAMES = [name for name in PARTITIONS if name != "file"]
WHOLE = ("homo", "dir", "domain", "label_groups", "pathological", "quantity")  # hand out every sample

count = st.one_of(st.integers(1, 12), st.integers(1, 60), st.sampled_from([500, 10**6, 2**31, LARGEST]))
number = st.one_of(st.floats(1e-6, 20), st.sampled_from([1e-6, 1e-3, 1e3, 1e6, 1e300]))
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("num_clients", "clients_per_domain"), st.one_of(st.integers(1, 8), count)),
    **dict.fromkeys(("min_size", "size", "large", "small", "test", "min_small", "min_test", "width", "groups"), count),
    **dict.fromkeys(("alpha", "beta"), number),
    **dict.fromkeys(("primary", "s"), st.floats(0, 1)),
    "scale": st.one_of(st.none(), st.floats(1e-6, 1)),
    "skew": st.integers(1, 12),
    "folds": st.one_of(st.integers(2, 6), count.filter(lambda n: n > 1)),
    "max_tries": st.integers(1, 50),
    "cap": st.booleans(),
    "starts": st.lists(st.one_of(st.integers(0, 12), count), min_size=1, max_size=5),
}


@st.composite
def datasets(draw: st.DrawFn) -> Dataset:
    """Classes of any size, some of them absent from the training or the test split."""
    classes = draw(st.integers(2, 12))
    size = st.one_of(st.integers(0, 3), st.integers(0, 40), st.just(0))
    train, test = (draw(st.lists(size, min_size=classes, max_size=classes)) for _ in range(2))
    assume(sum(train))
    y = np.concatenate([np.repeat(np.arange(classes), each) for each in (train, test)])
    x = (np.arange(len(y)) % 251).astype(np.uint8).reshape(-1, 1, 1, 1)
    domain = np.arange(len(y)) % draw(st.integers(1, 4)) if draw(st.booleans()) else None
    return Dataset("toy", x, y, sum(train), classes, (0.5,), (0.5,), domain=domain)


@st.composite
def specs(draw: st.DrawFn) -> PartitionSpec:
    name = draw(st.sampled_from(NAMES))
    fields = {field: FIELDS[field] for field in PARTITIONS.get(name).__dataclass_fields__ if field in FIELDS}
    if name == "fold_code":  # whose `test` is a share
        fields["test"] = st.floats(0, 0.9)
    try:
        return PARTITIONS.build({"name": name, **draw(st.fixed_dictionaries({}, optional=fields))})
    except ConfigError:  # a value outside of a field's domain, as one client of some partitions
        reject()


@st.composite
def protocols(draw: st.DrawFn) -> Protocol:
    share = st.one_of(st.just(0.0), st.sampled_from([0.2, 0.5, 0.99]), st.floats(0, 1, exclude_max=True))
    sets = draw(st.sampled_from(["local", "local", "global", "both", "common"]))
    return Protocol(sets, pool=draw(st.booleans()), fraction=draw(share), val_fraction=draw(share))


def split(spec: PartitionSpec, data: Dataset, protocol: Protocol, seed: int) -> Partition | None:
    """None where it is refused, in one line."""
    try:
        return make_partition(spec, data, protocol, seed)
    except FedbenchError as error:
        line_of(error)
        return None


def parts(partition: Partition) -> Iterator[np.ndarray]:
    for name in SETS:
        yield from getattr(partition, name)


def check_promises(partition: Partition, data: Dataset, protocol: Protocol, pooled: bool) -> None:
    """What holds for every split, its own checks left aside."""
    everything = [int(sample) for part in parts(partition) for sample in part]
    assert len(set(everything)) == len(everything)
    assert set(everything) <= set(range(len(data) if pooled else data.num_train))
    assert len(partition.train) == len(partition.val) == len(partition.test) == len(partition)
    assert all(len(part) for part in partition.train)
    assert all(part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts(partition))
    if protocol.sets != "global":
        assert any(map(len, partition.test))
    if protocol.val_fraction:
        assert any(map(len, partition.val))
    counts = partition.label_counts(np.asarray(data.y))
    assert counts.sum() == sum(map(len, [*partition.train, *partition.val]))


@pytest.mark.slow
@given(specs(), datasets(), protocols(), st.integers(0, 2**40))
@tried(15)
def test_any_partition_of_any_data(spec: PartitionSpec, data: Dataset, protocol: Protocol, seed: int) -> None:
    partition = split(spec, data, protocol, seed)
    if partition is None:
        return
    check_promises(partition, data, protocol, protocol.pool or spec.pools)
    again = make_partition(spec, data, protocol, seed)
    assert again.hash == partition.hash
    if spec.name in WHOLE:
        pool = len(data) if protocol.pool else data.num_train
        left = data.y[: len(data) if protocol.pool else data.num_train]
        if spec.name == "label_groups":
            owned = {(start + i) % data.classes for start in spec.starts for i in range(spec.width)}  # type: ignore[attr-defined]
            pool = int(np.isin(left, sorted(owned)).sum())
        assert sum(map(len, parts(partition))) == pool
    if not spec.fixes_test and not spec.name.endswith("_fedsac"):  # whose program says who validates
        for sets in zip(partition.train, partition.val, partition.test, strict=True):
            train, val, test = map(len, sets)
            assert test == held_out(train + val + test, 0 if protocol.sets == "global" else protocol.fraction)
            assert val == held_out(train + val, protocol.val_fraction)
    if spec.name == "label_shift":
        for sets in zip(partition.train, partition.val, partition.test, strict=True):
            trained, tested = (set(data.y[np.concatenate(each)].tolist()) for each in (sets[:2], sets[2:]))
            assert trained == tested
    if partition.label_map is not None:
        assert all(sorted(row) == list(range(data.classes)) for row in partition.label_map.tolist())


@pytest.mark.slow
@given(specs(), datasets(), protocols(), st.integers(0, 2**40), st.randoms(use_true_random=False))
@tried(1)
def test_any_partition_comes_back_from_its_file(
    spec: PartitionSpec, data: Dataset, protocol: Protocol, seed: int, chance: Any
) -> None:
    made = split(spec, data, protocol, seed)
    assume(made is not None)
    assert made is not None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "partition.npz"
        made.save(path)
        loaded = Partition.load(path)
        assert (loaded.hash, loaded.label, loaded.seed) == (made.hash, made.label, made.seed)
        read = make_partition(PARTITIONS.build({"name": "file", "path": str(path)}), data, protocol, seed + 1)
        assert read.hash == made.hash
        order = chance.sample(range(len(made)), len(made))
        arrays = {f"{name}_{i}": getattr(made, name)[old] for i, old in enumerate(order) for name in SETS}
        np.savez(path.with_name("other.npz"), **arrays)
        other = make_partition(
            PARTITIONS.build({"name": "file", "path": str(path.with_name("other.npz"))}), data, protocol, seed
        )
        for name in SETS:
            assert [part.tolist() for part in getattr(other, name)] == [
                getattr(made, name)[old].tolist() for old in order
            ]
    if made.rotation is None:
        federation = Federation(data, made)
        assert federation.population.label_counts.sum() == sum(map(len, made.train))


def test_a_split_that_is_no_promise_would_be_noticed() -> None:
    """The checks above are not empty: a sample on two clients fails them."""
    twice = Partition("toy", 0, "toy", 4, [np.arange(3), np.arange(2, 5)], [np.arange(0)] * 2, [np.arange(5, 6)] * 2)
    with pytest.raises(AssertionError):
        check_promises(twice, FORTY, Protocol(), pooled=False)
