"""The papers' partitions: counts by hand, published sizes, what a client sees, impossible settings."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedbench.config import compose
from fedbench.config.schema import TestConfig as Protocol
from fedbench.core.errors import ConfigError, FedbenchError
from fedbench.data.dataset import Dataset
from fedbench.data.federation import Federation
from fedbench.data.partitions import PARTITIONS
from fedbench.data.partitions.base import evenly, largest
from fedbench.data.partitions.shifts import permutations
from fedbench.data.rotation import rotate
from fedbench.data.split import make_partition
from fedbench.runs.config import resolve

CIFAR = np.full(10, 5000)  # training samples a class
GLOBAL = Protocol(sets="global")


def build(name, **fields):
    return PARTITIONS.build({"name": name, **fields})


def data(train, test, classes, domain=None, size=1):
    """Samples whose labels go round; images of one grey level each."""
    n = train + test
    x = np.broadcast_to((np.arange(n) % 251).astype(np.uint8).reshape(-1, 1, 1, 1), (n, 1, size, size))
    return Dataset("toy", x, np.arange(n) % classes, train, classes, (0.5,), (0.5,), domain=domain)


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


# --- pathological


@pytest.mark.parametrize(("classes", "skew", "groups"), [(10, 2, 5), (100, 20, 5)])
def test_pathological_is_fedsac_s(classes, skew, groups):
    per_class = 50000 // classes
    counts = build("pathological", skew=skew).counts(np.full(classes, per_class))
    for client in range(10):
        first = skew * (client % groups)
        held = np.flatnonzero(counts[client])
        np.testing.assert_array_equal(held, np.arange(first, first + skew))
        assert (counts[client, held] == per_class // 2).all()  # two clients a block


def test_pathological_blocks_of_unequal_clients():
    counts = build("pathological", skew=2, num_clients=5).counts(np.full(4, 10))
    np.testing.assert_array_equal(counts[:, 0], [4, 0, 3, 0, 3])
    np.testing.assert_array_equal(counts[:, 2], [0, 5, 0, 5, 0])


@pytest.mark.parametrize(
    ("skew", "classes", "reason"),
    [
        (
            3,
            10,
            "do not divide into blocks of 3; set partition.skew to one of 1, 2, 5, 10",
        ),
        (
            20,
            10,
            "each client 20 classes, the 10 classes of the data set are fewer; set partition.skew to one of",
        ),
        (2, 100, "num_clients to at least 50"),
    ],
)
def test_pathological_refuses_what_leaves_classes_out(skew, classes, reason):
    with pytest.raises(ConfigError, match=reason):
        build("pathological", skew=skew).counts(np.full(classes, 500))


def test_pathological_refuses_clients_that_would_lack_one_of_their_classes():
    spec = build("pathological", skew=2, num_clients=10)
    assert (spec.counts(np.full(4, 5)) > 0).sum(1).tolist() == [2] * 10
    with pytest.raises(
        ConfigError, match=r"5 clients share the 4 samples of class 3, .* lower partition.num_clients"
    ):
        spec.counts(np.array([5, 5, 5, 4]))


# --- fold


@pytest.mark.parametrize("folds", [2, 5])
def test_folds_are_sosicfl_s(folds):
    counts = build("fold", folds=folds).counts(CIFAR)
    assert (counts.sum(1) == 500).all()  # nothing is left over
    np.testing.assert_array_equal(counts.sum(0), CIFAR)
    width, members = 10 // folds, 100 // folds
    for client in range(100):
        own = slice(client // members * width, (client // members + 1) * width)
        assert counts[client, own].sum() == 400  # 80 %
        assert np.ptp(counts[client, own]) <= 1
        others = np.delete(counts[client], np.arange(10)[own])
        assert np.ptp(others) <= 1


def test_milder_folds_and_small_data():
    counts = build("fold", folds=2, primary=0.7, num_clients=4, size=10).counts(np.full(4, 100))
    np.testing.assert_array_equal(counts, [[4, 3, 2, 1], [3, 4, 1, 2], [2, 1, 4, 3], [1, 2, 3, 4]])
    uneven = build("fold", folds=2, num_clients=4).counts(np.array([100, 100, 100, 20]))
    assert (uneven.sum(0) <= [100, 100, 100, 20]).all()
    assert len(set(uneven.sum(1))) == 1
    bigger = build("fold", folds=2, num_clients=4, size=int(uneven[0].sum()) + 1)
    with pytest.raises(ConfigError, match="samples of label 3, there are 20"):
        bigger.counts(np.array([100, 100, 100, 20]))


@pytest.mark.parametrize("folds", [11, 1])
def test_folds_need_classes_and_clients(folds):
    with pytest.raises(ConfigError):
        build("fold", folds=folds).counts(CIFAR)


# --- groups_s


def test_groups_are_fedrema_s():
    spec = build("groups_s", s=0.2)
    counts = spec.counts(np.full(10, 6000))
    assert counts.shape == (20, 10)
    assert (counts.sum(1) == 600).all()
    dominant = [[0, 1, 2], [2, 3, 4], [4, 5, 6], [6, 7, 8], [8, 9, 0]]
    for client in range(20):
        expected = np.full(10, 12)  # 20 % of 600 over ten classes
        expected[dominant[client // 4]] += 160  # 80 % over three
        np.testing.assert_array_equal(counts[client], expected)


def test_groups_of_other_class_counts_tile_the_classes():
    spec = build("groups_s", s=0.0, size=100)
    for classes in (5, 7, 20, 62, 100, 200):
        held = [set(np.flatnonzero(row)) for row in spec.counts(np.full(classes, 10**4))[::4]]
        assert set().union(*held) == set(range(classes))
        assert all(len(each) == classes // 5 + 1 for each in held)
        assert all(
            held[g] & held[(g + 1) % 5] for g in range(5) if classes % 5 == 0
        )  # neighbours share a label


def test_groups_refuse_too_much_and_say_what_fits():
    stock = np.full(10, 144)  # digits
    with pytest.raises(ConfigError, match=r"partition\.size to at most") as error:
        build("groups_s").counts(stock)
    fits = int(str(error.value).split("at most ")[1].split(",")[0])
    build("groups_s", size=fits).counts(stock)
    with pytest.raises(ConfigError):
        build("groups_s", size=fits + 1).counts(stock)
    with pytest.raises(ConfigError, match="do not make 5 groups"):
        build("groups_s").counts(np.full(4, 1000))


# --- FedCollab's shifts


@pytest.mark.parametrize(
    ("name", "classes", "small"), [("feature_shift", 10, 340), ("concept_shift", 20, 120)]
)
def test_shifts_are_fedcollab_table_4_to_the_sample(name, classes, small):
    partition = make_partition(build(name), data(50000, 10000, classes), Protocol(), 0)
    assert [len(part) for part in partition.train] == [2500] * 10 + [small] * 10
    assert [len(part) for part in partition.test] == [500] * 20
    assert max(part.max() for part in partition.train) >= 50000  # train and test split together
    if name == "feature_shift":
        assert partition.rotation.tolist() == [25.0] * 5 + [-25.0] * 5 + [155.0] * 5 + [-155.0] * 5
        assert partition.label_map is None
    else:
        assert partition.rotation is None


def test_concept_shift_permutes_as_in_figure_4():
    maps = permutations(20)
    assert maps[0].tolist() == list(range(20))
    assert maps[1].tolist() == [5, 4, 3, 2, 1, 0, *range(6, 20)]
    assert maps[2].tolist() == list(range(19, -1, -1))
    assert maps[3].tolist() == [14, 15, 16, 17, 18, 19, *range(13, -1, -1)]
    agree = (maps[:, None] == maps[None]).sum(2)
    # The paper: client 0 agrees with 1-4 in all labels, with 5-9 in 14, with 10-19 in none.
    np.testing.assert_array_equal(agree, [[20, 14, 0, 0], [14, 20, 0, 0], [0, 0, 20, 14], [0, 0, 14, 20]])


@pytest.mark.parametrize("classes", [4, 5, 10, 62, 100, 200])
def test_concept_shift_of_other_class_counts(classes):
    maps = permutations(classes)
    for each in maps:
        assert sorted(each) == list(range(classes))
    middle = classes % 2
    assert (maps[0] == maps[2]).sum() == (maps[0] == maps[3]).sum() == middle
    assert 0 < (maps[0] == maps[1]).sum() < classes
    block = classes - (maps[0] == maps[1]).sum()
    assert abs(block - 0.3 * classes) <= 1 or block == 2


def test_shifts_scale_themselves_down_and_refuse_what_does_not_fit():
    train, test = build("feature_shift").counts(1797)
    assert (train[0], train[10], test[0]) == (117, 15, 23)  # 117 / 2500 of all three, rounded down
    assert train.sum() + test.sum() <= 1797
    assert sum(map(sum, build("feature_shift")._tables(118))) > 1797
    half, _ = build("concept_shift", scale=0.5).counts(50000)
    assert (half[0], half[10]) == (1250, 60)
    with pytest.raises(ConfigError, match="there are 1797"):
        build("concept_shift", scale=0.5).counts(1797)
    for wrong in ({"angles": (1.0, 2.0)}, {"corners": "meen"}, {"scale": 0.0}):
        with pytest.raises(FedbenchError):
            build("feature_shift", **wrong)
    with pytest.raises(ConfigError, match="at least 4 classes"):
        make_partition(build("concept_shift"), data(300, 100, 3), Protocol(), 0)


def test_clients_see_permuted_labels():
    toy = data(600, 100, 20)
    partition = make_partition(build("concept_shift"), toy, Protocol(), 0)
    federation = Federation(toy, partition)
    for client, kind in ((0, 0), (7, 1), (12, 2), (19, 3)):
        for name, samples in (("train", partition.train), ("local", partition.test)):
            _, y = federation.gather(federation.indices(name, client))
            np.testing.assert_array_equal(y.numpy(), permutations(20)[kind][toy.y[samples[client]]])


def test_clients_see_rotated_images_and_only_their_own_angle():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (700, 3, 9, 9), dtype=np.uint8)
    toy = Dataset("toy", x, np.arange(700) % 10, 600, 10, (0.4, 0.5, 0.6), (0.2, 0.3, 0.2))
    partition = make_partition(build("feature_shift", angles=(90.0, 180.0, 0.0, -90.0)), toy, Protocol(), 0)
    federation = Federation(toy, partition)
    mean, std = (np.array(v).reshape(1, 3, 1, 1) for v in (toy.mean, toy.std))
    for client, turns in ((1, 1), (9, 2), (10, 0), (15, -1)):
        for name, samples in (("train", partition.train), ("local", partition.test)):
            seen, _ = federation.gather(federation.indices(name, client))
            turned = np.rot90(x[samples[client]], turns, axes=(2, 3))  # NumPy turns counter-clockwise too
            np.testing.assert_allclose(seen.numpy(), (turned / 255 - mean) / std, atol=1e-4)
    assert federation.x.dtype == torch.uint8
    np.testing.assert_array_equal(toy.x, x)  # the data set itself, shared by other runs, is untouched


# --- rotation


def ramp(size=33):
    """A smooth image [1, 1, size, size] in [0, 1]."""
    axis = torch.linspace(0, 1, size, dtype=torch.float64)
    return (0.25 + 0.5 * (axis[:, None] * axis[None]) + 0.1 * axis[:, None]).view(1, 1, size, size)


@pytest.mark.parametrize("degrees", [25.0, -25.0, 155.0, -155.0])
def test_a_rotation_equals_the_definition(degrees):
    """Each inner pixel is the bilinear value of the original at the back-rotated place."""
    x = ramp()
    turned = rotate(x, torch.tensor([degrees]), torch.zeros(()))[0, 0].numpy()
    image, centre, angle = x[0, 0].numpy(), 16.0, np.deg2rad(degrees)
    rng = np.random.default_rng(0)
    checked = 0
    for row, column in rng.integers(0, 33, (200, 2)):
        right, up = column - centre, centre - row  # the usual axes: counter-clockwise is positive
        source_right = np.cos(angle) * right + np.sin(angle) * up
        source_up = -np.sin(angle) * right + np.cos(angle) * up
        r, c = centre - source_up, centre + source_right
        if not (0 <= r <= 31.9 and 0 <= c <= 31.9):
            continue
        i, j = int(r), int(c)
        a, b = r - i, c - j
        patch = image[i : i + 2, j : j + 2]
        expected = np.array([1 - a, a]) @ patch @ np.array([1 - b, b])
        assert turned[row, column] == pytest.approx(expected, abs=1e-6)
        checked += 1
    assert checked > 100


def test_rotations_undo_each_other_and_turn_oblong_images_without_stretching():
    x = ramp()
    there = rotate(x, torch.tensor([25.0]), torch.zeros(()), "edge")
    back = rotate(there, torch.tensor([-25.0]), torch.zeros(()), "edge")
    assert (back - x)[..., 10:23, 10:23].abs().max() < 2e-3
    bar = torch.zeros(1, 1, 5, 11, dtype=torch.float64)
    bar[..., 2, 3:8] = 1  # five pixels to the right
    upright = rotate(bar, torch.tensor([90.0]), torch.zeros(()))
    np.testing.assert_allclose(upright[0, 0, :, 5].numpy(), np.ones(5), atol=1e-6)
    assert float(upright.sum()) == pytest.approx(5)


def test_corners():
    x = torch.full((1, 2, 16, 16), 200.0)
    fill = torch.tensor([10.0, 20.0]).view(1, 2, 1, 1)
    corner = {
        mode: rotate(x, torch.tensor([45.0]), fill if mode == "mean" else torch.zeros(()), mode)[0, :, 0, 0]
        for mode in ("mean", "black", "edge", "reflect")
    }
    np.testing.assert_allclose(corner["mean"], [10, 20], atol=1e-4)
    np.testing.assert_allclose(corner["black"], [0, 0], atol=1e-4)
    np.testing.assert_allclose(corner["edge"], [200, 200], atol=1e-3)
    np.testing.assert_allclose(corner["reflect"], [200, 200], atol=1e-3)
    rows = (
        torch.arange(16.0).view(1, 1, 16, 1).expand(1, 1, 16, 16)
    )  # the corner's source is row 7.5 - 7.5 sqrt 2
    turned = {mode: rotate(rows, torch.tensor([45.0]), torch.zeros(()), mode) for mode in ("edge", "reflect")}
    assert float(turned["edge"][0, 0, 0, 0]) == pytest.approx(0, abs=1e-4)
    assert float(turned["reflect"][0, 0, 0, 0]) == pytest.approx(-1 - (7.5 - 7.5 * 2**0.5), abs=1e-4)


def test_mean_corners_are_zero_after_normalisation():
    x = np.full((60, 1, 8, 8), 250, dtype=np.uint8)
    toy = Dataset("toy", x, np.arange(60) % 10, 50, 10, (0.2,), (0.1,))
    spec = build("feature_shift", angles=(45.0,) * 4)
    seen = {}
    for corners in ("mean", "black"):
        partition = make_partition(
            build("feature_shift", angles=(45.0,) * 4, corners=corners), toy, Protocol(), 0
        )
        seen[corners], _ = Federation(toy, partition).gather(torch.as_tensor(partition.train[0]))
    assert spec.corners == "mean"
    assert seen["mean"][:, 0, 0, 0].abs().max() < 0.02  # rounded to a grey level
    np.testing.assert_allclose(seen["black"][:, 0, 0, 0], -2.0, atol=1e-5)
    assert (seen["mean"][:, 0, 4, 4] > 7).all()


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


def test_angles_make_domains_where_there_are_none():
    toy = data(600, 60, 10)
    partition = make_partition(build("domain", clients_per_domain=4, angles=[0, 90, 45]), toy, Protocol(), 0)
    assert partition.rotation.tolist() == [0] * 4 + [90] * 4 + [45] * 4
    owned = [np.concatenate(p) for p in zip(partition.train, partition.test, strict=True)]
    assert [len(each) for each in owned] == [50] * 12
    assert sorted(np.concatenate(owned)) == list(range(600))
    assert all(len(set(toy.y[each])) > 5 for each in owned)


def test_label_groups_of_the_measurement_study():
    """pFedSim, section 4.1: labels 0-4, 0-4, 2-6, 5-9 on exclusive subsets."""
    counts = build("label_groups").counts(CIFAR)
    assert (counts > 0).tolist() == [
        [c in run for c in range(10)] for run in (range(5), range(5), range(2, 7), range(5, 10))
    ]
    assert (counts.sum(0) == CIFAR).all()
    assert counts[:, 0].tolist() == [2500, 2500, 0, 0]
    assert sorted(counts[:3, 2]) == [1666, 1667, 1667]
    assert counts[:, 9].tolist() == [0, 0, 0, 5000]
    with pytest.raises(ConfigError, match="4 classes"):
        build("label_groups").counts(CIFAR[:4])


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
