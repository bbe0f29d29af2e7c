"""Splits from files: round trips of exports, the exchange form made by hand, leaks and faults."""

from __future__ import annotations

import json
from unittest import mock

import numpy as np
import pytest

from fedbench.config import compose
from fedbench.config.schema import TestConfig as Protocol
from fedbench.core.errors import ConfigError, DataCorrupt, DataMissing
from fedbench.core.files import read_csv
from fedbench.data.dataset import Dataset
from fedbench.data.partition import Partition, make_partition
from fedbench.data.partitions import PARTITIONS
from fedbench.runs.config import resolve
from tests.data.toys import same
from tests.helpers.tiers import sampled

LOCAL = Protocol(val_fraction=0.2)


def data(train=600, tests=100):
    n = train + tests
    y = np.random.default_rng(0).integers(0, 10, n)
    x = np.arange(n).astype(np.uint8).reshape(-1, 1, 1, 1)
    return Dataset("toy", x, y, train, 10, (0.5,), (0.5,), domain=np.arange(n) % 2)


def file(path, **fields):
    return PARTITIONS.build({"name": "file", "path": str(path), **fields})


def write(path, **arrays):
    np.savez(path, **{name: np.asarray(value) for name, value in arrays.items()})
    return path


@pytest.mark.parametrize("name", sampled([name for name in PARTITIONS if name != "file"], every=3))
def test_every_partition_comes_back_from_its_export(tmp_path, name):
    small = {
        "dir_prior": {"num_clients": 6},
        "fold": {"num_clients": 10},
        "fold_code": {"num_clients": 10, "size": 40},
        "groups_s": {"size": 15},
        "groups_fedrema": {"size": 30},
        "concept_shift_code": {"decay": 1.0},
    }
    toy = data(1800, 100)
    made = make_partition(PARTITIONS.build({"name": name, **small.get(name, {})}), toy, LOCAL, 5)
    made.save(tmp_path / "partition.npz")
    read = make_partition(file(tmp_path / "partition.npz"), toy, LOCAL, 17)
    assert read.hash == made.hash  # every sample of every set, rotation and labels
    assert read.corners == made.corners
    assert read.label.startswith("file-")
    again = make_partition(file(tmp_path / "partition.npz"), toy, Protocol(), 0)
    assert again.hash == made.hash  # the file's own validation sets, whatever the protocol says


def test_a_split_made_elsewhere(tmp_path):
    path = write(
        tmp_path / "split.npz",
        train_0=np.array([5, 3, 1], dtype=np.int32),
        train_1=np.array([650, 8], dtype=np.uint16),
        test_0=[2],
        test_1=[9, 699],
    )
    partition = make_partition(file(path), data(), Protocol(fraction=0), 0)
    assert [part.tolist() for part in partition.train] == [[1, 3, 5], [8, 650]]
    assert [part.tolist() for part in partition.test] == [[2], [9, 699]]
    assert [part.tolist() for part in partition.val] == [[], []]
    assert partition.train[0].dtype == np.int64


def test_what_a_file_leaves_out_the_protocol_decides(tmp_path):
    path = write(tmp_path / "split.npz", train_0=np.arange(100), train_1=np.arange(200, 250))
    partition = make_partition(file(path), data(), Protocol(fraction=0.2, val_fraction=0.25), 0)
    sizes = [tuple(map(len, sets)) for sets in zip(partition.train, partition.val, partition.test, strict=True)]
    assert sizes == [(60, 20, 20), (30, 10, 10)]
    with pytest.raises(ConfigError, match=r"larger protocol\.test\.fraction"):
        make_partition(file(path), data(), Protocol(fraction=0), 0)
    make_partition(file(path), data(), Protocol(sets="global"), 0)


def test_sets_that_a_run_left_empty_count_as_absent(tmp_path):
    """A run that scores the global test set alone writes such a file; others split its clients as the protocol says."""
    made = make_partition(PARTITIONS.build({"name": "homo", "num_clients": 6}), data(), Protocol(sets="global"), 0)
    made.save(tmp_path / "partition.npz")
    read = make_partition(file(tmp_path / "partition.npz"), data(), Protocol(fraction=0.2, val_fraction=0.25), 0)
    sizes = [tuple(map(len, sets)) for sets in zip(read.train, read.val, read.test, strict=True)]
    assert sizes == [(60, 20, 20)] * 6
    for client, sets in enumerate(zip(read.train, read.val, read.test, strict=True)):
        np.testing.assert_array_equal(np.sort(np.concatenate(sets)), made.train[client])
    again = make_partition(file(tmp_path / "partition.npz"), data(), Protocol(sets="global"), 9)
    assert again.hash == made.hash


