"""Filled tables on disk: what is written comes back, and tables made in different provenance do not meet."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from fedbench.config import groups
from fedbench.core.errors import FedbenchError
from fedbench.papers import plan, render, spec, store
from fedbench.papers.store import Cell, Provenance, TableResult
from fedbench.papers.verdict import verdict_of
from tests.papers.tables.toys import filled, value


@pytest.fixture
def table() -> TableResult:
    loaded = spec.load("fedcollab_t1").only(rows=["Local", "FedAvg"], columns=["1"])
    column = loaded.columns[0].label
    cells = [
        Cell(row.label, column, metric.name, (1.5, math.nan), (0, 1), ("a", "b"), reason="seed 2: broke")
        for row in loaded.rows
        for metric in loaded.metrics
    ]
    return TableResult(loaded, tuple(cells), MADE)


MADE = Provenance("quick", "digits", ("model=mlp",), ("partition_seed=0",), machine="here", commit="abc", seconds=3.0)


def test_a_todo_in_today_s_yaml_is_counted_and_voids_verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `new table` writes them; in a table that was filled before, too."""
    (tmp_path / "table").mkdir()
    (tmp_path / "scale").symlink_to(groups.conf_dir() / "scale")
    file = tmp_path / "table" / "toy.yaml"
    text = (groups.conf_dir().parent / "fedbench/cli/templates/table.yaml.txt").read_text()
    file.write_text(text.replace("NAME", "toy").replace("PAPER", "p").replace("NUMBER", "T1"))
    monkeypatch.setattr(groups, "conf_dir", lambda: tmp_path)
    selection = spec.Selection("toy")
    store.save(tmp_path, filled({"Local": [89.9, 90.0, 90.1]}, {"Local": value(90.0, 0.1)}), [])
    for left in (text.count("TODO"), 1):
        found = plan.provenance(spec.load("toy"), selection)
        assert f"({left} TODO left in conf/table/toy.yaml)" in found.named(spec.load("toy"))
        assert store.load_table(tmp_path).provenance.todo == left
        judged = filled({"Local": [89.9, 90.0, 90.1]}, {"Local": value(90.0, 0.1)}, made=found)
        assert verdict_of(judged, judged.cells[0]).text == "no verdict: the table's YAML says TODO"
        assert "No verdicts: the table's YAML says TODO." in render.draw_markdown(judged)
        file.write_text(f"{file.read_text().replace('TODO', '')}# TODO")
    file.write_text(file.read_text().replace("TODO", ""))
    assert plan.provenance(spec.load("toy"), selection).is_paper_setting


def test_a_table_comes_back_with_its_published_values(table: TableResult, tmp_path: Path) -> None:
    store.save(tmp_path / "tables" / "x", table, [{"row": "FedAvg", "score": 1.5}, {"row": "B", "acc": 2.0}])
    (folder,) = store.folders(tmp_path)
    back = store.load_table(folder)
    assert back.spec == table.spec
    assert back.provenance == MADE
    cell = back.cell("FedAvg", back.spec.columns[0].label, "acc")
    assert cell.values[0] == 1.5
    assert math.isnan(cell.values[1])
    assert (cell.seeds, cell.keys, cell.reason) == ((0, 1), ("a", "b"), "seed 2: broke")
    assert cell.published is not None
    assert cell.published.text == "46.64 ± 0.12"
    assert store.load_rows(folder)[1] == {"row": "B", "score": "", "acc": "2.0"}


def test_curves_and_matrices_come_back(table: TableResult, tmp_path: Path) -> None:
    curves = [{"row": "A", "round": 1, "acc_on_local": 12.5}]
    store.save(tmp_path, table, [], curves, {"A|c|0": np.eye(3)}, {"A|c|0": np.array([50.0, 75.0])})
    for _ in range(2):
        assert store.load_rows(tmp_path, store.CURVES) == [{"row": "A", "round": "1", "acc_on_local": "12.5"}]
        assert (store.load_arrays(tmp_path, store.MATRICES)["A|c|0"] == np.eye(3)).all()
        assert store.load_arrays(tmp_path, store.CLIENTS)["A|c|0"].tolist() == [50.0, 75.0]
        store.save(tmp_path, table)  # what is not given stays
    for name in (store.MATRICES, store.CLIENTS):
        assert store.load_arrays(tmp_path / "nothing", name) == {}
    assert store.load_rows(tmp_path / "nothing", store.CURVES) == []


def test_curves_are_thinned_to_their_ends() -> None:
    rounds = [{"round": str(i)} for i in range(1, 501)]
    thin = plan.thinned(rounds)
    assert len(thin) == plan.POINTS
    assert (thin[0]["round"], thin[-1]["round"]) == ("1", "500")
    assert plan.thinned(rounds[:7]) == rounds[:7]


def test_each_circumstance_has_a_folder_of_its_own(tmp_path: Path) -> None:
    made = [
        Provenance(),
        Provenance("quick"),
        Provenance(substitute="digits"),
        Provenance(changed=("a=1",)),
        Provenance(changed=("a=2",)),
        Provenance(varied=("b=2",)),
    ]
    assert len({store.folder_of(tmp_path, "t", each) for each in made}) == len(made)


def test_long_names_with_one_beginning_are_two_folders(tmp_path: Path) -> None:
    """A name that fits stays as it is, so that no folder moves."""
    long = "a=" + "1" * 149  # three too long behind "t-"
    names = [store.folder_of(tmp_path, "t", Provenance(changed=(text,))).name for text in (long[:-3], long, long + "2")]
    assert names[0] == f"t-{long[:-3]}"
    assert len({*names, store.folder_of(tmp_path, "t", Provenance(changed=(long[:-1] + "3",))).name}) == 4
    assert {len(name) for name in names} == {150}
    assert all(name.startswith(f"t-{long[:139]}-") for name in names[1:])


def test_an_unreadable_table_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "tables" / "x"
    folder.mkdir(parents=True)
    (folder / "table.json").write_text("{", encoding="utf-8")
    with pytest.raises(FedbenchError, match=r"table\.json"):
        store.load_table(folder)
