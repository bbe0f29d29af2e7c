"""SosicFL: geometry against oracles, laws, a round by hand, planted groups."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.decomposition import PCA, LatentDirichletAllocation

from fedbench.config.schema import OptimizerConfig
from fedbench.core import trees
from fedbench.core.errors import ConfigError, UnknownName
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Clock
from fedbench.engine.setup import Setup
from fedbench.methods.ditto import Ditto
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.sosicfl import clustering, positions, region
from fedbench.methods.sosicfl.sosicfl import SosicFL
from fedbench.methods.sosicfl.sosicfl_plus import SosicFLPlus
from tests.methods.toys import close, federation, gap, models, setup, simulate

SIZES = (6, 13, 8, 21)
GROUPS = [[0, 1], [2, 3], [0, 1], [2, 3]]
METRICS = sorted(clustering.METRICS)


def points(count: int, corners: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.ones(corners), count)


# ---- Hilbert's geometry


def test_hilbert_distance_by_hand() -> None:
    p, q = np.array([0.5, 0.5]), np.array([0.25, 0.75])
    assert clustering.hilbert(p, q) == pytest.approx(np.log(2 / (2 / 3)))


@pytest.mark.parametrize("name", METRICS)
def test_distances_are_metrics(name: str) -> None:
    distance = clustering.METRICS[name].distance
    p = points(40, 4)
    table = distance(p[:, None], p[None])
    np.testing.assert_allclose(table, table.T, atol=1e-12)
    np.testing.assert_allclose(np.diag(table), 0, atol=1e-12)
    assert (table + np.eye(40) > 1e-6).all()
    assert (table[:, None, :] <= table[:, :, None] + table[None] + 1e-12).all()


def test_hilbert_distance_is_projective() -> None:
    """Scaling coordinates by positive numbers is an isometry of the simplex."""
    p, q = points(20, 5), points(20, 5, seed=1)
    w = np.array([0.1, 3.0, 1.0, 0.5, 7.0])
    moved = [(x * w) / (x * w).sum(1, keepdims=True) for x in (p, q)]
    np.testing.assert_allclose(clustering.hilbert(*moved), clustering.hilbert(p, q))


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 1.0])
def test_walks_are_geodesic(name: str, share: float) -> None:
    metric = clustering.METRICS[name]
    for p, q in zip(points(10, 3), points(10, 3, seed=1), strict=True):
        x = metric.walk(p, q, share)
        whole = metric.distance(p, q)
        assert metric.distance(p, x) == pytest.approx(share * whole, abs=1e-9)
        assert metric.distance(x, q) == pytest.approx((1 - share) * whole, abs=1e-9)
        assert x.sum() == pytest.approx(1)


@pytest.mark.parametrize("name", METRICS)
def test_centre_of_the_smallest_ball(name: str) -> None:
    """Against a linear program; Hilbert's distance is max - min of the difference of logarithms."""
    p = points(9, 3, seed=3)
    found = (
        clustering.METRICS[name].distance(p, clustering.enclosing_centre(p, clustering.METRICS[name])).max()
    )
    centre, radius = cp.Variable(3), cp.Variable()
    if name == "l1":
        limits = [cp.norm1(x - centre) <= radius for x in p] + [cp.sum(centre) == 1, centre >= 0]
    else:
        limits = [cp.max(np.log(x) - centre) - cp.min(np.log(x) - centre) <= radius for x in p]
    least = cp.Problem(cp.Minimize(radius), limits).solve(solver=cp.CLARABEL)
    assert least - 1e-6 <= found <= 1.03 * least


@pytest.mark.parametrize("name", METRICS)
def test_planted_clusters_are_found_in_any_order(name: str) -> None:
    rng = np.random.default_rng(0)
    planted = np.repeat([0, 1, 2], 7)
    tops = np.array([[8, 1, 1], [1, 8, 1], [2, 1, 7]])
    p = np.stack([rng.dirichlet(30 * tops[g]) for g in planted])
    labels, centres = clustering.cluster(p, 3, clustering.METRICS[name])
    assert len({(a, b) for a, b in zip(planted, labels, strict=True)}) == 3
    assert centres[labels].argmax(1).tolist() == tops[planted].argmax(1).tolist()
    order = rng.permutation(21)
    permuted, same = clustering.cluster(p[order], 3, clustering.METRICS[name])
    assert permuted.tolist() == labels[order].tolist()
    np.testing.assert_array_equal(same, centres)