def test_an_angle_of_nothing_and_a_label_for_itself_alter_nothing(tmp_path):
    ways = {"rotation": [0.0, 0.0], "label_map": [[*range(10)]] * 2}
    path = write(tmp_path / "split.npz", train_0=[1, 2], train_1=[3, 4], test_0=[5], test_1=[6], **ways)
    assert len(make_partition(file(path), data(), Protocol(sets="global"), 0)) == 2


@pytest.mark.parametrize("sets", ["global", "both", "common"])
@pytest.mark.parametrize("way", [{"rotation": [0.0, 90.0]}, {"label_map": [[*range(10)], [*range(9, -1, -1)]]}])
def test_altered_clients_are_not_scored_on_an_unaltered_test_set(tmp_path, sets, way):
    path = write(tmp_path / "split.npz", train_0=[1, 2], train_1=[3, 4], test_0=[5], test_1=[6], **way)
    with pytest.raises(ConfigError, match=r"alters samples, .*; use protocol\.test\.sets=local$"):
        make_partition(file(path), data(), Protocol(sets=sets), 0)
    make_partition(file(path), data(), Protocol(), 0)


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        (
            {"train_0": [1, 2], "test_0": [2, 3]},
            "sample 2 is for training on client 0 and for testing on client 0",
        ),
        (
            {"train_0": [1], "test_0": [3], "train_1": [7], "test_1": [1]},
            "sample 1 is for training on client 0 and for testing on client 1",
        ),
        ({"train_0": [1], "val_0": [4], "test_0": [4]}, "leaks: sample 4"),
        ({"train_0": [1, 1], "test_0": [3]}, "more than once"),
        ({"train_0": [1], "test_0": [3], "train_1": [1], "test_1": [5]}, "more than once"),
        ({"train_0": [1], "test_0": [700]}, "uses sample 700, the data set has 700"),
        ({"train_0": [-1], "test_0": [3]}, "uses sample -1"),
        ({"train_0": [1], "train_1": [2], "test_0": [3]}, "2 training sets, but 1 test sets"),
        ({"train_0": np.zeros(0, int), "test_0": [3]}, "without a training sample"),
        ({"train_0": [1], "test_0": [3], "rotation": [1.0, 2.0]}, r"rotation must have shape \(1,\)"),
        ({"train_0": [1], "test_0": [3], "label_map": [[10] * 10]}, "labels below 10"),
        ({"train_0": [1], "test_0": [3], "dataset": "digits-0123"}, "divides digits-0123"),
    ],
)
def test_leaks_and_faults_are_refused(tmp_path, arrays, reason):
    path = write(tmp_path / "split.npz", **arrays)
    with pytest.raises((ConfigError, DataCorrupt), match=reason):
        make_partition(file(path), data(), Protocol(), 0)


def test_the_data_set_may_be_named_with_its_fingerprint_or_without(tmp_path):
    toy = data()
    splits = [
        make_partition(file(write(tmp_path / f"{i}.npz", train_0=[1], test_0=[3], dataset=name)), toy, Protocol(), 0)
        for i, name in enumerate((toy.name, f"{toy.name}-{toy.fingerprint}"))
    ]
    assert splits[0].hash == splits[1].hash


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"test_0": [3]}, "no 'train_0'"),
        ({"train_0": [1.5]}, "must be a list of integers"),
        ({"train_0": [[1], [2]]}, "must be a list of integers"),
        ({"train_0": [1], "tset_0": [2]}, "unknown array 'tset_0'"),
        ({"train_0": [1], "train_01": [2]}, "unknown array 'train_01'"),
    ],
)
def test_malformed_files_are_refused_by_name(tmp_path, arrays, reason):
    path = write(tmp_path / "split.npz", **arrays)
    with pytest.raises(DataCorrupt, match=reason):
        file(path).label  # noqa: B018 - composing a run asks for it first
    path = write(tmp_path / "gap.npz", train_0=[1], train_2=[2])
    with pytest.raises(DataCorrupt, match=r"partition\.path has 2 arrays train_<i>, but no 'train_1'"):
        make_partition(file(path), data(), Protocol(), 0)


