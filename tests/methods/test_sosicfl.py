"""SosicFL beside its rounds: subregions, draws, positions, traffic."""

from __future__ import annotations

import csv
from pathlib import Path

import cvxpy as cp
import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.decomposition import PCA, LatentDirichletAllocation

from fedbench.core import rng, trees
from fedbench.core.errors import ConfigError, UnknownName
from fedbench.core.trees import Tree
from fedbench.data.partitions.groups import Fold
from fedbench.engine.contract import Client, Clock
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation, State
from fedbench.methods.ditto import Ditto
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedcollab.fedcollab import FedCollab
from fedbench.methods.parts import simplex
from fedbench.methods.sosicfl import SosicFL, SosicFLPlus
from fedbench.papers import spec
from fedbench.runs.config import canonical
from tests.helpers.tiers import sampled
from tests.methods.toys import FOUR, close, federation, gap, models, setup, simulate

GROUPS = [[0, 1], [2, 3], [0, 1], [2, 3]]


def run(method: SosicFL | FedAvg | Ditto, **options: object) -> tuple[Setup, Tree, Tree]:
    chosen = setup(method, federation(FOUR, labels=GROUPS), rounds=3, cohort=0.75, **options)  # type: ignore[arg-type]
    state = simulate(chosen)
    return chosen, state.server, models(chosen, state)


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


def test_the_code_has_one_bias_and_a_region_for_each_client() -> None:
    method = SosicFL(simplex=("head.weight",), positions="trained", sampling="unprojected", rho=0.25)
    _, server, _ = run(method)
    assert {k for k in server if k.startswith("endpoints/")} == {"endpoints/head.weight"}
    assert server["head.bias"].shape == (4,)
    assert float(server["region/radius"]) == 0.25
    assert len(server["region/center"].unique(dim=0)) == 4
    assert close(server["region/center"].sum(1), torch.ones(4, dtype=torch.float64))


@pytest.mark.slow
def test_traffic_is_endpoints_and_a_region() -> None:
    chosen = setup(SosicFL(endpoints=3), federation(FOUR), rounds=1)
    state = simulate(chosen)
    body, head, counts = 16 * 7 + 7, 7 * 4 + 4, 4 * 4 * 4
    assert state.bytes_up == counts + 4 * 8 * (body + 3 * head)
    assert state.bytes_down == 4 * 8 * (body + 3 * head + 3 + 1)
    trained = setup(SosicFL(endpoints=3, positions="trained"), federation(FOUR), rounds=1)
    begun = Simulation(trained, LoopedTrainer(trained)).begin()  # a round whose endpoints alone come back
    assert (begun.bytes_up, begun.bytes_down) == (4 * 8 * 3 * head, 4 * 8 * (body + 3 * head + 3 + 1))


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(UnknownName, match="hilbert"):
        SosicFL(metric="hilbrt")
    with pytest.raises(ConfigError, match="endpoints"):
        SosicFL(endpoints=0)
    with pytest.raises(ConfigError, match=r"^method.endpoints must lie in \[1, 30\], got 1000$"):
        SosicFL(endpoints=1000)
    with pytest.raises(ConfigError, match="rho"):
        SosicFL(rho=-0.1)


GROUP = np.repeat(np.arange(5), 20)
EVIDENCE = Path(__file__).parents[2] / "results" / "evidence" / "fold_groups.csv"


def written() -> dict[tuple[int, int], float]:
    """How far apart the two nearest groups are, by endpoints and seed, as scripts/evidence.py found it."""
    with EVIDENCE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {(int(row["endpoints"]), int(row["seed"])): float(row["nearest"]) for row in rows}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_ten_endpoints_keep_five_groups_apart_and_three_do_not(seed: int) -> None:
    """Section 4.1 needs the groups separable; three corners put two pairs of them in one place."""
    counts = Fold(folds=5).counts(np.full(10, 5000)).astype(float)
    for endpoints, apart in ((10, True), (3, False)):
        found = simplex.topics(counts, endpoints, rng.derive(seed, "topics"))
        means = np.stack([found[group == GROUP].mean(0) for group in range(5)])
        nearest = min(float(np.abs(means[a] - means[b]).sum()) for a in range(5) for b in range(a))
        assert (nearest > 0.5) is apart
        assert nearest == pytest.approx(written()[endpoints, seed], abs=2e-3)
        labels, _ = simplex.cluster(found, 5, simplex.METRICS["hilbert"])
        assert (len(set(zip(GROUP.tolist(), labels.tolist(), strict=True))) == 5) or not apart


