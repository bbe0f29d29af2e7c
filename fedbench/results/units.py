"""Numbers for people: bytes, seconds, percentages, mean and spread."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

STALE = "‡"  # beside what other code than today's made


def human_bytes(count: float) -> str:
    """Decimal units, as the papers count traffic: 1234567 -> "1.23 MB"."""
    value = float(count)
    if value < 1000:
        return f"{value:.0f} B"
    for unit in ("kB", "MB", "GB", "TB"):
        value /= 1000
        if value < 999.995 or unit == "TB":
            break
    return f"{value:.2f} {unit}"


def human_seconds(seconds: float) -> str:
    """0.5 -> "0.50 s", 75 -> "1 min 15 s", 3700 -> "1 h 01 min"."""
    if not math.isfinite(seconds):
        return "-"
    if seconds < 59.995:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def number(value: Any) -> float | None:
    """`value` as a finite float, else None (missing, null, nan)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def decimals(value: Any) -> str:
    """Two decimals; "-" for a missing value."""
    known = number(value)
    return "-" if known is None else f"{known:.2f}"


def mean_std(values: Sequence[float]) -> str:
    """`mean ± sample std` to two decimals; the mean alone for one value, "-" for none."""
    if not values:
        return "-"
    mean = decimals(statistics.fmean(values))
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.2f}"


def remark(parts: Iterable[str]) -> str:
    """What stands under a table with marked rows, given the parts of the code that changed; "" if there are none."""
    if names := sorted(set(parts)):
        return f"{STALE} made by other code than today's ({', '.join(names)} changed since); stale=rerun makes it again"
    return ""