def test_missing_and_damaged_files(tmp_path):
    with pytest.raises(DataMissing, match=r"none\.npz: No such file"):
        file(tmp_path / "none.npz").label  # noqa: B018
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(DataCorrupt, match=r"bad\.npz"):
        file(tmp_path / "bad.npz").label  # noqa: B018
    with pytest.raises(ConfigError, match=r"partition\.path=FILE"):
        make_partition(PARTITIONS.build({"name": "file"}), data(), Protocol(), 0)


def test_clients_may_share_samples_if_that_is_said(tmp_path):
    arrays = {"train_0": [1, 2], "train_1": [2, 3], "test_0": [10, 11], "test_1": [10, 11]}
    path = write(tmp_path / "split.npz", **arrays)
    with pytest.raises(ConfigError, match=r"more than once; only with partition\.shared=true may several clients"):
        make_partition(file(path), data(), Protocol(), 0)
    shared = make_partition(file(path, shared=True), data(), Protocol(), 0)
    assert [part.tolist() for part in shared.test] == [[10, 11]] * 2
    write(path, **{**arrays, "test_1": [1]})
    with pytest.raises(ConfigError, match="leaks"):
        make_partition(file(path, shared=True), data(), Protocol(), 0)
    write(path, **arrays, rotation=[10.0, 20.0])
    with pytest.raises(ConfigError, match="cannot share"):
        make_partition(file(path, shared=True), data(), Protocol(), 0)


def test_samples_that_clients_share_are_held_out_for_all_who_hold_them(tmp_path):
    path = write(tmp_path / "split.npz", train_0=range(60), train_1=range(30, 90), train_2=range(80, 100))
    found = make_partition(file(path, shared=True), data(), Protocol(fraction=0.3, val_fraction=0.25), 0)
    for first, second in ((found.test, 30), (found.val, 18)):  # 30 % of 100, a quarter, rounded up, of the others
        assert len(np.unique(np.concatenate(first))) == second
    for client, owned in enumerate((range(60), range(30, 90), range(80, 100))):
        parts = [getattr(found, name)[client] for name in ("train", "val", "test")]
        assert sorted(np.concatenate(parts)) == [*owned], "every sample is in one part"


def test_training_on_the_global_test_set_is_refused(tmp_path):
    path = write(tmp_path / "split.npz", train_0=[1, 650], test_0=[3])
    for sets in ("global", "both"):
        with pytest.raises(ConfigError, match="training sample 650 is in the global test set"):
            make_partition(file(path), data(), Protocol(sets=sets), 0)


def test_a_run_is_known_by_the_split_not_by_where_it_lies(tmp_path):
    a = write(tmp_path / "a.npz", train_0=[1], test_0=[3])
    b = write(tmp_path / "b.npz", train_0=np.array([1], dtype=np.int16), test_0=[3], label="mine", seed=3)
    c = write(tmp_path / "c.npz", train_0=[2], test_0=[3])

    def key(path):
        return resolve(compose.compose(["partition=file", f"partition.path={path}"])).key

    assert key(a) == key(b) != key(c)
    before = key(c)
    write(c, train_0=[4], test_0=[3])
    assert key(c) != before


@pytest.mark.slow
def test_a_run_on_its_own_export_gives_the_same_numbers(tmp_path):
    from fedbench.runs.execution import execute

    def run(*overrides):
        short = ["method=fedavg", "dataset.limit=400", "protocol.rounds=2", "progress=none", "hardware=cpu"]
        config = compose.compose([*short, f"runs_dir={tmp_path}", "seed=4", *overrides])
        return execute(resolve(config))

    first = run("partition=dir0.5")
    second = run("partition=file", f"partition.path={first.folder / 'partition.npz'}")
    assert second.folder != first.folder
    assert second.row["partition_hash"] == first.row["partition_hash"]
    for name in ("rounds.csv", "clients.csv"):
        rows = [read_csv(each.folder / name) for each in (first, second)]
        timeless = [[{k: v for k, v in row.items() if "seconds" not in k} for row in each] for each in rows]
        assert timeless[0] == timeless[1]
        assert len(timeless[0]) > 1
    assert json.loads((second.folder / "result.json").read_text())["acc"] == first.row["acc"]


def partition(**changes):
    ints = np.array
    fields = {
        "label": "toy",
        "seed": 3,
        "dataset": "toy-0",
        "classes": 3,
        "train": [ints([0, 2, 5]), ints([1])],
        "val": [ints([3]), np.zeros(0, np.int64)],
        "test": [ints([4]), ints([6])],
    }
    return Partition(**(fields | changes))