@pytest.mark.parametrize("name", ["sosicfl_t2", "sosicfl_t3", "sosicfl_t5"])
def test_the_tables_say_for_how_many_seeds(name: str) -> None:
    table = spec.load_spec(name)
    apart = {e: [s for s in range(12) if written()[e, s] > 0.5] for e in (3, 5, 10)}
    assert set(range(table.seeds)) <= set(apart[10])
    assert len(apart[3]) == 0
    (note,) = (each.text for each in table.findings if "keeps the five groups apart" in each.text)
    joined = sorted(set(range(12)) - set(apart[10]))
    assert f"for {len(apart[10])} of 12 seeds, among them the table's 0-{table.seeds - 1}" in note
    assert f"For seeds {' and '.join(map(str, joined))} it puts two groups on one point" in note
    assert f"With five endpoints it keeps them apart for {len(apart[5])} of 12 seeds" in note


# ---- positions


def planted_counts(shares: np.ndarray, seed: int = 0) -> np.ndarray:
    """Label counts of clients that mix two topics, labels 0-4 and 5-9."""
    rng = np.random.default_rng(seed)
    topics = np.array([[0.2] * 5 + [0.0] * 5, [0.0] * 5 + [0.2] * 5])
    return np.stack([rng.multinomial(500, share @ topics) for share in shares]).astype(float)


@pytest.mark.slow
def test_topics_are_the_planted_mixtures() -> None:
    shares = np.array([[1 - s, s] for s in np.linspace(0, 1, 21)])
    counts = planted_counts(shares)
    found = simplex.topics(counts, 2, seed=5)
    oracle = LatentDirichletAllocation(2, learning_method="batch", max_iter=300, random_state=1).fit_transform(counts)
    for other, tolerance in ((shares, 0.06), (oracle, 0.01)):
        assert min(np.abs(found - other).max(), np.abs(found - other[:, ::-1]).max()) < tolerance
    order = np.random.default_rng(1).permutation(21)
    np.testing.assert_array_equal(simplex.topics(counts[order], 2, seed=5), found[order])


@pytest.mark.slow
def test_clients_of_a_fold_lie_together() -> None:
    counts = planted_counts(np.array([[0.8, 0.2]] * 5 + [[0.2, 0.8]] * 5))
    labels, _ = simplex.cluster(simplex.topics(counts, 2, seed=0), 2, simplex.METRICS["hilbert"])
    assert labels.tolist() in ([0] * 5 + [1] * 5, [1] * 5 + [0] * 5)


def test_projection_is_the_nearest_point_of_the_simplex() -> None:
    free = np.random.default_rng(0).normal(0, 1, (6, 4))
    found = simplex.project(free)
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
        points = simplex.project(scores / size) * size
        points /= points.sum(1, keepdims=True)
        apart = np.sqrt(((points[:, None] - points[None]) ** 2).sum(2))[np.triu_indices(8, 1)]
        energy = np.log((1 / np.maximum(apart, 1e-4) ** 2).sum()) - np.log(28)
        if energy < least:
            best, least = points, energy
    np.testing.assert_allclose(simplex.spread_scores(heads, 3), best, atol=1e-8)
    np.testing.assert_allclose(simplex.spread_scores(heads[:1], 3), 1 / 3)
    near = np.array([[0.5, 0.5], [0.5, 0.5], [1.0, 0.0]])
    assert simplex.riesz_energy(near) == pytest.approx((1e8 + 2 + 2) / 3)


# ---- regions


@pytest.mark.slow
def test_mean_distance_by_integrals() -> None:
    for corners in (2, 3, 5):  # E ||e_1 - alpha||_1 = 2 (1 - E alpha_1)
        assert simplex.mean_distance(np.eye(corners)) == pytest.approx(2 * (1 - 1 / corners), rel=1e-6)
    assert simplex.mean_distance(np.array([[0.5, 0.5]])) == pytest.approx(0.5, rel=1e-3)
    assert simplex.mean_distance(np.full((1, 3), 1 / 3)) == pytest.approx(16 / 27, rel=5e-3)
    both = np.array([[1.0, 0.0], [0.5, 0.5]])
    assert simplex.mean_distance(both) == pytest.approx(0.75, rel=1e-3)


REGIONS = [
    ([0.5, 0.5], 0.3),
    ([1.0, 0.0], 0.8),
    ([1 / 3] * 3, 0.3),  # drawn from the ball
    ([0.9, 0.1, 0.0], 0.7),  # drawn from the corner
    ([0.5, 0.5, 0.0], 0.9),
    ([0.25] * 4, 0.8),
    ([0.7, 0.1, 0.1, 0.1], 2.0),  # all of the simplex
]


