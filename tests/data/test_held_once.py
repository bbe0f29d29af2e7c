"""Samples are in memory once: while files are first read, in the federation, and in the memory that workers share."""

from __future__ import annotations

import os
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from fedbench.data.datasets import DATASETS
from fedbench.data.federation import Federation
from fedbench.data.partition import Partition
from tests.helpers.real_formats import write_tiny

pytestmark = pytest.mark.usefixtures("own_folders")
COPIES = 12  # of each training image: 2,400 and 200 images, 32 MB


def tiny(root: Path) -> dict[str, object]:
    """A folder in Tiny-ImageNet's layout, of many names for few files."""
    write_tiny(root)
    for image in list(root.glob("tiny-imagenet-200/train/*/images/*_0.JPEG")):
        for k in range(1, COPIES):
            os.link(image, image.with_name(image.name.replace("_0.", f"_{k}.")))
    return {"name": "tiny_imagenet", "root": str(root), "partial": True}


def mapped_bytes(array: np.memmap) -> int:
    """Bytes of the pages of an array's file that this process holds."""
    found, here = 0, False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        here = str(array.filename) in line if "-" in line.split()[0] else here
        found += 1024 * int(line.split()[1]) if here and line.startswith("Rss:") else 0
    return found


def two_clients(n: int, rotation: np.ndarray | None = None) -> Partition:
    train, test = (np.split(np.arange(begin, end), 2) for begin, end in ((0, n - 100), (n - 100, n)))
    return Partition("halves", 0, "tiny", 200, train, [np.arange(0)] * 2, test, rotation=rotation)


@pytest.mark.slow
def test_a_first_read_and_a_federation_hold_the_images_once(tmp_path: Path) -> None:
    told: list[tuple[str, int, int | None]] = []
    source = DATASETS.build(tiny(tmp_path))
    tracemalloc.start()
    data = source.load(lambda *each: told.append(each))
    _, peak = tracemalloc.get_traced_memory()
    size = data.x.nbytes
    assert size == 200 * (COPIES + 1) * 3 * 64 * 64
    assert size < peak < 1.3 * size
    assert told[0] == ("reading files", 0, None)
    assert ("reading images", 2_600, 2_600) in told
    assert data.content
    if sys.platform == "linux":
        assert mapped_bytes(data.x) == 0, "what was looked through is given back"
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    federation = Federation(data, two_clients(len(data)))
    assert tracemalloc.get_traced_memory()[1] - before < 0.1 * size
    tracemalloc.stop()
    assert federation.x.data_ptr() == data.x.ctypes.data, "the very file"
    shared = federation.share_memory().x
    assert shared.is_shared()
    assert federation.share_memory().x is shared
    np.testing.assert_array_equal(shared.numpy(), data.x)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what is mapped")
def test_what_is_shared_is_not_mapped_beside(tmp_path: Path) -> None:
    data = DATASETS.build(tiny(tmp_path)).load()
    federation = Federation(data, two_clients(len(data)))
    assert int(federation.x.sum())
    assert mapped_bytes(data.x) > 0.9 * data.x.nbytes
    federation.share_memory()
    assert mapped_bytes(data.x) == 0


@pytest.mark.slow
def test_rotated_clients_change_neither_the_file_nor_other_federations(tmp_path: Path) -> None:
    data = DATASETS.build(tiny(tmp_path)).load()
    plain = Federation(data, two_clients(len(data)))
    before = plain.x.clone()
    turned = Federation(data, two_clients(len(data), np.array([45.0, 0.0])))
    assert not torch.equal(turned.x, before)
    assert torch.equal(plain.x, before)
    again = DATASETS.build({"name": "tiny_imagenet", "root": str(tmp_path), "partial": True}).load()
    assert torch.equal(torch.from_numpy(np.array(again.x)), before)
