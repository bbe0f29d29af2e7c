"""Which cases of an exhaustive test always run."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def tiered(cases: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """`cases` for pytest.mark.parametrize: those in `quick` always run, the others only in `make test-full`."""
    listed = list(cases)
    assert set(map(str, quick)) <= set(map(str, listed)), "no such case"
    return [case if case in quick else _slow(case) for case in listed]


def sampled(cases: Iterable[Any], every: int) -> list[Any]:
    """`cases` that are much alike, for pytest.mark.parametrize: the first and then one in `every` always run."""
    return [_slow(case) if number % every else case for number, case in enumerate(cases)]


def _slow(case: Any) -> Any:
    values, marks = (case.values, case.marks) if hasattr(case, "marks") else (case, ())
    name = getattr(case, "id", None)
    return pytest.param(
        *(values if isinstance(values, tuple) else (values,)), marks=[*marks, pytest.mark.slow], id=name
    )
