"""Which records stand, and what a plan still has to run; the committed ones stand."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbench.papers import execute, fill, plan, recorded, spec, store
from fedbench.papers.recorded import StoredTable
from fedbench.papers.selection import Selection
from fedbench.papers.spec import RowSpec
from fedbench.papers.store import Cell, TableResult
from fedbench.runs import execution, fingerprint
from tests.helpers.codes import edit
from tests.helpers.tiers import tiered

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def toy(**metric: Any) -> spec.TableSpec:
    """A row that is measured against another run."""
    return spec.parse_spec(
        {
            "name": "toy",
            "title": "Toy",
            "paper": "",
            "table": "",
            "seeds": 1,
            "metrics": [{"name": "acc", **metric}, {"name": "late"}],
            "rows": [{"label": "r", "overrides": ["method=fedprox"], "baseline": ["method=fedavg"]}],
            "columns": [{"label": "c", "overrides": ["dataset=digits", "model=mlp"]}],
        }
    )


def planned(
    tmp_path: Path, record: StoredTable, selected: bool = True, seeds: tuple[int, ...] = (), **metric: Any
) -> plan.Plan:
    """Its plan, given a record; `selected`: its cell is to be run."""
    rows = () if selected else ("another",)
    selection = Selection(seeds=seeds, overrides=(f"runs_dir={tmp_path}",), rows=rows)
    return plan.make(toy(**metric), selection, record)


def record_of(tmp_path: Path, metrics: tuple[str, ...] = ("acc", "late"), seed: int = 0) -> StoredTable:
    """A record of `metrics` of the cell."""
    fresh = planned(tmp_path, StoredTable(), seeds=(seed,))
    run_key, base_key = fresh.cells[0].keys(fresh.cells[0].jobs[0])
    cells = tuple(Cell("r", "c", name, (50.0,), (seed,), (run_key,), baselines=(base_key,)) for name in metrics)
    return StoredTable(TableResult(toy(), cells, fresh.provenance), {run_key: {"key": run_key, "seed": seed}})


def test_a_record_against_another_baseline_does_not_stand(tmp_path: Path) -> None:
    record = record_of(tmp_path)
    assert planned(tmp_path, record).missing() == []
    assert record.table is not None
    cells = tuple(dataclasses.replace(cell, baselines=("another",)) for cell in record.table.cells)
    stale = StoredTable(dataclasses.replace(record.table, cells=cells))
    assert {job.config.labels["method"] for job in planned(tmp_path, stale).missing()} == {"fedavg", "fedprox"}


@pytest.mark.slow
def test_a_record_against_a_baseline_of_other_code_is_marked_and_made_again(tmp_path: Path) -> None:
    record, made = record_of(tmp_path), []
    for rule in ("show", "rerun"):
        selection = Selection(overrides=(f"runs_dir={tmp_path}", f"stale={rule}"))
        (cell,) = plan.make(toy(), selection).cells
        (job,), (base,) = cell.jobs, cell.baselines
        codes = {job.key: fingerprint.code_of(job.config), base.key: "method:000000000000"}
        rows = {key: {"key": key, "seed": 0, "code": code} for key, code in codes.items()}
        again = plan.make(toy(), selection, dataclasses.replace(record, rows=rows))
        made.append({job.config.labels["method"] for job in again.missing()})
    assert made == [set(), {"fedavg", "fedprox"}]
    kept = fill.kept_files(again)[0]
    assert [(line["row"], line["code"]) for line in kept] == [("r", codes[job.key]), ("r|baseline", codes[base.key])]
    store.save_table(tmp_path, record.table, kept)  # type: ignore[arg-type]
    table, count = recorded.read_marked(tmp_path)
    assert table.stale == {("r", "c"): ("method of the baseline",)}
    assert (count.runs, count.changed) == (2, 1)


@pytest.mark.slow
@pytest.mark.parametrize("half", [0, 1])
def test_a_value_and_its_baseline_are_of_one_code(tmp_path: Path, half: int) -> None:
    """Where one of the two is made again, the recorded value of both is none of today's."""
    record, old = record_of(tmp_path), "method:000000000000"
    selection = Selection(overrides=(f"runs_dir={tmp_path}", "stale=rerun"))
    (cell,) = plan.make(toy(), selection, record).cells
    both = [*cell.jobs, *cell.baselines]
    rows = {job.key: {"key": job.key, "seed": 0, "code": old} for job in both}
    outdated = dataclasses.replace(record, rows=rows)
    assert {each.values for each in fill.fill(plan.make(toy(), selection, outdated)).cells} == {(50.0,)}
    execution.execute(both[half].config)
    again = plan.make(toy(), selection, outdated)
    assert {each.values for each in fill.fill(again).cells} == {()}
    assert [job.key for job in again.missing()] == [both[1 - half].key]


