"""The published values, 1,272 of them, as the papers print them (published.csv beside this file), and their margins.

Columns: paper, table, dataset, partition, method, metric, mean, std (empty: none printed), and setting (what else a
value depends on, as "lambda=0.05" or "model=simple_cnn baseline=FedAvg"; empty: nothing).

A margin is the largest difference from a published value that still counts as agreement, in the metric's unit. It is
fixed before any number is seen: one point of accuracy or RSD, one client for IPR, and ten per cent of the published
value for ratios, similarities, times and counts.
"""

from __future__ import annotations

import csv
import functools
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from fedbench.core.errors import ConfigError, Damaged

POINT = 1.0  # accuracy, RSD
TENTH = 0.1
ACCURACY = ("acc", "score")  # metrics that are the protocol's accuracy where nothing else is said


def width(metric: str, published: float, clients: int | None) -> float | None:
    """Return the margin around a published mean; None if it is unknown (IPR without N, a share of 0).

    `clients`: their number, if it is known.
    """
    if metric == "ipr":
        return 100 / clients if clients else None
    return (abs(published) * TENTH or None) if is_relative(metric) else POINT


def is_relative(metric: str) -> bool:
    """Return whether the margin of a metric is a share of its published value."""
    return metric not in (*ACCURACY, "ipr", "rsd") and "acc" not in metric.split("_")


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
        """The value as printed: mean, and ± std if there is one."""
        spread = "" if self.std is None else f" ± {self.std:.{self.decimals}f}"
        return f"{self.bound}{self.mean:.{self.decimals}f}{spread}"


@functools.cache
def published_values() -> tuple[Published, ...]:
    """Return all published values, in the order of the file."""
    return read_published(FILE)


def read_published(path: Path) -> tuple[Published, ...]:
    """Return the values in a file of this form.

    Raises:
        Damaged: the file has another form; names the line.
    """
    line = 1
    try:
        rows = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"), newline=""), strict=True)
        found = []
        for row in rows:
            line = rows.line_num
            found.append(_value(row))
    except (ValueError, LookupError, TypeError, AttributeError, csv.Error) as error:
        raise Damaged(
            f"{path} is damaged in line {line}; restore it with git restore, or install fedbench again"
        ) from error
    return tuple(found)


def find_published(paper: str, table: str, where: Mapping[str, str]) -> Published | None:
    """Return the value of `paper`'s `table` that agrees with `where` in dataset, partition, method, metric and setting.

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
        for value in published_values()
        if (value.paper, value.table) == (paper, table)
        and all(getattr(value, key) == text for key, text in wanted.items())
        and set(value.setting.split()) == words
    ]
    if len(found) > 1:
        raise ConfigError(f"{paper} {table}: {dict(where)} means {len(found)} published values, not one")
    return found[0] if found else None


def _value(row: Mapping[str, str]) -> Published:
    number = row["mean"].removeprefix(">")
    if not all(math.isfinite(float(text or 0)) for text in (number, row["std"])):
        raise ValueError("a value that is not finite")
    return Published(
        **{name: row[name] for name in ("paper", "table", *FILTERS)},
        mean=float(number),
        std=float(row["std"]) if row["std"] else None,
        decimals=max(0, -int(Decimal(number).as_tuple().exponent)),
        bound=">" if number != row["mean"] else "",
    )
