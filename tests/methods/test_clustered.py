"""IFCA, CFL, FeSEM, KMeans: one cluster is FedAvg, rounds by hand, oracles, planted groups."""

from __future__ import annotations

import itertools
from fnmatch import fnmatch
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans as ScikitKMeans

from fedbench.config.schema import OptimizerConfig
from fedbench.core import rng, trees
from fedbench.core.errors import ConfigError, UnknownName
from fedbench.core.trees import Tree
from fedbench.data.federation import Federation
from fedbench.engine.contract import Clock
from fedbench.engine.method import Method
from fedbench.engine.setup import Setup
from fedbench.engine.state import State
from fedbench.methods import METHODS
from fedbench.methods.cfl import CFL
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fesem import FeSEM
from fedbench.methods.ifca import IFCA
from fedbench.methods.kmeans import KMeans
from fedbench.methods.oracle import Oracle
from fedbench.methods.parts import grouping
from fedbench.methods.parts.alone import vectors
from tests.methods.toys import (
    close,
    cross_entropy,
    descend,
    federation,
    gap,
    initial,
    logits,
    models,
    samples,
    setup,
    simulate,
)

SIZES = (6, 13, 8, 21)
PLANTED = [0, 1, 0, 1, 1, 0]


def run(method: Method, data: Federation | None = None, **options: Any) -> tuple[Setup, State]:
    chosen = setup(method, data or federation(SIZES), **{"rounds": 3, **options})
    return chosen, simulate(chosen)


def same_groups(a: Any, b: Any) -> bool:
    """Whether two labellings are one partition."""
    return len(set(zip(a, b, strict=True))) == len(set(a)) == len(set(b))


# ---- grouping


def test_coordinates_keep_distances() -> None:
    points = np.random.default_rng(0).normal(size=(7, 300))
    found = grouping.coordinates(points)
    assert found.shape == (7, 7)
    for x in (0, 3):
        expected = np.linalg.norm(points - points[x], axis=1)
        np.testing.assert_allclose(np.linalg.norm(found - found[x], axis=1), expected, atol=1e-9)


def inertia(points: np.ndarray, labels: np.ndarray) -> float:
    return sum(float(((own := points[labels == k]) - own.mean(0)).__pow__(2).sum()) for k in set(labels))


@pytest.mark.parametrize("seed", range(5))
def test_kmeans_is_as_good_as_scikit_learn(seed: int) -> None:
    generator = np.random.default_rng(seed)
    points = generator.normal(size=(40, 3)) + 2 * generator.integers(0, 3, (40, 1))
    labels = grouping.kmeans(points, 4)
    assert inertia(points, labels) <= ScikitKMeans(4, n_init=50, random_state=0).fit(points).inertia_ * 1.02
    order = generator.permutation(40)
    assert same_groups(grouping.kmeans(points[order], 4), labels[order])


def test_kmeans_of_fewer_points_than_groups() -> None:
    assert sorted(grouping.kmeans(np.array([[0.0], [5.0]]), 4).tolist()) == [0, 1]
    assert grouping.kmeans(np.ones((3, 2)), 2).tolist() == [0, 0, 0]


@pytest.mark.parametrize("seed", range(5))
def test_single_linkage_is_the_optimal_bipartition(seed: int) -> None:
    """No bipartition has a smaller largest similarity across; complete linkage can be worse."""
    vectors = np.random.default_rng(seed).normal(size=(6, 3))
    similarity = grouping.cosines(vectors)
    np.testing.assert_allclose(
        similarity[0, 1], vectors[0] @ vectors[1] / np.prod(np.linalg.norm(vectors[:2], axis=1))
    )
    best = min(
        similarity[np.ix_(side, ~side)].max()
        for bits in itertools.product([False, True], repeat=5)
        if any(side := np.array([False, *bits]))
    )
    side, across = grouping.bipartition(similarity, "single")
    assert across == pytest.approx(best)
    assert across == pytest.approx(similarity[np.ix_(side, ~side)].max())
    assert grouping.bipartition(similarity, "complete")[1] >= best - 1e-12