@pytest.mark.parametrize("name", METRICS)
def test_points_that_differ_by_rounding_are_one(name: str) -> None:
    near = np.array([[0.2, 0.3, 0.5]]).repeat(5, 0) + 1e-16 * np.random.default_rng(0).normal(size=(5, 3))
    labels, centres = clustering.cluster(near, 3, clustering.METRICS[name])
    assert labels.tolist() == [0] * 5
    np.testing.assert_allclose(centres, near[:1], atol=1e-12)


def test_no_more_clusters_than_distinct_points() -> None:
    p = np.array([[0.5, 0.5], [0.9, 0.1], [0.5, 0.5], [1.0, 0.0]])
    labels, centres = clustering.cluster(p, 10, clustering.METRICS["hilbert"])
    assert len(centres) == 3
    assert labels[0] == labels[2]
    np.testing.assert_allclose(centres[labels], p, atol=1e-8)


# ---- positions


def planted_counts(shares: np.ndarray, seed: int = 0) -> np.ndarray:
    """Label counts of clients that mix two topics, labels 0-4 and 5-9."""
    rng = np.random.default_rng(seed)
    topics = np.array([[0.2] * 5 + [0.0] * 5, [0.0] * 5 + [0.2] * 5])
    return np.stack([rng.multinomial(500, share @ topics) for share in shares]).astype(float)


def test_topics_are_the_planted_mixtures() -> None:
    shares = np.array([[1 - s, s] for s in np.linspace(0, 1, 21)])
    counts = planted_counts(shares)
    found = positions.topics(counts, 2, seed=5)
    oracle = LatentDirichletAllocation(
        2, learning_method="batch", max_iter=300, random_state=1
    ).fit_transform(counts)
    for other, tolerance in ((shares, 0.06), (oracle, 0.01)):
        assert min(np.abs(found - other).max(), np.abs(found - other[:, ::-1]).max()) < tolerance
    order = np.random.default_rng(1).permutation(21)
    np.testing.assert_array_equal(positions.topics(counts[order], 2, seed=5), found[order])


def test_clients_of_a_fold_lie_together() -> None:
    counts = planted_counts(np.array([[0.8, 0.2]] * 5 + [[0.2, 0.8]] * 5))
    labels, _ = clustering.cluster(positions.topics(counts, 2, seed=0), 2, clustering.METRICS["hilbert"])
    assert labels.tolist() in ([0] * 5 + [1] * 5, [1] * 5 + [0] * 5)


def test_projection_is_the_nearest_point_of_the_simplex() -> None:
    free = np.random.default_rng(0).normal(0, 1, (6, 4))
    found = positions.project(free)
    for row, point in zip(free, found, strict=True):
        x = cp.Variable(4)
        cp.Problem(cp.Minimize(cp.sum_squares(x - row)), [x >= 0, cp.sum(x) == 1]).solve(solver=cp.CLARABEL)
        np.testing.assert_allclose(point, x.value, atol=1e-5)


def test_heads_positions_are_the_projected_components_of_least_energy() -> None:
    """As the authors' code writes it: sizes of the simplex one by one, the logarithm of the energy of all pairs."""
    heads = np.random.default_rng(0).normal(size=(8, 30))
    scores = PCA(3, svd_solver="full").fit_transform(heads)
    best, least = scores, np.inf
    for size in np.linspace(1e-4, 1, 1000):
        points = positions.project(scores / size) * size
        points /= points.sum(1, keepdims=True)
        apart = np.sqrt(((points[:, None] - points[None]) ** 2).sum(2))[np.triu_indices(8, 1)]
        energy = np.log((1 / np.maximum(apart, 1e-4) ** 2).sum()) - np.log(28)
        if energy < least:
            best, least = points, energy
    np.testing.assert_allclose(positions.spread_scores(heads, 3), best, atol=1e-8)
    np.testing.assert_allclose(positions.spread_scores(heads[:1], 3), 1 / 3)
    near = np.array([[0.5, 0.5], [0.5, 0.5], [1.0, 0.0]])
    assert positions.riesz_energy(near) == pytest.approx((1e8 + 2 + 2) / 3)