@pytest.mark.parametrize("rows", [(), ("another",)])
def test_a_record_of_other_code_stays_until_a_finished_run_replaces_it(tmp_path: Path, rows: tuple[str, ...]) -> None:
    """Also that of a cell that is not asked for, which nothing replaces."""
    record, old = record_of(tmp_path), "method:000000000000"
    record = dataclasses.replace(record, rows={key: {**row, "code": old} for key, row in record.rows.items()})
    selection = Selection(rows=rows, overrides=(f"runs_dir={tmp_path}", "stale=rerun"))
    again = plan.make(toy(), selection, record)
    assert {job.config.labels["method"] for job in again.missing()} == (set() if rows else {"fedavg", "fedprox"})
    assert [cell.values for cell in fill.fill(again).cells] == [(50.0,), (50.0,)]
    assert [line["code"] for line in fill.kept_files(again)[0]] == [old]


@pytest.mark.usefixtures("fresh_codes")
@pytest.mark.parametrize("part", ["model", "study"])
def test_a_study_that_other_code_made_here_does_not_stand_where_that_is_not_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """A table keeps its value alone, so its folder beside the runs tells what made it."""
    row = RowSpec("r", ("method=local",), study="model_cost")
    table = dataclasses.replace(toy(), rows=(row,), metrics=toy().metrics[:1])

    def again(rule: str, record: StoredTable) -> plan.Plan:
        selection = Selection(overrides=(f"runs_dir={tmp_path}", f"stale={rule}"))
        return plan.make(table, selection, record)

    (job,) = again("show", StoredTable()).missing()
    execute.run_all([[job]], [])
    record = StoredTable(TableResult(table, (Cell("r", "c", "acc", (50.0,), (0,), (job.key,)),)))
    edit(monkeypatch, part)
    assert again("show", record).missing() == []
    assert [each.study for each in again("rerun", record).missing()] == ["model_cost"]
    assert fill.fill(again("rerun", record)).cells[0].values == (50.0,), "until it is made again"
    shutil.rmtree(job.folder.path)
    assert again("rerun", record).missing() == [], "nobody knows what made it"


def test_baselines_outlive_the_file(tmp_path: Path) -> None:
    again = fill.fill(planned(tmp_path, record_of(tmp_path)))
    store.save_table(tmp_path, again, [])
    assert store.read_table(tmp_path).cells == record_of(tmp_path).table.cells  # type: ignore[union-attr]


@pytest.mark.slow
def test_a_new_label_of_a_metric_loses_no_value(tmp_path: Path) -> None:
    shown = planned(tmp_path, record_of(tmp_path), label="Accuracy", decimals=1)
    assert fill.fill(shown).cells[0].values == (50.0,)
    written_out = planned(tmp_path, record_of(tmp_path), measure={"name": "result", "column": "score"})
    assert fill.fill(written_out).cells[0].values == (50.0,)
    store.save_table(tmp_path, record_of(tmp_path).table, [])  # type: ignore[arg-type]
    other = planned(tmp_path, recorded.read_stored(tmp_path), measure={"name": "result", "column": "acc_pooled"})
    assert fill.fill(other).cells[0].values == ()
    assert {job.config.labels["method"] for job in other.missing()} == {"fedavg", "fedprox"}


def test_a_cell_with_some_of_its_metrics_is_kept(tmp_path: Path) -> None:
    shown = planned(tmp_path, record_of(tmp_path, ("acc",)), selected=False)
    assert [cell.values for cell in fill.fill(shown).cells] == [(50.0,), ()]
    assert [line["row"] for line in fill.kept_files(shown)[0]] == ["r"]


DIVERGED = "Diverged: training diverged in round 7; lower protocol.optimizer.lr"


