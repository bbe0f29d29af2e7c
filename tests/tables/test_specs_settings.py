"""The published tables have their papers' settings."""

from __future__ import annotations

import pytest

from tests.tables.cells import composed, config, load


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
    assert {composed((f"experiment=fedsac_{name}",)).protocol.score for name in sweeps} == {"both"}


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