def test_ties_are_cut_too() -> None:
    side, across = grouping.bipartition(np.ones((4, 4)), "single")
    assert 0 < side.sum() < 4
    assert across == 1


# ---- limits


@pytest.mark.parametrize(
    "method", [IFCA(k=1), KMeans(k=1, pretrain_rounds=2), FeSEM(k=1), CFL(eps1=0.0), Oracle()]
)
def test_one_cluster_is_fedavg(method: Method) -> None:
    options = {"cohort": 0.75}
    chosen, state = run(method, **options)
    fedavg = run(FedAvg(), **options)[1].server
    assert close(models(chosen, state), trees.expand(fedavg, 4))
    common = method.common(state.server, chosen.task)
    assert common is not None
    assert close(common, fedavg)


@pytest.mark.parametrize("method", [KMeans(k=4, pretrain_rounds=3), Oracle(coalition=(7, 2, 5, 0))])
def test_a_group_for_each_client_is_local(method: Method) -> None:
    from fedbench.methods.local import Local

    found, local = run(method), run(Local())
    assert sorted(found[1].server["coalition"].tolist()) == [0, 1, 2, 3]
    assert close(models(*found), models(*local))
    assert found[0].method.common(found[1].server, found[0].task) is None


def test_fedcluster_is_another_name_of_cfl() -> None:
    assert METHODS.get("fedcluster") is METHODS.get("cfl")


# ---- rounds by hand

WHOLE: dict[str, Any] = {"rounds": 1, "epochs": 1, "batch": 50, "optimizer": OptimizerConfig(lr=0.1)}


def step(chosen: Setup, client: int, w: Tree) -> Tree:
    """One full-batch gradient step."""
    x, y = samples(chosen, client)
    return descend(lambda w: cross_entropy(logits(w, x), y), w, 0.1)


def test_a_round_of_ifca_by_hand() -> None:
    chosen, state = run(IFCA(k=3), **WHOLE)
    generator = rng.torch_rng(0, "init")
    start = [{k: v.double() for k, v in chosen.task.init(generator).items()} for _ in range(3)]
    assert gap(start[0], start[1]) > 0.1
    taken: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for k in range(4):
        losses = [
            float(cross_entropy(logits(w, samples(chosen, k)[0]), samples(chosen, k)[1])) for w in start
        ]
        taken[losses.index(min(losses))].append(k)
    assert max(len(clients) for clients in taken.values()) < 4, "the toy should use two models at least"
    for j, clients in taken.items():
        expected = start[j]
        if clients:
            n = sum(SIZES[k] for k in clients)
            trained = [step(chosen, k, start[j]) for k in clients]
            expected = {
                name: sum(SIZES[k] / n * w[name] for k, w in zip(clients, trained, strict=True))
                for name in start[j]
            }
        assert close(trees.row(state.server, j), {k: torch.as_tensor(v) for k, v in expected.items()})
    size = sum(v[0].numel() for v in state.server.values())
    assert state.bytes_down == 4 * 3 * 8 * size, "all three models are sent to each"
    assert state.bytes_up == 4 * 8 * (size + 1), "one comes back, with its number"


def test_a_round_of_fesem_by_hand() -> None:
    """Uploads 0, 1, 9, 10 in clusters {0, 1, 9} and {10}: centres 10/3 and 10; then 9 moves over."""
    chosen = setup(FeSEM(k=2), federation((5, 5, 5, 5)))
    method = chosen.method
    names = chosen.task.init(torch.Generator())
    at = torch.tensor([0.0, 1.0, 9.0, 10.0], dtype=torch.float64)
    uploads = {k: at.view(-1, *[1] * v.dim()).expand(4, *v.shape) for k, v in names.items()}
    server = {
        "coalition": torch.tensor([0, 0, 0, 1]),
        **trees.join(base={k: uploads[k][[0, 3]] for k in names}),
    }
    after = method.aggregate(server, uploads, chosen.cohort(torch.arange(4), Clock(0, 1)))
    assert after["coalition"].tolist() == [0, 0, 1, 1]
    assert close(after["base/head.bias"], torch.tensor([[10 / 3] * 4, [10.0] * 4], dtype=torch.float64))
    away = chosen.cohort(torch.tensor([0, 1]), Clock(0, 1))
    after = method.aggregate(server, {k: v[:2] for k, v in uploads.items()}, away)
    assert after["coalition"].tolist() == [0, 0, 0, 1]
    assert close(after["base/head.bias"], torch.tensor([[0.5] * 4, [10.0] * 4], dtype=torch.float64))