# ---- regions


def test_mean_distance_by_integrals() -> None:
    for corners in (2, 3, 5):  # E ||e_1 - alpha||_1 = 2 (1 - E alpha_1)
        assert region.mean_distance(np.eye(corners)) == pytest.approx(2 * (1 - 1 / corners), rel=1e-6)
    assert region.mean_distance(np.array([[0.5, 0.5]])) == pytest.approx(0.5, rel=1e-3)
    assert region.mean_distance(np.full((1, 3), 1 / 3)) == pytest.approx(16 / 27, rel=5e-3)
    both = np.array([[1.0, 0.0], [0.5, 0.5]])
    assert region.mean_distance(both) == pytest.approx(0.75, rel=1e-3)


def test_grid_covers_the_simplex() -> None:
    for corners in (1, 2, 3, 4):
        grid = region.grid(corners, 2000)
        assert len(grid) <= 2000
        np.testing.assert_allclose(grid.sum(1), 1)
        assert (grid > 0).all()
        np.testing.assert_allclose(grid.mean(0), 1 / corners)
        if corners > 1:  # Var alpha_1 under the uniform distribution
            assert grid[:, 0].var() == pytest.approx((corners - 1) / corners**2 / (corners + 1), rel=0.2)


REGIONS = [
    ([0.5, 0.5], 0.3),
    ([1.0, 0.0], 0.8),
    ([1 / 3] * 3, 0.3),  # drawn from the ball
    ([0.9, 0.1, 0.0], 0.7),  # drawn from the corner
    ([0.5, 0.5, 0.0], 0.9),
    ([0.25] * 4, 0.8),
    ([0.7, 0.1, 0.1, 0.1], 2.0),  # all of the simplex
]


@pytest.mark.parametrize(("center", "radius"), REGIONS)
def test_draws_are_uniform_in_the_region(center: list[float], radius: float) -> None:
    """Against rejection from the whole simplex: each coordinate, the distance from the centre, second moments."""
    middle = np.array(center)
    drawn = region.uniform(4000, torch.tensor(center), radius, torch.Generator().manual_seed(1)).numpy()
    assert drawn.shape == (4000, len(center))
    np.testing.assert_allclose(drawn.sum(1), 1)
    assert drawn.min() >= 0
    assert np.abs(drawn - middle).sum(1).max() <= radius + 1e-6
    pool = np.random.default_rng(2).dirichlet(np.ones(len(center)), 300_000)
    pool = pool[np.abs(pool - middle).sum(1) <= radius]
    assert len(pool) > 3000
    np.testing.assert_allclose(np.cov(drawn.T), np.cov(pool.T), atol=0.06 * np.cov(pool.T).max())
    for value in (*(lambda x, i=i: x[:, i] for i in range(len(center))), lambda x: np.abs(x - middle).sum(1)):
        assert stats.ks_2samp(value(drawn), value(pool)).pvalue > 1e-3


def test_draws_stay_cheap_and_inside_where_regions_are_small() -> None:
    for center in (torch.eye(10)[0], torch.full((10,), 0.1), torch.tensor([0.5, 0.5] + [0.0] * 8)):
        drawn = region.uniform(50, center, 0.2, torch.Generator().manual_seed(0))
        assert drawn.shape == (50, 10)
        assert float(drawn.min()) >= 0
        assert float((drawn - center).abs().sum(1).max()) <= 0.2 + 1e-6
    assert close(
        region.uniform(3, torch.tensor([0.3, 0.7]), 0.0, torch.Generator())[2], torch.tensor([0.3, 0.7])
    )


