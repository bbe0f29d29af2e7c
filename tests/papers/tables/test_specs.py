"""The published tables as YAML: every value in one cell, and every cell composes."""

from __future__ import annotations

from collections import Counter
from itertools import cycle, islice

import pytest

from fedbench.config import groups
from fedbench.methods import METHODS
from fedbench.papers import measures, published, spec
from fedbench.papers.selection import _without
from fedbench.papers.spec import ColumnSpec, RowSpec, TableSpec
from fedbench.papers.studies import STUDIES
from fedbench.runs.config import RunConfig
from tests.helpers.tiers import sampled, tiered
from tests.papers.tables.cells import composed, config, load

CELLS = {  # table -> (rows, columns, metrics, published values)
    "fedcollab_t1": (15, 3, 3, 129),
    "fedcollab_t2": (5, 3, 3, 45),
    "fedcollab_t3": (3, 1, 3, 9),
    "fedcollab_t5": (2, 2, 2, 4),
    "fedrema_t1": (11, 3, 1, 33),
    "fedrema_t2": (9, 4, 1, 36),
    "fedrema_t3": (5, 1, 3, 15),
    "fedrema_t4": (4, 1, 2, 8),
    "fedrema_t5": (3, 1, 3, 9),
    "fedsac_t1": (13, 8, 1, 104),
    "fedsac_t2": (5, 8, 1, 40),
    "fedsac_t3": (5, 4, 1, 20),
    "fedsac_t4": (4, 4, 1, 16),
    "fedsac_t5": (2, 8, 1, 16),
    "fedsac_t6": (4, 1, 1, 4),
    "flux_t1": (9, 160, 1, 288),
    "pfedsim_t2": (5, 4, 1, 20),
    "pfedsim_t3": (12, 8, 1, 96),
    "pfedsim_t6": (7, 8, 1, 56),
    "pfedsim_t7": (4, 4, 1, 16),
    "pfedsim_t8": (12, 1, 7, 84),
    "pfllib_leaderboard": (20, 4, 1, 80),
    "sosicfl_t2": (5, 6, 2, 52),
    "sosicfl_t3": (5, 6, 2, 52),
    "sosicfl_t5": (2, 12, 2, 40),
}
SUBSTITUTE = "fashion_mnist"  # ten classes, 28 x 28, grey, no domains


def substituted(table: TableSpec, row: RowSpec, column: ColumnSpec) -> RunConfig:
    chosen = [f"dataset={SUBSTITUTE}", *column.substitute]
    overrides = [*table.base, *column.overrides, *row.overrides, *column.own(row.label)]
    return composed((*_without(overrides, chosen), *chosen))


# ---- the values


def test_every_published_value_belongs_to_exactly_one_cell() -> None:
    claims = Counter(
        value
        for name in groups.names("table")
        for table in [load(name)]
        for cell in table.places()
        if table.paper and not table.varies and (value := table.published(*cell)) is not None
    )
    assert set(claims) == set(published.published_values())
    assert set(claims.values()) == {1}
    assert len(claims) == 1272


def test_the_printed_digits_of_a_power_of_ten_count() -> None:
    tiny = published.find_published("pfedsim", "T2", {"method": "LDB", "metric": "similarity", "setting": "(i,i')"})
    assert tiny is not None
    assert (tiny.decimals, tiny.text) == (7, "0.0000086")


@pytest.mark.parametrize("name", CELLS)
def test_the_tables_are_as_large_as_the_papers(name: str) -> None:
    table = load(name)
    assert (table.name, f"{table.paper}_{table.table}".lower()) == (name, name)
    values = [table.published(*cell) for cell in table.places()]
    printed = len([value for value in values if value is not None])
    assert (len(table.rows), len(table.columns), len(table.metrics), printed) == CELLS[name]
    for row in table.rows:
        assert any(table.published(row, c, m) for c in table.columns for m in table.metrics)


def test_no_published_table_is_missing() -> None:
    mirrors = [load(name) for name in groups.names("table") if load(name).paper]
    assert {table.name for table in mirrors if not table.varies} == set(CELLS)
    assert {(value.paper, value.table) for value in published.published_values()} == {
        (table.paper, table.table) for table in map(load, CELLS)
    }


VARYING = [  # read as text: parsing them all takes a second, of every process that collects
    name for name in groups.names("table") if "\nvaries: " in groups.file_of("table", name).read_text(encoding="utf-8")
]


def test_the_table_of_all_methods_has_them_all() -> None:
    rows = spec.load_spec("all_methods").rows
    assert {override.removeprefix("method=") for row in rows for override in row.overrides} >= set(METHODS)


