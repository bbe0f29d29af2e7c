"""What methods compute with and keep, against plain loops: precision, records, draws, schedules, refusals."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fedbench.config.schema import LocalConfig, OptimizerConfig
from fedbench.core import trees
from fedbench.core.batch import Batch
from fedbench.core.errors import ConfigError
from fedbench.core.rng import numpy_rng, torch_rng
from fedbench.engine.contract import Clock
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.method import Method
from fedbench.engine.simulation import Simulation
from fedbench.methods import METHODS
from fedbench.methods.apple import APPLE
from fedbench.methods.fedap import FedAP
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedcollab import distances, solver
from fedbench.methods.fedcollab.fedcollab import FedCollab
from fedbench.methods.feddistill import FedDistill
from fedbench.methods.fedfomo import FedFomo
from fedbench.methods.fedopt import FedAvgM
from fedbench.methods.fedproto import FedProto
from fedbench.methods.fedrema import FedReMa
from fedbench.methods.fedrep import FedRep
from fedbench.methods.fedsac import FedSaC
from fedbench.methods.oracle import Oracle
from fedbench.methods.parts import clustered, simplex
from fedbench.methods.parts import features as subspaces
from fedbench.methods.parts.layers import linear
from fedbench.methods.per_kind import PerKind
from fedbench.methods.pfedsim import PFedSim
from fedbench.methods.scaffold import Scaffold
from fedbench.methods.sosicfl import SosicFL
from fedbench.models.small import LeNet5
from fedbench.testing.toys import ToyMeter, with_settings
from tests.helpers.pair import KIND, NETWORKS, pair
from tests.helpers.pair import simulate as pair_simulate
from tests.helpers.tiers import sampled
from tests.methods.literal import L
from tests.methods.literal import federation as labelled
from tests.methods.toys import features, federation, initial, logits, setup, simulate

FOUR = (5, 13, 8, 21)


# ---- what runs keep


DOUBLE = {  # of a run in single precision, what graphs, counts and thresholds are kept in
    "cfl": {"peak"},
    "cwfedavg": {"p"},
    "fedamp": {"W"},
    "fedcac": {"W"},
    "fedcollab": {"distances"},
    "fedfomo": {"P"},
    "fedpac": {"W"},
    "fedrema": {"W", "chosen", "period/largest"},
    "fedsac": {"W"},
    "pfedgraph": {"W"},
    "pfedsim": {"phi"},
}
SIMPLEX, GROUPS = frozenset({"centers", "cluster", "positions"}), frozenset({"coalition", "distances"})
KEPT = {
    **dict.fromkeys(("fedcollab", "fesem", "kmeans", "pacfl"), GROUPS),
    **dict.fromkeys(("sosicfl", "floco"), SIMPLEX),
    "oracle": {"coalition"},
}
RECORDED = {"cfl": {"coalition"}, "fedkd": {"numbers"}, "fedrema": {"ccp_rounds"}}  # when a run ends


@pytest.mark.parametrize("name", sampled(sorted({*DOUBLE, *KEPT, *RECORDED, "fedavg", "fedap"}), every=3))
def test_what_is_in_double_precision_and_what_is_kept_with_a_run(name: str) -> None:
    method = METHODS.build({"name": name, **({"relative": True} if name == "cfl" else {})})
    method = with_settings(method, method.conformance.settings)
    chosen = setup(method, federation(FOUR, dtype=torch.float32), rounds=1, epochs=1)
    state = simulate(chosen)
    found = {key for key, leaf in state.server.items() if leaf.dtype == torch.float64}
    assert found == DOUBLE.get(name, set())
    assert not any(leaf.dtype == torch.float64 for leaf in state.memory.values())
    assert set(state.arrays) == KEPT.get(name, set())
    assert set(method.record(state.server)) == RECORDED.get(name, set())


def test_what_floco_and_sosicfl_keep_is_what_clients_draw_around() -> None:
    chosen = setup(SosicFL(clusters=2), federation(FOUR, labels=[[0], [0], [1, 2], [3]]))
    state = Simulation(chosen, LoopedTrainer(chosen)).begin()
    centers, cluster = state.arrays["centers"], state.arrays["cluster"]
    np.testing.assert_allclose(state.server["region/center"].numpy(), centers[cluster], atol=1e-7)
    counts = chosen.population.label_counts.double().numpy()
    from sklearn.decomposition import LatentDirichletAllocation

    from fedbench.core.rng import derive

    order = sorted(range(4), key=lambda k: tuple(reversed(counts[k])))
    model = LatentDirichletAllocation(3, max_iter=100, random_state=derive(0, "topics") % 2**32)
    model.fit(counts[order])
    np.testing.assert_allclose(state.arrays["positions"], model.transform(counts), atol=1e-12)
    for k in range(4):
        gaps = [simplex.hilbert(simplex.interior(state.arrays["positions"][k]), centre) for centre in centers]
        assert int(np.argmin(gaps)) == cluster[k]


# ---- the simplex


def test_the_centre_of_a_ball_walks_towards_the_farthest_point() -> None:
    """1 / 2, then 1 / 3, 1 / 4 of the way, from the mean."""
    points = np.random.default_rng(0).dirichlet(np.ones(3), 6)
    centre = points.mean(0)
    for share in (2, 3, 4):
        apart = [sum(abs(p[c] - centre[c]) for c in range(3)) for p in points]
        centre = centre + (points[int(np.argmax(apart))] - centre) / share
    np.testing.assert_allclose(simplex.enclosing_centre(points, simplex.METRICS["l1"], 3), centre, atol=1e-14)


@pytest.mark.parametrize(("centre", "radius"), [([0.05, 0.9, 0.05], 0.5), ([0.3, 0.4, 0.3], 0.3), ([0.25] * 4, 1.6)])
def test_draws_of_a_region_are_what_is_kept_of_those_of_a_larger_one(centre: list[float], radius: float) -> None:
    """The smaller of the simplex and the ball around the region, by volume, twice as many as are lacking and 16."""
    n, count = len(centre), 40
    found = simplex.uniform(count, torch.tensor(centre), radius, torch.Generator().manual_seed(3))
    generator = torch.Generator().manual_seed(3)
    middle = torch.tensor(centre).double().numpy()
    floor = np.maximum(middle - radius / 2, 0)
    share = (1 - floor.sum()) ** (n - 1)
    ball = math.factorial(2 * n - 2) / math.factorial(n - 1) ** 2 * (radius / 2) ** (n - 1)
    rows: list[np.ndarray] = []
    while len(rows) < count:
        more = 2 * (count - len(rows)) + 16
        if share <= ball:
            drawn = simplex.dirichlet(more, n, generator).numpy()
            points = [floor + (1 - floor.sum()) * p for p in drawn]
            rows += [p for p in points if sum(abs(p[c] - middle[c]) for c in range(n)) <= radius]
        else:
            points = [middle + radius * p for p in simplex.plane_ball(more, n, generator).numpy()]
            rows += [p for p in points if min(p) >= 0]
    np.testing.assert_allclose(found.numpy(), np.stack(rows[:count]), atol=1e-12)


def test_draws_of_the_simplex_and_of_the_ball_point_by_point() -> None:
    for n in (3, 5):
        found = simplex.dirichlet(6, n, torch.Generator().manual_seed(0))
        u = torch.rand(6, n, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).numpy()
        heights = -np.log(1 - u)
        np.testing.assert_allclose(found.numpy(), heights / heights.sum(1, keepdims=True), atol=1e-12)
        found = simplex.plane_ball(6, n, torch.Generator().manual_seed(0))
        generator = torch.Generator().manual_seed(0)
        volumes = [math.comb(n, s) * math.comb(n - 2, s - 1) for s in range(1, n)]
        drawn = torch.multinomial(torch.tensor(volumes, dtype=torch.float64), 6, replacement=True, generator=generator)
        order = torch.rand(6, n, generator=generator)
        heights = -np.log(1 - torch.rand(6, n, dtype=torch.float64, generator=generator).numpy())
        radius = torch.rand(6, 1, dtype=torch.float64, generator=generator).numpy() ** (1 / (n - 1))
        for i in range(6):
            up = [c for c in range(n) if int((order[i] < order[i, c]).sum()) < int(drawn[i]) + 1]
            down = [c for c in range(n) if c not in up]
            for c in range(n):
                sign, part = (1, up) if c in up else (-1, down)
                expected = sign * radius[i, 0] / 2 * heights[i, c] / sum(heights[i, j] for j in part)
                assert float(found[i, c]) == pytest.approx(expected, abs=1e-12)


# ---- draws, thresholds and schedules


@pytest.mark.parametrize(("epsilon", "round_"), [(0.0, 0), (1.0, 0), (0.5, 2), (0.3, 6)])
def test_whose_models_fedfomo_sends_by_loops(epsilon: float, round_: int) -> None:
    """By P, ties by lot; where a candidate is explored, its rank is its lot; nobody's own, nobody of other servers.

    Nobody who has uploaded nothing.
    """
    method = FedFomo(M=3, epsilon=epsilon, decay=0.05)
    chosen = setup(method, federation((5,) * 7))
    P = torch.tensor(np.random.default_rng(0).integers(0, 3, (7, 7)), dtype=torch.float64)
    ids, served = torch.tensor([1, 4, 6]), torch.tensor([0, 1, 3, 4, 5, 6])
    cohort = dataclasses.replace(chosen.cohort(ids, Clock(round_, 9)), served=served)
    uploaded = torch.arange(7) != 3
    found = method.peers(P, uploaded, cohort)
    generator = chosen.cohort(ids, Clock(round_, 9)).generator
    lot = torch.rand(3, 7, generator=generator, dtype=torch.float64)
    explored = torch.rand(3, 7, generator=generator) < epsilon - 0.05 * round_
    for i, k in enumerate(ids.tolist()):
        order = sorted(range(7), key=lambda j: (-float(P[k, j]), float(lot[i, j])))
        rank = {j: float(lot[i, j]) * 7 if explored[i, j] else order.index(j) for j in range(7)}
        able = [j for j in served.tolist() if j not in (k, 3)]
        assert found[i].tolist() == sorted(able, key=lambda j: rank[j])[:3]
    few = dataclasses.replace(chosen.cohort(ids, Clock(0, 9)), served=torch.tensor([1, 4]))
    sent = FedFomo(M=3, epsilon=0.0).peers(P, uploaded, few).tolist()
    assert sent[0] == [4, 1, 1], "its own where there are no others"


def test_apples_pull_over_the_rounds() -> None:
    """lambda(r) over the first L of the rounds, then 0."""
    for pulled, rounds in ((0.5, 8), (1.0, 5), (0.3, 10), (0.0, 4)):
        last = int(pulled * rounds)
        for r in range(rounds):
            falls = 0.001 ** (r / last) if r < last else 0.0
            assert APPLE(pulled=pulled).weight(Clock(r, rounds)) == pytest.approx(falls, abs=1e-15)
            falls = (1 + math.cos(math.pi * r / last)) / 2 if r < last else 0.0
            found = APPLE(pulled=pulled, schedule="cosine").weight(Clock(r, rounds))
            assert found == pytest.approx(falls, abs=1e-15)


def test_a_class_of_one_sample_has_that_samples_mean() -> None:
    """Of one client, and of all; a class of nobody has none."""
    sums = torch.zeros(2, 3, 2, dtype=torch.float64)
    sums[0, 0], sums[1, 1] = torch.tensor([2.0, 4.0]), torch.tensor([1.0, 5.0])
    counts = torch.tensor([[1.0, 0, 0], [0, 1.0, 0]], dtype=torch.float64)
    for method in (FedProto(), FedProto(weighting="clients"), FedDistill(own=True)):
        means, present = method.means(sums, counts)
        assert present[0].tolist() == [True, True, False]
        assert means[0].tolist() == [[2.0, 4.0], [1.0, 5.0], [0.0, 0.0]]
    means, present = FedDistill().means(sums, counts)
    assert present.tolist() == [[False, True, False], [True, False, False]]
    assert means[0, 1].tolist() == [1.0, 5.0]
    assert means[1, 0].tolist() == [2.0, 4.0]
    uploads = {"classes/sums": sums, "classes/counts": counts}
    server = {"classes/means": torch.full((3, 2), 9.0).double(), "classes/seen": torch.zeros(3).double()}
    for uniform in (False, True):
        found = FedReMa(align=1.0, uniform=uniform)._class_means(server, uploads)
        assert found["classes/means"].tolist() == [[2.0, 4.0], [1.0, 5.0], [9.0, 9.0]]
        assert found["classes/seen"].tolist() == [1.0, 1.0, 0.0]


def test_layers_beside_the_network_begin_as_torchs_do() -> None:
    """Uniform within 1 / sqrt(width), and of both signs."""
    made = linear("x", 16, 4000, torch.Generator().manual_seed(0))
    assert made["x.weight"].shape == (4000, 16)
    assert made["x.bias"].shape == (4000,)
    for leaf in made.values():
        assert float(leaf.min()) == pytest.approx(-0.25, abs=1e-3)
        assert float(leaf.max()) == pytest.approx(0.25, abs=1e-3)
        assert float(leaf.mean()) == pytest.approx(0.0, abs=0.01)


def test_warm_ups_end_where_they_say() -> None:
    for method in (FedAP(warmup=0.5), PFedSim(rho=0.5)):
        assert [method.warm(Clock(t, 5)) for t in range(5)] == [True, True, False, False, False]
    assert [FedSaC(alpha_share=0.5).alpha_in(Clock(t, 4)) for t in range(4)] == [0.9, 0.9, 0.0, 0.0]


# ---- groups of points


@pytest.mark.parametrize("seed", range(4))
def test_kmeans_is_the_best_of_all_partitions(seed: int) -> None:
    points = np.random.default_rng(seed).normal(size=(7, 2))
    for count in (1, 2, 3):

        def inertia(labels: tuple[int, ...]) -> float:
            own = [points[np.array(labels) == k] for k in set(labels)]
            return float(sum(((p - p.mean(0)) ** 2).sum() for p in own))

        found = clustered.kmeans(points, count)
        least = min(inertia(labels) for labels in itertools.product(range(count), repeat=7))
        assert inertia(tuple(found.tolist())) == pytest.approx(least)
        assert set(found.tolist()) == set(range(count))


# ---- discriminators


@pytest.mark.parametrize("classes", [1, 2, 3, 10])
def test_what_a_discriminator_sees_of_a_sample_by_its_formula(classes: int) -> None:
    """[x, 1, omega nu onehot(y), omega], nu = L / sqrt(L - 1), and 1 where there is one class."""
    x, y = torch.randn(6, 5, dtype=torch.float64), torch.arange(6) % classes
    weights = distances.initial(5, classes, 4, torch_rng(0, "test"))
    found = distances.embed(x, y, weights, 1.5)
    nu = classes / math.sqrt(classes - 1) if classes > 1 else 1.0
    for i in range(6):
        onehot = [1.5 * nu * (c == int(y[i])) for c in range(classes)]
        assert found.phi[i].tolist() == pytest.approx([*x[i].tolist(), 1.0, *onehot, 1.5])
        hidden = weights["Wx"].double().t() @ x[i] + weights["bx"].double()
        hidden = hidden + 1.5 * (nu * weights["Wy"].double()[y[i]] + weights["by"].double())
        assert found.base[i].tolist() == pytest.approx(hidden.tolist())


@pytest.mark.parametrize("d", [12, 70])
def test_validation_in_blocks_is_validation_at_once(d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, clients = labelled([14, 15, 60], d=d)
    config = distances.DiscriminatorConfig(hidden=16, rounds=30, batch=4, lr=0.1, report="best", patience=1)
    whole = distances.train_discriminators(x, y, L, clients, config, 0)
    monkeypatch.setattr(distances, "BLOCK", 7)
    parts = distances.train_discriminators(x, y, L, clients, config, 0)
    np.testing.assert_array_equal(whole.matrix, parts.matrix)
    np.testing.assert_array_equal(whole.rounds_used, parts.rounds_used)


def test_a_split_has_each_labels_share_and_all_samples_once() -> None:
    for seed, m in itertools.product(range(4), (3, 7, 10)):
        y = torch.tensor([0] * 9 + [1] * 6 + [2] * 5)[torch.randperm(20, generator=torch.Generator().manual_seed(seed))]
        rows = torch.arange(100, 120)
        labels = torch.cat([torch.zeros(100, dtype=torch.int64), y])
        train, valid = distances.split(rows, labels, m, seed, 3)
        assert len(train) == m
        assert sorted([*train.tolist(), *valid.tolist()]) == rows.tolist()
        for c, whole in ((0, 9), (1, 6), (2, 5)):
            assert abs(int((labels[train] == c).sum()) - whole * m / 20) < 1
    again = distances.split(rows, labels, m, seed, 3)[0]
    assert torch.equal(train, again)
    assert not torch.equal(train, distances.split(rows, labels, m, seed, 4)[0])
    drawn = distances.batches(9, 4, numpy_rng(0, "test"))
    for _ in range(40):
        columns = next(drawn)
        assert len(set(columns.tolist())) == 8
        assert (columns[:4] < 9).all()
        assert ((columns[4:] >= 9) & (columns[4:] < 18)).all()


# ---- passes over a client's samples, and subspaces


@pytest.mark.parametrize("count", [512, 1025])
@pytest.mark.parametrize("padded", [False, True])
def test_samples_in_blocks_are_all_samples_once(count: int, padded: bool) -> None:
    """Losses, sums of classes, products of features sample by sample; every third is padding, or none."""
    chosen = setup(FedAvg())
    draw = torch.Generator().manual_seed(count)
    x = torch.randn(count, 1, 4, 4, dtype=torch.float64, generator=draw)
    y = torch.randint(3, (count,), generator=draw)
    mask = torch.arange(count) % 3 > 0 if padded else None
    data, w = Batch(x, y, mask), initial(chosen)
    real = [k for k in range(count) if not padded or k % 3 > 0]
    z, scores = features(w, x), logits(w, x)
    pieces = list(subspaces.blocks(data))
    assert [len(each.y) for each in pieces] == [min(512, count - n) for n in range(0, count, 512)]
    assert torch.equal(torch.cat([each.x for each in pieces]), x)
    loss = sum(float(functional.cross_entropy(scores[k], y[k])) for k in real) / len(real)
    assert float(subspaces.mean_loss(w, data, chosen.task)) == pytest.approx(loss)
    sums, numbers = subspaces.class_sums(lambda block: features(w, block.x), data, 4)
    for c in range(4):
        own = [k for k in real if int(y[k]) == c]
        assert numbers[c] == len(own)
        assert torch.allclose(sums[c], z[own].sum(0))
    for centred in (False, True):
        rows = (z[real] - z[real].mean(0) * centred).numpy()
        found = subspaces.products(w, data, chosen.task, centred)
        np.testing.assert_allclose(found["gram"].numpy(), rows.T @ rows, atol=1e-9)
        share = 1e-6 * float(z[real].sum(0).square().sum()) / len(real) if centred else 0.0
        assert float(found["least"]) == pytest.approx(share)
        for rank in (1, 3, 20):
            basis, values = subspaces.directions(found, rank).numpy(), np.linalg.svd(rows)[1]
            expected = np.linalg.svd(rows)[2][: min(rank, int((values**2 > 1e-6 * values[0] ** 2).sum()))].T
            expected = expected * np.sign(expected[np.abs(expected).argmax(0), range(expected.shape[1])])
            np.testing.assert_allclose(basis[:, : expected.shape[1]], expected, atol=1e-6)
            assert basis.shape[1] == min(rank, 7)
            assert not basis[:, expected.shape[1] :].any()


@pytest.mark.parametrize("seed", range(4))
def test_the_angles_of_pairs_by_loops(seed: int) -> None:
    """Bases of none to three directions: as many angles as the smaller has, principal or matched greedily."""
    draw = np.random.default_rng(seed)
    ranks = draw.permutation([0, 1, 2, 3, 3]).tolist()
    U = np.stack([np.linalg.qr(draw.normal(size=(6, 3)))[0] * (np.arange(3) < rank) for rank in ranks])
    for greedy in (False, True):
        found = subspaces.complementarity(torch.from_numpy(U), greedy).numpy()
        for i, j in itertools.product(range(5), repeat=2):
            count, product = min(ranks[i], ranks[j]), U[i].T @ U[j]
            if greedy:
                left = {(a, b): product[a, b] for a in range(ranks[i]) for b in range(ranks[j])}
                cosines = []
                while left:
                    a, b = max(left, key=left.__getitem__)
                    cosines.append(left[a, b])
                    left = {pair: v for pair, v in left.items() if pair[0] != a and pair[1] != b}
            else:
                cosines = np.linalg.svd(product)[1][:count].tolist()
            angles = np.arccos(np.clip(cosines, -1, 1))
            expected = 1.0 if i == j else np.cos(angles.mean()) if count else 0.0
            assert found[i, j] == pytest.approx(expected, abs=1e-7), (greedy, ranks[i], ranks[j])


@pytest.mark.parametrize("seed", range(3))
def test_the_discrepancy_by_loops(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    x, y = torch.randn(2, 6, 3, dtype=torch.float64, generator=draw)
    mask = torch.tensor([True, True, False, True, False, True]) if seed else None
    real, widths = [k for k in range(6) if mask is None or mask[k]], (0.5, 2.0, 7.0)

    def kernel(a: Tensor, b: Tensor) -> float:
        squares = [float((a[i] - b[j]).square().sum()) for i in real for j in real]
        return sum(math.exp(-square / width) for square in squares for width in widths) / len(squares)

    found = subspaces.discrepancy(x, y, Batch(x, torch.zeros(6, dtype=torch.int64), mask), widths)
    assert float(found) == pytest.approx(kernel(x, x) + kernel(y, y) - 2 * kernel(x, y))


# ---- refusals: what is told, and what is just allowed


def test_what_is_refused_and_what_is_just_allowed() -> None:
    def told(reason: str, call: Any) -> None:
        with pytest.raises(ConfigError) as error:
            call()
        assert reason in str(error.value)
        assert "\n" not in str(error.value)

    def solved(sizes: Any = (3, 4), D: Any = ((0, 1), (1, 0)), C: float = 1.0, restarts: int = 1) -> Any:
        return solver.solve(sizes, D, C, restarts, np.random.default_rng(0))

    told("needs at least 1 restart, not 0", lambda: solved(restarts=0))
    told("at least one training sample", lambda: solved(sizes=(3, 0)))
    told("at least one training sample", lambda: solved(sizes=(3, math.nan)))
    for D in (((0, -1), (1, 0)), ((0, 1), (1, 0.5)), ((0, math.inf), (1, 0))):
        told("finite, non-negative and zero on the diagonal", lambda D=D: solved(D=D))
    told("C must be finite and not negative, not -1.0", lambda: solved(C=-1.0))
    told("C must be finite and not negative, not inf", lambda: solved(C=math.inf))
    told("got (2, 2) for (3,)", lambda: solved(sizes=(1, 2, 3)))
    told("got (0, 0) for (0,)", lambda: solved(sizes=(), D=np.zeros((0, 0))))
    assert solved(sizes=(1, 1), C=0.0).assignment.tolist() == [0, 1]
    assert solved(sizes=(3,), D=((0,),)).assignment.tolist() == [0]

    told("method.newcomers need method.join_round of at least 1", lambda: FedCollab(newcomers=(1,)))
    told("must be different clients, got [1, 1]", lambda: FedCollab(newcomers=(1, 1), join_round=1))
    told("method.join_round=3 is for newcomers", lambda: FedCollab(join_round=3))
    assert FedCollab(newcomers=(1, 0), join_round=1).join_round == 1
    for two, allowed in (((0, 2), True), ((0, 3), False), ((-1, 1), False), ((1, 1), False)):
        if allowed:
            assert distances._checked_pairs(3, [two]).tolist() == [[0, 2]]
        else:
            told("pairs must be two different clients of 0..2", lambda two=two: distances._checked_pairs(3, [two]))
    assert distances._checked_pairs(3, [(2, 0)]).tolist() == [[0, 2]]
    assert distances._checked_pairs(3, []).shape == (0, 2)

    iterations = LocalConfig(epochs=None, iterations=5)
    clock = Clock(0, 1)
    stages = FedRep(head_iterations=4).stages(iterations, clock)
    assert [stage.iterations for stage in stages] == [4, 1]
    told("method.head_iterations=5 leaves none", lambda: FedRep(head_iterations=5).stages(iterations, clock))
    for fields in ({"head_epochs": 2}, {"body_epochs": 2}):
        told("count only where the protocol counts epochs", lambda f=fields: FedRep(**f).stages(iterations, clock))

    told("method.base must name a method, got 3; e.g. method/base=fedavg", lambda: FedAvgM(base=3))
    told("keeps head.bias from the server, which compares classifiers", lambda: begun(FedReMa(private=("head.bias",))))
    told("does not select the last stages of the network", lambda: begun(FedReMa(classifier=("fc.*",))))


def begun(method: Method) -> dict[str, Tensor]:
    chosen = setup(method, federation(FOUR, (1, 16, 16)), LeNet5(), optimizer=OptimizerConfig(lr=0.1))
    return method.init(chosen.task, chosen.population, torch.Generator())[0]


# ---- several servers of the method inside


@pytest.mark.parametrize("names", [("image", "text"), ("text", "image")])
def test_each_kinds_rows_of_W_are_its_own_in_whatever_order_its_leaves_are(names: tuple[str, str]) -> None:
    """A round with clients of one kind alone puts its leaves last, a checkpoint puts them in an order of its own."""
    networks = {name: NETWORKS[name] for name in names}
    chosen = pair(PerKind(base={"name": "fedrema", "classifier": ["@head"]}), networks=networks, rounds=1)
    server, kind = pair_simulate(chosen).server, torch.tensor(KIND)
    ids = torch.tensor([0, 1])
    cohort = chosen.cohort(ids, Clock(1, 2))
    moved = chosen.method.aggregate(server, chosen.method.send(server, cohort), cohort)
    assert list(moved)[-1].startswith(f"base:{names[0]}/")
    assert list(server)[-1].startswith(f"base:{names[1]}/")
    for state in (server, dict(reversed(server.items())), moved):
        W = chosen.method.collaboration(state, chosen.population)
        assert W is not None
        for number, name in enumerate(names):
            assert W[kind == number].ne(torch.eye(5)[kind == number]).any()
            assert torch.equal(W[kind == number], state[f"base:{name}/W"][kind == number])


def test_what_several_servers_keep_is_put_together_under_their_names() -> None:
    """Rows of W, records and common models, of kinds and of coalitions."""
    chosen = pair(PerKind(base={"name": "fedrema", "classifier": ["@head"]}))
    state = pair_simulate(chosen)
    method, population = chosen.method, chosen.population
    W, kind = method.collaboration(state.server, population), torch.tensor(KIND)
    assert W is not None
    records = method.record(state.server)
    assert set(records) == {"ccp_rounds:image", "ccp_rounds:text"}
    for number, name in enumerate(("image", "text")):
        own = state.server[f"base:{name}/W"]
        assert torch.equal(W[kind == number], own[kind == number])
        assert torch.equal(records[f"ccp_rounds:{name}"], state.server[f"base:{name}/chosen"].diagonal())
    assert W[0, 2:].tolist() == [0, 0, 0]
    assert method.common(state.server, chosen.task) is None
    averaged = pair(PerKind())
    assert averaged.method.collaboration(pair_simulate(averaged).server, averaged.population) is None
    alone = setup(PerKind(), federation(FOUR), rounds=1)
    server = simulate(alone).server
    assert server["kind"].tolist() == [0] * 4
    common = alone.method.common(server, alone.task)
    assert common is not None
    assert {f"base/{n}": v for n, v in common.items()}.keys() == {n for n in server if n != "kind"}
    assert all(torch.equal(server[f"base/{n}"], leaf) for n, leaf in common.items())

    base = {"name": "fedrema", "classifier": ["@head"]}
    split = setup(Oracle(base=base, coalition=(0, 1, 0, 1)), federation(FOUR), rounds=2)
    server = simulate(split).server
    records, W = split.method.record(server), split.method.collaboration(server, split.population)
    assert W is not None
    assert set(records) == {"ccp_rounds:0", "ccp_rounds:1"}
    for number in (0, 1):
        members, others = [number, number + 2], [1 - number, 3 - number]
        assert torch.equal(records[f"ccp_rounds:{number}"], server["base/chosen"][number].diagonal())
        np.testing.assert_allclose(W[members].numpy(), server["base/W"][number][members].numpy(), atol=1e-12)
        assert W[members][:, others].tolist() == [[0, 0], [0, 0]]
    assert split.method.common(server, split.task) is None
    sizes = setup(Oracle(coalition=(0, 1, 0, 1)), federation(FOUR), rounds=1)
    W = sizes.method.collaboration(simulate(sizes).server, sizes.population)
    assert W is not None
    assert W[2].tolist() == pytest.approx([5 / 13, 0, 8 / 13, 0])
    whole = setup(Oracle(), federation(FOUR), rounds=1)
    server = simulate(whole).server
    common = whole.method.common(server, whole.task)
    assert common is not None
    assert all(torch.equal(server[f"base/{n}"][0], leaf) for n, leaf in common.items())


# ---- batch normalisation

TWICE = ("fedccfa", "feddecomp", "fedpac", "fedrep", "fedselect")  # their stages have a batch each
EXCHANGED = ("fedkd", "fedmrl", "fml")  # upload another network than the one they keep, of other weights
ONE_EPOCH = {"feddecomp": {"personal_epochs": 1}}  # of a stage that has more by default
VARIANTS: dict[str, tuple[int, dict[str, Any]]] = {
    "fedrema": (1, {"align": 1.0}),
    "fedrema ": (2, {"alternate": True, "align": 1.0}),
    "gpfl": (1, {"conditions": "own"}),
    "fedrod": (1, {"alone": True, "generic_stays": True}),
    "fedphp": (1, {"transfer": "mmd"}),
    "feddbe": (1, {"mu": 0.5}),
    "fedfomo": (1, {"private": ["@head"]}),
    "apple": (1, {"apart": True}),
}


def times_moved(method: Method) -> dict[str, list[float]]:
    """How often the running means of one client moved in a round of one batch at no rate, layer by layer.

    After n times they are 1 - .9^n of the batch's own means, which FedAvg's one time gives.
    """
    method = with_settings(method, method.conformance.settings)
    still = OptimizerConfig(lr=1e-5 if isinstance(method, Scaffold) else 1e-12)  # which refuses smaller ones
    data = federation((13,), (1, 16, 16))
    chosen = setup(method, data, LeNet5(batch_norm=True), rounds=1, epochs=1, batch=50, optimizer=still)
    meter = ToyMeter(chosen)
    simulation = Simulation(chosen, meter)
    state = simulation.begin()
    simulation.step(state)
    found: dict[str, list[float]] = {}
    memory = {name: state.memory[name] for name in state.memory}
    for name, leaf in (*meter.outcome.uploads.items(), *memory.items()):
        if name.endswith("running_mean"):
            found.setdefault(name.rpartition("/")[2], []).append(float(leaf.reshape(-1, leaf.shape[-1])[0].mean()))
    return found


@pytest.mark.slow
def test_a_step_moves_running_statistics_once() -> None:
    """Passes in training mode are those of the steps: not of what is received, compared, measured or sent."""
    whole = times_moved(METHODS.build({"name": "fedavg"}))
    assert sorted(whole) == ["conv.1.running_mean", "conv.5.running_mean"]

    def passes(method: Method, kept: slice = slice(None)) -> list[float]:
        found = times_moved(method)
        assert sorted(found) == sorted(whole)
        ratios = [value / (10 * whole[layer][0]) for layer, values in found.items() for value in values[kept]]
        return [math.log(1 - ratio) / math.log(0.9) for ratio in ratios]

    for name in METHODS:
        method = METHODS.build({"name": name, **ONE_EPOCH.get(name, {})})
        others = name in ("ifca", "pfedhn") or name.startswith("floco")  # of other weights, or another's class
        if not others and (name == "oracle" or not isinstance(method, clustered.WrapperMethod)):
            rough = {"fedas": 1.0, "perfedavg": 2.0, "pfedme": 5.0}  # rates of their own
            expected = rough.get(name, 2.0 if name in TWICE else 1.0)
            found = passes(method, slice(1, None) if name in EXCHANGED else slice(None))
            assert found == pytest.approx([expected] * len(found), abs=0.3 if name in rough else 1e-6), name
    for name, (expected, fields) in VARIANTS.items():
        found = passes(METHODS.build({"name": name.strip(), **fields}))
        assert found == pytest.approx([expected] * len(found), abs=1e-6), (name, fields)


# ---- weight decay

STAYS = {  # leaves of local work that no step of a first round moves, so that no decay takes of them
    "apfl": {"alpha"},
    "fedala": {"A/head.bias", "A/head.weight"},
    "fedas": {"classes/means"},
    "fedbabu": {"head.bias", "head.weight"},
    "fedcp": {"head/head.bias", "head/head.weight", "context"},
    "feddbe": {"running"},
    "fedem": {"pi"},
    "fedfomo": {"reported/weights"},
    "fediot": {"head.bias", "head.weight"},
    "fedlora": {"fc.0.bias", "fc.0.weight"},
    "ffa_lora": {"fc.0.bias", "fc.0.weight", "A/fc.0.weight"},
    "fedsa_lora": {"fc.0.bias", "fc.0.weight"},
    "fedrc": {"pi", "labels"},
    "gpfl": {"conditions"},
    "pfedfda": {"lda/weight", "lda/bias"},
}


@pytest.mark.slow
def test_decay_takes_once_of_what_is_trained_and_nothing_of_what_stays() -> None:
    """One batch at next to no rate: what an optimiser has is a tenth smaller, whatever its gradient."""
    still = OptimizerConfig(lr=1e-12, weight_decay=1e11)
    for name in sorted(set(METHODS) - {"fedccfa", "fedpac", "pfedme"}):  # which have rates of their own
        method = METHODS.build({"name": name, **ONE_EPOCH.get(name, {})})
        method = with_settings(method, method.conformance.settings)
        chosen = setup(method, federation((13, 9)), rounds=1, epochs=1, batch=50, optimizer=still)
        trainer, clock = LoopedTrainer(chosen), Clock(0, 1)
        state = Simulation(chosen, trainer).begin()
        message = method.send(state.server, chosen.cohort(torch.arange(2), clock))
        view = chosen.client(0, trees.row(message, 0), trees.row(state.memory, 0), clock)
        start = {n: leaf + 1 for n, leaf in method.start(view).items() if leaf.is_floating_point()}
        work = {**trees.clone(method.start(view)), **trees.clone(start)}
        trainer.descend(0, work, view, method.stages(chosen.protocol.local, clock), "batches")
        left = {n: float((work[n] / leaf).mean()) for n, leaf in start.items()}
        assert {n for n, ratio in left.items() if ratio == 1} == STAYS.get(name, set()), name
        assert all(ratio == 1 or abs(ratio - 0.9) < 0.03 for ratio in left.values()), (name, left)
