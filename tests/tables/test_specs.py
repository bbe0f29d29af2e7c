"""The published tables as YAML: every value in one cell, and every cell composes."""

from __future__ import annotations

from collections import Counter
from itertools import cycle, islice

import pytest

from fedbench.config.compose import compose
from fedbench.runs.config import RunConfig, resolve, run_key
from fedbench.tables import measures, spec
from fedbench.tables.spec import ColumnSpec, RowSpec, TableSpec, _without, published
from fedbench.tables.studies import STUDIES
from tests.helpers.tiers import tiered
from tests.tables.cells import composed, config, load

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
        for name in spec.names()
        for table in [load(name)]
        for cell in table.places()
        if table.paper and not table.varies and (value := table.published(*cell)) is not None
    )
    assert set(claims) == set(published())
    assert set(claims.values()) == {1}
    assert len(claims) == 984


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
    mirrors = [load(name) for name in spec.names() if load(name).paper]
    assert {table.name for table in mirrors if not table.varies} == set(CELLS)
    assert {(value.paper, value.table) for value in published()} == {
        (table.paper, table.table) for table in map(load, CELLS)
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in spec.names() if load(name).varies])
def test_a_table_at_other_settings_repeats_values_of_the_one_it_varies(name: str) -> None:
    table, varied = load(name), load(load(name).varies)
    values = {value for cell in table.places() if (value := table.published(*cell)) is not None}
    assert values
    assert values <= {varied.published(*cell) for cell in varied.places()}
    place = next(each for each in varied.columns if each.published == table.columns[0].published)
    known = [config(varied.name, row.label, place.label) for row in varied.rows]
    for row in table.rows:
        assert table.published(row, table.columns[0], table.metrics[0]) is not None
        assert run_key(config(name, row.label, table.columns[0].label)) not in [run_key(run) for run in known]


@pytest.mark.parametrize("name", spec.names())
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


@pytest.mark.parametrize("name", tiered(spec.names(), quick=["fedcollab_t3", "fedrema_t4", "pfedsim_t3"]))
def test_every_row_and_every_column_composes(name: str) -> None:
    """Each at least once, in one another's company."""
    table = load(name)
    size = max(len(table.rows), len(table.columns))
    pairs = zip(islice(cycle(table.rows), size), islice(cycle(table.columns), size), strict=True)
    for row, column in pairs:
        overrides = (*table.base, *column.overrides, *row.overrides, *column.own(row.label))
        run = composed(overrides)
        assert run.protocol.rounds >= 1


@pytest.mark.parametrize("name", CELLS)
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


@pytest.mark.parametrize(("column", "rate"), [("Label shift", 0.1), ("Feature shift", 0.01), ("Concept shift", 0.001)])
def test_rates_of_perfedavg_and_pfedme(column: str, rate: float) -> None:
    run = config("fedcollab_t1", "Per-FedAvg", column)
    assert (run.method.alpha, run.method.beta, run.protocol.optimizer.lr) == (rate, None, rate)
    assert config("fedcollab_t1", "Per-FedAvg+FedCollab", column).method.base.alpha == rate
    alone = config("fedcollab_t1", "pFedMe", column).method
    for method in (alone, config("fedcollab_t1", "pFedMe+FedCollab", column).method.base):
        found = (method.lam, method.inner_steps, method.personal_lr, method.lr, method.beta)
        assert found == (1.0, 5, 0.1, None, 1.0)
        assert (method.restart, method.uniform) == (True, False)


def test_rotated_images_are_mirrored_at_their_borders() -> None:
    for table, row in (("fedcollab_t1", "Local"), ("fedcollab_t2", "FedCollab")):
        assert config(table, row, "Feature shift").partition.corners == "reflect"


def test_the_code_preset_normalises_and_takes_the_best_check() -> None:
    code = resolve(compose(["method=fedcollab_code"])).method
    found = (code.inputs, code.discriminator.report, code.discriminator.rounds, code.discriminator.patience)
    assert found == ("normalised", "best", 2000, 10)


