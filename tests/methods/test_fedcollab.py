"""FedCollab: its solver against Eq. 10 by loops, when discriminators are checked, and what they see."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest
import torch
from torch import Tensor

from fedbench.core import rng
from fedbench.core.errors import ConfigError, UnknownName
from fedbench.core.rng import torch_rng
from fedbench.data import authors
from fedbench.engine.contract import Clock, Meter
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.preparation import EnginePreparation
from fedbench.methods.fedcollab import distances, fedcollab, solver
from fedbench.methods.fedcollab.distances import DiscriminatorConfig, Patience, train_discriminators
from fedbench.methods.fedcollab.fedcollab import FedCollab
from fedbench.methods.parts.clustered import size_weights
from tests.helpers.tiers import sampled
from tests.methods.games import by_loops, instance, partitions, planted
from tests.methods.toys import federation, setup


def test_discriminators_see_the_inputs_that_are_named() -> None:
    config = DiscriminatorConfig(hidden=8, rounds=50, lr=0.5)
    found = {}
    for inputs in ("unit", "normalised"):
        method = FedCollab(inputs=inputs, discriminator=config)
        chosen = setup(method, federation((16, 24, 32)))
        preparation = EnginePreparation(chosen, LoopedTrainer(chosen), Clock(0, chosen.protocol.rounds))
        population = preparation.population
        state = method.init(preparation.task, population, rng.torch_rng(0, "init"))
        with torch.no_grad():
            method.prepare(preparation, *state)
        seen = preparation.samples(unit=inputs == "unit")
        parts = torch.arange(len(seen.y)).split(population.sizes.long().tolist())
        expected = train_discriminators(
            seen.x.flatten(1),
            seen.y,
            preparation.task.classes,
            parts,
            config,
            preparation.seed,
            meter=Meter(),
        )
        found[inputs] = preparation.arrays["distances"]
        assert np.array_equal(found[inputs], expected.matrix)
    assert not np.array_equal(found["unit"], found["normalised"])


def test_the_authors_distances_stand_in_for_discriminators() -> None:
    """Twenty clients of feature shift, as in Table 1, whose coalitions are then the published ones."""
    method = FedCollab(packaged="feature_shift")
    chosen = setup(method, federation((50,) * 10 + (7,) * 10))
    preparation = EnginePreparation(chosen, LoopedTrainer(chosen), Clock(0, chosen.protocol.rounds))
    state = method.init(preparation.task, preparation.population, rng.torch_rng(0, "init"))
    with torch.no_grad():
        method.prepare(preparation, *state)
    found = preparation.arrays["distances"]
    assert np.array_equal(found, np.clip(authors.distances("feature_shift"), 0, None))
    assert found.min() == 0 > authors.distances("feature_shift").min()
    assert preparation.meter.up == preparation.meter.down == 0
    few = setup(method, federation((16, 24, 32)))
    preparation = EnginePreparation(few, LoopedTrainer(few), Clock(0, few.protocol.rounds))
    with pytest.raises(ConfigError, match="packaged=feature_shift has 20 clients, this partition has 3"):
        method.prepare(preparation, *state)


# FedCollab's solver against Eq. 10 by loops, every set partition, and instances solved by hand.


def test_objective_is_eq_10() -> None:
    n, D = instance(0, 6, symmetric=False)
    for assignment in itertools.islice(partitions(6), 0, None, 7):
        assert solver.objective(assignment, n, D, 10.0) == pytest.approx(by_loops(assignment, n, D, 10.0))


def test_objective_by_hand() -> None:
    # K = {0, 1}: m = 4, 2 * 10 / 2 + (3 * .2 + 1 * .4) / 4; client 2 alone: 10 / 3.
    D = np.array([[0, 0.2, 1], [0.4, 0, 1], [1, 1, 0]])
    assert solver.objective([0, 0, 1], [1, 3, 9], D, 10.0) == pytest.approx(10 + 0.25 + 10 / 3)


def test_matrix_is_eq_9() -> None:
    A = size_weights([0, 1, 0], [1, 5, 3])
    np.testing.assert_allclose(A, [[0.25, 0, 0.75], [0, 1, 0], [0.25, 0, 0.75]])
    n, _ = instance(3, 30)
    np.testing.assert_allclose(size_weights(np.arange(30) % 7, n).sum(1), 1)


@pytest.mark.parametrize("symmetric", sampled([True, False], every=2))
def test_restarts_find_the_optimum_over_all_partitions(symmetric: bool) -> None:
    found = 0
    for seed in range(20):
        N = 5 + seed % 4
        n, D = instance(seed, N, symmetric)
        C = float(10 ** np.random.default_rng(seed).uniform(0, 2))
        best = min(solver.objective(p, n, D, C) for p in partitions(N)) if N < 8 else best_of_8(n, D, C)
        solution = solver.solve(n, D, C, 100, np.random.default_rng(seed))
        assert solution.value >= best - 1e-9
        found += solution.value <= best + 1e-9
    assert found >= 18  # greedy moves from singletons: 785 of 800 such instances are solved


def best_of_8(n: np.ndarray, D: np.ndarray, C: float) -> float:
    """All 4,140 partitions of 8 clients at once."""
    P = np.array(list(partitions(8)))
    A = (P[:, :, None] == P[:, None, :]) * n.astype(float)
    A /= A.sum(2, keepdims=True)
    m = n.sum()
    values = C / np.sqrt(m) * np.sqrt((A**2 / (n / m)).sum(2)).sum(1) + (A * D).sum((1, 2))
    return float(values.min())


@pytest.mark.parametrize("symmetric", sampled([True, False], every=2))
def test_incremental_scores_are_the_definition(symmetric: bool) -> None:
    n, D = instance(5, 25, symmetric)
    search = solver._Search(n.astype(float), D, 10.0, 3)
    rng = np.random.default_rng(0)
    for _ in range(200):
        before = [solver.objective(p, n, D, 10.0) for p in search.p]
        clients = rng.integers(0, 25, 3)
        old = search.p.copy()
        search.visit(clients)
        for r, k in enumerate(clients):
            options = []
            for c in range(25):
                trial = old[r].copy()
                trial[k] = c
                options.append(solver.objective(trial, n, D, 10.0))
            now = solver.objective(search.p[r], n, D, 10.0)
            assert now == pytest.approx(min(options), abs=1e-8)
            assert now <= before[r] + 1e-12
            assert search.value[r] == pytest.approx(now, abs=1e-9)


def test_every_restart_ends_where_no_move_helps() -> None:
    n, D = instance(7, 12, symmetric=False)
    solution = solver.solve(n, D, 20.0, 10, np.random.default_rng(0))
    assert solution.value == solution.values.min()
    for k, c in itertools.product(range(12), range(12)):
        trial = solution.assignment.copy()
        trial[k] = c
        assert solver.objective(trial, n, D, 20.0) >= solution.value - 1e-8


def test_no_capacity_means_local_and_huge_capacity_means_global() -> None:
    n, D = instance(1, 15)
    rng = np.random.default_rng(0)
    assert solver.solve(n, D, 0.0, 5, rng).coalitions == tuple((i,) for i in range(15))
    assert solver.solve(n, D, 1e6, 5, rng).coalitions == (tuple(range(15)),)


@pytest.mark.parametrize("scale", [1e-6, 1e9])
def test_the_unit_of_the_objective_does_not_matter(scale: float) -> None:
    n, D = instance(8, 40)
    plain = solver.solve(n, D, 10.0, 5, np.random.default_rng(0))
    scaled = solver.solve(n, scale * D, scale * 10.0, 5, np.random.default_rng(0))
    np.testing.assert_array_equal(scaled.assignment, plain.assignment)


def test_relabelling_the_clients_permutes_the_coalitions() -> None:
    n, D = instance(2, 12)
    order = np.random.default_rng(3).permutation(12)
    plain = solver.solve(n, D, 15.0, 200, np.random.default_rng(0))
    moved = solver.solve(n[order], D[np.ix_(order, order)], 15.0, 200, np.random.default_rng(1))
    assert len(plain.coalitions) > 1
    np.testing.assert_array_equal(moved.assignment, solver.canonical(plain.assignment[order]))
    assert moved.value == pytest.approx(plain.value)


def test_papers_structure_is_found_and_a_single_run_may_miss_it() -> None:
    n, D = planted()
    solution = solver.solve(n, D, 10.0, 100, np.random.default_rng(0))
    assert solution.coalitions == ((0, 1, 2, 3, 4), (5, 6, 7, 8, 9), tuple(range(10, 20)))
    # Ten large clients: 2 * 5 * 10 / sqrt(10500); ten small: 100 / sqrt(140) + 100 * 14 * .075 / 140 ...
    large, small = 10 * 10 / math.sqrt(10500), 10 * 10 / math.sqrt(140) + 10 * 0.15 / 2
    assert solution.value == pytest.approx(large + small)


def test_trajectories_fall_and_cover_every_visit() -> None:
    n, D = instance(4, 20)
    solution = solver.solve(n, D, 10.0, 8, np.random.default_rng(0), trace=True)
    assert solution.trajectories is not None
    assert len(solution.trajectories) == 8
    for curve, value, visits in zip(solution.trajectories, solution.values, solution.iterations, strict=True):
        assert len(curve) == visits + 1
        assert visits % 20 == 0
        assert curve[0] == pytest.approx(solver.objective(np.arange(20), n, D, 10.0))
        assert curve[-1] == pytest.approx(value)
        assert (np.diff(curve) <= 0).all()
        assert (curve[-20:] == curve[-1]).all()  # the last pass moved nobody
    assert solver.solve(n, D, 10.0, 8, np.random.default_rng(0)).trajectories is None


def test_deterministic_and_more_restarts_extend_fewer() -> None:
    n, D = instance(6, 30)
    few = solver.solve(n, D, 10.0, 5, np.random.default_rng(9))
    again = solver.solve(n, D, 10.0, 5, np.random.default_rng(9))
    many = solver.solve(n, D, 10.0, 25, np.random.default_rng(9))
    np.testing.assert_array_equal(few.assignment, again.assignment)
    np.testing.assert_array_equal(few.values, many.values[:5])
    assert many.value <= few.value


def test_canonical_numbers_by_smallest_member() -> None:
    np.testing.assert_array_equal(solver.canonical([7, 3, 7, 0, 3]), [0, 1, 0, 2, 1])


def test_new_client_joins_the_coalition_that_minimises_eq_10() -> None:
    n, D = planted()
    structure = solver.solve(n, D, 10.0, 20, np.random.default_rng(0)).assignment
    for like, expected in ((2, 0), (7, 1), (13, 2)):
        grown = np.zeros((21, 21))
        grown[:20, :20] = D
        grown[20, :20] = grown[:20, 20] = D[like]
        assert solver.assign_new(structure, [*n, n[like]], grown, 10.0) == expected
    grown[20, :20] = grown[:20, 20] = 1.0  # far from all, and rich enough to stay alone
    assert solver.assign_new(structure, [*n, 50000], grown, 1.0) == 3
    assert solver.assign_new([], [5], [[0.0]], 1.0) == 0


def test_ablations_flatten_their_input() -> None:
    np.testing.assert_array_equal(fedcollab.ignore_quantities([1, 2, 6]), [3, 3, 3])
    D = np.array([[0, 1, 2], [1, 0, 6], [2, 6, 0]])
    np.testing.assert_array_equal(fedcollab.ignore_distances(D), [[0, 3, 3], [3, 0, 3], [3, 3, 0]])
    np.testing.assert_array_equal(fedcollab.ignore_distances([[0.0]]), [[0.0]])


@pytest.mark.parametrize(
    ("sizes", "distances", "C", "restarts", "reason"),
    [
        ([1, 2], [[0, 1]], 1.0, 1, "N, N"),
        ([1, 0], [[0, 1], [1, 0]], 1.0, 1, "at least one training sample"),
        ([1, 2], [[0, -1], [1, 0]], 1.0, 1, "non-negative"),
        ([1, 2], [[0, math.nan], [1, 0]], 1.0, 1, "finite"),
        ([1, 2], [[0.5, 1], [1, 0]], 1.0, 1, "zero on the diagonal"),
        ([1, 2], [[0, 1], [1, 0]], -1.0, 1, "C must be"),
        ([1, 2], [[0, 1], [1, 0]], 1.0, 0, "at least 1 restart"),
    ],
)
def test_impossible_input_is_refused(
    sizes: list[int], distances: list[list[float]], C: float, restarts: int, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        solver.solve(sizes, distances, C, restarts, np.random.default_rng(0))


def test_a_hundred_restarts_are_cheap() -> None:
    n, D = instance(0, 20)
    start = time.perf_counter()
    solver.solve(n, D, 10.0, 100, np.random.default_rng(0))
    assert time.perf_counter() - start < 1.0


# FedCollab's discriminators: when they are checked and end, which samples they see, and what is refused.


def test_discriminator_has_the_papers_size() -> None:
    """Table 5 counts 105,001 parameters: 512 features and 10 labels into 200, both with a bias, then 1."""
    weights = distances.initial(512, 10, 200, torch_rng(0, "test"))
    assert sum(w.numel() for w in weights.values()) == 105_001
    assert 0.95 / 512**0.5 < float(weights["Wx"].abs().max()) <= 1 / 512**0.5


def test_patience_on_scores_by_hand() -> None:
    scores = [[0.5, 0.6, 0.7], [0.5, 0.7, 0.6], [0.5, 0.6, 0.8], [0.9, 0.6, 0.7]]
    stops = [[False] * 3, [False] * 3, [True, False, False], [False, True, False]]
    patience, free = Patience(3, 2), Patience(3, 0)
    for row, stop in zip(scores, stops, strict=True):
        assert patience.update(torch.tensor(row, dtype=torch.float64)).tolist() == stop
        assert free.update(torch.tensor(row, dtype=torch.float64)).tolist() == [False] * 3
    assert patience.best.tolist() == [0.9, 0.7, 0.8]
    patience.keep(torch.tensor([True, False, True]))
    assert patience.best.tolist() == [0.9, 0.8]


def test_rounds_that_are_checked() -> None:
    assert list(DiscriminatorConfig(rounds=35).checks()) == [35]
    assert list(DiscriminatorConfig(rounds=35, report="best").checks()) == [1, 11, 21, 31]


def test_split_keeps_label_shares() -> None:
    y = torch.tensor([5] * 2 + [6] * 4 + [7] * 4 + [8] * 4)  # a small client of the paper's label shift
    train, valid = distances.split(torch.arange(14), y, 7, 0, 0)
    assert y[train].bincount(minlength=9)[5:].tolist() == [1, 2, 2, 2]
    assert sorted(torch.cat([train, valid]).tolist()) == list(range(14))
    tied = torch.tensor([0, 0, 1, 1, 1, 2])  # 3 of 6: one of label 0; 1.5 and 0.5 go one up, one down
    picks = {tuple(tied[_train(tied, s)].bincount(minlength=3).tolist()) for s in range(20)}
    assert picks == {(1, 2, 0), (1, 1, 1)}


def _train(y: Tensor, seed: int) -> Tensor:
    return distances.split(torch.arange(len(y)), y, len(y) // 2, seed, 0)[0]


def test_batches_are_different_samples_of_either_client() -> None:
    draws = distances.batches(40, 8, np.random.default_rng(0))
    seen = np.stack([next(draws) for _ in range(200)])
    assert (seen[:, :8] < 40).all()
    assert (seen[:, 8:] >= 40).all()
    assert seen.max() == 79
    assert all(len(set(row)) == 16 for row in seen.tolist())
    assert np.bincount(seen.ravel(), minlength=80).min() > 15  # 40 expected of each


def test_an_unknown_report_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match="report 'bests'; nearest: best"):
        DiscriminatorConfig(report="bests")


@pytest.mark.parametrize(("field", "value"), [("rounds", 0), ("lr", -0.1), ("patience", -1)])
def test_impossible_values_are_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=field):
        DiscriminatorConfig(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(6))
def test_newcomers_who_come_at_once_are_taken_in_one_after_another(seed: int) -> None:
    """Each joins by Eq. 10 over those taken in so far, sizes, distances and numbers of coalitions drawn."""
    draw = np.random.default_rng(seed)
    newcomers = tuple(draw.permutation(9)[:4].tolist())
    sizes = draw.integers(5, 60, 9)
    D = draw.random((9, 9))
    D = (D + D.T) * ~np.eye(9, dtype=bool)
    start = np.empty(9, np.int64)
    old = [k for k in range(9) if k not in newcomers]
    start[old] = solver.canonical(draw.integers(0, 3, 5))
    start[list(newcomers)] = start[old].max() + 1 + np.arange(4)
    chosen = setup(FedCollab(newcomers=newcomers, join_round=1, C=4.0), federation(tuple(sizes.tolist())))
    server = {"coalition": torch.from_numpy(start), "distances": torch.from_numpy(D), "kept": torch.ones(1)}
    expected = start.tolist()
    inside = list(old)
    for k in newcomers:
        groups = sorted({expected[i] for i in inside})

        def cost(choice: int, k: int = k) -> float:
            total, label = 0.0, {**{i: expected[i] for i in inside}, k: choice}
            for i, own in label.items():
                peers = [j for j, other in label.items() if other == own]
                m = sum(sizes[j] for j in peers)
                total += 4.0 / math.sqrt(m) + sum(sizes[j] * D[i, j] for j in peers) / m
            return total

        best = min([*groups, expected[k]], key=cost)
        if best in groups:
            expected[k] = best
            inside.append(k)
    found = chosen.method._admit(server, chosen.population)  # type: ignore[attr-defined]
    assert found["coalition"].tolist() == expected
    assert start[list(newcomers)].tolist() == server["coalition"][list(newcomers)].tolist(), "its own is left alone"
    assert set(found) == set(server)
