"""The archive of a table, damaged or written by a process that is killed: see also tests/properties."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbench.core import checked, files
from fedbench.core.errors import Damaged
from fedbench.papers import recorded, store
from fedbench.papers.spec import parse_spec
from fedbench.papers.store import Cell, TableResult

KEY = "0123456789abcdef"


def table(tmp_path: Path) -> Path:
    """A filled table on disk."""
    spec = {
        "name": "toy",
        "title": "Toy",
        "paper": "",
        "table": "",
        "metrics": [{"name": "acc"}],
        "rows": [{"label": "FedAvg"}],
        "columns": [{"label": "digits"}],
    }
    folder = tmp_path / "tables" / "toy"
    cell = Cell("FedAvg", "digits", "acc", (12.5, 25.0), (0, 1), (KEY, KEY[::-1]))
    lines = [{"row": "FedAvg", "column": "digits", "key": KEY, "acc": 12.5, "seed": 0}]
    curves = [{"row": "FedAvg", "column": "digits", "seed": 0, "round": 1, "acc_on_local": 12.5}]
    store.save_table(folder, TableResult(parse_spec(spec), (cell,)), lines, curves, {"FedAvg|digits|0": np.eye(3)})
    return folder


def stored(folder: Path) -> Any:
    """All that is read back."""
    curves, matrices = store.read_rows(folder, store.CURVES), store.read_arrays(folder, store.MATRICES)
    return store.read_table(folder), store.read_rows(folder), curves, matrices


def test_a_table_is_whole_whenever_its_writer_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saved anew with other values, and stopped at each replacement of a file."""
    other = Cell("FedAvg", "digits", "acc", (50.0, 75.0), (0, 1), (KEY, KEY[::-1]))
    ends = set()
    for stop in range(2):
        folder = table(tmp_path / str(stop))
        stored = store.read_table(folder)
        written = 0

        def one(path: Path, content: bytes, last: int = stop, write: Any = files.write_bytes) -> None:
            nonlocal written
            if written == last:
                raise KeyboardInterrupt
            written += 1
            write(path, content)

        with monkeypatch.context() as patch:
            patch.setattr(checked, "write_bytes", one)
            with contextlib.suppress(KeyboardInterrupt):
                store.save_table(folder, TableResult(stored.spec, (other,)), store.read_rows(folder))
        ends.add(store.read_table(folder).cells[0].values)
        assert recorded.read_stored(folder).curves
    assert ends == {(12.5, 25.0), (50.0, 75.0)}


def test_a_damaged_table_says_how_it_comes_back(tmp_path: Path) -> None:
    """The folder itself stays, as it may hold the same table at other settings."""
    folder = table(tmp_path)
    file = folder / store.ARCHIVE
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(Damaged, match=f"git restore {file}, or make the table again after: rm {file}$"):
        store.read_table(folder)
