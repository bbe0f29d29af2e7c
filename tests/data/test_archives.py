"""Archives that are damaged, or have a top folder or none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fedbench.core.errors import DataCorrupt
from fedbench.data.files import unpack
from tests.data.serving import BODY
from tests.helpers.raw_files import tar_of, zip_of


@pytest.mark.parametrize("pack", [tar_of, zip_of])
def test_a_damaged_archive_is_refused_and_nothing_is_left(
    pack: Callable[[Path, Path, str], Path], tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "big").write_bytes(BODY)
    archive = pack(source, tmp_path / "archive", "data/")
    whole = archive.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"<html>"):
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
    (tmp_path / "out").mkdir()
    (tmp_path / "out").chmod(0o2775)
    unpack(archive, tmp_path / "out" / "data", lambda name: not name.endswith("c"))
    files = sorted(path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*"))
    assert files == ["data", "data/a", "data/deep", "data/deep/b"]
    assert (tmp_path / "out" / "data" / "deep" / "b").read_text() == "deep/b"
    modes = [(tmp_path / "out" / name).stat().st_mode & 0o777 for name in files]
    assert modes == [0o775, 0o664, 0o775, 0o664], "those of the folder"
    with pytest.raises(FileExistsError):
        unpack(archive, tmp_path / "out" / "data")
