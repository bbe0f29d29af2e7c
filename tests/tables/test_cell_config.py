"""The config of a cell: its table's, its row's, and what the user selects."""

from __future__ import annotations

from typing import Any

import pytest

from fedbench.core.errors import ConfigError
from fedbench.tables import spec
from fedbench.tables.spec import Selection, compose_cell


def cell(*changed: str) -> dict[str, Any]:
    table = spec.load("fedcollab_t1")
    return compose_cell(table, table.columns[0], table.rows[-1].overrides, Selection(scale="quick", overrides=changed))[
        1
    ]


def test_a_cell_is_of_the_table_the_selection_and_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBENCH_RUNS", "here")
    first = cell()
    assert (first["method"]["base"]["name"], first["seed"]) == ("ditto", 0)
    assert cell("seed=3") == {**first, "seed": 3}
    monkeypatch.setenv("FEDBENCH_RUNS", "there")
    assert (first["runs_dir"], cell()["runs_dir"]) == ("here", "there")


def test_a_key_that_there_is_not_is_refused_with_the_table_s_name() -> None:
    with pytest.raises(ConfigError, match=r"^table fedcollab_t1, .*abacus"):
        cell("protocol.abacus=1")
