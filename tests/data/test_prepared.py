"""The cache of prepared arrays: built once, mapped after, rebuilt where it is damaged or its sources changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from fedbench.core import cache
from fedbench.core.errors import DataCorrupt
from tests.data.toys import load
from tests.helpers import real_formats
from tests.helpers.raw_files import images, write_image
from tests.helpers.real_formats import write_fashion

pytestmark = pytest.mark.usefixtures("own_folders")


def build_counter(values):
    calls = []

    def build():
        calls.append(1)
        return {"x": values, "y": np.arange(len(values))}

    return build, calls


def test_the_cache_builds_once_and_maps_after():
    values = images(50, (3,))
    build, calls = build_counter(values)
    for _ in range(3):
        found = cache.cached_arrays("toy", build)
        np.testing.assert_array_equal(found["x"], values)
        assert isinstance(found["x"], np.memmap)
        assert not found["x"].flags.writeable
    assert len(calls) == 1


@pytest.mark.parametrize("kind", ["cut", "altered", "no header", "missing array", "bad meta", "wrong meta", "no meta"])
def test_a_damaged_cache_entry_is_rebuilt(tmp_path, kind):
    values = images(50, (3,))
    build, calls = build_counter(values)
    cache.cached_arrays("toy", build)
    folder = tmp_path / "cache" / "prepared" / "toy"
    file, meta = folder / "x.npy", folder / "checksums.json"
    content = bytearray(file.read_bytes())
    if kind == "cut":
        file.write_bytes(bytes(content[:-10]))
    elif kind == "altered":
        content[-5] ^= 1
        file.write_bytes(bytes(content))
    elif kind == "no header":
        file.write_bytes(b"")
    elif kind == "missing array":
        file.unlink()
    elif kind == "no meta":
        meta.unlink()
    else:
        meta.write_text("{" if kind == "bad meta" else "[1, 2]")
    np.testing.assert_array_equal(cache.cached_arrays("toy", build)["x"], values)
    assert len(calls) == 2
    assert isinstance(cache.cached_arrays("toy", build)["x"], np.memmap)
    assert len(calls) == 2
    assert [path.name for path in folder.parent.iterdir()] == ["toy"]


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("FEDBENCH_CACHE", str(tmp_path / "file"))
    values = images(5, (3,))
    build, calls = build_counter(values)
    for _ in range(2):
        np.testing.assert_array_equal(cache.cached_arrays("toy", build)["x"], values)
    assert len(calls) == 2


def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    build, _ = build_counter(images(5, (3,)))
    monkeypatch.setattr(np, "save", full)
    assert len(cache.cached_arrays("toy", build)["x"]) == 5
    assert list((tmp_path / "cache" / "prepared").iterdir()) == []


def test_an_interrupted_preparation_leaves_nothing(tmp_path, monkeypatch):
    def stopped(*args):
        raise KeyboardInterrupt

    build, _ = build_counter(images(5, (3,)))
    monkeypatch.setattr(np, "save", stopped)
    with pytest.raises(KeyboardInterrupt):
        cache.cached_arrays("toy", build)
    assert list((tmp_path / "cache" / "prepared").iterdir()) == []


def test_the_cache_follows_the_source_files(tmp_path):
    write_fashion(tmp_path / "root", train=30)
    assert load("fashion_mnist", tmp_path / "root").num_train == 30
    shutil.rmtree(tmp_path / "root")
    write_fashion(tmp_path / "root", train=31)
    assert load("fashion_mnist", tmp_path / "root").num_train == 31


def test_a_build_that_fails_stores_nothing(tmp_path):
    def build():
        raise DataCorrupt("bad")

    with pytest.raises(DataCorrupt):
        cache.cached_arrays("toy", build)
    assert not (tmp_path / "cache" / "prepared" / "toy").exists()


def test_a_changed_folder_is_prepared_again(tmp_path: Path) -> None:
    real_formats.write_cinic(tmp_path / "root", each=2)
    assert len(load("cinic10", tmp_path / "root")) == 60
    extra = tmp_path / "root" / "CINIC-10" / "train" / "cat" / "n9_9.png"
    write_image(extra, np.zeros((32, 32, 3), np.uint8))
    assert len(load("cinic10", tmp_path / "root")) == 61
