"""IFCA, CFL, FeSEM, KMeans, FedCollab: one cluster is FedAvg, planted groups are found, bases train inside."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans as ScikitKMeans
from torch import Tensor

from fedbench.config.schema import OptimizerConfig
from fedbench.core import trees
from fedbench.core.errors import ConfigError, UnknownName
from fedbench.core.trees import Tree
from fedbench.engine import simulation
from fedbench.engine.contract import Clock
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.method import Method
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import State
from fedbench.methods import METHODS, cfl
from fedbench.methods.cfl import CFL
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedcollab import solver
from fedbench.methods.fedcollab.distances import DiscriminatorConfig
from fedbench.methods.fedcollab.fedcollab import FedCollab
from fedbench.methods.fesem import FeSEM
from fedbench.methods.ifca import IFCA
from fedbench.methods.kmeans import KMeans
from fedbench.methods.local import Local
from fedbench.methods.oracle import Oracle
from fedbench.methods.parts import clustered
from fedbench.methods.parts.clustered import weight_vectors
from tests.helpers.tiers import sampled
from tests.methods.toys import (
    FOUR,
    adapted,
    close,
    disjoint,
    federation,
    gap,
    initial,
    models,
    permuted,
    run,
    same_groups,
    setup,
    simulate,
)

PLANTED = [0, 1, 0, 1, 1, 0]


# ---- limits


@pytest.mark.parametrize(
    "method", sampled([IFCA(k=1), KMeans(k=1, pretrain_rounds=2), FeSEM(k=1), CFL(eps1=0.0), Oracle()], every=3)
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


# ---- planted groups


def groups(chosen: Setup, state: State) -> list[int]:
    """Which clients are given one model."""
    given = trees.flatten(models(chosen, state))
    return [int(x) for x in torch.unique(given, dim=0, return_inverse=True)[1]]


@pytest.mark.parametrize("data", sampled([disjoint, permuted], every=2))
@pytest.mark.parametrize(
    "method",
    sampled([IFCA(k=2), KMeans(k=2), FeSEM(k=2, pretrain_rounds=3), CFL(eps1=0.3, eps2=0.3, gamma_max=0.6)], every=2),
)
def test_planted_groups_are_found(method: Method, data: Any) -> None:
    chosen, state = run(method, data(PLANTED), rounds=10, epochs=2, optimizer=OptimizerConfig(lr=0.1))
    assert same_groups(groups(chosen, state), PLANTED)
    if data is permuted:  # one model for all cannot know whose labels are meant
        tally = state.history.last.tallies["local"]
        fedavg = run(FedAvg(), data(PLANTED), rounds=10, epochs=2)[1].history.last.tallies["local"]
        assert tally.correct.sum() > fedavg.correct.sum() + 5


def test_the_largest_mean_update_so_far_counts_the_rounds_before_the_first_split() -> None:
    """Thresholds that count in it would split at once, had they not to wait."""
    method = CFL(relative=True, warmup=2, eps1=9.0, eps2=0.0)
    chosen, first = run(method, rounds=1)
    second, third = (run(method, rounds=rounds)[1] for rounds in (2, 3))
    held = [initial(chosen), *(trees.row(trees.part(state.server, "base"), 0) for state in (first, second))]
    lengths = [sum(float((b[n] - a[n]).square().sum()) for n in a) ** 0.5 for a, b in itertools.pairwise(held)]
    for count, state in enumerate((first, second), start=1):
        assert state.server["coalition"].tolist() == [0] * 4
        assert state.server["peak"].tolist() == pytest.approx([max(lengths[:count])] * 4)
    assert len(set(third.server["coalition"].tolist())) == 2


def test_preparation_is_charged() -> None:
    for rounds in (1, 5):
        _, state = run(KMeans(k=2, pretrain_rounds=rounds), rounds=1)
        model = 8 * sum(v[0].numel() for v in trees.part(state.server, "base").values())
        assert (state.bytes_up, state.bytes_down) == (2 * 4 * model, 2 * 4 * model)


def test_random_centres_are_a_random_first_assignment_that_costs_nothing() -> None:
    drawn = set()
    for seed in range(6):
        chosen, state = run(FeSEM(k=2, pretrain_rounds=0), seed=seed, rounds=1, optimizer=OptimizerConfig(lr=1e-9))
        first = torch.from_numpy(state.arrays["coalition"])
        drawn.add(tuple(first.tolist()))
        assert set(first.tolist()) <= {0, 1}
        assert close(models(chosen, state), trees.expand(initial(chosen), 4), 1e-6), "no training before round 0"
    assert len(drawn) > 2
    totals = [run(FeSEM(k=2, pretrain_rounds=0), rounds=rounds)[1].bytes_up for rounds in (1, 4)]
    assert totals[1] == 4 * totals[0]


@pytest.mark.slow
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


@pytest.mark.parametrize("compared", [("head.bias",), ("@head",), ("fc.*", "@head")])
def test_distances_are_over_the_weights_compared(compared: tuple[str, ...]) -> None:
    """Clients 0 and 1 agree in the head's bias and 0 and 2 in everything else."""
    chosen = setup(KMeans(k=2, compared=compared), federation((5, 5, 5)))
    names = chosen.task.init(torch.Generator())
    uploads = {k: torch.zeros(3, *v.shape, dtype=torch.float64) for k, v in names.items()}
    uploads["head.bias"][2] = 3.0
    uploads["head.weight"][1] = 100.0
    points = weight_vectors(uploads, chosen.task, compared)
    alike = [0, 0, 1] if compared == ("head.bias",) else [0, 1, 0]
    assert same_groups(clustered.kmeans(clustered.isometric_coordinates(points.numpy()), 2).tolist(), alike)
    assert points.shape[1] == sum(
        v.numel() for k, v in names.items() if any(fnmatch(k, each.replace("@head", "head.*")) for each in compared)
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
        k: (near if k == "head.bias" else far).view(-1, *[1] * v.dim()).expand(4, *v.shape) for k, v in names.items()
    }
    server = {
        "coalition": torch.tensor([0, 0, 0, 1]),
        **trees.join(base={k: uploads[k][[0, 3]] for k in names}),
    }
    after = chosen.method.aggregate(server, uploads, chosen.cohort(torch.arange(4), Clock(0, 1)))
    assert after["coalition"].tolist() == [0, 0, 1, 1]


