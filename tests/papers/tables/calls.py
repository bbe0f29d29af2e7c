"""Calls of `fedbench reproduce` for two cells of a table that add up in a folder."""

from __future__ import annotations

from pathlib import Path

from fedbench.cli import program
from fedbench.papers import store

TABLE = ["table=fedcollab_t1", "scale=smoke", "substitute=digits", "model=mlp", "jobs=1"]
FIRST = ["rows=Local,FedAvg", "columns=Label shift"]


def reproduced(tmp_path: Path, *more: str) -> int:
    """The exit code of a call; runs and results below `tmp_path`."""
    places = [f"results={tmp_path / 'results'}", f"runs_dir={tmp_path / 'runs'}"]
    return program.main(["reproduce", *TABLE, *places, *more])


def folder(tmp_path: Path) -> Path:
    """Where the table is."""
    (only,) = store.table_folders(tmp_path / "results").values()
    return only