@pytest.mark.parametrize("compared", [("head.bias",), ("@head",), ("fc.*", "@head")])
def test_distances_are_over_the_weights_compared(compared: tuple[str, ...]) -> None:
    """Clients 0 and 1 agree in the head's bias and 0 and 2 in everything else."""
    chosen = setup(KMeans(k=2, compared=compared), federation((5, 5, 5)))
    names = chosen.task.init(torch.Generator())
    uploads = {k: torch.zeros(3, *v.shape, dtype=torch.float64) for k, v in names.items()}
    uploads["head.bias"][2] = 3.0
    uploads["head.weight"][1] = 100.0
    points = vectors(uploads, chosen.task, compared)
    alike = [0, 0, 1] if compared == ("head.bias",) else [0, 1, 0]
    assert same_groups(grouping.kmeans(grouping.coordinates(points.numpy()), 2).tolist(), alike)
    assert points.shape[1] == sum(
        v.numel()
        for k, v in names.items()
        if any(fnmatch(k, each.replace("@head", "head.*")) for each in compared)
    )
    with pytest.raises(ConfigError, match="matches none of the network's weights"):
        run(FeSEM(k=2, compared=("tail.*",)))


def test_fesem_moves_clients_by_what_is_compared() -> None:
    """By hand: heads 0, 1, 9, 10 in clusters {0, 1, 9} and {10}, bodies that would keep all where they are."""
    chosen = setup(FeSEM(k=2, compared=("head.bias",)), federation((5, 5, 5, 5)))
    names = chosen.task.init(torch.Generator())
    far = torch.tensor([0.0, 0.0, 0.0, 500.0], dtype=torch.float64)
    near = torch.tensor([0.0, 1.0, 9.0, 10.0], dtype=torch.float64)
    uploads = {
        k: (near if k == "head.bias" else far).view(-1, *[1] * v.dim()).expand(4, *v.shape)
        for k, v in names.items()
    }
    server = {
        "coalition": torch.tensor([0, 0, 0, 1]),
        **trees.join(base={k: uploads[k][[0, 3]] for k in names}),
    }
    after = chosen.method.aggregate(server, uploads, chosen.cohort(torch.arange(4), Clock(0, 1)))
    assert after["coalition"].tolist() == [0, 0, 1, 1]


def split_toy(method: CFL, moves: list[float], ids: list[int]) -> Tree:
    """The server after one round in which client ids[i] moved every weight by moves[i] (all from 1)."""
    chosen = setup(method, federation((5, 5, 5, 10, 5)))
    names = chosen.task.init(torch.Generator())
    at = 1 + torch.tensor(moves, dtype=torch.float64)
    uploads = {k: at.view(-1, *[1] * v.dim()).expand(len(ids), *v.shape) for k, v in names.items()}
    server = {
        "coalition": torch.zeros(5, dtype=torch.int64),
        **trees.join(base={k: torch.ones(1, *v.shape, dtype=torch.float64) for k, v in names.items()}),
    }
    return method.aggregate(server, uploads, chosen.cohort(torch.tensor(ids), Clock(0, 1)))


WEIGHTS = (16 * 7 + 7 + 7 * 4 + 4) ** 0.5  # norm of an update that moves every weight by 1


