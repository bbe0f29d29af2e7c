"""Archives: what is written comes back, equal contents are equal bytes, and damage is refused."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbench.core import files
from fedbench.core.checked import Archive
from fedbench.core.errors import Damaged
from tests.helpers.damage import DAMAGES, tried

CONTENT = {"rows.csv": files.as_csv([{"seed": 0, "acc": 12.5}]), "table.json": files.as_json({"name": "toy"})}


def archive(folder: Path) -> Archive:
    return Archive(folder / "all.zip", "make it again")


def test_what_is_written_comes_back_and_any_tool_reads_it(tmp_path: Path) -> None:
    assert not archive(tmp_path).has("rows.csv")
    archive(tmp_path).write(CONTENT)
    assert archive(tmp_path).csv("rows.csv") == [{"seed": "0", "acc": "12.5"}]
    assert archive(tmp_path).json("table.json") == {"name": "toy"}
    assert not archive(tmp_path).has("curves.csv")
    with zipfile.ZipFile(tmp_path / "all.zip") as opened:
        assert opened.testzip() is None
        assert {name: opened.read(name) for name in opened.namelist()} == CONTENT


def test_what_is_not_given_stays_and_an_equal_archive_is_not_written(tmp_path: Path) -> None:
    archive(tmp_path).write(CONTENT)
    first = archive(tmp_path).place.read_bytes()
    os.utime(archive(tmp_path).place, (1, 1))
    archive(tmp_path).write({"rows.csv": CONTENT["rows.csv"]})
    assert archive(tmp_path).place.stat().st_mtime == 1
    archive(tmp_path).write({"rows.csv": b"seed,acc\n"})
    assert archive(tmp_path).csv("rows.csv") == []
    assert archive(tmp_path).json("table.json") == {"name": "toy"}
    archive(tmp_path).write(CONTENT)
    assert archive(tmp_path).place.read_bytes() == first


def test_equal_arrays_that_are_packed_otherwise_are_not_written(tmp_path: Path) -> None:
    """As another version of zlib packs them."""
    found, packed = {"names": np.array(["a"]), "scores": np.array([[0.5, np.nan]])}, io.BytesIO()
    np.savez(packed, **found)  # type: ignore[arg-type]
    archive(tmp_path).write({"found.npz": files.as_npz(found)})
    assert packed.getvalue() != archive(tmp_path).read("found.npz")
    assert archive(tmp_path).holds({"found.npz": packed.getvalue()})
    for other in ({**found, "scores": np.array([[0.5, 0.0]])}, {"names": found["names"]}):
        assert not archive(tmp_path).holds({"found.npz": files.as_npz(other)})
    assert not archive(tmp_path).holds({"another.npz": packed.getvalue()})


def test_an_archive_gives_its_own_content_or_none(tmp_path: Path) -> None:
    archive(tmp_path).write(CONTENT)
    found = tried(archive(tmp_path).place, lambda: {name: archive(tmp_path).read(name) for name in CONTENT})
    assert set(found) == {"refused"}
    assert found["refused"] > 2 * DAMAGES


def test_a_damaged_archive_is_not_written_over(tmp_path: Path) -> None:
    archive(tmp_path).write(CONTENT)
    damaged = archive(tmp_path).place.read_bytes()[:-1] + b"x"
    archive(tmp_path).place.write_bytes(damaged)
    with pytest.raises(Damaged, match=r"all\.zip is damaged .*; make it again"):
        archive(tmp_path).write({"rows.csv": b""})
    assert archive(tmp_path).place.read_bytes() == damaged


def test_what_it_lacks_is_named(tmp_path: Path) -> None:
    archive(tmp_path).write(CONTENT)
    with pytest.raises(Damaged, match=r"all\.zip.curves\.csv is damaged \(it is not there\)"):
        archive(tmp_path).csv("curves.csv")


def test_a_killed_writer_leaves_the_archive_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive(tmp_path).write(CONTENT)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        archive(tmp_path).write({"rows.csv": b"seed,acc\n"})
    assert {name: archive(tmp_path).read(name) for name in CONTENT} == CONTENT
