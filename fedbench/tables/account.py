"""What a filled table is, in words: its setting, its data, its seeds, and the commands that fill it."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from fedbench.tables import scale
from fedbench.tables.result import TableResult

PAPERS = {
    "fedcollab": "FedCollab",
    "fedsac": "FedSaC",
    "pfedsim": "pFedSim",
    "sosicfl": "SosicFL",
    "fedrema": "FedReMa",
}
WORDS = {  # key of a run's config -> what a reader is told of its value
    "model": "network {}",
    "model.classifier": "classifier split: {}",
    "partition": "partition {}",
    "partition.num_clients": "{} clients",
    "partition.size": "{} samples a client",
    "partition_seed": "the partition of seed {}",
    "protocol.rounds": "{} rounds",
    "reference_seed": "Local of seed {}",
}


def setting(table: TableResult) -> str:
    """`as published`, or what differs from the paper."""
    made, own = table.circumstances, table.spec
    parts = ["our own"] if not own.paper or own.varies else []
    parts += [f"scale `{made.scale}`"] if made.scale != "paper" else []
    parts += [f"`{text}`" for text in (*made.changed, *made.varied)]
    return ", ".join(parts) or "as published"


def spelled(overrides: Sequence[str]) -> str:
    """`lenet5, 20 rounds` for model=lenet5 and protocol.rounds=20; an override without words of its own as it is."""
    pairs = (text.partition("=")[::2] for text in overrides)
    return ", ".join(WORDS.get(key, f"{key}={{}}").format(value) for key, value in pairs)


def data(table: TableResult) -> str:
    """The data sets that were run, and of how many columns."""
    columns = [column for column in table.spec.columns if column.label in ran(table, "column")]
    own = dict.fromkeys(
        text.partition("=")[2]
        for column in columns
        for text in (*table.spec.base, *column.overrides)
        if text.startswith("dataset=")
    )
    substitute = table.circumstances.substitute
    named = f"{substitute} instead" if substitute else ", ".join(own)
    every = len(table.spec.columns)
    return named if len(columns) == every else f"{named}, {len(columns)} of {every} columns"


def ran(table: TableResult, side: str) -> set[str]:
    """Labels of the rows ("row") or columns ("column") in which something ran."""
    return {getattr(cell, side) for cell in table.cells if cell.values}


def seeds(table: TableResult, row: str) -> tuple[int, ...]:
    """Of which the row has values."""
    return tuple(sorted({seed for cell in table.cells if cell.row == row for seed in cell.seeds}))


def commands(table: TableResult) -> Iterator[str]:
    """`make reproduce-TABLE ...` for all rows that have the same seeds."""
    groups: dict[tuple[int, ...], set[str]] = {}
    for row in ran(table, "row"):
        groups.setdefault(seeds(table, row), set()).add(row)
    columns = _numbers("columns", table.spec.columns, ran(table, "column"))
    for own, rows in sorted(groups.items(), reverse=True):
        chosen = [*columns, *_numbers("rows", table.spec.rows, rows), *_seeds(table, own)]
        yield " ".join([f"make reproduce-{table.spec.name.replace('_', '-')}", *_made(table), *chosen])


def command(table: TableResult, row: str, column: str, own: tuple[int, ...]) -> str:
    """`python -m fedbench reproduce ...` for one cell with its seeds; those of the table where it has none."""
    chosen = [
        *_numbers("rows", table.spec.rows, {row}),
        *_numbers("columns", table.spec.columns, {column}),
        *(_seeds(table, own) if own else []),
    ]
    words = ["python", "-m", "fedbench", "reproduce", f"table={table.spec.name}", *_made(table), *chosen]
    return shlex.join(words)


def _made(table: TableResult) -> list[str]:
    made = table.circumstances
    words = [f"substitute={made.substitute}"] if made.substitute else []
    words += [f"scale={made.scale}"] if made.scale != "paper" else []
    return [*words, *made.changed, *made.varied]


def _seeds(table: TableResult, own: tuple[int, ...]) -> list[str]:
    """`seeds=5`, or which; nothing for those that the table has anyway."""
    if own == tuple(range(_of_scale(table.circumstances.scale) or table.spec.seeds)):
        return []
    count = len(own) if own == tuple(range(len(own))) else f"[{','.join(map(str, own))}]"
    return [f"seeds={count}"]


@functools.cache
def _of_scale(name: str) -> int | None:
    """How many seeds a scale has of its own."""
    return scale.load(name).seeds


def _numbers(key: str, lines: Sequence[Any], chosen: set[str]) -> list[str]:
    """`key=1,3`, the places of the chosen lines; nothing for all of them."""
    places = [str(number) for number, line in enumerate(lines, 1) if line.label in chosen]
    return [] if len(places) == len(lines) else [f"{key}={','.join(places)}"]