def test_cfl_splits_by_hand() -> None:
    """Clients 0, 1, 2, 4 (5 samples) and 3 (10): updates +1 +1 -1 -1 +1 sum to (3 * 5 - 5 - 10) / 30 = 0."""
    everyone = list(range(5))
    moves = [1.0, 1.0, -1.0, -1.0, 1.0]
    due = CFL(eps1=0.1, eps2=0.9 * WEIGHTS)
    after = split_toy(due, moves, everyone)
    assert same_groups(after["coalition"].tolist(), [0, 0, 1, 1, 0])
    bias = {int(k): float(v[0]) for k, v in enumerate(after["base/head.bias"])}
    assert bias[int(after["coalition"][0])] == pytest.approx(2.0)
    assert bias[int(after["coalition"][2])] == pytest.approx(0.0)
    for early in (
        CFL(eps1=0.1, eps2=1.1 * WEIGHTS),  # no client is far from its optimum
        CFL(eps1=0.0, eps2=0.0),  # the cluster is not yet at its own
        CFL(eps1=0.1, eps2=0.0, warmup=1),
    ):
        assert split_toy(early, moves, everyone)["coalition"].tolist() == [0] * 5
    assert (
        split_toy(CFL(eps1=WEIGHTS, eps2=0.0, gamma_max=0.5), [0.1] * 5, everyone)["coalition"].tolist()
        == [0] * 5
    )
    unbalanced = split_toy(CFL(eps1=0.1, eps2=0.0), [1.0, 1.0, -1.0, 1.0, 1.0], everyone)
    assert unbalanced["coalition"].tolist() == [0] * 5


def test_relative_thresholds_do_not_know_the_scale_of_updates() -> None:
    """Mean update .6, then .2; absolute thresholds would see 1e-3 of each. Halves inherit the largest mean."""
    for scale in (1e-3, 1.0):
        chosen = setup(CFL(eps1=0.5, eps2=1.0, relative=True), federation((5, 5, 5, 10, 5)))
        names = chosen.task.init(torch.Generator())
        server = chosen.method.init(chosen.task, chosen.population, torch.Generator())[0]
        seen = []
        for round_, moves in enumerate(([1.0, 1.0, 0.2, 0.2, 1.0], [1.2, 1.2, -0.8, -0.8, 1.2])):
            at = scale * torch.tensor(moves, dtype=torch.float64)
            received = chosen.method.send(server, chosen.cohort(torch.arange(5), Clock(round_, 2)))
            uploads = {k: received[k] + at.view(-1, *[1] * v.dim()) for k, v in names.items()}
            server = chosen.method.aggregate(
                server, uploads, chosen.cohort(torch.arange(5), Clock(round_, 2))
            )
            seen.append(server["coalition"].tolist())
        assert seen[0] == [0] * 5, "the first mean update is the largest yet"
        assert same_groups(seen[1], [0, 0, 1, 1, 0])
        assert server["peak"] / (scale * WEIGHTS) == pytest.approx([0.6] * 5)


def test_absent_members_stay_with_the_larger_half() -> None:
    """Client 3 (10 samples) against 0 and 1; 2 and 4 are away."""
    after = split_toy(CFL(eps1=0.1, eps2=0.0), [1.5, 0.5, -1.0], [0, 1, 3])["coalition"].tolist()
    assert after in ([0, 0, 0, 1, 0], [1, 1, 0, 0, 0])
    after = split_toy(CFL(eps1=0.1, eps2=0.0), [2.0, -1.0], [0, 3])["coalition"].tolist()
    assert after == [1, 0, 0, 0, 0]


# ---- planted groups


def disjoint() -> Federation:
    return federation([30] * 6, labels=[[0, 1] if g == 0 else [2, 3] for g in PLANTED])


def permuted() -> Federation:
    """The second group's labels are those of the first in reverse."""
    data = federation([30] * 6)
    for k, group in enumerate(PLANTED):
        if group:
            own = torch.cat([data.indices(name, k) for name in ("train", "val", "local")])
            data.y[own] = 3 - data.y[own]
    return data


def groups(chosen: Setup, state: State) -> list[int]:
    """Which clients are given one model."""
    given = trees.flatten(models(chosen, state))
    return [int(x) for x in torch.unique(given, dim=0, return_inverse=True)[1]]


