"""The toy tables on disk, and their page in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.report import browsing
from tests.report.toys import stored


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """The toy tables on disk."""
    return stored(tmp_path)


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """One browser for all tests of the page."""
    yield from browsing.started()


@pytest.fixture
def opened(browser: Any, results: Path) -> Iterator[Any]:
    """The page of the toy tables."""
    yield from browsing.opened(browser, results)
