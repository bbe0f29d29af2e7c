"""Every data set that comes as files: a small one in the real format is whole, and loads again from the cache."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from fedbench.core.errors import DataCorrupt
from fedbench.data.datasets import DATASETS
from fedbench.data.datasets.domainnet import LISTED
from fedbench.data.files import FileSource
from tests.data.toys import load
from tests.helpers import real_formats
from tests.helpers.real_formats import WRITERS
from tests.helpers.tiers import sampled

pytestmark = pytest.mark.usefixtures("own_folders")


def test_every_file_source_has_a_writer() -> None:
    assert {name for name in DATASETS if issubclass(DATASETS.get(name), FileSource)} == set(WRITERS)


@pytest.mark.parametrize("name", sampled(WRITERS, every=4))
def test_a_small_set_in_the_real_format_loads_again_from_the_cache(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = DATASETS.build(real_formats.write(name, tmp_path / "root"))
    assert isinstance(built, FileSource)
    assert built.state().ready
    assert not built.state().prepared
    first = built.load()
    assert built.state().prepared
    assert len(np.unique(first.y)) > 1
    assert 0 < first.num_train < len(first)
    monkeypatch.setattr(type(built), "parse", None)  # not parsed again
    again = built.load()
    assert isinstance(again.x, np.memmap)
    np.testing.assert_array_equal(again.x, first.x)
    assert again.fingerprint == first.fingerprint


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in WRITERS if name != "domainnet"])
def test_samples_that_are_missing_are_refused_unless_that_is_wanted(name: str, tmp_path: Path) -> None:
    options = real_formats.write(name, tmp_path / "root")
    assert DATASETS.build(options).load()
    with pytest.raises(DataCorrupt, match=r"published are .*; fetch it again, or set dataset.partial=true"):
        DATASETS.build({**options, "partial": False}).load()


PUBLISHED = {
    "cifar10": 60_000,
    "cifar100": 60_000,
    "cinic10": 270_000,
    "cub": 11_788,
    "emnist": 814_255,
    "fashion_mnist": 70_000,
    "mnist": 70_000,
    "tiny_imagenet": 110_000,
}


def test_published_sizes_are_those_that_the_papers_print() -> None:
    found = {name: sum(getattr(DATASETS.get(name), "published", (0,))) for name in WRITERS}
    assert {name: size for name, size in found.items() if size} == PUBLISHED
    assert (sum(a for a, _ in LISTED.values()), sum(b for _, b in LISTED.values())) == (409_832, 176_743)


@pytest.mark.slow
def test_sixty_thousand_colour_images_load_in_under_a_second_once_prepared(tmp_path: Path) -> None:
    content = real_formats.write_cifar(tmp_path / "root", 10_000)
    del content
    load("cifar10", tmp_path / "root")
    start = time.process_time()  # so that other processes do not count
    data = load("cifar10", tmp_path / "root")
    np.array(data.x)  # as the federation copies it to the device
    seconds = time.process_time() - start
    assert data.x.shape == (60_000, 3, 32, 32)
    assert seconds < 1
