"""Fixtures of tests of the scripts."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.scripts.rival_program import SCRIPTS, SIZES


@pytest.fixture
def rivals(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """scripts/benchmarks/rivals.py as a module, on one core."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    found = importlib.import_module("benchmarks.rivals")
    monkeypatch.setattr(found, "available_workers", lambda: 1)
    monkeypatch.setattr(sys.modules["benchmarks.rival_ours"], "available_workers", lambda: 1)
    yield found
    for name in [name for name in sys.modules if name == "bench" or name.split(".")[0] == "benchmarks"]:
        del sys.modules[name]


@pytest.fixture
def tiny(rivals: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A workload of three clients that learn within a few rounds; two of them a round."""
    overrides = ("model=mlp", "model.hidden=[32]", "protocol=quick", "protocol.cohort=2")
    local = ("protocol.local.epochs=2", "protocol.local.batch_size=16", "protocol.optimizer.lr=0.1")
    workload = rivals.Workload("T", "three clients", (*overrides, *local), SIZES, (1, 16, 16))
    monkeypatch.setattr(rivals, "WORKLOADS", {"T": workload})
    monkeypatch.setattr(rivals, "TEST", 200)
    return workload
