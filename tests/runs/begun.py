"""Runs of pFedSim that begin alike, and what is kept of their beginnings."""

from __future__ import annotations

from pathlib import Path

from fedbench.core.cache import cache_dir
from fedbench.runs import execution as run
from fedbench.runs.config import RunConfig
from tests.helpers.runs import config

ROUNDS = 10


def at(folder: Path, rho: float, *more: str) -> RunConfig:
    """pFedSim whose clients keep something between rounds."""
    size = ["dataset.limit=300", f"protocol.rounds={ROUNDS}", "protocol.eval_every=1", "protocol.cohort=50%"]
    method = ["method=pfedsim", f"method.rho={rho}", "method.private=['*bias']"]
    return config(folder, *size, *method, *more)


def after(done: int) -> list[int]:
    return list(range(done + 1, ROUNDS + 1))


def kept() -> list[Path]:
    return list(cache_dir().glob("beginnings/*"))


def folder_of(chosen: RunConfig) -> Path:
    return run.folder_of(chosen).path
