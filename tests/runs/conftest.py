"""Fixtures of tests of runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fedbench.runs import fingerprint
from tests.runs.pairings import small_set


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where the data sets are written, found and prepared."""
    root = tmp_path_factory.mktemp("combinations")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDBENCH_CACHE", str(root / "cache"))
        patch.setenv("FEDBENCH_DATA", str(root / "data"))
        yield
    small_set.cache_clear()
    fingerprint._load.cache_clear()
    fingerprint._content.cache_clear()
