"""A server of files that may break off, lie or refuse, and the archives of small data sets on it."""

from __future__ import annotations

import dataclasses
import hashlib
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from fedbench.data.datasets import DATASETS
from fedbench.data.files import FileSource, Part
from tests.helpers import real_formats
from tests.helpers.raw_files import tar_of, zip_of
from tests.helpers.real_formats import write_fashion

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


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def remote(server: str, *paths: str, checksum: str = "") -> Part:
    urls = tuple(server + path for path in paths or ("file.bin",))
    return Part(urls, "file.bin", checksum or md5(BODY), "set")


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
        dataclasses.replace(part, urls=(server + part.name,), md5=md5(Handler.files[part.name]))
        for part in source.parts
    ]
    monkeypatch.setattr(source, "parts", tuple(parts))
