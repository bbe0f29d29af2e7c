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


def _slow(case: Any) -> Any:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
