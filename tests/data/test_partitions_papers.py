"""The papers' partitions by name; equal sizes of skewed labels, skewed sizes, domains."""

from __future__ import annotations

import numpy as np
import pytest

from fedbench.config import compose
from fedbench.config.schema import TestConfig as Protocol
from fedbench.core.errors import ConfigError
from fedbench.data.partition import make_partition
from fedbench.data.partitions.base import evenly, largest
from fedbench.runs.config import resolve
from tests.data.toys import build, data

CIFAR = np.full(10, 5000)  # training samples a class
GLOBAL = Protocol(sets="global")


# --- names


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("dir0.1", {"alpha": 0.1}),
        ("dir_prior0.3", {"beta": 0.3}),
        ("pathological2", {"skew": 2}),
        ("pathological20", {"skew": 20}),
        ("fold5", {"folds": 5, "primary": 0.8}),
        ("fold_code2", {"folds": 2, "primary": 0.8, "size": 500}),
        ("groups_s0.2", {"s": 0.2}),
        ("quantity0.5", {"beta": 0.5}),
        ("label_shift", {}),
        ("feature_shift", {}),
        ("concept_shift", {}),
        ("domain", {}),
        ("label_groups", {"starts": (0, 0, 2, 5)}),
        ("homo", {}),
    ],
)
def test_names_on_the_command_line(name, fields):
    run = resolve(compose.compose([f"partition={name}"]))
    assert run.labels["partition"] == name
    assert {key: getattr(run.partition, key) for key in fields} == fields
    for field in ("num_clients", "scale"):
        if hasattr(run.partition, field):
            changed = resolve(compose.compose([f"partition={name}", f"partition.{field}=1"]))
            assert getattr(changed.partition, field) == 1


# --- arithmetic


@pytest.mark.parametrize(("total", "parts"), [(7, 3), (0, 4), (12, 4), (5, 8)])
def test_even_parts_stay_even_over_turns(total, parts):
    table = np.stack([evenly(total, parts, turn) for turn in range(11)])
    assert (table.sum(1) == total).all()
    assert (np.ptp(table, axis=1) <= 1).all()
    assert (np.ptp(np.cumsum(table, 0), axis=1) <= 1).all()


def test_largest_by_bisection():
    for limit in range(12):
        assert largest(10, lambda n, limit=limit: n <= limit) == min(limit, 10)


# --- dir_prior


def test_dir_prior_divides_everything_into_equal_sizes():
    spec = build("dir_prior", beta=0.3)
    counts = spec.counts(CIFAR, np.random.default_rng(0))
    assert counts.shape == (100, 10)
    assert (counts.sum(1) == 500).all()  # SosicFL: 500 samples a client
    np.testing.assert_array_equal(counts.sum(0), CIFAR)


def test_dir_prior_s_label_shares_have_the_moments_of_the_distribution():
    """Far from exhausting a class, client k's share of a label is Dirichlet-multinomial."""
    beta, classes, size = 0.4, 5, 200
    spec = build("dir_prior", beta=beta, num_clients=4000, size=size)
    shares = spec.counts(np.full(classes, 10**7), np.random.default_rng(0)) / size
    total = classes * beta
    variance = (1 / classes) * (1 - 1 / classes) * (size + total) / (size * (1 + total))
    np.testing.assert_allclose(shares.mean(0), 1 / classes, atol=4 * np.sqrt(variance / len(shares)))
    np.testing.assert_allclose(shares.var(0), variance, rtol=0.1)


@pytest.mark.parametrize("beta", [1e-6, 0.01, 1e4])
def test_dir_prior_ends_when_classes_run_out(beta):
    stock = np.array([900, 5, 40, 0, 55])
    for seed in range(5):
        counts = build("dir_prior", beta=beta, num_clients=10).counts(stock, np.random.default_rng(seed))
        np.testing.assert_array_equal(counts.sum(0), stock)
        assert (counts.sum(1) == 100).all()
    with pytest.raises(ConfigError, match="need 1010, there are 1000"):
        build("dir_prior", beta=beta, num_clients=10, size=101).counts(stock, np.random.default_rng(0))


# --- domain, quantity


def test_a_client_sees_one_domain():
    domain = np.repeat([0, 1, 2], [300, 200, 100])[np.random.default_rng(0).permutation(600)]
    toy = data(600, 0, 10, domain)
    partition = make_partition(build("domain", clients_per_domain=4), toy, Protocol(), 0)
    seen = [set(domain[np.concatenate(p)]) for p in zip(partition.train, partition.test, strict=True)]
    assert seen == [{0}] * 4 + [{1}] * 4 + [{2}] * 4
    assert [len(t) + len(s) for t, s in zip(partition.train, partition.test, strict=True)] == (
        [75] * 4 + [50] * 4 + [25] * 4
    )


def test_domains_are_needed_and_must_be_large_enough():
    with pytest.raises(ConfigError, match="made of domains"):
        make_partition(build("domain"), data(100, 10, 10), GLOBAL, 0)
    with pytest.raises(ConfigError, match="domain 1 has 10 samples for 20 clients"):
        make_partition(build("domain"), data(100, 10, 10, np.arange(110) // 90), Protocol(), 0)


def test_quantity_is_iid_in_labels_and_dirichlet_in_sizes():
    spec = build("quantity", beta=0.5, num_clients=4, min_size=1)
    draws = np.stack([spec.sizes(10**6, np.random.default_rng(seed)) for seed in range(600)]) / 10**6
    np.testing.assert_allclose(draws.sum(1), 1)
    variance = (1 / 4) * (3 / 4) / (4 * 0.5 + 1)
    np.testing.assert_allclose(draws.var(0), variance, rtol=0.15)
    toy = data(4000, 100, 4)
    partition = make_partition(spec, toy, GLOBAL, 3)
    sizes = np.array([len(part) for part in partition.train])
    assert np.ptp(sizes) > 500
    shares = partition.label_counts(toy.y) / sizes[:, None]
    assert (abs(shares - 0.25) < 5 * np.sqrt(0.19 / sizes)[:, None]).all()
    with pytest.raises(ConfigError, match="none of 2000 draws"):
        build("quantity", beta=1e-6, num_clients=10).sizes(1000, np.random.default_rng(0))
