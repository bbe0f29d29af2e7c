"""Downloads from a server that breaks off, lies or refuses; archives that want out of their folder; the script."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import re
import stat
import tarfile
import threading
import types
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from fedbench.cli.prepare import main
from fedbench.core.errors import ConfigError, DataCorrupt, DataMissing, UnknownName
from fedbench.data import download as downloads
from fedbench.data.archives import unpack
from fedbench.data.datasets import DATASETS
from fedbench.data.download import Remote, download
from fedbench.data.file_source import FileSource
from fedbench.data.prepare import parse_request, prepare
from tests.helpers import real_formats
from tests.helpers.real_formats import tar_of, write_fashion, zip_of

BODY = bytes(np.random.default_rng(0).integers(0, 256, 300_000, dtype=np.uint8))


class Handler(BaseHTTPRequestHandler):
    """Serves `files`; each request may be met by a fault from `faults` first."""

    files: ClassVar[dict[str, bytes]] = {}
    faults: ClassVar[list[str]] = []
    asked: ClassVar[list[tuple[str, str | None]]] = []  # (path, Range header) of each request

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Quietly."""

    def do_GET(self) -> None:
        """Answer, honestly or not."""
        asked = self.headers.get("Range")
        self.asked.append((self.path, asked))
        fault = self.faults.pop(0) if self.faults else ""
        body = self.files.get(self.path.lstrip("/"))
        if body is None or fault.isdigit():
            self.send_error(int(fault or 404))
            return
        start = int(asked.removeprefix("bytes=").partition("-")[0]) if asked and fault != "no ranges" else 0
        if start >= len(body) > 0 and start:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(body)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        if fault != "no length":
            self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        rest = body[start:]
        self.wfile.write(rest[: len(rest) // 3] if fault in ("break", "no length") else rest)
        self.close_connection = True


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server on this machine; its address."""
    for name, value in (("files", {"file.bin": BODY}), ("faults", []), ("asked", [])):
        monkeypatch.setattr(Handler, name, value)
    monkeypatch.setattr(downloads, "PAUSE", 0.0)
    monkeypatch.setattr(downloads, "BLOCK", 10_000)
    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{running.server_address[1]}/"
    running.shutdown()
    running.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test has a cache and a data folder of its own, and no data of the system."""
    monkeypatch.setenv("FEDBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FEDBENCH_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(DATASETS.get("fashion_mnist"), "system", ())


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def remote(server: str, *paths: str, checksum: str = "") -> Remote:
    return Remote(tuple(server + path for path in paths or ("file.bin",)), "file.bin", checksum or md5(BODY))


# --- downloads


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


def test_a_connection_that_keeps_breaking_is_one_line_and_keeps_what_came(
    server: str, tmp_path: Path
) -> None:
    (tmp_path / "file.bin.part").write_bytes(BODY[:1000])
    Handler.faults[:] = ["500"] * 3
    with pytest.raises(DataMissing, match=r"HTTP Error 500.*; what came is kept") as caught:
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
        download(Remote((secret.as_uri(),), "copy", md5(BODY)), tmp_path)


def test_a_full_disk_is_noticed_before_it_is_full(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = types.SimpleNamespace(free=299_999)
    monkeypatch.setattr(downloads.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(DataMissing, match="300,000 bytes are needed"):
        download(remote(server), tmp_path)
    (tmp_path / "file.bin.part").write_bytes(BODY[:1])
    assert download(remote(server), tmp_path).read_bytes() == BODY


def test_two_processes_share_one_download(server: str, tmp_path: Path) -> None:
    threads = [threading.Thread(target=download, args=(remote(server), tmp_path)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "file.bin").read_bytes() == BODY
    assert len(Handler.asked) == 1


# --- archives


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
        *(
            (tar_links, kind)
            for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE)
        ),
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


# --- whole data sets, served in the real archives


def pack(name: str, root: Path) -> dict[str, bytes]:
    """The archives of the small data set `name` as they are published: file name -> content."""
    real_formats.write(name, root / "files")
    folder, made = root / "files", root / "archive"
    if name in ("mnist", "fashion_mnist"):
        return {path.name: path.read_bytes() for path in folder.rglob("*.gz")}
    if name == "domainnet":
        whole = folder / "domainnet"
        made_of = {path.name: path.read_bytes() for path in whole.glob("*.txt")}
        for domain in (path for path in whole.iterdir() if path.is_dir()):
            made_of[f"{domain.name}.zip"] = zip_of(domain, made, f"{domain.name}/").read_bytes()
        return made_of
    if name == "emnist":
        write_fashion(folder / "EMNIST" / "gzip", stems=[f"emnist-digits-{i}" for i in range(4)])
        return {"emnist-gzip.zip": zip_of(folder / "EMNIST" / "gzip", made, "gzip/").read_bytes()}
    if name == "tiny_imagenet":
        archive = zip_of(folder / "tiny-imagenet-200", made, "tiny-imagenet-200/")
        return {"tiny-imagenet-200.zip": archive.read_bytes()}
    if name == "cub":
        (folder / "attributes.txt").write_text("1 has_bill_shape::curved\n")
        return {"CUB_200_2011.tgz": tar_of(folder, made, "").read_bytes()}
    if name == "cinic10":
        return {"CINIC-10.tar.gz": tar_of(folder / "CINIC-10", made, "./").read_bytes()}
    archive_name = {"cifar10": "cifar-10-python.tar.gz", "cifar100": "cifar-100-python.tar.gz"}[name]
    return {archive_name: tar_of(folder, made, "").read_bytes()}


def publish(name: str, root: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve the archives of `name`, and tell its class that they are the published ones."""
    Handler.files.update(pack(name, root))
    source = DATASETS.get(name)
    assert issubclass(source, FileSource)
    parts = [
        dataclasses.replace(
            part,
            remote=Remote(
                (server + part.remote.name,), part.remote.name, md5(Handler.files[part.remote.name])
            ),
        )
        for part in source.parts
    ]
    monkeypatch.setattr(source, "parts", tuple(parts))


@pytest.mark.parametrize("name", real_formats.WRITERS)
def test_every_data_set_goes_from_its_published_archives_to_a_run(
    name: str, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(name, tmp_path / "theirs", server, monkeypatch)
    with pytest.raises(DataMissing, match="is in none of"):
        DATASETS.build({"name": name, "partial": True}).load()
    assert Handler.asked == [], "no network without being asked"
    line = prepare({"name": name, "partial": True})
    assert f"{name}: downloaded, verified and prepared: " in line
    data = DATASETS.build({"name": name, "partial": True}).load()
    direct = DATASETS.build(
        {"name": name, "partial": True, "root": str(tmp_path / "theirs" / "files")}
    ).load()
    assert data.fingerprint == direct.fingerprint
    asked = len(Handler.asked)
    assert f"{name}: was ready: " in prepare({"name": name, "partial": True})
    assert len(Handler.asked) == asked
    assert [p for p in (tmp_path / "data" / "downloads").iterdir() if not p.name.startswith(".")] == []


def test_a_data_set_is_fetched_only_as_far_as_it_is_missing(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish("mnist", tmp_path / "theirs", server, monkeypatch)
    gone = Handler.files.pop("t10k-images-idx3-ubyte.gz")
    with pytest.raises(DataMissing, match=r"could not be downloaded to .*data: .*404") as caught:
        prepare({"name": "mnist", "partial": True})
    assert "\n" not in str(caught.value)
    Handler.files["t10k-images-idx3-ubyte.gz"] = gone
    Handler.asked.clear()
    prepare({"name": "mnist", "partial": True})
    assert [path for path, _ in Handler.asked] == ["/t10k-images-idx3-ubyte.gz", "/t10k-labels-idx1-ubyte.gz"]


def test_an_altered_archive_never_becomes_a_data_set(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish("cifar10", tmp_path / "theirs", server, monkeypatch)
    Handler.files["cifar-10-python.tar.gz"] = pack("cifar100", tmp_path / "others")["cifar-100-python.tar.gz"]
    with pytest.raises(DataCorrupt, match="not the published file"):
        prepare({"name": "cifar10", "partial": True})
    assert not (tmp_path / "data" / "cifar-10-batches-py").exists()


def test_a_run_may_download_if_it_is_told_to(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish("fashion_mnist", tmp_path / "theirs", server, monkeypatch)
    options = {"name": "fashion_mnist", "partial": True, "root": str(tmp_path / "mine")}
    assert DATASETS.build({**options, "download": True}).load().num_train == 30
    assert (tmp_path / "mine" / "FashionMNIST" / "raw").is_dir()
    assert DATASETS.build(options).load().num_train == 30


# --- the checksums and the script


def test_every_part_has_a_checksum_and_a_web_address() -> None:
    seen = set()
    for name in real_formats.WRITERS:
        for part in DATASETS.get(name).parts:  # type: ignore[attr-defined]
            assert re.fullmatch("[0-9a-f]{32}", part.remote.md5)
            assert part.remote.md5 not in seen
            seen.add(part.remote.md5)
            for url in part.remote.urls:
                assert re.match("https?://", url)
    assert len(seen) == 4 + 4 + 1 + 1 + 1 + 1 + 1 + 1 + 18


def test_requests_name_data_sets_and_their_options() -> None:
    found = parse_request(["cub", "text=true", "size=32", "mnist"])
    assert found == [{"name": "cub", "text": True, "size": 32}, {"name": "mnist"}]
    with pytest.raises(UnknownName, match="cifar100"):
        parse_request(["cifar1000"])
    with pytest.raises(ConfigError, match="follows no data set"):
        parse_request(["text=true"])


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    monkeypatch.setenv("COLUMNS", "500")
    return lambda *arguments: main(list(arguments))


def test_the_script_checks_prepares_and_reports(
    script: Callable[..., int],
    server: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    publish("cifar100", tmp_path / "theirs", server, monkeypatch)
    root = str(tmp_path / "mine")

    def row() -> str:
        assert script("--check", "--root", root) == 0
        lines = capsys.readouterr().out.splitlines()
        assert {line.split()[0] for line in lines[1:]} == set(DATASETS)
        return next(line for line in lines if line.split()[0] == "cifar100")

    assert re.search(r"cifar100 +missing +run `python -m fedbench\.prepare cifar100`", row())
    assert Handler.asked == []
    assert script("cifar100", "partial=true", "--root", root) == 0
    done = capsys.readouterr()
    assert (
        "cifar100: downloaded, verified and prepared: 200 + 40 samples of 3 x 32 x 32, 100 classes"
        in done.out
    )
    assert "downloading cifar-100-python.tar.gz: 100 %" in done.err
    assert re.search(rf"cifar100 +ready, read at first use +{root}/cifar-100-python", row())
    # Of some data sets, with options; whether one is missing.
    assert script("--check", "cifar100", "partial=true", "digits", "--root", root) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [re.split("  +", line)[:2] for line in lines] == [
        ["cifar100 partial=True", "ready"],
        ["digits", "ready"],
    ]
    assert script("--check", "digits", "mnist", "--root", root) == 1
    assert "fedbench.prepare mnist" in capsys.readouterr().out
    assert script("--check", "cifra100") == 2
    assert "nearest: cifar100" in capsys.readouterr().err


def test_the_script_goes_on_after_a_failure_and_says_so(
    script: Callable[..., int],
    server: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = DATASETS.get("cifar10")
    part = dataclasses.replace(source.parts[0], remote=remote(server, "gone"))  # type: ignore[attr-defined]
    monkeypatch.setattr(source, "parts", (part,))
    assert script("cifar10", "digits") == 2
    said = capsys.readouterr()
    assert said.err.startswith("error: data set 'cifar10' could not be downloaded")
    assert said.err.count("\n") == 1
    assert "digits: was ready: 1,442 + 355 samples of 1 x 8 x 8, 10 classes; from scikit-learn" in said.out
    assert script("cifra10") == 2
    assert "nearest: cifar10" in capsys.readouterr().err
    assert script() == 2
