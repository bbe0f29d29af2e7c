"""Filled tables made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedbench.papers import spec
from fedbench.papers.boards import FINAL, Board, BoardFederation, Ledger, Range, stages
from fedbench.papers.published import Published
from fedbench.papers.store import Cell, Provenance, TableResult


def value(mean: float, std: float | None = None, decimals: int = 2, bound: str = "") -> Published:
    """A published value."""
    return Published("p", "T1", "d", "s", "m", "acc", "", mean, std, decimals, bound)


def filled(
    values: Mapping[str, Sequence[float]],
    published: Mapping[str, Published] | None = None,
    *,
    made: Provenance | None = None,
    column: str = "c",
    **changes: Any,
) -> TableResult:
    """A table of one column and one metric; `values` of each row over seeds 0, 1, ..."""
    content: dict[str, Any] = {
        "name": "toy",
        "title": "Toy & table",
        "paper": "p",
        "table": "T1",
        "metrics": [{"name": "acc"}],
        "rows": [{"label": row} for row in values],
        "columns": [{"label": column}],
    }
    metric = changes.get("metrics", content["metrics"])[0]["name"]
    cells = [
        Cell(row, column, metric, tuple(xs), tuple(range(len(xs))), published=(published or {}).get(row))
        for row, xs in values.items()
    ]
    return TableResult(spec.parse_spec({**content, **changes}), tuple(cells), made or Provenance())


def board(scores: Mapping[str, Sequence[float]], **changes: Any) -> Board:
    """A board of one federation with these rows, which need not be methods, and as many seeds as they have scores."""
    seeds = tuple(range(max(map(len, scores.values()))))
    given: dict[str, Any] = {
        "name": "made",
        "title": "Made by <hand>",
        "base": ("dataset=digits",),
        "federations": (BoardFederation("here", ("partition=homo",)),),
        "rate": Range(0.01, 0.1),
        "trials": 2,
        "rungs": (4,),
        "tuning_seeds": (9,),
        "rounds": 8,
        "seeds": seeds,
        "references": ("local", "fedavg"),
        "methods": ("local", "fedavg"),
        "rows": {row: (f"method={row}",) for row in scores},
    }
    return Board(**{**given, **changes})


def recorded(folder: Path, scores: Mapping[str, Sequence[float]], **changes: Any) -> Path:
    """The folder of such a board: `scores` on test samples by row, over seeds 0, 1, ...; two clients, 1 point apart."""
    ledger = Ledger(board(scores, **changes), folder / "leaderboard" / "made")
    rung, *_ = stages(ledger.board)
    for row, values in scores.items():
        common = {"federation": "here", "row": row, "values": "default", "key": "k", "failure": "", "seconds_total": 36}
        for trial, validation in enumerate((50.0, 60.0)):
            line = {**common, "stage": rung.name, "trial": trial, "seed": 9, "acc_on_val": validation}
            ledger.lines[rung.name, "here", row, trial, 9] = line
        for seed, value in enumerate(values):
            final = {"stage": FINAL, "trial": 1, "seed": seed, "acc": value, "acc_on_val": value}
            final |= {"rounds_to_local": 4, "bytes_to_local": 2_000_000, "seconds_to_local": 1.5}
            final |= {"clients": f"{value - 0.5} {value + 0.5}", "acc_unseen_1": 40.0}
            ledger.lines[FINAL, "here", row, 1, seed] = {**common, **final}
    ledger.save()
    return ledger.folder
