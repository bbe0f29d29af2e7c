"""Planning a table: which runs, in which order, and why some cells have none."""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from fedbench.cli import program
from fedbench.config import groups
from fedbench.config.messages import INCOMPLETE, OK
from fedbench.core.errors import ConfigError, UnknownName
from fedbench.papers import fill, plan, recorded, reproduce, spec, store
from fedbench.papers.selection import Selection, compose_cell
from fedbench.papers.store import Provenance
from fedbench.papers.text import Layout
from fedbench.runs.config import from_plain
from fedbench.runs.execution import execute
from tests.papers.tables.selections import selection, table

pytestmark = pytest.mark.usefixtures("nothing_prepared")


def test_cells_in_order_with_a_run_a_seed_and_the_reason_where_data_is_missing(tmp_path: Path) -> None:
    planned = plan.make(table(), selection(tmp_path))
    assert [(e.row.label, e.column.label, len(e.jobs)) for e in planned.cells] == [
        ("FedAvg", "here", 2),
        ("FedAvg", "elsewhere", 0),
        ("FedProx", "here", 2),
        ("FedProx", "elsewhere", 0),
    ]
    assert "data missing" in planned.cells[1].reason
    assert "cifar100" in planned.cells[1].reason
    prox = planned.cells[2].jobs[1].config
    assert (prox.seed, prox.method.mu, prox.protocol.rounds) == (1, 0.3, 20)


PARTS = [{"label": label, "overrides": ["dataset=digits", "model=mlp"]} for label in ("one", "two")]


def test_a_column_that_is_a_mean_has_the_seeds_that_all_its_parts_have(tmp_path: Path) -> None:
    mean = {"label": "both", "overrides": ["dataset=digits"], "mean": ["one", "two"]}
    own = table(columns=[mean, *PARTS], paper="", table="")
    fresh = plan.make(own, selection(tmp_path, rows=("FedAvg",), seeds=(0, 1)))
    both, one, two = fresh.cells[:3]
    assert (both.jobs, both.asked) == ((), (*one.jobs, *two.jobs))
    keys = [job.key for job in one.jobs]  # the parts have the same runs here
    assert len(fresh.missing()) == len(set(keys)) == 2
    assert Layout(fill.fill(fresh)).left_out == "Left out (not run yet): rows FedAvg, FedProx; columns both."
    cells = (
        store.Cell("FedAvg", "one", "acc", (50.0, 60.0), (0, 1), tuple(keys)),
        store.Cell("FedAvg", "two", "acc", (90.0,), (1,), tuple(keys[1:])),
    )
    record = recorded.StoredTable(store.TableResult(own, cells), {key: {"key": key, "seed": "0"} for key in keys})
    filled = fill.fill(plan.make(own, selection(tmp_path, rows=("FedAvg",), seeds=(0, 1)), record))
    cell = filled.cell("FedAvg", "both", "acc")
    assert (cell.values, cell.seeds, cell.keys) == ((75.0,), (1,), (f"{keys[1]}+{keys[1]}",))
    assert cell.reason == "seed 0: not run yet"
    assert filled.cell("FedProx", "both", "acc").reason == "not run yet"
    assert [column.label for column in own.only(columns=["both"]).columns] == ["both", "one", "two"]
    assert [column.label for column in own.only(columns=["3"]).columns] == ["two"]


def test_a_run_of_which_a_column_reads_more_is_made_again(tmp_path: Path) -> None:
    """Both columns have the same runs, of which only the first one's numbers are recorded."""
    pooled = {**PARTS[1], "measures": {"acc": {"name": "result", "column": "acc_pooled"}}}
    own = table(columns=[PARTS[0], pooled], paper="", table="")
    asked = selection(tmp_path, rows=("FedAvg",), columns=("two",), seeds=(0,))
    (job,) = plan.make(own, asked).missing()
    cells = (store.Cell("FedAvg", "one", "acc", (50.0,), (0,), (job.key,)),)
    record = recorded.StoredTable(store.TableResult(own, cells), {job.key: {"key": job.key, "seed": "0"}})
    planned = plan.make(own, asked, record)
    assert [each.key for each in planned.missing()] == [job.key]
    assert reproduce.conclude(planned, tmp_path / "tables" / "toy", 0, str(tmp_path)) == INCOMPLETE
    first = selection(tmp_path, rows=("FedAvg",), columns=("one",), seeds=(0,))
    assert plan.make(own, first, record).missing() == []


