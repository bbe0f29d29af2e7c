"""A filled table in Weights & Biases: a table to look at, and an artifact that holds it."""

from __future__ import annotations

import dataclasses
import logging
import math
import re
from pathlib import Path
from typing import Any

from fedbench.config.schema import WandbConfig
from fedbench.tables.result import Cell, TableResult

COLUMNS = ("row", "column", "metric", "mean", "std", "seeds", "published", "published_std", "reason")
log = logging.getLogger("fedbench")


def log_table(result: TableResult, settings: WandbConfig, folder: Path | str = ".") -> bool:
    """Log `result` as one wandb run (job type "table") with an artifact of type "table".

    Offline runs are kept in `folder`/wandb and uploaded by `wandb sync`. A failure of wandb is told, and is no reason
    to lose a table: it is on disk.

    Returns:
        Whether it was logged.
    """
    if not settings.enabled:
        return False
    try:
        _log(result, settings, Path(folder))
    except Exception as error:  # noqa: BLE001 - the library's own failures are of many types
        log.warning("the table is not logged to wandb: %s", error)
        return False
    return True


def lines(result: TableResult) -> list[list[Any]]:
    """One line a cell, in the order of `COLUMNS`; None where there is no number."""
    return [_line(cell) for cell in result.cells]


def _line(cell: Cell) -> list[Any]:
    paper = cell.published
    published = [None, None] if paper is None else [paper.mean, paper.std]
    numbers = [_finite(cell.mean), _finite(cell.std), len(cell.values)]
    return [cell.row, cell.column, cell.metric, *numbers, *published, cell.reason]


def _log(result: TableResult, settings: WandbConfig, folder: Path) -> None:
    import wandb

    made = result.circumstances
    run = wandb.init(
        project=settings.project,
        entity=settings.entity,
        mode=settings.mode,  # type: ignore[arg-type]
        tags=list(settings.tags),
        dir=str(folder),
        name=result.title[:120],
        group=f"table/{result.spec.name}",
        job_type="table",
        config={"table": result.spec.name, **dataclasses.asdict(made)},
        settings=wandb.Settings(silent=True, console="off"),
    )
    complete = False
    try:
        run.log({"cells": _table(result)})
        name = re.sub(
            r"[^A-Za-z0-9._-]", "_", "-".join(filter(None, (result.spec.name, made.scale, made.substitute)))
        )
        artifact = wandb.Artifact(
            name, type="table", description=result.title, metadata=dataclasses.asdict(made)
        )
        artifact.add(_table(result), "cells")
        run.log_artifact(artifact)
        run.summary.update(
            {"cells": len(result.cells), "filled": sum(bool(cell.values) for cell in result.cells)}
        )
        complete = True
    finally:
        run.finish(exit_code=0 if complete else 1)


def _table(result: TableResult) -> Any:
    import wandb

    return wandb.Table(columns=list(COLUMNS), data=[*lines(result)])


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