@pytest.mark.parametrize("asked", [(), (0, 4)])
def test_a_failure_outlives_the_folder_of_its_run(tmp_path: Path, asked: tuple[int, ...]) -> None:
    """Else the mean over luckier seeds would get a verdict on the next machine."""
    record = record_of(tmp_path, seed=2)
    assert record.table is not None
    reason = f"seeds 0, 1: {DIVERGED}; seed 3: not run yet"
    cells = tuple(dataclasses.replace(cell, reason=reason) for cell in record.table.cells)
    failed = StoredTable(dataclasses.replace(record.table, cells=cells), record.rows)
    again = fill.fill(planned(tmp_path, failed, selected=bool(asked), seeds=asked))
    for cell in again.cells:
        assert (cell.seeds, cell.diverged) == ((2,), True)
        assert cell.reason == f"seeds 0, 1: {DIVERGED}" + "; seed 4: not run yet" * bool(asked)
    lost = tuple(dataclasses.replace(cell, values=(), seeds=(), keys=(), baselines=()) for cell in cells)
    failed = StoredTable(dataclasses.replace(record.table, cells=lost))
    assert fill.fill(planned(tmp_path, failed, selected=False)).cells[0].failures == {0: DIVERGED, 1: DIVERGED}
    (column,) = toy().columns
    kinds = [dataclasses.replace(column, overrides=("x=1",)), dataclasses.replace(column, rows={"r": ("x=1",)})]
    specs = [dataclasses.replace(toy(), columns=(each,)) for each in kinds] + [
        dataclasses.replace(toy(), base=("x=1",))
    ]
    told = [dataclasses.replace(cell, reason="seed 0: measure clients: the run has 3 clients") for cell in lost]
    for declared, kept in [*((each, lost) for each in specs), (toy(), told)]:
        failed = StoredTable(dataclasses.replace(record.table, spec=declared, cells=tuple(kept)))
        assert fill.fill(planned(tmp_path, failed, selected=False)).cells[0].reason == store.PENDING, "of other runs"


@pytest.mark.slow
def test_the_matrix_of_a_later_seed_stays_while_the_first_has_none(tmp_path: Path) -> None:
    record = dataclasses.replace(record_of(tmp_path, seed=3), matrices={"r|c|3": np.eye(2)})
    assert list(fill.kept_files(planned(tmp_path, record, seeds=(0, 3)))[2]) == ["r|c|3"]
    record = dataclasses.replace(record, clients={"r|c|3": np.ones(2)})
    assert list(fill.kept_files(planned(tmp_path, record, seeds=(0, 3)))[3]) == ["r|c|3"]


def test_a_measure_that_is_no_more_does_not_stand(tmp_path: Path) -> None:
    record = record_of(tmp_path)
    assert record.table is not None
    metrics = tuple(dataclasses.replace(metric, measure={"name": "guess"}) for metric in record.table.spec.metrics)
    stale = StoredTable(dataclasses.replace(record.table, spec=dataclasses.replace(record.table.spec, metrics=metrics)))
    assert fill.fill(planned(tmp_path, stale)).cells[0].values == ()


FOLDERS = store.table_folders(ROOT / "results")


@pytest.mark.parametrize("name", tiered(FOLDERS, quick=["fedcollab_t3/partition=label_shift"]))
def test_the_committed_results_stand(tmp_path: Path, name: str) -> None:
    """No change to a config, a key or a table may call for runs whose results are in the repository."""
    record = recorded.read_stored(FOLDERS[name])
    table = record.table
    assert table is not None
    made = table.provenance
    assert FOLDERS[name] == store.folder_of_table(ROOT / "results", table.spec.name, made)
    selection = Selection(
        scale=made.scale,
        substitute=made.substitute,
        overrides=(*made.changed, *made.varied, f"runs_dir={tmp_path}"),
        rows=("none",),  # what is recorded is planned all the same, whether its data are here or not
    )
    planned = plan.make(spec.load_spec(table.spec.name), selection, record)
    standing = {
        (entry.row.label, entry.column.label, metric.name, job.seed)
        for entry in planned.cells
        for metric in planned.spec.metrics
        for job in entry.jobs
        if planned.stored.value(entry.row, entry.column, metric, *entry.keys(job)) is not None
    }
    means = [column.label for column in planned.spec.columns if column.mean]  # whose parts have the runs
    kept = [cell for cell in table.cells if cell.column not in means]
    stored = {(cell.row, cell.column, cell.metric, seed) for cell in kept for seed in cell.seeds}
    assert stored
    assert stored == standing


def test_a_row_may_measure_in_its_own_way(tmp_path: Path) -> None:
    """A record stands by what the metric, the column and the row say together."""
    record = record_of(tmp_path)
    assert record.table is not None

    def value(own: dict[str, Any], **of_metric: Any) -> float | None:
        today = toy(**of_metric)
        row = dataclasses.replace(today.rows[0], measures={"acc": own} if own else {})
        cell = record.table.cells[0]  # type: ignore[union-attr]
        base = cell.baselines[0]
        return record.value(row, today.columns[0], today.metrics[0], cell.keys[0], base)

    assert value({}) == 50.0
    assert value({"column": "score"}) == 50.0
    assert value({"column": "acc_pooled"}) is None
    assert value({"name": "speedup"}) is None
    assert value({"column": "score"}, measure={"name": "result", "column": "acc_pooled"}) == 50.0
