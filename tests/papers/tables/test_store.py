"""Filled tables on disk: what is written comes back, and tables made in different provenance do not meet."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedbench.config import groups
from fedbench.core.errors import FedbenchError
from fedbench.core.files import as_json
from fedbench.papers import fill, plan, render, selection, spec, store
from fedbench.papers.store import Cell, Provenance, TableResult
from fedbench.papers.text import fewer_clients
from fedbench.papers.verdict import verdict_of
from tests.papers.tables.toys import filled, value


@pytest.fixture
def table() -> TableResult:
    loaded = spec.load_spec("fedcollab_t1").only(rows=["Local", "FedAvg"], columns=["1"])
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
    chosen = selection.Selection("toy")
    store.save_table(tmp_path, filled({"Local": [89.9, 90.0, 90.1]}, {"Local": value(90.0, 0.1)}), [])
    for left in (text.count("TODO"), 1):
        found = plan.provenance(spec.load_spec("toy"), chosen)
        assert f"({left} TODO left in conf/table/toy.yaml)" in found.named(spec.load_spec("toy"))
        assert store.read_table(tmp_path).provenance.todo == left
        judged = filled({"Local": [89.9, 90.0, 90.1]}, {"Local": value(90.0, 0.1)}, made=found)
        assert verdict_of(judged, judged.cells[0]).text == "no verdict: the table's YAML says TODO"
        assert "No verdicts: the table's YAML says TODO." in render.draw_markdown(judged)
        file.write_text(f"{file.read_text().replace('TODO', '')}# TODO")
    file.write_text(file.read_text().replace("TODO", ""))
    assert plan.provenance(spec.load_spec("toy"), chosen).is_paper_setting


def test_a_table_comes_back_with_its_published_values(table: TableResult, tmp_path: Path) -> None:
    store.save_table(tmp_path / "tables" / "x", table, [{"row": "FedAvg", "score": 1.5}, {"row": "B", "acc": 2.0}])
    ((name, folder),) = store.table_folders(tmp_path).items()
    assert name == "x"
    back = store.read_table(folder)
    assert back.spec == table.spec
    assert back.provenance == MADE
    cell = back.cell("FedAvg", back.spec.columns[0].label, "acc")
    assert cell.values[0] == 1.5
    assert math.isnan(cell.values[1])
    assert (cell.seeds, cell.keys, cell.reason) == ((0, 1), ("a", "b"), "seed 2: broke")
    assert cell.published is not None
    assert cell.published.text == "46.64 ± 0.12"
    assert store.read_rows(folder)[1] == {"row": "B", "score": "", "acc": "2.0"}


def test_curves_and_matrices_come_back(table: TableResult, tmp_path: Path) -> None:
    curves = [{"row": "A", "round": 1, "acc_on_local": 12.5}]
    store.save_table(tmp_path, table, [], curves, {"A|c|0": np.eye(3)}, {"A|c|0": np.array([50.0, 75.0])})
    for _ in range(2):
        assert store.read_rows(tmp_path, store.CURVES) == [{"row": "A", "round": "1", "acc_on_local": "12.5"}]
        assert (store.read_arrays(tmp_path, store.MATRICES)["A|c|0"] == np.eye(3)).all()
        assert store.read_arrays(tmp_path, store.CLIENTS)["A|c|0"].tolist() == [50.0, 75.0]
        store.save_table(tmp_path, table)  # what is not given stays
    for name in (store.MATRICES, store.CLIENTS):
        assert store.read_arrays(tmp_path / "nothing", name) == {}
    assert store.read_rows(tmp_path / "nothing", store.CURVES) == []


def test_a_table_that_says_the_same_is_not_written_anew(table: TableResult, tmp_path: Path) -> None:
    """Elsewhere, later, and without the data: who adds no run to a clone changes no file of it."""
    rows, clients = [{"row": "A", "key": "a"}], {"A|c|0": np.array([50.0, math.nan])}
    cells = tuple(replace(cell, reason=f"{cell.reason}; seed 3: not run yet") for cell in table.cells)
    store.save_table(tmp_path, replace(table, cells=cells), rows, clients=clients)
    files = store.files_of(tmp_path)
    content = files.json(store.TABLE)
    content["spec"]["rows"][0]["note"] = ""  # of an earlier version
    files.write({store.TABLE: as_json(content)})
    first = (tmp_path / store.ARCHIVE).read_bytes()
    elsewhere = replace(MADE, machine="there", commit="def", date="2026-01-01", seconds=4.0)
    again = replace(table, provenance=elsewhere)
    store.save_table(tmp_path, again, rows, clients=clients)
    assert (tmp_path / store.ARCHIVE).read_bytes() == first
    broken = replace(table.cells[0], reason="seed 2: Diverged: in round 3")
    other = replace(table.cells[0], values=(1.5, 2.5))
    renamed = replace(table.spec, title="Another")
    for changed in (
        replace(again, cells=(broken, *table.cells[1:])),
        replace(again, cells=(other, *table.cells[1:])),
        replace(again, spec=renamed),
    ):
        store.save_table(tmp_path, changed, rows, clients=clients)
        assert store.read_table(tmp_path).provenance == elsewhere
        files.write({store.TABLE: as_json(content)})
    store.save_table(tmp_path, again, [{"row": "A", "key": "b"}])
    assert store.read_table(tmp_path).provenance == elsewhere, "of the run that took the place of another"


def test_a_table_of_studies_has_no_lines_of_runs(table: TableResult, tmp_path: Path) -> None:
    store.save_table(tmp_path, table)
    shown = render.FilledTable(tmp_path)
    assert [len(shown.rows), len(shown.curves)] == [0, 0]
    assert list(shown.rows.columns) == ["row", "column"]


def test_curves_are_thinned_to_their_ends() -> None:
    rounds = [{"round": str(i)} for i in range(1, 501)]
    thin = fill.thinned(rounds)
    assert len(thin) == fill.POINTS
    assert (thin[0]["round"], thin[-1]["round"]) == ("1", "500")
    assert fill.thinned(rounds[:7]) == rounds[:7]


def test_a_table_at_another_setting_lies_below_the_published_one(tmp_path: Path) -> None:
    made = {
        "t": Provenance(),
        "t/quick": Provenance("quick"),
        "t/digits": Provenance(substitute="digits"),
        "t/quick-digits-model=mlp-partition_seed=0": MADE,
        "t/a=2": Provenance(changed=("a=2",)),
        "t/b=_1_2_": Provenance(varied=("b=[1,2]",)),
    }
    assert {name: store.folder_of_table(tmp_path, "t", each) for name, each in made.items()} == {
        name: tmp_path / "tables" / name for name in made
    }


def test_a_long_setting_keeps_what_can_be_read_and_a_hash_of_all(tmp_path: Path) -> None:
    changed = ("model=lenet5", "partition.num_clients=10", "partition.size=240", "protocol.rounds=20")
    fresh = Provenance(changed=(*changed, "protocol.optimizer.state=fresh"), varied=("partition_seed=null",))
    kept = Provenance(changed=changed, varied=("partition_seed=null",))
    names = [store.folder_of_table(tmp_path, "t", made).name for made in (fresh, kept)]
    assert names == [
        "model=lenet5-num_clients=10-size=240-rounds=20-afdefacb",
        "model=lenet5-num_clients=10-size=240-rounds=20-f1fade39",
    ]
    long = store.folder_of_table(tmp_path, "t", Provenance(changed=("method.coalition=" + "1" * 99,))).name
    assert long.startswith("coalition=111")
    assert len(long) == 60
    fits = "a=" + "1" * 58
    assert store.folder_of_table(tmp_path, "t", Provenance(changed=(fits,))).name == fits


def test_tables_are_found_by_name_in_order(table: TableResult, tmp_path: Path) -> None:
    for name in ("t_open", "t/quick", "t"):
        store.save_table(tmp_path / "tables" / name, table)
    assert store.table_folders(tmp_path) == {name: tmp_path / "tables" / name for name in ("t", "t/quick", "t_open")}
    assert render.FilledTable.named("t/quick", tmp_path).table.provenance == MADE


def test_an_unreadable_table_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "tables" / "x"
    folder.mkdir(parents=True)
    (folder / store.ARCHIVE).write_bytes(b"PK")
    with pytest.raises(FedbenchError, match=r"table\.zip"):
        store.read_table(folder)


def test_cells_over_fewer_clients_are_named(tmp_path: Path) -> None:
    """By the accuracies that are kept; of a cell's seeds the one that scored the fewest."""
    made = filled({"A": [50.0, 60.0], "B": [50.0, 60.0]}, made=MADE)
    known = {("A", 0): [1, 2, 3], ("A", 1): [1, np.nan, 3], ("B", 0): [1, 2, 3], ("B", 1): [1, 2, 3]}
    clients = {store.place_of(row, "c", seed): np.array(each, float) for (row, seed), each in known.items()}
    store.save_table(tmp_path, made, clients=clients)
    loaded = store.read_table(tmp_path)
    assert loaded.fewer == {("A", "c"): (2, 3)}
    (said,) = fewer_clients(loaded)
    assert said.endswith("in the seed with the fewest: A / c 2 of 3.")
    assert said in render.draw_markdown(loaded)
    assert not [*fewer_clients(made)]
