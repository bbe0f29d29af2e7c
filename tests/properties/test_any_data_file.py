"""Whatever bytes a file of somebody else's data holds: its own content or one line of ours.

Where a format has checksums (gzip, zip, PNG), damage never gives other content; where it has none, what is read still
has the shape, type and range that were asked for.
"""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedbench.core.errors import DataCorrupt
from fedbench.data.files import unpack
from fedbench.data.formats import read_batch, read_idx, read_images, read_pair
from tests.helpers.any_damage import Damage, damages, holding, read_or_refused
from tests.helpers.examples import tried
from tests.helpers.raw_files import encoded, idx_bytes, images, python2_batch

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


@pytest.mark.slow
@given(damages(), st.sampled_from(["PNG", "JPEG", "GIF", "BMP", "TIFF"]), st.booleans())
@tried(8)
def test_any_image(damage: Damage, form: str, resize: bool) -> None:
    image = images(1, (9, 9, 3))[0]
    with holding(damage(encoded(image, form)), "bird.png") as path:
        found = read_or_refused(path, lambda file: read_images([file], 9, resize=resize))
        if found is not None:
            assert (found.shape, found.dtype) == ((1, 3, 9, 9), np.uint8)


ROWS = images(2, (3072,))
PICKLES = {
    "python 2": python2_batch(ROWS, [1, 2]),
    **{str(n): pickle.dumps({"data": ROWS, "labels": [1, 2], "x": (1, 2.5, None, True)}, n) for n in range(6)},
}


@pytest.mark.slow
@given(damages(), st.sampled_from(sorted(PICKLES)))
@example(lambda _: b"\x80\x02}r\xff\xff\xff\x3f.", "2")  # a memory of 2^30 entries for one
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
DIRECTORY = ARCHIVES["zip"][ARCHIVES["zip"].index(b"PK\x01\x02") :]
UNPACKED = {"a.txt": b"a" * 300, "in/b.txt": b"bc" * 400, "c": b""}


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.slow
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
        checked = {  # by checksums: nothing in a tar, and what a zip's directory at its end says
            "": False,
            "gz": before[:2] == ARCHIVES[form][:2],
            "zip": before.endswith(DIRECTORY),
        }
        if found is not None and checked[form]:
            assert all(each == UNPACKED[name] for name, each in found.items() if name in UNPACKED)