# FedCollab's coalitions: those that the solver makes, those that differ, and those who come late.

QUICK = DiscriminatorConfig(hidden=5, rounds=20)


def test_without_capacity_term_clients_that_differ_stay_alone() -> None:
    data = federation((40, 40, 40), labels=[[0], [1], [2, 3]])
    sharp = DiscriminatorConfig(hidden=20, lr=0.1)
    chosen = setup(FedCollab(C=0.0, discriminator=sharp), data, rounds=2)
    state, local = simulate(chosen), setup(Local(), data, rounds=2)
    assert sorted(state.server["coalition"].tolist()) == [0, 1, 2]
    assert close(models(chosen, state), models(local, simulate(local)))


def test_a_newcomer_is_alone_until_it_joins() -> None:
    method = FedCollab(newcomers=(2,), join_round=2, discriminator=QUICK, C=1e6)
    for rounds in (1, 2, 3):
        chosen = setup(method, federation(FOUR), rounds=rounds)
        state = simulate(chosen)
        local = setup(Local(), federation(FOUR), rounds=rounds)
        alone = close(trees.row(models(chosen, state), 2), trees.row(models(local, simulate(local)), 2))
        coalition = state.server["coalition"].tolist()
        assert alone is (rounds < 2)
        assert coalition == ([0, 0, 1, 0] if rounds < 2 else [0, 0, 0, 0])


def test_newcomers_join_those_who_are_like_them() -> None:
    """Clients 2 and 4 come late; before they do the others train as if there were no others, after it they share."""
    labels = [[0, 1], [2, 3], [0, 1], [2, 3], [2, 3], [0, 1]]
    data = federation((40,) * 6, labels=labels)
    sharp = DiscriminatorConfig(hidden=20, lr=0.1)
    method = FedCollab(C=5.0, newcomers=(2, 4), join_round=2, discriminator=sharp)
    early, late = (setup(method, data, rounds=rounds) for rounds in (1, 3))
    before, after = simulate(early), simulate(late)
    assert before.server["coalition"].tolist() == [0, 1, 2, 1, 3, 0]
    assert after.server["coalition"].tolist() == [0, 1, 0, 1, 1, 0]
    sizes, distances = np.full(6, 40), after.arrays["distances"]
    joined = itertools.product(range(4), repeat=2)
    best = min(joined, key=lambda c: solver.objective([0, 1, c[0], 1, c[1], 0], sizes, distances, 5.0))
    assert best == (0, 1), "of all ways to take them in, the best by Eq. 10"
    older = [0, 1, 3, 5]
    alone = setup(
        replace(method, newcomers=(), join_round=0), federation((40,) * 6, labels=labels, ids=older), rounds=1
    )
    expected = models(alone, simulate(alone))
    assert close({k: v[older] for k, v in models(early, before).items()}, expected)
    shared = models(late, after)
    for a, b in ((0, 2), (0, 5), (1, 3), (1, 4)):
        assert gap(trees.row(shared, a), trees.row(shared, b)) == 0
    assert gap(trees.row(shared, 0), trees.row(shared, 1)) > 1e-2