def test_rows_count_on_the_authors_partition_whatever_the_inputs() -> None:
    for table in map(spec.load, ("fedcollab_t1", "fedcollab_t2", "fedcollab_t3")):
        marked = {row.label: row for row in table.rows if row.exploratory}
        assert {"FedAvg+FedCollab", "FedCollab"} & set(marked)
        always = {name for name, row in marked.items() if not row.exploratory_with}
        assert always <= {"FeSEM", "FedCluster", "Ignore quantities"}
        assert all(row.exploratory_with[0] in table.left_open for row in marked.values() if row.exploratory_with)


def test_fedsac_weighs_similarity_more_where_partitions_are_pathological() -> None:
    for column, expected in (("C10 dir0.1", (0.9, 1.4)), ("C100 pathological", (0.5, 1.6))):
        method = config("fedsac_t1", "FedSaC", column).method
        assert (method.alpha, method.beta) == expected
    assert config("fedsac_t1", "FedProx", "C10 pathological").method.mu == 0.01


def test_fedsacs_protocol_scores_both_models_and_baselines_one() -> None:
    rows = load("fedsac_t1").rows
    scored = {row.label: config("fedsac_t1", row.label, "C10 dir0.1").protocol.score for row in rows}
    once = {"received": {"FedAvg", "FedProx", "kNN-Per"}, "both": {"pFedGraph", "FedSaC"}}
    assert {label for label, score in scored.items() if score == "received"} == once["received"]
    assert {label for label, score in scored.items() if score == "both"} == once["both"]
    sweeps = ("alpha", "beta", "k", "lambda")
    assert {resolve(compose([f"experiment=fedsac_{name}"])).protocol.score for name in sweeps} == {"both"}


def test_fedsacs_code_runs_as_its_readme_does() -> None:
    run = config("fedsac_t1_open", "FedSaC (code)", "C10 pathological")
    assert (run.method.alpha, run.method.beta) == (0.9, 1.4)
    assert (run.protocol.local.iterations, run.protocol.local.batch_size) == (400, 128)


def test_fedsac_at_scale_draws_ten_collaborators_of_all_clients() -> None:
    run = config("fedsac_t5", "FedSaC", "100 pathological")
    assert (run.method.collaborators, run.method.alpha) == (10, 0.5)
    assert (run.partition.num_clients, run.protocol.cohort) == (100, "all")


def test_pfedsim_compares_on_a_hundred_clients_of_at_least_forty_samples() -> None:
    run = config("pfedsim_t3", "FedProx", "EMNIST dir0.5")
    assert (run.partition.num_clients, run.partition.min_size, run.partition.alpha) == (100, 40, 0.5)
    assert (run.method.mu, run.protocol.cohort, run.protocol.rounds) == (1.0, "10%", 200)
    assert config("pfedsim_t3", "FedFomo", "C10 dir0.1").protocol.test.val_fraction == 0.2
    assert config("pfedsim_t6", "rho=0.3", "C10 dir0.1").method.rho == 0.3
    assert config("pfedsim_t7", "FedGen", "C10 dir0.1").protocol.rounds == 20


# SosicFL, Table 4: T, |S_t|, e, E, gamma, momentum, weight decay, mu. K is 100. The weight decay of SimpleCNN is the
# code's; the paper prints .5. ResNet-18's rounds are the table's; the text has 100.
SOSICFL_T4 = {
    ("sosicfl_t2", "C10"): ("simple_cnn", 500, 30, 50, 5, 0.02, 0.5, 5e-4, 0.01),
    ("sosicfl_t3", "C10"): ("squeezenet", 500, 10, 32, 1, 0.001, 0.9, 0.0, 0.1),
    ("sosicfl_t2", "Tiny"): ("mobilenet_v2_scratch", 500, 10, 64, 5, 0.01, 0.9, 1e-4, 0.1),
    ("sosicfl_t3", "Tiny"): ("resnet18", 200, 10, 32, 5, 0.01, 0.9, 1e-4, 1e-3),
}


