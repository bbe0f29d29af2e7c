"""Runs of several seeds, and whether two are the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from fedbench.config.compose import compose
from fedbench.engine import checkpoint
from fedbench.runs.config import RunConfig, resolve
from fedbench.runs.run import Run

SEEDS = (0, 3)
SHORT = [
    *["dataset=digits", "dataset.limit=400", "model=mlp", "protocol.rounds=3", "protocol.eval_every=1"],
    "save_models=true",
]
WHERE = ["hardware=cpu", "hardware.engine=stacked", "progress=none"]


def configs(folder: Path, *more: str) -> list[RunConfig]:
    """The same run with each seed."""
    return [resolve(compose([*SHORT, *WHERE, f"runs_dir={folder}", f"seed={seed}", *more])) for seed in SEEDS]


def finished(results: list[Run | Exception]) -> list[Run]:
    for result in results:
        if isinstance(result, Exception):
            raise result
    return [result for result in results if isinstance(result, Run)]


def same(together: Run, alone: Run) -> None:
    """Equal curves and traffic; models equal but for rounding."""
    for name in ("acc", "bytes_up", "bytes_down", "partition_hash", "key"):
        assert together.row[name] == alone.row[name], name
    curves = [pd.read_csv(each.folder / "rounds.csv").filter(regex="^(round|acc)") for each in (together, alone)]
    np.testing.assert_allclose(curves[0], curves[1])
    ours, theirs = (checkpoint.read_checkpoint(each.folder / "model.safetensors")[0] for each in (together, alone))
    assert ours.keys() == theirs.keys()
    for name, leaf in theirs.items():
        if name.startswith(("server/", "memory/")):
            # By norms: where a ReLU is at its kink, rounding moves a single weight by a percent.
            apart, size = (each.double().norm() for each in (ours[name] - leaf, leaf))
            assert apart <= 1e-4 * size + 1e-6, name
