"""Downloads from a server that breaks off, lies or refuses."""

from __future__ import annotations

import dataclasses
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedbench.core.errors import DataCorrupt, DataMissing, silent
from fedbench.data import files as downloads
from fedbench.data.files import Part, download
from tests.data.serving import BODY, Handler, md5, remote
from tests.helpers.raw_files import zip_of

pytestmark = pytest.mark.usefixtures("own_folders")


def test_a_download_is_verified_and_reported(server: str, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    path = download(remote(server), tmp_path, lambda *args: seen.append(args))
    assert path == tmp_path / "file.bin"
    assert path.read_bytes() == BODY
    fetched = [entry for entry in seen if entry[0] == "downloading file.bin"]
    assert [done for _, done, _ in fetched] == [*range(10_000, 300_001, 10_000)]
    assert {total for _, _, total in fetched} == {300_000}
    assert seen[-1] == ("verifying file.bin", 300_000, 300_000)
    assert not (tmp_path / "file.bin.part").exists()
    download(remote(server), tmp_path)
    assert len(Handler.asked) == 1, "what is there and right is not fetched again"


@pytest.mark.parametrize(
    ("found", "left", "faults", "asked"),
    [
        (None, None, ["break", "break"], [None, "bytes=100000-", "bytes=166666-"]),
        (None, BODY[:123_456], [], ["bytes=123456-"]),
        (None, BODY, [], ["bytes=300000-"]),
        (None, b"other" * 1000, [], ["bytes=5000-", None]),
        (None, BODY + b"more", [], ["bytes=300004-", None]),
        (None, BODY[:1000], ["no ranges"], ["bytes=1000-"]),
        (BODY[:-1], None, [], [None]),
    ],
    ids=[
        "breaks",
        "left by an earlier attempt",
        "whole",
        "of another version",
        "too long",
        "no ranges",
        "differs",
    ],
)
def test_a_download_goes_on_where_it_can(
    found: bytes | None,
    left: bytes | None,
    faults: list[str],
    asked: list[str | None],
    server: str,
    tmp_path: Path,
) -> None:
    for name, content in (("file.bin", found), ("file.bin.part", left)):
        if content is not None:
            (tmp_path / name).write_bytes(content)
    Handler.faults[:] = faults
    assert download(remote(server), tmp_path).read_bytes() == BODY
    assert [given for _, given in Handler.asked] == asked


def test_a_connection_that_keeps_breaking_is_one_line_and_keeps_what_came(server: str, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(BODY[:1000])
    Handler.faults[:] = ["500"] * 3
    with pytest.raises(DataMissing, match=r"HTTP Error 500.*; the part that came is kept") as caught:
        download(remote(server), tmp_path)
    assert "\n" not in str(caught.value)
    assert len(Handler.asked) == downloads.FRUITLESS
    assert (tmp_path / "file.bin.part").stat().st_size == 1000


def test_a_truncated_file_without_a_length_is_not_taken_for_whole(server: str, tmp_path: Path) -> None:
    Handler.faults[:] = ["no length"]
    with pytest.raises(DataCorrupt, match="not the published file"):
        download(remote(server), tmp_path)
    assert not (tmp_path / "file.bin").exists()


def test_a_wrong_checksum_is_refused_and_nothing_is_kept(server: str, tmp_path: Path) -> None:
    wanted = "0" * 32
    with pytest.raises(DataCorrupt, match=f"md5 is {md5(BODY)}, expected {wanted}"):
        download(remote(server, checksum=wanted), tmp_path)
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == []


def test_mirrors_are_tried_in_order(server: str, tmp_path: Path) -> None:
    assert download(remote(server, "gone.bin", "file.bin"), tmp_path).read_bytes() == BODY
    assert [path for path, _ in Handler.asked] == ["/gone.bin", "/file.bin"]
    Handler.asked.clear()
    with pytest.raises(DataMissing, match="404"):
        download(dataclasses.replace(remote(server, "gone.bin"), name="other"), tmp_path)
    assert len(Handler.asked) == 1, "what is gone is not asked for again"


def test_only_web_addresses_are_fetched(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(BODY)
    with pytest.raises(DataMissing, match="only http"):
        download(Part((secret.as_uri(),), "copy", md5(BODY), "set"), tmp_path)


def test_a_full_disk_is_noticed_before_it_is_full(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = types.SimpleNamespace(free=299_999)
    monkeypatch.setattr(downloads.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(DataMissing, match="300,000 bytes are needed"):
        download(remote(server), tmp_path)
    (tmp_path / "file.bin.part").write_bytes(BODY[:1])
    assert download(remote(server), tmp_path).read_bytes() == BODY


@pytest.mark.parametrize("archive", [True, False])
def test_two_processes_share_one_download(archive: bool, server: str, tmp_path: Path) -> None:
    """Who comes second finds what the first has unpacked, and its archive gone."""
    part = dataclasses.replace(remote(server), to="set/it.bin", archive=archive)
    if archive:
        (tmp_path / "files").mkdir()
        (tmp_path / "files" / "it.bin").write_bytes(BODY)
        Handler.files["file.bin"] = zip_of(tmp_path / "files", tmp_path / "archive", "").read_bytes()
        part = remote(server, checksum=md5(Handler.files["file.bin"]))
    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(lambda _: part.fetch(tmp_path / "root", silent), range(4))] == [None] * 4
    assert (tmp_path / "root" / "set" / "it.bin").read_bytes() == BODY
    assert len(Handler.asked) == 1