@pytest.mark.parametrize(("name", "data"), SOSICFL_T4)
def test_sosicfl_table_4(name: str, data: str) -> None:
    run = config(name, "FedProx", f"{data} 5-fold")
    p, o = run.protocol, run.protocol.optimizer
    assert p.local.epochs is not None
    found = (
        run.model.label,
        p.rounds,
        int(p.cohort),
        p.local.batch_size,
        p.local.epochs,
        o.lr,
        o.momentum,
        o.weight_decay,
        run.method.mu,
    )
    assert found == SOSICFL_T4[name, data]
    assert (run.partition.num_clients, run.partition.primary, p.eval_every) == (100, 0.8, 10)


def test_sosicfl_has_as_many_clusters_as_groups() -> None:
    expected = {"C10 2-fold": (2, 2, 0.6), "C10 5-fold": (10, 5, 0.4), "C10 dir0.5": (3, 10, 0.4)}
    for column, found in expected.items():
        for row in ("SosicFL", "SosicFL+"):
            method = config("sosicfl_t2", row, column).method
            assert (method.endpoints, method.clusters, method.rho) == found
    assert config("sosicfl_t2", "SosicFL", "Tiny dir0.3").partition.beta == 0.3


def test_sosicfl_s_code_keeps_its_own_endpoints_and_radius_in_every_column() -> None:
    """Floco's config/cifar10_fold.yaml and cifar10_dir.yaml: endpoints, rho, tau."""
    for column, endpoints, rho in (
        ("Authors' 2-fold", 10, 0.1),
        ("Authors' 5-fold", 10, 0.1),
        ("dir0.5", 20, 0.01),
    ):
        code = config("sosicfl_t2_open", "SosicFL (code)", column).method
        assert (code.endpoints, code.rho, code.start_round) == (endpoints, rho, 250)
        text = config("sosicfl_t2_open", "SosicFL (L1 distance)", column).method
        assert text.rho == (0.6 if "2-fold" in column else 0.4)


@pytest.mark.parametrize("name", ["sosicfl_t2", "sosicfl_t3"])
def test_sosicfl_s_folds_of_many_classes_are_the_authors(name: str) -> None:
    for data, partition in (("C10", "fold"), ("Tiny", "fold_code")):
        for folds in (2, 5):
            assert config(name, "FedAvg", f"{data} {folds}-fold").labels["partition"] == f"{partition}{folds}"


def test_all_of_fedrema_s_methods_split_networks_alike() -> None:
    for name in ("fedrema_t1", "fedrema_t2", "fedrema_t3", "fedrema_t4", "fedrema_t5"):
        table = load(name)
        for row in table.rows:
            assert config(name, row.label, table.columns[0].label).model.classifier == "linear"


def test_fedrema_takes_a_stronger_contrast_on_cifar() -> None:
    assert config("fedrema_t1", "MOON", "CIFAR-10").method.mu == 5.0
    assert config("fedrema_t1", "MOON", "MNIST").method.mu == 1.0
    run = config("fedrema_t2", "FedProx", "s=0.8")
    assert (run.method.mu, run.partition.s, run.partition.size) == (1.0, 0.8, 100)


def test_fedcollab_has_a_smaller_constant_and_faster_discriminators_for_concept_shift() -> None:
    for column, expected in (("Feature shift", (10.0, 0.01)), ("Concept shift", (8.0, 0.05))):
        method = config("fedcollab_t1", "pFedMe+FedCollab", column).method
        assert (method.C, method.discriminator.lr) == expected
        assert (method.base.lam, method.base.inner_steps, method.base.personal_lr) == (1.0, 5, 0.1)
    assert config("fedcollab_t1", "pFedMe", "Label shift").method.lam == 1.0
