"""How far ours may be from a published value and still agree for practical purposes, in the metric's own unit.

Fixed before any number is looked at. By default one point of accuracy or of RSD, one client of all for IPR, and ten per
cent of the published value for ratios, times and counts. A table's YAML may set another margin for a metric, with the
reason: `margins: {acc: {value: 2, why: "accuracy is of 50 test images"}}`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedbench.config.fields import typed
from fedbench.core.errors import ConfigError, unknown


@dataclass(frozen=True)
class Margin:
    """A margin of the table's own."""

    value: float
    why: str = ""
    relative: bool = False  # `value` is in per cent of the published mean


POINT = Margin(1.0)  # accuracy, RSD
TENTH = Margin(10.0, relative=True)


def width(metric: str, own: Mapping[str, Margin], published: float, clients: int | None) -> float | None:
    """The margin around a published value; None if it cannot be told (IPR without N, a share of 0).

    `own` holds the table's margins by metric, `published` is the mean, `clients` the number of clients.
    """
    if metric == "ipr" and metric not in own:
        return 100 / clients if clients else None
    margin = own.get(metric) or default(metric)
    return (abs(published) * margin.value / 100 or None) if margin.relative else margin.value


def default(metric: str) -> Margin:
    """The margin of a metric, other than IPR, for which a table sets none."""
    return POINT if metric == "rsd" or "acc" in metric.split("_") else TENTH


def parse(content: Mapping[str, Any], metrics: list[str], where: str) -> dict[str, Margin]:
    """The margins of a YAML by metric.

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
            raise ConfigError(
                f"{where}: the margin of {metric} is {margin.value:g}; it must be above 0, and finite"
            )
        if not margin.why.strip():
            raise ConfigError(
                f"{where}: say why the margin of {metric} is {margin.value:g} (margins.{metric}.why)"
            )
        found[metric] = margin
    return found