def test_a_mean_over_missing_data_says_so(tmp_path: Path) -> None:
    mean = {"label": "both", "overrides": ["dataset=digits"], "mean": ["one", "far"]}
    far = {"label": "far", "overrides": ["dataset=cifar100", "model=lenet5"]}
    planned = plan.make(table(columns=[mean, PARTS[0], far], paper="", table=""), selection(tmp_path))
    assert "data missing" in planned.cells[0].reason


def test_seeds_that_are_asked_for_and_cannot_be_run_here_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the cell's first seed there is a record, its data are gone."""
    own = table(paper="", table="")

    def planned(record: recorded.StoredTable, *seeds: int) -> plan.Plan:
        return plan.make(own, selection(tmp_path, rows=("FedAvg",), columns=("elsewhere",), seeds=seeds), record)

    _, plain = compose_cell(own, own.columns[1], own.rows[0].overrides, selection(tmp_path))
    key = from_plain(plain).changed(seed=0).key
    cells = (store.Cell("FedAvg", "elsewhere", "acc", (50.0,), (0,), (key,)),)
    record = recorded.StoredTable(store.TableResult(own, cells), {key: {"key": key, "seed": "0"}})
    assert reproduce.conclude(planned(record, 0), tmp_path / "tables" / "toy", 0, str(tmp_path)) == OK
    lacking = planned(record, 0, 1, 2)
    assert fill.fill(lacking).cell("FedAvg", "elsewhere", "acc").values == (50.0,)
    reproduce.announce(lacking, [], 1, tmp_path)
    said = " ".join(capsys.readouterr().out.split())
    assert "the one cell: not run with seeds 1, 2: data missing" in said
    assert reproduce.conclude(lacking, tmp_path / "tables" / "toy", 0, str(tmp_path)) == INCOMPLETE
    assert "incomplete: 0 of 1 cell" in (said := capsys.readouterr().out)
    assert "1 cannot be run here" in said


def test_a_cell_without_data_and_with_runs_to_make_is_counted_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mean = {"label": "both", "overrides": ["dataset=digits"], "mean": ["one", "far"]}
    far = {"label": "far", "overrides": ["dataset=cifar100", "model=lenet5"]}
    own = table(columns=[mean, PARTS[0], far], paper="", table="")
    planned = plan.make(own, selection(tmp_path, rows=("FedAvg",)))
    assert reproduce.conclude(planned, tmp_path / "tables" / "toy", 0, str(tmp_path)) == INCOMPLETE
    assert "incomplete: 0 of 3 cells asked" in capsys.readouterr().out


def test_two_files_of_one_name_are_no_two_columns(tmp_path: Path) -> None:
    """No key tells their runs apart."""
    columns = [{"label": c, "overrides": ["dataset=npz", f"dataset.path={tmp_path}/{c}/d.npz"]} for c in "ab"]
    for column in columns:
        (tmp_path / column["label"]).mkdir()
        np.savez(tmp_path / column["label"] / "d.npz", x=np.zeros((9, 2)), y=np.arange(9) % 3)
    with pytest.raises(ConfigError, match="two columns read different data with the same name, npz-d: rename"):
        plan.make(table(columns=columns), selection(tmp_path))
    plan.make(table(columns=columns[:1]), selection(tmp_path))


def test_local_runs_come_first_and_every_run_once(tmp_path: Path) -> None:
    ipr = {"name": "ipr", "measure": {"name": "result", "column": "ipr"}}
    local = {"label": "Local", "overrides": ["method=local"]}
    rows = [*map(dataclasses.asdict, table().rows), local]
    planned = plan.make(table(metrics=[{"name": "acc"}, ipr], rows=rows), selection(tmp_path))
    methods = [(job.config.labels["method"], job.seed) for job in planned.jobs]
    assert methods == [
        ("local", 0),
        ("local", 1),
        ("fedavg", 0),
        ("fedavg", 1),
        ("fedprox", 0),
        ("fedprox", 1),
    ]


def test_no_local_is_trained_where_no_metric_reads_ipr_or_rsd(tmp_path: Path) -> None:
    planned = plan.make(table(), selection(tmp_path))
    assert {job.config.labels["method"] for job in planned.jobs} == {"fedavg", "fedprox"}
    assert {job.config.settings.reference for job in planned.jobs} == {"none"}


def test_the_command_line_of_a_job_repeats_it(tmp_path: Path) -> None:
    from fedbench.config.compose import compose
    from fedbench.runs.config import resolve

    for scale in ("paper", "smoke"):
        for job in plan.make(table(), selection(tmp_path, scale=scale)).jobs:
            assert resolve(compose(job.overrides)).key == job.key


