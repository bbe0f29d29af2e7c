"""The config of a cell is the same from the cache, which no change of a file or of the overrides slips past."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedbench.core.errors import ConfigError
from fedbench.tables import cell_config, spec
from fedbench.tables.cell_config import Wish, compose_cell
from fedbench.tables.scale import Scale


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def composed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What was composed by Hydra."""
    asked: list[object] = []
    compose = cell_config.compose

    def counting(overrides: Any) -> Any:
        asked.append(overrides)
        return compose(overrides)

    monkeypatch.setattr(cell_config, "compose", counting)
    return asked


def cell(*changed: str) -> dict[str, Any]:
    table = spec.load("fedcollab_t1")
    wish = Wish(Scale("quick", rounds=0.1), changed=changed)
    return compose_cell(table, table.columns[0], table.rows[-1].overrides, wish)[1]


def test_a_cell_is_composed_once(composed: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBENCH_RUNS", "here")
    first, again = cell(), cell()
    assert first == again
    assert len(composed) == 1
    assert list(first) == list(again), "in the same order"
    monkeypatch.setenv("FEDBENCH_RUNS", "there")
    assert (first["runs_dir"], cell()["runs_dir"]) == ("here", "there"), (
        "what the environment says is not kept"
    )
    assert cell("seed=3")["seed"] == 3
    assert len(composed) == 2


def test_a_damaged_entry_is_composed_again(composed: list[object], cache: Path) -> None:
    expected = cell()
    (file,) = cache.rglob("config.npy")
    file.write_bytes(file.read_bytes()[:-3])
    assert cell() == expected
    assert len(composed) == 2


def test_a_key_that_there_is_not_is_refused_from_the_cache_too() -> None:
    for _ in range(2):
        with pytest.raises(ConfigError, match="abacus"):
            cell("protocol.abacus=1")
