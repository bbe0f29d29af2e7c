"""Whatever bytes a file holds: its own content or one line of ours, whichever reader it is given to.

Where a format has checksums (gzip, zip, PNG, ours), damage never gives other content; where it has none, what is read
still has the shape, type and range that were asked for.
"""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from fedbench.config import yaml_files
from fedbench.config.messages import one_line
from fedbench.core import cache, files, sealed
from fedbench.core.errors import CheckpointError, Damaged, DataCorrupt, FedbenchError
from fedbench.core.sealed import Sealed
from fedbench.data.archives import unpack
from fedbench.data.formats.idx import read_idx, read_pair
from fedbench.data.formats.images import read_images
from fedbench.data.formats.matlab import read_emnist
from fedbench.data.formats.pickles import read_batch
from fedbench.data.partitions.file import read_arrays
from fedbench.results import checkpoint
from fedbench.results.folder import numeric_rows
from fedbench.tables import published, store
from tests.helpers.examples import tried
from tests.helpers.real_formats import encoded, idx_bytes, images, python2_batch, write_emnist_matlab

Damage = Callable[[bytes], bytes]
EXTREME = (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\0\0", b"\0\0\0\x40", b"\x80")


@st.composite
def damages(draw: st.DrawFn) -> Damage:
    """A function that flips bits, cuts, repeats, inserts or replaces at places that it says in thousandths."""
    kinds = st.sampled_from(["flip", "cut", "remove", "repeat", "zero", "insert", "replace", "append", "all"])
    place = st.one_of(st.integers(0, 2**16), st.integers(0, 64), st.integers(-64, -1))
    steps = draw(st.lists(st.tuples(kinds, place, st.integers(1, 40), st.binary(max_size=24)), min_size=1, max_size=2))
    extreme = draw(st.sampled_from(EXTREME))

    def damage(content: bytes) -> bytes:
        for kind, number, length, new in steps:
            start = number % max(1, len(content))
            end = start + length
            content = {
                "flip": lambda c, a=start, n=length: c[:a] + bytes([c[a] ^ 1 << n % 8] if c else []) + c[a + 1 :],
                "cut": lambda c, a=start: c[:a],
                "remove": lambda c, a=start, b=end: c[:a] + c[b:],
                "repeat": lambda c, a=start, b=end: c[:b] + c[a:],
                "zero": lambda c, a=start, b=end: c[:a] + bytes(len(c[a:b])) + c[b:],
                "insert": lambda c, a=start, x=new: c[:a] + x + c[a:],
                "replace": lambda c, a=start, x=extreme: c[:a] + x + c[a + len(x) :],
                "append": lambda c, x=new: c + x,
                "all": lambda c, x=new: x,
            }[kind](content)
        return content

    return damage


@contextmanager
def holding(content: bytes, name: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        yield path


def read_or_refused(path: Path, read: Callable[[Path], Any], kind: type[FedbenchError] = DataCorrupt) -> Any:
    """What `read` gives; None where it refuses the file by its name in one line."""
    try:
        return read(path)
    except kind as error:
        assert "\n" not in str(error)
        assert path.name in str(error)
        return None


# --- data sets

IMAGES, LABELS = images(3, (28, 28)), np.array([0, 9, 4], np.uint8)


@given(damages(), st.booleans())
@example(lambda _: b"\0\0\x08\x41" + bytes(3) * 4 * 65, False)  # more dimensions than an array can have
@example(lambda _: b"\0\0\x08\x04" + bytes(4) + b"\xff" * 12, False)  # no elements, and too many
@tried(8)
def test_any_idx_file(damage: Damage, zipped: bool) -> None:
    whole = idx_bytes(IMAGES)
    with holding(damage(gzip.compress(whole) if zipped else whole), "train-images") as path:
        found = read_or_refused(path, read_idx)
        if found is None:
            return
        assert found.dtype == np.uint8
        if zipped and path.read_bytes()[:2] == b"\x1f\x8b":
            assert found.tobytes() == IMAGES.tobytes()


@given(damages())
@tried(4)
def test_any_labels(damage: Damage) -> None:
    with holding(damage(idx_bytes(LABELS)), "labels") as path:
        path.with_name("images").write_bytes(idx_bytes(IMAGES))
        found = read_or_refused(path, lambda labels: read_pair(labels.with_name("images"), labels, 28, 10))
        if found is not None:
            assert (found[0].shape, found[1].shape) == ((3, 1, 28, 28), (3,))
            assert 0 <= found[1].min() <= found[1].max() < 10


def test_a_small_file_does_not_fill_the_memory(tmp_path: Path) -> None:
    """A header that announces more than there is, and a compressed file that holds more than its header says."""
    header = b"\0\0\x08\x03" + b"\x7f\xff\xff\xff" * 3
    (tmp_path / "announced").write_bytes(header)
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(b"\0\0\x08\x01\0\0\0\x01" + bytes(2**26)))
    for name in ("announced", "bomb.gz"):
        with pytest.raises(DataCorrupt, match="announces"):
            read_idx(tmp_path / name)


@given(damages(), st.sampled_from(["PNG", "JPEG", "GIF", "BMP", "TIFF"]), st.booleans())
@tried(8)
def test_any_image(damage: Damage, form: str, resize: bool) -> None:
    image = images(1, (9, 9, 3))[0]
    with holding(damage(encoded(image, form)), "bird.png") as path:
        found = read_or_refused(path, lambda file: read_images([file], 9, resize=resize))
        if found is not None:
            assert (found.shape, found.dtype) == ((1, 3, 9, 9), np.uint8)


def matlab() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        arrays = [images(2, (28, 28)), LABELS[:2], images(1, (28, 28)), LABELS[:1]]
        return write_emnist_matlab(Path(folder), arrays).read_bytes()


MATLAB = matlab()


@given(damages())
@tried(8)
def test_any_matlab_file(damage: Damage) -> None:
    with holding(damage(MATLAB), "emnist.mat") as path:
        for x, y in read_or_refused(path, lambda file: read_emnist(file, 62)) or ():
            assert (x.dtype, x.shape, y.dtype, y.shape) == (np.uint8, (len(y), 1, 28, 28), np.int64, (len(y),))
            assert 0 <= y.min(initial=0) <= y.max(initial=0) < 62


ROWS = images(2, (3072,))
PICKLES = {
    "python 2": python2_batch(ROWS, [1, 2]),
    **{str(n): pickle.dumps({"data": ROWS, "labels": [1, 2], "x": (1, 2.5, None, True)}, n) for n in range(6)},
}


@given(damages(), st.sampled_from(sorted(PICKLES)))
@example(lambda _: b"\x80\x02}r\xff\xff\xff\x3f.", "2")  # a memory of 2^30 entries for one
@example(lambda _: b"\x80\x05\x96\0\0\0\0\x01\0\0\0.", "5")  # 4 GB announced
@tried(8)
def test_any_pickle(damage: Damage, form: str) -> None:
    with holding(damage(PICKLES[form]), "data_batch_1") as path:
        found = read_or_refused(path, lambda file: read_batch(file, {"labels": 10}))
        if found is not None:
            assert (found[0].shape[1:], found[0].dtype) == ((3, 32, 32), np.uint8)
            assert all(0 <= label < 10 for label in found[1]["labels"])


def archive(form: str) -> bytes:
    buffer = io.BytesIO()
    content = {"photos/a.txt": b"a" * 300, "photos/in/b.txt": b"bc" * 400, "photos/c": b""}
    if form == "zip":
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as opened:
            for name, each in content.items():
                opened.writestr(name, each)
    else:
        with tarfile.open(fileobj=buffer, mode=f"w:{form}") as tar:
            for name, each in content.items():
                info = tarfile.TarInfo(name)
                info.size = len(each)
                tar.addfile(info, io.BytesIO(each))
    return buffer.getvalue()


ARCHIVES = {form: archive(form) for form in ("zip", "", "gz")}
UNPACKED = {"a.txt": b"a" * 300, "in/b.txt": b"bc" * 400, "c": b""}


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@given(damages(), st.sampled_from(sorted(ARCHIVES)))
@tried(10)
def test_any_archive(damage: Damage, form: str) -> None:
    with holding(damage(ARCHIVES[form]), "archive") as path:
        target = path.with_name("data") / "photos"
        before = path.read_bytes()

        def unpacked(file: Path) -> dict[str, bytes]:
            unpack(file, target)
            return content_of(target)

        found = read_or_refused(path, unpacked)
        there = {file.name for file in path.parent.iterdir()} | {file.name for file in path.parent.glob("data/*")}
        assert there <= {"archive", "data", "photos"}
        assert path.read_bytes() == before
        assert target.exists() == (found is not None)
        if found is not None and before[:2] == ARCHIVES[form][:2] and form != "":  # a tar has no checksums of content
            assert all(each == UNPACKED[name] for name, each in found.items() if name in UNPACKED)


# --- what is written by fedbench

CLIENTS = {"train_0": np.arange(5), "train_1": np.arange(5, 9), "test_0": np.array([9]), "test_1": np.array([10])}


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


@given(damages())
@tried(8)
def test_any_checkpoint(damage: Damage) -> None:
    tree = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor([True, False]), "c": torch.zeros(0)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.safetensors"
        checkpoint.save(path, tree, {"round": 3}, key="k")
        path.write_bytes(damage(path.read_bytes()))
        found = read_or_refused(path, lambda file: checkpoint.load(file, key="k"), CheckpointError)
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
READ: dict[str, Callable[[Sealed, str], Any]] = {
    "result.json": Sealed.json,
    "clients.csv": lambda folder, name: numeric_rows(folder, name, "acc"),
    "tallies.npz": lambda folder, name: {key: each.tolist() for key, each in folder.npz(name).items()},
}


@given(damages(), st.sampled_from(sorted(SEALED)), st.booleans())
@tried(8)
def test_any_sealed_file(damage: Damage, name: str, of_manifest: bool) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Sealed(Path(place), "make it again")
        folder.write(SEALED)
        whole = repr(READ[name](folder, name))
        path = Path(place) / (sealed.MANIFEST if of_manifest else name)
        path.write_bytes(damage(path.read_bytes()))
        found = read_or_refused(path, lambda _: READ[name](folder, name), Damaged)
        assert found is None or repr(found) == whole


@given(damages(), st.sampled_from(sorted(SEALED)))
@tried(8)
def test_any_file_of_a_version_without_checksums(damage: Damage, name: str) -> None:
    """Its content cannot be vouched for, but it is of the right kind or refused."""
    with holding(damage(SEALED[name]), name) as path:
        found = read_or_refused(path, lambda file: READ[name](Sealed(file.parent, "again"), name), Damaged)
        if name == "clients.csv" and found is not None:
            assert all(float(row["acc"] or "nan") is not None for row in found)


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), st.just("x" * 99)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["name", "rows", "label", "x"]), inner, max_size=3)
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