@pytest.mark.parametrize(("center", "radius"), sampled(REGIONS, every=3))
def test_draws_are_uniform_in_the_region(center: list[float], radius: float) -> None:
    """Against rejection from the whole simplex: each coordinate, the distance from the centre, second moments."""
    middle = np.array(center)
    drawn = simplex.uniform(4000, torch.tensor(center), radius, torch.Generator().manual_seed(1)).numpy()
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
        drawn = simplex.uniform(50, center, 0.2, torch.Generator().manual_seed(0))
        assert drawn.shape == (50, 10)
        assert float(drawn.min()) >= 0
        assert float((drawn - center).abs().sum(1).max()) <= 0.2 + 1e-6
    assert close(simplex.uniform(3, torch.tensor([0.3, 0.7]), 0.0, torch.Generator())[2], torch.tensor([0.3, 0.7]))


START_GROUPS = [[0, 1], [2, 3], [0, 1], [2, 3]]


def after(method: SosicFL, rounds: int) -> tuple[Simulation, State]:
    chosen = setup(method, federation(FOUR, labels=START_GROUPS), rounds=6, cohort=0.75)
    simulation = Simulation(chosen, LoopedTrainer(chosen))
    state = simulation.begin()
    for _ in range(rounds):
        simulation.step(state)
    return simulation, state


def alphas(simulation: Simulation, server: Tree, client: int) -> torch.Tensor:
    """Draws of a client in the round to come, [400, n]."""
    chosen, clock = simulation.setup, Clock(0, 6)
    message = chosen.method.send(server, chosen.cohort(torch.arange(4), clock))
    known = chosen.client(client, trees.row(message, client), {}, clock)
    return chosen.method.draw(torch.Generator().manual_seed(0), 400, known)["alpha"]


def test_before_it_every_client_draws_from_the_whole_simplex() -> None:
    method = SosicFL(endpoints=2, clusters=2, rho=0.3, start_round=2)
    simulation, early = after(method, 1)
    everywhere = alphas(simulation, early.server, 0)[:, 0]
    assert float(everywhere.min()) < 0.05
    assert float(everywhere.max()) > 0.95
    assert close(early.server["region/center"], torch.full((4, 2), 0.5))
    simulation, late = after(method, 2)
    center, radius = late.server["region/center"], float(late.server["region/radius"])
    assert torch.equal(center[0], center[2])
    assert float((center[0] - center[1]).abs().sum()) > 1
    assert float((alphas(simulation, late.server, 0) - center[0]).abs().sum(1).max()) <= radius < 0.35


@pytest.mark.slow
def test_until_it_comes_training_is_that_of_one_that_never_does() -> None:
    never, late = after(SosicFL(start_round=9), 3)[1], after(SosicFL(start_round=2), 3)[1]
    assert gap(trees.part(never.server, "endpoints"), trees.part(late.server, "endpoints")) > 1e-3
    never, late = after(SosicFL(start_round=9), 2)[1], after(SosicFL(start_round=2), 2)[1]
    assert gap(trees.part(never.server, "endpoints"), trees.part(late.server, "endpoints")) == 0


@pytest.mark.slow
def test_labels_give_the_same_subregions_whenever_they_are_asked_for() -> None:
    early, late = after(SosicFL(), 0)[1], after(SosicFL(start_round=2), 2)[1]
    for name in ("region/center", "region/radius"):
        assert torch.equal(early.server[name], late.server[name])


@pytest.mark.slow
def test_heads_are_trained_from_the_endpoints_of_that_round() -> None:
    """The authors' project_clients at round tau: everyone trains the endpoints that the server then has."""
    method = SosicFL(endpoints=3, positions="trained", sampling="unprojected", rho=0.1, start_round=2)
    simulation, before = after(SosicFL(endpoints=3, start_round=9), 2)  # the same two rounds
    chosen, clock = simulation.setup, Clock(2, 6)
    message = chosen.method.send(before.server, chosen.cohort(torch.arange(4), clock))
    trained = LoopedTrainer(chosen).train(torch.arange(4), message, {}, clock).uploads
    heads = trees.flatten(trees.part(trained, "endpoints")).double().numpy()
    expected = torch.from_numpy(simplex.spread_scores(heads, 3))
    found = after(method, 2)[1]
    assert close(found.server["region/center"], expected)
    assert float(found.server["region/radius"]) == pytest.approx(0.1)
    assert gap(trees.part(found.server, "endpoints"), trees.part(before.server, "endpoints")) == 0
    assert not close(after(method, 3)[1].server["region/center"], torch.full((4, 3), 1 / 3))


def test_a_late_start_has_a_key_of_its_own() -> None:
    """Checkpoints of earlier versions hold subregions before the start; what starts at once is as it was."""
    early, late = canonical(SosicFL()), canonical(SosicFL(start_round=5))
    assert (early["start_round"], late["start_round"]) == (0, "prepares after 5")


def test_it_is_refused_inside_another_method() -> None:
    with pytest.raises(ConfigError, match=r"SosicFL prepares after 5 rounds.*method\.base"):
        FedCollab(base={"name": "sosicfl", "start_round": 5})
    assert FedCollab(base={"name": "sosicfl"}).inner.prepare_round == 0