def test_newcomers_who_never_join_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    for join, told in ((2, []), (3, ["newcomers join after 3 rounds; in a run of 2 they never do"])):
        simulate(setup(FedCollab(newcomers=(2,), join_round=join, discriminator=QUICK), federation(FOUR), rounds=2))
        assert [record.getMessage() for record in caplog.records] == told


def test_coalitions_are_what_the_solver_makes_of_the_distances() -> None:
    labels = [[0, 1], [0, 1], [2, 3], [2, 3], [2, 3]]
    data = federation((40, 40, 40, 40, 40), labels=labels)
    chosen = setup(FedCollab(C=5.0, discriminator=DiscriminatorConfig(hidden=20, lr=0.1)), data, rounds=1)
    state = simulate(chosen)
    assert state.server["coalition"].tolist() == [0, 0, 1, 1, 1]
    weights = chosen.method.collaboration(state.server, chosen.population)
    assert weights is not None
    assert weights[0].tolist() == [0.5, 0.5, 0, 0, 0]
    assert state.bytes_up > sum(v[0].numel() for v in state.server.values())  # the discriminators' traffic counts
    distances = state.arrays["distances"]
    again = solver.solve(np.full(5, 40), distances, 5.0, 10, np.random.default_rng(0))
    assert again.assignment.tolist() == state.arrays["coalition"].tolist()


BASES: list[dict[str, Any]] = [
    {"name": "fedavg"},
    {"name": "fedprox", "mu": 0.5},
    {"name": "fednova"},
    {"name": "finetune"},
    {"name": "perfedavg", "alpha": 0.1},
    {"name": "pfedme", "lam": 1.0, "personal_lr": 0.1},
    {"name": "ditto"},
    {"name": "scaffold"},
    {"name": "scaffold", "weighted": True, "option": 1},
    {"name": "feddyn", "weighted": True},
    {"name": "fedbabu", "tune_epochs": 1},
    {"name": "apfl"},
]


MIXING: list[dict[str, Any]] = [
    *({"name": name} for name in ("pfedgraph", "fedsac", "fedamp", "knnper")),
    {"name": "pfedsim", "rho": 0.3},
    {"name": "fedap", "warmup": 0.4},
    *({"name": "fedfomo", "epsilon": 0.0, "baseline": baseline} for baseline in ("trained", "before")),
    {"name": "apple", "p_lr": 0.1},
]


def pairs(base: dict[str, Any]) -> Oracle:
    """Coalitions {0, 2} and {1, 3}."""
    return Oracle(base=base, coalition=(0, 1, 0, 1))


@dataclass(frozen=True)
class Pairs(FedCollab):
    """FedCollab after it has found the same."""

    def prepare(self, preparation: Any, server: Tree, memory: Tree) -> tuple[Tree, Tree]:
        return Oracle(self.base, (0, 1, 0, 1)).prepare(preparation, server, memory)