@pytest.mark.parametrize("data", [disjoint, permuted])
@pytest.mark.parametrize(
    "method", [IFCA(k=2), KMeans(k=2), FeSEM(k=2, pretrain_rounds=3), CFL(eps1=0.3, eps2=0.3, gamma_max=0.6)]
)
def test_planted_groups_are_found(method: Method, data: Any) -> None:
    chosen, state = run(method, data(), rounds=10, epochs=2, optimizer=OptimizerConfig(lr=0.1))
    assert same_groups(groups(chosen, state), PLANTED)
    if data is permuted:  # one model for all cannot know whose labels are meant
        tally = state.history.last.tallies["local"]
        fedavg = run(FedAvg(), data(), rounds=10, epochs=2)[1].history.last.tallies["local"]
        assert tally.correct.sum() > fedavg.correct.sum() + 5


def test_cfl_splits_again_and_again() -> None:
    labels = [[0], [1], [2], [0], [1], [2]]
    chosen, state = run(
        CFL(eps1=0.5, eps2=0.2, gamma_max=0.6), federation([30] * 6, labels=labels), rounds=12
    )
    assert same_groups(groups(chosen, state), [0, 1, 2, 0, 1, 2])
    share = chosen.method.collaboration(state.server, chosen.population)
    assert share is not None
    assert share[0].tolist() == [0.5, 0, 0, 0.5, 0, 0]


def test_preparation_is_charged() -> None:
    for rounds in (1, 5):
        _, state = run(KMeans(k=2, pretrain_rounds=rounds), rounds=1)
        model = 8 * sum(v[0].numel() for v in trees.part(state.server, "base").values())
        assert (state.bytes_up, state.bytes_down) == (2 * 4 * model, 2 * 4 * model)


def test_random_centres_are_a_random_first_assignment_that_costs_nothing() -> None:
    drawn = set()
    for seed in range(6):
        chosen, state = run(
            FeSEM(k=2, pretrain_rounds=0), seed=seed, rounds=1, optimizer=OptimizerConfig(lr=1e-9)
        )
        first = torch.from_numpy(state.arrays["coalition"])
        drawn.add(tuple(first.tolist()))
        assert set(first.tolist()) <= {0, 1}
        assert close(models(chosen, state), trees.expand(initial(chosen), 4), 1e-6), (
            "no training before round 0"
        )
    assert len(drawn) > 2
    totals = [run(FeSEM(k=2, pretrain_rounds=0), rounds=rounds)[1].bytes_up for rounds in (1, 4)]
    assert totals[1] == 4 * totals[0]


def test_centres_drawn_apart_keep_their_first_clients() -> None:
    """The models that IFCA starts from, and nobody ever leaves; centres that start alike do lose clients."""
    options: dict[str, Any] = {"rounds": 8, "optimizer": OptimizerConfig(lr=0.05)}
    kept, first = [], []
    for drawn in (True, False):
        _, state = run(FeSEM(k=3, pretrain_rounds=0, drawn=drawn), federation((9,) * 12), **options)
        first.append(state.arrays["coalition"].tolist())
        kept.append(state.server["coalition"].tolist())
    assert first[0] == first[1], "the same random assignment"
    assert kept[0] == first[0]
    assert kept[1] != first[1]

    still = OptimizerConfig(lr=1e-12)
    _, state = run(FeSEM(k=3, pretrain_rounds=0, drawn=True), federation((9,) * 12), optimizer=still)
    ifca = run(IFCA(k=3), federation((9,) * 12), optimizer=still)[1].server
    assert close(trees.part(state.server, "base"), ifca, 1e-9)
    first, second = trees.flatten(ifca)[state.arrays["coalition"][[0, -1]]]
    assert state.arrays["distances"][0, -1] == pytest.approx(float((first - second).norm()))


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="k"):
        IFCA(k=0)
    with pytest.raises(ConfigError, match="pretrain_rounds"):
        FeSEM(pretrain_rounds=-1)
    with pytest.raises(ConfigError, match="drawn needs"):
        FeSEM(drawn=True)
    with pytest.raises(ConfigError, match="pretrain_rounds must be at least 1"):
        KMeans(pretrain_rounds=0)
    with pytest.raises(UnknownName, match="single"):
        CFL(linkage="singel")
    with pytest.raises(ConfigError, match="eps1"):
        CFL(eps1=-1.0)
    with pytest.raises(ConfigError, match="each of 4 clients, it has 2 numbers"):
        run(Oracle(coalition=(0, 1)))