def test_a_substitute_takes_the_place_of_the_data_and_of_what_does_not_fit_it(tmp_path: Path) -> None:
    planned = plan.make(table(), selection(tmp_path, substitute="digits"))
    config = planned.cells[1].jobs[0].config
    assert config.dataset.name == "digits"
    assert config.labels["partition"] == "pathological2"
    assert planned.provenance.substitute == "digits"
    assert not planned.provenance.is_paper_setting


@pytest.mark.slow
def test_every_cell_of_unlike_clients_has_a_run_on_the_stand_in(tmp_path: Path) -> None:
    """Though the default method could not serve them."""
    table = spec.load_spec("fedsac_t2")
    planned = plan.make(table, selection(tmp_path, substitute="captioned", scale="smoke", seeds=(0,)))
    assert all(cell.jobs and not cell.reason for cell in planned.cells)


def test_changes_of_the_user_void_verdicts_and_settings_do_not(tmp_path: Path) -> None:
    changed = plan.make(table(), selection(tmp_path, changed=("protocol.rounds=3",)))
    assert changed.jobs[0].config.protocol.rounds == 3
    assert not changed.provenance.is_paper_setting
    assert plan.make(table(), selection(tmp_path)).provenance.is_paper_setting


def test_a_reduced_precision_is_no_setting_however_it_is_set() -> None:
    coarse = ("hardware={precision:tf32}", "hardware.precision=bf16", "++hardware.precision=tf32")
    fine = ("hardware=cpu", "hardware.precision=float32", "hardware={engine:looped}", "runs_dir=here")
    for text in (*coarse, *fine):
        assert Selection(overrides=(text,)).changed == ((text,) if text in coarse else ())


def test_what_a_run_made_earlier_does_not_keep_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def told(*kept: str) -> str:
        chosen = selection(tmp_path, ("protocol.rounds=1", *kept), rows=("FedAvg",), columns=("here",), seeds=(0,))
        planned = plan.make(table(paper="", table=""), chosen)
        for job in planned.missing():
            execute(job.config)
        capsys.readouterr()
        reproduce.announce(planned, [], 1, tmp_path)
        return " ".join(capsys.readouterr().out.split())

    assert "not kept" not in told("save_models=true")
    assert "not kept" not in told("save_models=true"), "it is there"
    lacking = told("record=[cka]", "save_models=true")
    assert "not kept by 1 run made earlier: record=cka; to make them again, delete their folders" in lacking


@pytest.mark.slow
def test_what_the_paper_leaves_open_may_be_varied(tmp_path: Path) -> None:
    open_ = table(left_open=["partition_seed"])
    varied = plan.make(open_, selection(tmp_path, changed=("partition_seed=0",)))
    assert {job.config.partition_seed for job in varied.jobs} == {0}
    assert (varied.provenance.varied, varied.provenance.changed) == (("partition_seed=0",), ())
    forced = plan.provenance(open_, selection(tmp_path, changed=("++partition_seed=0",)))
    assert (forced.varied, forced.changed) == (("++partition_seed=0",), ())
    assert varied.provenance.is_paper_setting
    both = plan.make(open_, selection(tmp_path, changed=("partition_seed=0", "protocol.rounds=3"))).provenance
    assert (both.varied, both.changed) == (("partition_seed=0",), ("protocol.rounds=3",))
    assert not both.is_paper_setting
    assert not plan.make(table(), selection(tmp_path, changed=("partition_seed=0",))).provenance.is_paper_setting
    named = table(left_open=["partition=homo"])  # this one, no other
    assert plan.make(named, selection(tmp_path, changed=("partition=homo",))).provenance.is_paper_setting
    assert not plan.make(named, selection(tmp_path, changed=("partition=dir0.1",))).provenance.is_paper_setting


def test_a_row_that_does_not_compose_is_named(tmp_path: Path) -> None:
    broken = table(rows=[{"label": "X", "overrides": ["method=fedagv"]}])
    with pytest.raises(ConfigError, match=r"table toy.*fedavg"):
        plan.make(broken, selection(tmp_path))


