"""Archives that want out of their folder, are damaged, or have a top folder or none."""

from __future__ import annotations

import io
import stat
import tarfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fedbench.core.errors import DataCorrupt
from fedbench.data.files import unpack
from tests.data.serving import BODY
from tests.helpers.raw_files import tar_of, zip_of


def tar_with(path: Path, name: str) -> Path:
    """A gzipped tar of a harmless file and one called `name`."""
    with tarfile.open(path, "w:gz") as archive:
        for each in ("data/first", name):
            info = tarfile.TarInfo(each)
            info.size = 1
            archive.addfile(info, io.BytesIO(b"1"))
    return path


def tar_links(path: Path, member: bytes) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        info = tarfile.TarInfo("data/x")
        info.type, info.linkname = member, "../../etc/passwd"
        archive.addfile(info)
    return path


def zip_with(path: Path, name: str, mode: int = stat.S_IFREG) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data/first", b"1")
        info = zipfile.ZipInfo("data/x")
        info.filename, info.external_attr = name, (mode | 0o644) << 16
        archive.writestr(info, b"/etc/passwd")
    return path


OUTSIDE = ("../escape", "data/../../escape", "/escape", "data/..", "C:/escape", "..\\escape")


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_path_escapes_are_refused_and_nothing_is_unpacked(kind: str, name: str, tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    archive = {"tar": tar_with, "zip": zip_with}[kind](tmp_path / "archive", name)
    with pytest.raises(DataCorrupt, match=r"unsafe.*would land outside"):
        unpack(archive, folder / "data")
    assert list(folder.iterdir()) == []
    assert not list(tmp_path.rglob("*escape*"))


@pytest.mark.parametrize(
    ("pack", "kind"),
    [
        *((tar_links, kind) for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE)),
        *((partial(zip_with, name="data/x"), kind) for kind in (stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO)),
    ],
)
def test_links_and_devices_are_refused(pack: Callable[..., Path], kind: Any, tmp_path: Path) -> None:
    archive = pack(tmp_path / "archive", **{"member" if pack is tar_links else "mode": kind})
    with pytest.raises(DataCorrupt, match="'data/x' is a link or a device"):
        unpack(archive, tmp_path / "out" / "data")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_member_that_comes_twice_is_refused(tmp_path: Path) -> None:
    archive = tar_with(tmp_path / "archive", "data/first")
    with pytest.raises(DataCorrupt, match="'data/first' is there twice"):
        unpack(archive, tmp_path / "data")
    archive = tar_with(tmp_path / "archive", "data/first/below")
    with pytest.raises(DataCorrupt, match="twice"):
        unpack(archive, tmp_path / "data")


@pytest.mark.parametrize("pack", [tar_of, zip_of])
def test_a_damaged_archive_is_refused_and_nothing_is_left(
    pack: Callable[[Path, Path, str], Path], tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "big").write_bytes(BODY)
    archive = pack(source, tmp_path / "archive", "data/")
    whole = archive.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    for content in (whole[: len(whole) // 2], bytes(flipped), b"", b"<html>"):
        archive.write_bytes(content)
        with pytest.raises(DataCorrupt, match="damaged"):
            unpack(archive, tmp_path / "out" / "data")
        assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("pack", [tar_of, zip_of])
@pytest.mark.parametrize("prefix", ["data/", "./", ""])
def test_archives_with_and_without_a_top_folder_become_one_folder(
    pack: Callable[[Path, Path, str], Path], prefix: str, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    for name in ("a", "deep/b", "deep/c"):
        (source / name).write_text(name)
    archive = pack(source, tmp_path / "archive", prefix)
    unpack(archive, tmp_path / "out" / "data", lambda name: not name.endswith("c"))
    files = sorted(path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*"))
    assert files == ["data", "data/a", "data/deep", "data/deep/b"]
    assert (tmp_path / "out" / "data" / "deep" / "b").read_text() == "deep/b"
    with pytest.raises(FileExistsError):
        unpack(archive, tmp_path / "out" / "data")
