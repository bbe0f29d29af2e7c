"""The published values, 904 of them, as the papers print them (published.csv beside this file).

Columns: paper, table, dataset, partition, method, metric, mean, std (empty: none printed), and setting (what
else a value depends on, as "lambda=0.05" or "model=simple_cnn baseline=FedAvg"; empty: nothing).
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedbench.core.errors import ConfigError

FILE = Path(__file__).with_name("published.csv")
FILTERS = ("dataset", "partition", "method", "metric", "setting")


@dataclass(frozen=True)
class Published:
    """One value of a paper's table; percent for accuracies, IPR and RSD."""

    paper: str
    table: str
    dataset: str
    partition: str
    method: str
    metric: str
    setting: str
    mean: float
    std: float | None
    decimals: int  # digits printed after the point
    bound: str = ""  # ">": the paper prints only that it is more than `mean`

    @property
    def text(self) -> str:
        """As printed: mean, and ± std where there is one."""
        spread = "" if self.std is None else f" ± {self.std:.{self.decimals}f}"
        return f"{self.bound}{self.mean:.{self.decimals}f}{spread}"


@functools.cache
def published() -> tuple[Published, ...]:
    """All published values, in the order of the file."""
    with FILE.open(encoding="utf-8", newline="") as file:
        return tuple(_value(row) for row in csv.DictReader(file))


def find(paper: str, table: str, where: Mapping[str, str]) -> Published | None:
    """The value of `paper`'s `table` that agrees with `where` in dataset, partition, method, metric and setting.

    A setting is compared as a set of words; `where` without one asks for values that have none.

    Returns:
        None if the table has no such value (the papers leave cells blank).

    Raises:
        ConfigError: several values agree.
    """
    wanted = {key: where[key] for key in FILTERS if key in where and key != "setting"}
    words = set(where.get("setting", "").split())
    found = [
        value
        for value in published()
        if (value.paper, value.table) == (paper, table)
        and all(getattr(value, key) == text for key, text in wanted.items())
        and set(value.setting.split()) == words
    ]
    if len(found) > 1:
        raise ConfigError(f"{paper} {table}: {dict(where)} means {len(found)} published values, not one")
    return found[0] if found else None


def _value(row: Mapping[str, str]) -> Published:
    number = row["mean"].removeprefix(">")
    _, _, fraction = number.partition(".")
    names = ("paper", "table", "dataset", "partition", "method", "metric", "setting")
    return Published(
        **{name: row[name] for name in names},
        mean=float(number),
        std=float(row["std"]) if row["std"] else None,
        decimals=len(fraction),
        bound=">" if number != row["mean"] else "",
    )