def test_rows_and_columns_by_label_or_number() -> None:
    chosen = table().only(rows=["2"], columns=["here"])
    assert [row.label for row in chosen.rows] == ["FedProx"]
    numbered = table(rows=[{"label": label, "overrides": ["method=fedavg"]} for label in ("9", "1", "2")])
    picked = numbered.only(rows=["2", "3"]).rows
    assert [row.label for row in picked] == ["2"], "a label goes before a number, and 3 is the third row"
    assert [column.label for column in chosen.columns] == ["here"]
    with pytest.raises(UnknownName, match="FedProx"):
        table().only(rows=["FedProxy"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metrics": []}, "metrics"),
        ({"headline": "FedAvgg"}, "FedAvg"),
        ({"seedz": 3}, "seeds"),
        ({"left_open": "partition_seed"}, "left_open.*list"),
        ({"rows": [{"label": "A"}, {"label": "A"}]}, "same name"),
        ({"columns": [{"label": "A", "publishd": {}}]}, "published"),
        ({"columns": [{"label": "A", "mean": ["B"]}, {"label": "C"}]}, "'B'"),
        ({"columns": [{"label": "A", "mean": ["A"]}, {"label": "C"}]}, "'A'"),
    ],
)
def test_a_wrong_table_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises((UnknownName, ConfigError), match=message):
        table(**changes)


def test_a_table_s_file_says_its_own_name_and_what_each_metric_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy would fill the other table's folder; and `ipr` would be a column of accuracies."""
    base = {"title": "T", "paper": "", "table": "", "rows": [{"label": "FedAvg"}], "columns": [{"label": "c"}]}
    cases = [
        ({"name": "other", "metrics": [{"name": "acc"}]}, r"mine.yaml: its name is 'other', .*; write mine$"),
        *(
            ({"name": "mine", "metrics": [{"name": "acc"}, {"name": name}]}, rf"metric '{name}' has no measure")
            for name in ("ipr", "rsd", "accu")
        ),
        (
            {
                "name": "mine",
                "metrics": [{"name": "acc"}, {"name": "ipr", "measure": {"name": "result", "column": "ipr"}}],
            },
            "",
        ),
    ]
    monkeypatch.setattr(groups, "file_of", lambda _, name: tmp_path / f"{name}.yaml")
    for content, message in cases:
        (tmp_path / "mine.yaml").write_text(OmegaConf.to_yaml({**base, **content}))
        if message:
            with pytest.raises(ConfigError, match=message):
                spec.load_spec("mine")
        else:
            assert [each.name for each in spec.load_spec("mine").metrics] == ["acc", "ipr"]


@pytest.mark.slow
@pytest.mark.parametrize("column", ["rds", "acc_on", "accuracy"])
def test_a_column_that_no_result_has_is_refused_before_anything_runs(column: str, tmp_path: Path) -> None:
    metrics = [{"name": "acc", "measure": {"name": "result", "column": column}}]
    with pytest.raises(UnknownName, match=rf"result column '{column}'"):
        plan.make(table(metrics=metrics), selection(tmp_path))
    for known in ("rsd", "acc_on_val", "acc_of_image", "seconds_train", "clients_ipr"):
        plan.make(table(metrics=[{"name": "acc", "measure": {"name": "result", "column": known}}]), selection(tmp_path))


def test_missing_imagenet_weights_are_a_reason_too(tmp_path: Path) -> None:
    weights = f"model.weights={tmp_path / 'none.pth'}"
    spec_ = table(columns=[{"label": "c", "overrides": ["dataset=digits", "model=resnet18", weights]}])
    planned = plan.make(spec_, selection(tmp_path))
    assert all("weights missing" in cell.reason for cell in planned.cells)


def test_a_cell_whose_inputs_would_not_be_the_papers_is_not_planned(tmp_path: Path) -> None:
    """Always, or once what it hangs on is changed."""
    columns = [
        {"label": "always", "overrides": ["dataset=digits"], "unlike": {"*Prox": "its features are not here"}},
        {
            "label": "drawn",
            "overrides": ["dataset=digits", "partition=homo_fedsac"],
            "unlike": {"FedProx": "of another draw"},
            "unlike_with": ["partition.draw", "dataset"],
        },
    ]

    def reasons(**changes: Any) -> list[str]:
        planned = plan.make(table(paper="", table="", columns=columns), selection(tmp_path, **changes))
        assert all(bool(cell.jobs) != bool(cell.reason) for cell in planned.cells)
        return [cell.reason for cell in planned.cells]

    always = "not run: its features are not here"
    assert reasons() == ["", "", always, ""]
    assert reasons(changed=("partition.draw=null",), columns=("drawn",))[3] == "not run: of another draw"
    assert reasons(substitute="synthetic")[2:] == [always, "not run: of another draw"]


