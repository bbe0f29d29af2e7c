"""The published values, 984 of them, as the papers print them (published.csv beside this file), and their margins.

Columns: paper, table, dataset, partition, method, metric, mean, std (empty: none printed), and setting (what else a
value depends on, as "lambda=0.05" or "model=simple_cnn baseline=FedAvg"; empty: nothing).

A margin is how far ours may be from a published value and still agree for practical purposes, in the metric's own unit.
It is fixed before any number is looked at: one point of accuracy or of RSD, one client of all for IPR, and ten per cent
of the published value for ratios, times and counts. A table's YAML may set another margin for a metric, with the
reason: `margins: {acc: {value: 2, why: "accuracy is of 50 test images"}}`.
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
from typing import Any

from fedbench.config.fields import typed
from fedbench.core.errors import ConfigError, Damaged, unknown


@dataclass(frozen=True)
class Margin:
    """A margin of the table's own."""

    value: float
    why: str = ""
    relative: bool = False  # `value` is in per cent of the published mean


POINT = Margin(1.0)  # accuracy, RSD


TENTH = Margin(10.0, relative=True)


def width(metric: str, own: Mapping[str, Margin], published: float, clients: int | None) -> float | None:
    """Return the margin around a published value; None if it cannot be told (IPR without N, a share of 0).

    `own` holds the table's margins by metric, `published` is the mean, `clients` the number of clients.
    """
    if metric == "ipr" and metric not in own:
        return 100 / clients if clients else None
    margin = own.get(metric) or default_margin(metric)
    return (abs(published) * margin.value / 100 or None) if margin.relative else margin.value


def default_margin(metric: str) -> Margin:
    """Return the margin of a metric, other than IPR, for which a table sets none."""
    return POINT if metric == "rsd" or "acc" in metric.split("_") else TENTH


def parse_margins(content: Mapping[str, Any], metrics: list[str], where: str) -> dict[str, Margin]:
    """Return the margins of a YAML by metric.

    Raises:
        UnknownName: of a metric that the table lacks.
        ConfigError: a margin that is no positive number, or one without a reason.
    """
    found = {}
    for metric, entry in content.items():
        if metric not in metrics:
            raise unknown(f"metric in the margins of {where}", str(metric), metrics)
        margin = typed(Margin, entry, f"{where}, margin of {metric}")
        if not 0 < margin.value < math.inf:
            raise ConfigError(f"{where}: the margin of {metric} is {margin.value:g}; it must be above 0, and finite")
        if not margin.why.strip():
            raise ConfigError(f"{where}: say why the margin of {metric} is {margin.value:g} (margins.{metric}.why)")
        found[metric] = margin
    return found


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
        """The value as printed: mean, and ± std where there is one."""
        spread = "" if self.std is None else f" ± {self.std:.{self.decimals}f}"
        return f"{self.bound}{self.mean:.{self.decimals}f}{spread}"


@functools.cache
def published_values() -> tuple[Published, ...]:
    """Return all published values, in the order of the file."""
    return read_published(FILE)


def read_published(path: Path) -> tuple[Published, ...]:
    """Return the values in a file of this form.

    Raises:
        Damaged: it is no such file; says which line.
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
            f"{path} is damaged in line {line}; bring it back: git restore, or install fedbench again"
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
    names = ("paper", "table", "dataset", "partition", "method", "metric", "setting")
    return Published(
        **{name: row[name] for name in names},
        mean=float(number),
        std=float(row["std"]) if row["std"] else None,
        decimals=max(0, -int(Decimal(number).as_tuple().exponent)),
        bound=">" if number != row["mean"] else "",
    )