@pytest.mark.parametrize(
    ("base", "outer"),
    [
        *sampled([(base, outer) for base in BASES for outer in ("oracle", "fedcollab")], every=6),
        *((base, "oracle") for base in MIXING),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_a_coalition_is_the_base_on_its_members(base: dict[str, Any], outer: str) -> None:
    rounds, shown = (4, models) if base in MIXING else (2, adapted)
    chosen = setup(pairs(base) if outer == "oracle" else Pairs(base=base), federation(FOUR), rounds=rounds, epochs=1)
    everyone = shown(chosen, simulate(chosen))
    for members in ([0, 2], [1, 3]):
        alone = setup(pairs(base).inner, federation(FOUR, ids=members), rounds=rounds, epochs=1)
        expected = shown(alone, simulate(alone))
        found = {k: v[members] for k, v in everyone.items()}
        for name, leaf in expected.items():  # memorised samples are padded to the largest client of the run
            found[name] = found[name][:, : leaf.shape[1]] if name.startswith("store/") else found[name]
        assert close(found, expected, 1e-9)
    first, second = (trees.row(everyone, k) for k in (0, 1))
    assert gap(first, second) > 1e-3


@pytest.mark.parametrize("base", [{"name": "scaffold"}, {"name": "feddyn"}])
def test_a_coalitions_server_counts_its_members_not_all_clients(base: dict[str, Any]) -> None:
    """With two of four clients a round, one or none of a coalition: shares are of its two members."""
    chosen = setup(pairs(base), federation(FOUR), rounds=3, cohort=0.5)
    assert len({chosen.draw_cohort(Clock(t, 3)).tolist()[0] for t in range(3)}) > 1
    state = simulate(chosen)
    for k, members in enumerate(([0, 2], [1, 3])):
        own = trees.row(trees.part(state.server, "base"), k)
        mean = {name: leaf[members].mean(0) for name, leaf in state.memory.items()}
        kept = trees.under(own, "control") or {name: -leaf for name, leaf in trees.part(own, "drift").items()}
        assert close(kept, mean, 1e-10)


def collaboration(base: dict[str, Any], **options: Any) -> tuple[Tensor | None, Tensor | None]:
    """(W inside coalitions {0, 2} and {1, 3}, W of either run alone put together) after two rounds."""
    chosen = setup(pairs(base), federation(FOUR), rounds=2, epochs=1, **options)
    found = chosen.method.collaboration(simulate(chosen).server, chosen.population)
    expected = torch.zeros(4, 4, dtype=torch.float64)
    for members in ([0, 2], [1, 3]):
        alone = setup(pairs(base).inner, federation(FOUR, ids=members), rounds=2, epochs=1, **options)
        own = alone.method.collaboration(simulate(alone).server, alone.population)
        if own is None:
            return found, None
        expected[torch.tensor(members).unsqueeze(1), members] = own.to(torch.float64)
    return found, expected


@pytest.mark.parametrize("base", sampled(["pfedgraph", "fedsac", "fedamp", "fedfomo", "fedrema", "pfedsim"], every=3))
def test_who_shares_is_as_the_base_says_within_each_coalition(base: str) -> None:
    found, expected = collaboration({"name": base})
    assert found is not None
    assert expected is not None
    assert close(found, expected, 1e-9)


def test_who_shares_by_clusters_within_coalitions() -> None:
    base = {"name": "oracle", "coalition": [0, 0, 0, 1]}
    chosen = setup(pairs(base), federation((6, 9, 18, 8)), rounds=1)
    found = chosen.method.collaboration(simulate(chosen).server, chosen.population)
    assert found is not None
    expected = [[0.25, 0, 0.75, 0], [0, 1, 0, 0], [0.25, 0, 0.75, 0], [0, 0, 0, 1]]
    assert close(found, torch.tensor(expected, dtype=torch.float64), 1e-12)


@pytest.mark.parametrize("base", ["fedavg", "ditto", "fedper", "scaffold"])
def test_who_shares_an_average_has_the_shares_of_its_base(base: str) -> None:
    """By samples; SCAFFOLD's clients count alike."""
    found, _ = collaboration({"name": base})
    assert found is not None
    sizes = [1] * len(FOUR) if base == "scaffold" else FOUR
    assert torch.equal(found, torch.from_numpy(clustered.size_weights([0, 1, 0, 1], sizes)))


@pytest.mark.parametrize(
    "base",
    [
        {"name": "local"},
        {"name": "fedavg", "private": ["*"]},
        {"name": "fedproto"},
        {"name": "pfedhn"},
        {"name": "ifca"},
        {"name": "oracle", "base": {"name": "local"}},
    ],
    ids=lambda base: "-".join(map(str, base.values())),
)
def test_who_shares_is_not_said_where_the_base_averages_nothing(base: dict[str, Any]) -> None:
    chosen = setup(pairs(base), federation(FOUR), rounds=1)
    assert chosen.method.collaboration(simulate(chosen).server, chosen.population) is None


def test_coordinates_keep_distances() -> None:
    points = np.random.default_rng(0).normal(size=(7, 300))
    found = clustered.isometric_coordinates(points)
    assert found.shape == (7, 7)
    for x in (0, 3):
        expected = np.linalg.norm(points - points[x], axis=1)
        np.testing.assert_allclose(np.linalg.norm(found - found[x], axis=1), expected, atol=1e-9)


def inertia(points: np.ndarray, labels: np.ndarray) -> float:
    return sum(float(((own := points[labels == k]) - own.mean(0)).__pow__(2).sum()) for k in set(labels))


@pytest.mark.parametrize("seed", sampled(range(5), every=3))
def test_kmeans_is_as_good_as_scikit_learn(seed: int) -> None:
    generator = np.random.default_rng(seed)
    points = generator.normal(size=(40, 3)) + 2 * generator.integers(0, 3, (40, 1))
    labels = clustered.kmeans(points, 4)
    assert inertia(points, labels) <= ScikitKMeans(4, n_init=50, random_state=0).fit(points).inertia_ * 1.02
    order = generator.permutation(40)
    assert same_groups(clustered.kmeans(points[order], 4), labels[order])


def test_kmeans_of_fewer_points_than_groups() -> None:
    assert sorted(clustered.kmeans(np.array([[0.0], [5.0]]), 4).tolist()) == [0, 1]
    assert clustered.kmeans(np.ones((3, 2)), 2).tolist() == [0, 0, 0]


@pytest.mark.parametrize("seed", range(5))
def test_single_linkage_is_the_optimal_bipartition(seed: int) -> None:
    """No bipartition has a smaller largest similarity across; complete linkage can be worse."""
    vectors = np.random.default_rng(seed).normal(size=(6, 3))
    similarity = cfl.cosines(vectors)
    np.testing.assert_allclose(similarity[0, 1], vectors[0] @ vectors[1] / np.prod(np.linalg.norm(vectors[:2], axis=1)))
    best = min(
        similarity[np.ix_(side, ~side)].max()
        for bits in itertools.product([False, True], repeat=5)
        if any(side := np.array([False, *bits]))
    )
    side, across = cfl.bipartition(similarity, "single")
    assert across == pytest.approx(best)
    assert across == pytest.approx(similarity[np.ix_(side, ~side)].max())
    assert cfl.bipartition(similarity, "complete")[1] >= best - 1e-12


def test_complete_linkage_by_hand() -> None:
    """A chain of 25, 40 and 55 degrees from 0 to 120: single linkage cuts its widest gap, complete the far ends."""
    angles = np.deg2rad([0.0, 25.0, 65.0, 120.0])
    similarity = np.cos(angles[:, None] - angles)
    single, across = cfl.bipartition(similarity, "single")
    assert same_groups(single.tolist(), [0, 0, 0, 1])
    assert across == pytest.approx(np.cos(np.deg2rad(55)))
    complete, across = cfl.bipartition(similarity, "complete")
    assert same_groups(complete.tolist(), [0, 0, 1, 1])
    assert across == pytest.approx(np.cos(np.deg2rad(40)))


def test_ties_are_cut_too() -> None:
    side, across = cfl.bipartition(np.ones((4, 4)), "single")
    assert 0 < side.sum() < 4
    assert across == 1


@pytest.mark.parametrize(
    "base",
    [
        *({"name": name} for name in ("fedavg", "fedprox", "fedavgm", "ditto", "feddyn", "scaffold", "pfedme")),
        {"name": "scaffold", "weighted": True},
        {"name": "pfedme", "uniform": True},
    ],
)
def test_clients_count_in_w_as_in_the_average_of_the_method_inside(base: dict[str, Any]) -> None:
    """By moving one client's upload and looking how far the model moves; then W of coalitions of that method."""
    chosen = setup(METHODS.build(base))
    method, population, task = chosen.method, chosen.population, chosen.task
    server, memory = simulation.initial(chosen)
    cohort = chosen.cohort(chosen.everyone, Clock(0, 2))
    uploads = LoopedTrainer(chosen).train(chosen.everyone, method.send(server, cohort), memory, cohort.clock).uploads
    name = next(each for each in sorted(uploads) if each.endswith("weight") and not each.startswith("control/"))

    def model(moved: Tree) -> Tensor:
        found = method.common(method.aggregate(trees.clone(server), moved, cohort), task)
        assert found is not None
        return found[name.removeprefix("change/")]

    still, moves = model(uploads), []
    for client in range(population.clients):
        leaf = uploads[name].clone()
        leaf[client] += 1
        moves.append(float((model({**uploads, name: leaf}) - still).mean()))
    expected = np.array(moves) / sum(moves)
    shares = method.shares(population.sizes)
    np.testing.assert_allclose(shares / shares.sum(), expected, rtol=1e-6)
    outer = Oracle(base=base)
    state = {"coalition": torch.tensor([0, 0, 1, 1, 1]), **trees.join(base=trees.expand(server, 2))}
    W = outer.collaboration(state, population)
    assert W is not None
    np.testing.assert_allclose(W[0, :2], expected[:2] / expected[:2].sum(), rtol=1e-6)
    np.testing.assert_allclose(W[4, 2:], expected[2:] / expected[2:].sum(), rtol=1e-6)
    assert not W[0, 2:].any()