@pytest.mark.slow
def test_cells_inside_fedcollab_are_of_the_authors_distances_or_not_planned(tmp_path: Path) -> None:
    for name in ("fedcollab_t1", "fedcollab_t2"):
        spec_ = spec.load_spec(name)
        for column, row in ((c, r) for c in spec_.columns[1:] for r in spec_.rows if r.label.endswith("FedCollab")):
            _, plain = compose_cell(spec_, column, (*row.overrides, *column.own(row.label)), selection(tmp_path))
            assert plain["method"]["packaged"] == column.label.lower().replace(" ", "_")
            assert plain["partition"]["name"] == f"{plain['method']['packaged']}_code"
            assert not selection(tmp_path).unlike_paper(row, column)
            assert selection(tmp_path, ("partition.draw=1",)).unlike_paper(row, column)


def cell(*changed: str) -> dict[str, Any]:
    table = spec.load_spec("fedcollab_t1")
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


SMALL = [
    "scale=smoke",
    "substitute=captioned",
    "jobs=1",
    "dataset.train=400",
    "dataset.test=100",
    "model.kinds.image.width=8",
    "model.kinds.text.width=8",
    "hardware=cpu",
    "hardware.engine=looped",
    "progress=none",
]


@pytest.mark.slow
def test_every_cell_of_table_2_is_filled(tmp_path: Path) -> None:
    arguments = ["table=fedsac_t2", *SMALL, f"results={tmp_path / 'tables'}", f"runs_dir={tmp_path / 'runs'}"]
    assert program.main(["reproduce", *arguments]) == 0
    (folder,) = store.table_folders(tmp_path / "tables").values()
    table = store.read_table(folder)
    assert len(table.cells) == 40
    assert not [cell for cell in table.cells if not cell.values or math.isnan(cell.values[0])]
    assert len({cell.keys for cell in table.cells}) == 20, "a run fills the cells of both modalities"
    per_row = {(cell.row, cell.column): cell.values[0] for cell in table.cells}
    assert any(per_row[row, "homo images"] != per_row[row, "homo text"] for row, _ in per_row)


def test_a_table_says_where_and_when_it_was_made_of_which_commits_and_for_how_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By its runs, wherever they are drawn; of records by the stored table, if any record stands."""
    monkeypatch.setattr(fill, "machine", lambda made=None: (made or {"cpu": "here"})["cpu"])
    monkeypatch.setattr(fill, "source_commit", lambda: ("head", False))
    rows = {
        key: {"key": key, "commit": c, "seconds_total": s} for key, c, s in (("old", "aaa", "5.5"), ("odd", "", ""))
    }

    def job(key: str, commit: str = "", seconds: float = 0.0, cpu: str = "a GPU", day: str = "2026-01-02") -> Any:
        row = {"key": key, "commit": commit, "seconds_total": seconds}
        environment = {"cpu": cpu, "started": f"{day}T01:02:03+00:00"} if day else {}
        folder = SimpleNamespace(result=lambda: row, environment=lambda: environment)
        return SimpleNamespace(key=key, study="", finished=bool(commit), folder=folder)

    def made(*cells: tuple[list[Any], list[Any]]) -> tuple[str, str, str, float]:
        line, stored = SimpleNamespace(label=""), Provenance(machine="there; here; afar", date="2026-01-03")
        planned: Any = SimpleNamespace(
            cells=[SimpleNamespace(jobs=jobs, baselines=others, row=line, column=line) for jobs, others in cells],
            provenance=Provenance("quick"),
            stored=SimpleNamespace(rows=rows, table=SimpleNamespace(provenance=stored)),
            has=lambda _, job: job.finished or job.key in rows,
        )
        found = fill._provenance(planned)
        assert found.scale == "quick"
        return found.machine, found.date, found.commit, found.seconds

    new, base, old = job("new", "bbb", 10.0), job("base", "ccc", 2.0), job("old")
    assert made(([new], [base]), ([new], [base])) == ("a GPU", "2026-01-02", "bbb, ccc", 12.0)
    assert made(([new, job("late", "bbb", cpu="there", day="2026-01-04")], [])) == (
        "a GPU; there",
        "2026-01-04",
        "bbb",
        10.0,
    )
    assert made(([new, old], [base]), ([new, job("odd"), job("lacking")], [])) == (
        "a GPU; afar; here; there",
        "2026-01-03",
        "aaa, bbb, ccc",
        17.5,
    )
    assert made(([old, job("odd")], [])) == ("afar; here; there", "2026-01-03", "aaa", 5.5)
    today = dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%d")
    for unknown in (job("study", "ccc", day=""), job("lacking")):
        place, day, *_ = made(([unknown], []))
        assert (place, day >= today) == ("here", True)