@given(st.sampled_from(list(_places(TABLE))), json_values, st.sampled_from(["3", "3.5", "x", "", "-1", "1e400", "nan"]))
@example(("cells",), [], "3.5")
@tried(8)
def test_any_table_of_a_version_without_checksums(place: tuple[Any, ...], value: Any, clients: str) -> None:
    content = _with(TABLE, place, value)
    with holding(files.as_json(content if isinstance(content, dict) else {"x": content}), store.TABLE) as path:
        path.with_name(store.ROWS).write_text(f"row,column,clients\nFedAvg,digits,{clients}\n")
        try:
            table = store.load_table(path.parent)
        except FedbenchError as error:
            assert "\n" not in str(error)
        else:
            assert all(isinstance(value, float) for cell in table.cells for value in cell.values)
            assert all(number > 0 for number in table.clients.values())


@given(damages(), st.sampled_from(["x.npy", "empty.npy", sealed.MANIFEST]))
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


# --- what people write

PRINTED = published.FILE.read_bytes()[:2000].rsplit(b"\n", 1)[0] + b"\n"


@given(damages())
@tried(4)
def test_any_published_values(damage: Damage) -> None:
    with holding(damage(PRINTED), "published.csv") as path:
        for value in read_or_refused(path, published.read, Damaged) or ():
            assert np.isfinite(value.mean)
            assert value.std is None or value.std >= 0
            assert value.text


YAML = b"name: toy # a comment\nmu: 0.1\nprivate: ['@head', conv.*]\nbase: &b {name: fedavg}\nother: *b\n"


@given(st.one_of(damages().map(lambda damage: damage(YAML)), st.text(max_size=40).map(str.encode)))
@example(b"\xef\xbb\xbfname: x")
@example(b"a: ${a}\nb: [1, 2")
@example(b"? [a]\n: 1\n")
@example(b"a: 2024-13-45")
@example(b"- 0b\n- 0x\n- 1:99\n- !!int x\n- !!python/object:os.system {}")
@tried(10)
def test_any_yaml(content: bytes) -> None:
    with holding(content, "toy.yaml") as path:
        try:
            yaml_files.load(path)
        except Exception as error:
            line = one_line(error)
            assert line, f"a traceback: {error!r}"
            assert "\n" not in line
