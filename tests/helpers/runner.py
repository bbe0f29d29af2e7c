"""A stand-in for what trains."""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedbench.runs.config import RunConfig


class FakeRunner(list[RunConfig]):
    """Stands for fedbench.runs.execution: keeps the runs asked for, each 'trained' to accuracy 50 + seed."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[RunConfig], None] = lambda _: None

    def execute(self, run: RunConfig) -> Any:
        self.before(run)
        self.append(run)
        row = {**run.labels, "seed": run.seed, "acc": 50.0 + run.seed, "ipr": 100.0, "rsd": 1.5}
        return types.SimpleNamespace(row=row, folder=Path("runs"), earlier=False, code_changed=())

    def fail(self, error: BaseException, *seeds: int) -> None:
        """Raise `error` in runs with one of `seeds`."""

        def before(run: RunConfig) -> None:
            if run.seed in seeds:
                raise error

        self.before = before
