"""The toy tables on disk, and their page in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedbench.papers.report import build_page
from tests.papers.report import browsing
from tests.papers.report.toys import stored


@pytest.fixture(scope="package")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy tables on disk, and their page; nobody changes them."""
    root = stored(tmp_path_factory.mktemp("results"))
    build_page(root, root / "index.html")
    return root


@pytest.fixture
def opened(browser: Any, results: Path) -> Iterator[Any]:
    """The page of the toy tables."""
    yield from browsing.opened(browser, results)