def test_the_code_s_draws_leave_the_simplex() -> None:
    center = torch.tensor([0.9, 0.1, 0.0], dtype=torch.float64)
    drawn = region.unprojected(2000, center, 0.4, torch.Generator().manual_seed(0))
    lengths = (drawn - center).abs().sum(1)
    assert float(lengths.max()) <= 0.4
    assert stats.kstest(lengths / 0.4, "uniform").pvalue > 1e-3
    assert float(drawn.min()) < 0
    assert float((drawn.sum(1) - 1).abs().max()) > 0.1


# ---- the method


def run(method: SosicFL | FedAvg | Ditto, **options: object) -> tuple[Setup, Tree, Tree]:
    chosen = setup(method, federation(SIZES, labels=GROUPS), rounds=3, cohort=0.75, **options)  # type: ignore[arg-type]
    state = simulate(chosen)
    return chosen, state.server, models(chosen, state)


@pytest.mark.parametrize("simplex", [("@head",), ("*",)])
def test_with_one_endpoint_it_is_fedavg(simplex: tuple[str, ...]) -> None:
    fedavg = run(FedAvg())[2]
    assert close(run(SosicFL(endpoints=1, simplex=simplex))[2], fedavg)
    assert gap(run(SosicFL(endpoints=2, simplex=simplex))[2], fedavg) > 1e-3


def test_with_one_endpoint_plus_is_ditto() -> None:
    for lam in (0.0, 0.7):
        assert close(run(SosicFLPlus(endpoints=1, lam=lam))[2], run(Ditto(lam=lam))[2])


def test_the_shared_endpoints_of_plus_are_sosicfl_s() -> None:
    alone, beside = run(SosicFL())[1], run(SosicFLPlus(lam=3.0, personal_epochs=1))[1]
    assert close(alone, beside)


@pytest.mark.parametrize("simplex", [("@head",), ("*",)])
def test_a_step_by_hand(simplex: tuple[str, ...]) -> None:
    """Eq. 8 with rho = 0: theta_m -= alpha_m lr grad F(sum_m alpha_m theta_m), alpha the centre; then the mean."""
    lr = 0.3
    method = SosicFL(endpoints=3, clusters=2, rho=0.0, simplex=simplex)
    data = federation((5, 9), labels=[[0, 1], [2, 3]])
    options = {"rounds": 1, "epochs": 1, "batch": 50, "optimizer": OptimizerConfig(lr=lr)}
    before = simulate_rounds(setup(method, data, **options), 0)
    chosen = setup(method, data, **options)
    after = simulate_rounds(chosen, 1)
    names = ["head.weight", "head.bias"] + (["fc.0.weight", "fc.0.bias"] if simplex == ("*",) else [])
    assert {k for k in before if k.startswith("endpoints/")} == {f"endpoints/{name}" for name in names}
    expected = {k: torch.zeros_like(v) for k, v in before.items() if not k.startswith("region/")}
    assert gap({"": before["region/center"][0]}, {"": before["region/center"][1]}) > 0.5, (
        "each client its own cluster"
    )
    for k, share in ((0, 5 / 14), (1, 9 / 14)):
        alpha = before["region/center"][k]
        w = {
            name: sum(alpha[m] * before[f"endpoints/{name}"][m] for m in range(3))
            if name in names
            else before[name]
            for name in chosen.task.parameters
        }
        leaves = {name: torch.as_tensor(leaf).clone().requires_grad_(True) for name, leaf in w.items()}
        x, y = data.gather(data.indices("train", k))
        hidden = torch.relu(x.flatten(1) @ leaves["fc.0.weight"].t() + leaves["fc.0.bias"])
        loss = torch.nn.functional.cross_entropy(hidden @ leaves["head.weight"].t() + leaves["head.bias"], y)
        for name, g in zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True):
            if name in names:
                for m in range(3):
                    moved = before[f"endpoints/{name}"][m] - lr * alpha[m] * g
                    expected[f"endpoints/{name}"][m] += share * moved
            else:
                expected[name] += share * (before[name] - lr * g)
    assert close({k: after[k] for k in expected}, expected)