def test_the_hash_covers_samples_and_transforms_only():
    base = partition()
    changes = [
        {"train": [np.array([0, 2]), np.array([1, 5])]},  # the same samples, cut elsewhere
        {"val": base.test, "test": base.val},
        {"train": base.train[::-1], "val": base.val[::-1], "test": base.test[::-1]},
        {"dataset": "toy-1"},
        {"classes": 4},
        {"rotation": np.array([25.0, -25.0])},
        {"rotation": np.array([25.0, -25.0]), "corners": "edge"},
        {"label_map": np.array([[0, 1, 2], [2, 1, 0]])},
    ]
    assert len({base.hash, *(partition(**change).hash for change in changes)}) == len(changes) + 1
    assert partition(label="other", seed=4, corners="edge").hash == base.hash  # without a rotation, no corners


def test_statistics_count_what_the_client_sees():
    y = np.array([0, 1, 1, 2, 0, 2, 1])
    rows = partition(label_map=np.array([[0, 1, 2], [2, 1, 0]])).statistics(y)
    assert rows == [
        {"client": 0, "train": 3, "val": 1, "test": 1, "class_0": 1, "class_1": 1, "class_2": 2},
        {"client": 1, "train": 1, "val": 0, "test": 1, "class_0": 0, "class_1": 1, "class_2": 0},
    ]
    assert partition(label_map=np.array([[0, 1, 2], [2, 0, 1]])).label_counts(y)[1].tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    "transforms",
    [{}, {"rotation": np.array([25.0, -155.0]), "corners": "black", "label_map": np.eye(2, 3, dtype=int)}],
)
def test_a_saved_partition_comes_back(tmp_path, transforms):
    saved = partition(**transforms)
    saved.save(tmp_path / "split.npz")
    loaded = Partition.load(tmp_path / "split.npz")
    assert (loaded.label, loaded.seed, loaded.dataset, loaded.classes) == ("toy", 3, "toy-0", 3)
    assert same(saved, loaded)
    assert loaded.hash == saved.hash
    assert loaded.corners == saved.corners
    assert [path.name for path in tmp_path.iterdir()] == ["split.npz"]
    with np.load(tmp_path / "split.npz") as archive:  # the exchange form
        np.testing.assert_array_equal(archive["train_0"], [0, 2, 5])
        np.testing.assert_array_equal(archive["test_1"], [6])


def test_the_samples_of_many_clients_lie_end_to_end(tmp_path, monkeypatch):
    saved = partition()
    saved.save(tmp_path / "few.npz")
    monkeypatch.setattr("fedbench.data.partition.LISTED", 1)
    saved.save(tmp_path / "many.npz")
    with np.load(tmp_path / "many.npz") as archive:
        assert archive["train"].tolist() == [0, 2, 5, 1]
        assert archive["train_sizes"].tolist() == [3, 1]
        assert "train_0" not in archive
        damaged = {**archive, "test_sizes": archive["test_sizes"] + 1}
    assert same(saved, Partition.load(tmp_path / "many.npz"))
    assert file(tmp_path / "many.npz").label == file(tmp_path / "few.npz").label, "one split, however it is written"
    for wrong in (damaged, {**damaged, "test_sizes": np.array([3, -1])}, {"train_sizes": np.array([1])}):
        with pytest.raises(DataCorrupt, match=r"bad\.npz"):
            Partition.load(write(tmp_path / "bad.npz", **wrong))


def test_a_write_that_fails_leaves_what_was_there_and_nothing_beside_it(tmp_path, monkeypatch):
    path = tmp_path / "split.npz"
    partition().save(path)
    before = path.read_bytes()
    monkeypatch.setattr(type(path), "replace", mock.Mock(side_effect=OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        partition(seed=4).save(path)
    assert [each.name for each in tmp_path.iterdir()] == ["split.npz"]
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"no archive", None])
def test_a_damaged_file_is_refused_by_name(tmp_path, content):
    path = tmp_path / "split.npz"
    partition().save(path)
    path.write_bytes(path.read_bytes()[:-30] if content is None else content)
    with pytest.raises(DataCorrupt, match=r"split\.npz"):
        Partition.load(path)
    np.savez(path, train_0=np.arange(3))
    with pytest.raises(DataCorrupt, match=r"split\.npz"):
        Partition.load(path)
