"""Fixtures of tests that read, prepare and download data sets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from fedbench.data import files
from fedbench.data.datasets import DATASETS
from tests.data.serving import BODY, Handler


@pytest.fixture
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache and a data folder of the test's own."""
    monkeypatch.setenv("FEDBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FEDBENCH_DATA", str(tmp_path / "data"))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server on this machine, which has no data from its system."""
    monkeypatch.setattr(DATASETS.get("fashion_mnist"), "system", ())
    for name, value in (("files", {"file.bin": BODY}), ("faults", []), ("asked", [])):
        monkeypatch.setattr(Handler, name, value)
    monkeypatch.setattr(files, "PAUSE", 0.0)
    monkeypatch.setattr(files, "BLOCK", 10_000)
    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{running.server_address[1]}/"
    running.shutdown()
    running.server_close()
    thread.join()