@pytest.mark.slow
@pytest.mark.parametrize("name", VARYING)
def test_a_table_at_other_settings_repeats_values_of_the_one_it_varies(name: str) -> None:
    table, varied = load(name), load(load(name).varies)
    values = {value for cell in table.places() if (value := table.published(*cell)) is not None}
    assert values
    assert values <= {varied.published(*cell) for cell in varied.places()}
    place = next(each for each in varied.columns if each.published == table.columns[0].published)
    known = [config(varied.name, row.label, place.label) for row in varied.rows]
    for row in table.rows:
        assert table.published(row, table.columns[0], table.metrics[0]) is not None
        assert config(name, row.label, table.columns[0].label).key not in [run.key for run in known]


@pytest.mark.parametrize("name", groups.names("table"))
def test_the_parts_of_a_table_fit_each_other(name: str) -> None:
    table = load(name)
    labels = [row.label for row in table.rows]
    for line in (*table.rows, *table.columns):
        assert "," not in line.label  # which separates labels on the command line
    for column in table.columns:
        for names in column.rows:
            narrowed = [row for row in labels if ColumnSpec("", rows={names: ["x"]}).own(row)]
            assert narrowed, f"{name}: no row is called {names}"
    for row, column, metric in table.places():
        own = {**column.measures.get(metric.name, {}), **row.measures.get(metric.name, {})}
        measures.build({**metric.measure, **own})
        assert not row.study or row.study in STUDIES


# ---- the runs


@pytest.mark.parametrize("name", tiered(groups.names("table"), quick=["fedcollab_t3", "fedrema_t4", "pfedsim_t3"]))
def test_every_row_and_every_column_composes(name: str) -> None:
    """Each at least once, in one another's company."""
    table = load(name)
    size = max(len(table.rows), len(table.columns))
    pairs = zip(islice(cycle(table.rows), size), islice(cycle(table.columns), size), strict=True)
    for row, column in pairs:
        overrides = (*table.base, *column.overrides, *row.overrides, *column.own(row.label))
        run = composed(overrides)
        assert run.protocol.rounds >= 1


@pytest.mark.parametrize("name", sampled(CELLS, every=5))
def test_columns_fit_another_data_set(name: str) -> None:
    """With `substitute`, nothing of the column's data set, nor a model for colour images, is left."""
    table = load(name)
    asked = {column.substitute: column for column in table.columns if column.substitute}
    for column in asked.values():
        run = substituted(table, table.rows[0], column)
        assert run.dataset.name == SUBSTITUTE
        assert not getattr(run.model, "pretrained", False)
    for column in table.columns:
        if not column.substitute:
            assert not any(text.startswith(("model=mobilenet", "model=squeeze")) for text in column.overrides)
            assert not {"partition=pathological10", "partition=pathological20"} & set(column.overrides)


@pytest.mark.parametrize(
    ("column", "rate"), sampled([("Label shift", 0.1), ("Feature shift", 0.01), ("Concept shift", 0.001)], every=3)
)
def test_rates_of_perfedavg_and_pfedme(column: str, rate: float) -> None:
    run = config("fedcollab_t1", "Per-FedAvg", column)
    assert (run.method.alpha, run.method.beta, run.protocol.optimizer.lr) == (rate, None, rate)
    assert config("fedcollab_t1", "Per-FedAvg+FedCollab", column).method.base.alpha == rate
    alone = config("fedcollab_t1", "pFedMe", column).method
    for method in (alone, config("fedcollab_t1", "pFedMe+FedCollab", column).method.base):
        found = (method.lam, method.inner_steps, method.personal_lr, method.lr, method.beta)
        assert found == (1.0, 5, 0.1, None, 1.0)
        assert (method.restart, method.uniform) == (True, False)


def test_rows_count_on_the_authors_partition_whatever_the_inputs() -> None:
    for table in map(spec.load_spec, ("fedcollab_t1", "fedcollab_t2", "fedcollab_t3")):
        marked = {row.label: row for row in table.rows if row.exploratory}
        assert {"FedAvg+FedCollab", "FedCollab"} & set(marked)
        where = {name: [*spec.exploratory_reasons(row.exploratory)] for name, row in marked.items()}
        always = {name for name, overrides in where.items() if "" in overrides}
        assert always <= {"FeSEM", "FedCluster", "Ignore quantities"}
        assert all({*where[name]} <= {*table.left_open} for name in {*marked} - always)


def test_fedsac_weighs_similarity_more_where_partitions_are_pathological() -> None:
    for column, expected in (("C10 dir0.1", (0.9, 1.4)), ("C100 pathological", (0.5, 1.6))):
        method = config("fedsac_t1", "FedSaC", column).method
        assert (method.alpha, method.beta) == expected
    assert config("fedsac_t1", "FedProx", "C10 pathological").method.mu == 0.01
