"""The figure of a sweep, figure.svg and figure.png: lines, a heat map, or the curves of its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.config.schema import SweepConfig
from fedbench.core.errors import unknown
from fedbench.core.files import replacing
from fedbench.results.finished import Run

if TYPE_CHECKING:
    import pandas as pd


def draw(config: SweepConfig, runs: pd.DataFrame, keys: Sequence[str]) -> Any:
    """The sweep's matplotlib figure."""
    from fedbench.plots import runs as plots

    for name, key in (("sweep.x", config.x), ("sweep.by", config.by)):
        if key and key not in runs.columns:
            raise unknown(name, key, keys)
    x = config.x or (keys[0] if keys else "seed")
    by = config.by if config.by in keys else next((key for key in keys if key != x), "")
    title = ", ".join(part for part in (config.name or "", config.mirrors) if part)
    if config.figure == "curves":
        return plots.sweep_curves(curves(runs, x, by), config.y, title)
    if config.y not in runs.columns:
        raise unknown("sweep.y", config.y, [str(column) for column in runs.columns])
    shape = plots.sweep_heatmap if config.figure == "heatmap" and by else plots.sweep_lines
    others = [key for key in keys if key not in (x, by)]
    return shape(labelled(runs, others), x, by, config.y, title)


def labelled(runs: pd.DataFrame, others: Sequence[str]) -> pd.DataFrame:
    """`runs` with a column `panel`: the values of all swept keys that no axis shows."""
    panels = [" ".join(f"{key}={line[key]}" for key in others) for line in runs.to_dict("records")]
    paneled: pd.DataFrame = runs.assign(panel=panels)
    return paneled


def curves(runs: pd.DataFrame, x: str, by: str) -> list[Mapping[str, Any]]:
    """One entry a run: line, panel, and the rows of its rounds.csv."""
    return [
        {
            "line": f"{x.rpartition('.')[2]}={run[x]}",
            "panel": f"{by}={run[by]}" if by else "",
            "rounds": Run(Path(str(run["path"]))).rounds,
        }
        for run in runs.to_dict("records")
    ]


def write(figure: Any, folder: Path) -> None:
    """Write figure.svg and figure.png."""
    for suffix in ("svg", "png"):
        with replacing(folder / f"figure.{suffix}") as temporary:
            figure.savefig(temporary, format=suffix, dpi=150, bbox_inches="tight")