def simulate_rounds(chosen: Setup, rounds: int) -> Tree:
    from fedbench.engine.simulation import Simulation
    from fedbench.engine.train.looped import LoopedTrainer

    simulation = Simulation(chosen, LoopedTrainer(chosen))
    state = simulation.begin()
    for _ in range(rounds):
        simulation.step(state)
    return state.server


def view(chosen: Setup, server: Tree, client: int, completed: int) -> Client:
    clock = Clock(completed, 10)
    message = chosen.method.send(server, chosen.cohort(torch.arange(4), clock))
    return chosen.client(client, trees.row(message, client), {}, clock)


def test_similar_clients_share_a_subregion_and_draw_from_it() -> None:
    method = SosicFL(endpoints=2, clusters=2, rho=0.3)
    chosen, server, _ = run(method)
    center, radius = server["region/center"], float(server["region/radius"])
    assert torch.equal(center[0], center[2])
    assert torch.equal(center[1], center[3])
    assert float((center[0] - center[1]).abs().sum()) > 1
    assert 0 < radius < 0.35
    drawn = method.draw(torch.Generator().manual_seed(0), 400, view(chosen, server, 0, 4))["alpha"]
    assert float((drawn - center[0]).abs().sum(1).max()) <= radius


def test_samples_are_used_in_turn() -> None:
    chosen, server, _ = run(SosicFL(rho=0.3))
    client = view(chosen, server, 1, 0)
    for samples in (1, 3):
        drawn = SosicFL(samples=samples).draw(torch.Generator(), 7, client)["alpha"]
        assert torch.equal(drawn, drawn[torch.arange(7) % samples])
        assert len(drawn.unique(dim=0)) == samples
    assert len(SosicFL().draw(torch.Generator(), 7, client)["alpha"].unique(dim=0)) == 7
    plus = SosicFLPlus(personal_samples=2).draw(torch.Generator(), 7, client)
    assert len(plus["alpha"].unique(dim=0)) == 7
    assert len(plus["personal"].unique(dim=0)) == 2


def test_global_and_client_models_are_points_of_the_simplex() -> None:
    chosen, server, personal = run(SosicFL())
    weights = server["endpoints/head.weight"]
    common = chosen.method.common(server, chosen.task)
    assert common is not None
    assert close(common["head.weight"], weights.mean(0))
    for k in range(4):
        at = sum(server["region/center"][k][m] * weights[m] for m in range(3))
        assert close(personal["head.weight"][k], torch.as_tensor(at))
    assert close(personal["fc.0.weight"][3], server["fc.0.weight"])


def test_the_code_has_one_bias_and_a_region_for_each_client() -> None:
    method = SosicFL(simplex=("head.weight",), positions="heads", sampling="unprojected", rho=0.25)
    _, server, _ = run(method)
    assert {k for k in server if k.startswith("endpoints/")} == {"endpoints/head.weight"}
    assert server["head.bias"].shape == (4,)
    assert float(server["region/radius"]) == 0.25
    assert len(server["region/center"].unique(dim=0)) == 4
    assert close(server["region/center"].sum(1), torch.ones(4, dtype=torch.float64))


def test_traffic_is_endpoints_and_a_region() -> None:
    chosen = setup(SosicFL(endpoints=3), federation(SIZES), rounds=1)
    state = simulate(chosen)
    body, head, counts = 16 * 7 + 7, 7 * 4 + 4, 4 * 4 * 4
    assert state.bytes_up == counts + 4 * 8 * (body + 3 * head)
    assert state.bytes_down == 4 * 8 * (body + 3 * head + 3 + 1)


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(UnknownName, match="hilbert"):
        SosicFL(metric="hilbrt")
    with pytest.raises(ConfigError, match="endpoints"):
        SosicFL(endpoints=0)
    with pytest.raises(ConfigError, match="rho"):
        SosicFL(rho=-0.1)
