"""Fixtures of tests of the scripts."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Import a script by its name, as those do that lie beside it; all are forgotten after the test."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(SCRIPTS))
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if SCRIPTS in Path(getattr(sys.modules[name], "__file__", None) or "/").parents:
            del sys.modules[name]
