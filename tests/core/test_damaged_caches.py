"""Prepared arrays, damaged at many places: made again, never other ones."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbench.core import cache, checked
from tests.helpers.damage import DAMAGES, damages


@pytest.mark.slow
@pytest.mark.parametrize("name", ["x.npy", "num_train.npy", checked.MANIFEST])
def test_prepared_arrays_heal(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: Any,
    name: str,
) -> None:
    monkeypatch.setenv("FEDBENCH_CACHE", str(tmp_path))
    values = {"x": np.arange(40, dtype=np.int64).reshape(4, 10), "num_train": np.array([3])}
    made = []

    def build() -> dict[str, np.ndarray]:
        made.append(1)
        return values

    cache.cached_arrays("toy", build)
    file = tmp_path / "prepared" / "toy" / name
    whole, healed = file.read_bytes(), 0
    for content in damages(whole, DAMAGES, random.Random(1)):
        if content == whole:
            continue
        file.unlink()
        if content is not None:
            file.write_bytes(content)
        made.clear()
        found = cache.cached_arrays("toy", build)
        assert {key: (array.dtype, array.tolist()) for key, array in found.items()} == {
            key: (array.dtype, array.tolist()) for key, array in values.items()
        }
        healed += len(made)
        assert file.read_bytes() == whole or not made
        file.write_bytes(whole)
    assert healed > 2 * DAMAGES
    assert caplog.text.count("is made again") == healed


def test_an_interrupted_preparation_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setenv("FEDBENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(np, "save", stopped)
    with pytest.raises(KeyboardInterrupt):
        cache.cached_arrays("toy", lambda: {"x": np.zeros(3)})
    assert not list((tmp_path / "prepared").iterdir())
