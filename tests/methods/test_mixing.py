"""Projections, mixtures and clusters against solvers and limits; rounds of FedAMP and FedFomo by hand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import cvxpy
import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

from fedbench.config.schema import OptimizerConfig
from fedbench.core import trees
from fedbench.core.errors import FedbenchError
from fedbench.core.trees import Tree
from fedbench.data.federation import Federation, Ragged
from fedbench.engine.contract import Clock, Cohort
from fedbench.engine.method import HookError
from fedbench.engine.setup import Setup
from fedbench.engine.stacked import StackedTrainer
from fedbench.methods.fedamp import FedAMP
from fedbench.methods.fedap import FedAP
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedcollab.fedcollab import FedCollab
from fedbench.methods.fedfomo import FedFomo
from fedbench.methods.fedper import FedPer
from fedbench.methods.local import Local
from fedbench.methods.parts import mixing, simplex
from fedbench.methods.parts.mixing import Mixing, ModelStore, cosines
from tests.methods.quadratics import minima, quadratic
from tests.methods.toys import (
    FOUR,
    close,
    cross_entropy,
    descend,
    federation,
    final,
    gap,
    initial,
    logits,
    models,
    samples,
    setup,
    simulate,
)


@pytest.mark.parametrize("count", [1, 2, 5, 30])
def test_the_closed_form_is_the_solvers(count: int) -> None:
    """FedSaC's and pFedGraph's row problem for random p, S and C, with and without a choice of collaborators."""
    generator = torch.Generator().manual_seed(count)
    p = torch.rand(count, generator=generator, dtype=torch.float64).softmax(0)
    S, C = (torch.rand(2, count, count, generator=generator, dtype=torch.float64) * 2 - 1).clamp(-1, 1)
    allowed = torch.eye(count, dtype=torch.bool) | (torch.rand(count, generator=generator) < 0.5)
    for cost in (0.9 * C - 1.4 * S, -S / 0.8, 1.2 * C, torch.zeros_like(C)):
        for mask in (None, allowed):
            closed, solved = (mixing.closest(p, cost, mask, solver) for solver in mixing.SOLVERS)
            assert close(solved, closed, 1e-6)
            assert mask is None or not solved[~mask].any()
            assert float(solved.sum(1).sub(1).abs().max()) < 1e-12
            few = slice(count // 2 + 1)  # rows, of clients that take part
            part = mixing.closest(p, cost[few], None if mask is None else mask[few], "cvxpy")
            assert close(part, closed[few], 1e-6)


def test_no_solution_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cvxpy.Problem, "status", "infeasible")
    with pytest.raises(FedbenchError, match=r"infeasible.*; try method\.solver=closed"):
        mixing.closest(torch.ones(2) / 2, torch.zeros(1, 2), solver="cvxpy")


def test_projection_by_hand_and_its_symmetries() -> None:
    assert mixing.project(torch.tensor([[0.5, 0.3, -1.0]]))[0].tolist() == pytest.approx([0.6, 0.4, 0.0])
    rows = torch.from_numpy(np.random.default_rng(0).normal(0, 1, (20, 7)))
    found, order = mixing.project(rows), torch.tensor([3, 1, 6, 0, 2, 5, 4])
    assert close(mixing.project(rows + 17.5), found)
    assert close(mixing.project(found), found)
    assert close(mixing.project(rows[:, order]), found[:, order])
    assert close(mixing.project(1e6 * rows), torch.nn.functional.one_hot(rows.argmax(1), 7).double())
    assert float((found > 0).sum(1).double().std()) > 0


def test_cosines() -> None:
    found = cosines(torch.tensor([[3.0, 4.0], [-6.0, -8.0], [4.0, -3.0], [0.0, 0.0]]))
    expected = [[1.0, -1.0, 0.0, 0.0], [-1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
    assert close(found, torch.tensor(expected, dtype=torch.float64))


@dataclass(frozen=True)
class Fixed(Mixing):
    """W = I for the leaves in `own`, 1 p^T for the others, multiplied by `factor`."""

    own: tuple[str, ...] = ()
    factor: float = 1.0

    def graph(self, server: Tree, uploads: Tree, cohort: Cohort) -> Mapping[str, Tensor]:
        count = len(cohort.ids)
        identity = torch.eye(count, dtype=torch.float64)
        average = self.factor * cohort.weights.expand(count, -1)
        graph = dict.fromkeys(self.own, identity)
        graph.setdefault("*", average)
        return graph


@dataclass(frozen=True)
class Stored(ModelStore):
    """FedAvg for `rounds`, then W = I or 1 p^T over everybody."""

    rounds: int = 0
    own: bool = True

    def warm(self, clock: Clock) -> bool:
        return clock.round < self.rounds

    def rows(self, server: Tree, cohort: Cohort) -> Mapping[str, Tensor]:
        sizes = cohort.population.sizes
        average = (sizes / sizes.sum()).expand(len(sizes), -1)
        chosen = torch.eye(len(sizes), dtype=torch.float64) if self.own else average
        return {"*": chosen[cohort.ids]}


@pytest.mark.parametrize("cohort", [1.0, 0.5])
def test_identity_is_local(cohort: float) -> None:
    local = final(Local(), cohort=cohort)
    assert close(final(Fixed(own=("*",)), cohort=cohort), local)
    assert close(final(Stored(), cohort=cohort), local)


def test_sizes_are_fedavg_and_a_private_head_is_fedper() -> None:
    fedavg = final(FedAvg())
    assert close(final(Fixed()), fedavg)
    assert close(final(Stored(own=False)), fedavg)
    assert close(final(Fixed(own=("@head",))), final(FedPer()))
    assert close(final(Fixed(private=("@head",))), final(FedPer()))


def test_a_warm_up_is_fedavg_for_partial_cohorts_too() -> None:
    assert close(final(Stored(rounds=3), cohort=0.5), final(FedAvg(), cohort=0.5))
    assert gap(final(Stored(rounds=2), cohort=0.5), final(FedAvg(), cohort=0.5)) > 1e-4


def test_absent_clients_keep_what_they_had() -> None:
    chosen = setup(Fixed(), federation(FOUR), rounds=1, cohort=0.5)
    state = simulate(chosen)
    present = chosen.draw_cohort(Clock(0, 1)).tolist()
    received, start = models(chosen, state), initial(chosen)
    for client in range(4):
        assert close(trees.row(received, client), start) is (client not in present)
    weights = chosen.method.collaboration(state.server, chosen.population)
    assert weights is not None
    total = sum(FOUR[j] for j in present)
    for i in range(4):
        expected = [FOUR[j] / total if j in present else 0.0 for j in range(4)]
        assert weights[i].tolist() == pytest.approx(expected if i in present else np.eye(4)[i].tolist())


def test_a_matrix_that_is_not_row_stochastic_is_refused() -> None:
    with pytest.raises(HookError, match="not row-stochastic"):
        final(Fixed(factor=1.1))


@dataclass(frozen=True)
class Groups(FedCollab):
    """FedCollab with two coalitions given."""

    def prepare(self, preparation: Any, server: Tree, memory: Tree) -> tuple[Tree, Tree]:
        base = {k: v.expand(2, *v.shape[1:]) for k, v in server.items() if k != "coalition"}
        return {"coalition": torch.tensor([0, 1, 0, 1]), **trees.clone(base)}, memory


@pytest.mark.parametrize(
    "base",
    [
        {"name": "pfedgraph"},
        {"name": "fedsac"},
        {"name": "pfedsim", "rho": 0.3},
        {"name": "fedap", "warmup": 0.4},
        {"name": "fedamp"},
        {"name": "fedfomo", "epsilon": 0.0},
        {"name": "knnper"},
    ],
    ids=lambda base: str(base["name"]),
)
def test_inside_a_coalition_mixes_its_members_alone(base: dict[str, Any]) -> None:
    chosen = setup(Groups(base=base), federation(FOUR), rounds=4)
    everyone = models(chosen, simulate(chosen))
    for members in ([0, 2], [1, 3]):
        alone = setup(chosen.method.inner, federation(FOUR, ids=members), rounds=4)  # type: ignore[attr-defined]
        expected = models(alone, simulate(alone))
        for name, leaf in expected.items():  # memorised samples are padded to the largest client of the run
            found = everyone[name][members]
            cut = found[:, : leaf.shape[1]] if name.startswith("store/") else found
            assert close(cut, leaf), name


def test_fedap_is_there_for_networks_without_batch_normalisation() -> None:
    assert gap(final(FedAP(warmup=0.4)), final(FedAvg())) > 1e-4


METRICS = sorted(simplex.METRICS)


def points(count: int, corners: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.ones(corners), count)


def test_hilbert_distance_by_hand() -> None:
    p, q = np.array([0.5, 0.5]), np.array([0.25, 0.75])
    assert simplex.hilbert(p, q) == pytest.approx(np.log(2 / (2 / 3)))


@pytest.mark.parametrize("name", METRICS)
def test_distances_are_metrics(name: str) -> None:
    distance = simplex.METRICS[name].distance
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
    np.testing.assert_allclose(simplex.hilbert(*moved), simplex.hilbert(p, q))


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 1.0])
def test_walks_are_geodesic(name: str, share: float) -> None:
    metric = simplex.METRICS[name]
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
    found = simplex.METRICS[name].distance(p, simplex.enclosing_centre(p, simplex.METRICS[name])).max()
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
    labels, centres = simplex.cluster(p, 3, simplex.METRICS[name])
    assert len({(a, b) for a, b in zip(planted, labels, strict=True)}) == 3
    assert centres[labels].argmax(1).tolist() == tops[planted].argmax(1).tolist()
    order = rng.permutation(21)
    permuted, same = simplex.cluster(p[order], 3, simplex.METRICS[name])
    assert permuted.tolist() == labels[order].tolist()
    np.testing.assert_array_equal(same, centres)


@pytest.mark.parametrize("name", METRICS)
def test_points_that_differ_by_rounding_are_one(name: str) -> None:
    near = np.array([[0.2, 0.3, 0.5]]).repeat(5, 0) + 1e-16 * np.random.default_rng(0).normal(size=(5, 3))
    labels, centres = simplex.cluster(near, 3, simplex.METRICS[name])
    assert labels.tolist() == [0] * 5
    np.testing.assert_allclose(centres, near[:1], atol=1e-12)


def test_no_more_clusters_than_distinct_points() -> None:
    p = np.array([[0.5, 0.5], [0.9, 0.1], [0.5, 0.5], [1.0, 0.0]])
    labels, centres = simplex.cluster(p, 10, simplex.METRICS["hilbert"])
    assert len(centres) == 3
    assert labels[0] == labels[2]
    np.testing.assert_allclose(centres[labels], p, atol=1e-8)


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("seed", range(2))
def test_clusters_by_loops(name: str, seed: int) -> None:
    """Seeds by farthest-first traversal from the middle, then centres of what is nearest, until nothing moves."""
    metric, p = simplex.METRICS[name], points(13, 3, seed)
    p[:2] = [[1.0, 0.0, 0.0], [0.0, 0.4, 0.6]]

    def apart(x: np.ndarray, y: np.ndarray) -> float:
        logs = [math.log(a / b) for a, b in zip(x, y, strict=True)]
        return max(logs) - min(logs) if name == "hilbert" else sum(abs(a - b) for a, b in zip(x, y, strict=True))

    inside = [np.array([max(value, 1e-9) for value in x]) for x in p]
    inside = [x / sum(x) for x in inside]
    ranked = sorted(range(13), key=lambda k: tuple(reversed(inside[k])))  # ties and sums do not depend on the order
    middle = simplex.enclosing_centre(np.stack([inside[k] for k in ranked]), metric)
    seeds = [min(ranked, key=lambda k: apart(inside[k], middle))]
    while len(seeds) < 4:
        seeds.append(max(ranked, key=lambda k: min(apart(inside[k], inside[s]) for s in seeds)))
    centres, labels = [inside[k] for k in seeds], [-1] * 13
    for _ in range(50):
        nearest = [min(range(len(centres)), key=lambda c: apart(x, centres[c])) for x in inside]
        if nearest == labels:
            break
        labels = nearest
        members = [[inside[k] for k in ranked if labels[k] == c] for c in range(len(centres))]
        centres = [simplex.enclosing_centre(np.stack(own), metric) for own in members if own]
    found, ends = simplex.cluster(p, 4, metric)
    assert found.tolist() == labels
    np.testing.assert_allclose(ends, np.stack(centres), atol=1e-12)
    assert len(simplex.cluster(p, 13, metric)[1]) == 13


LR = 0.1
FULL: dict[str, Any] = {"epochs": 1, "batch": 50, "optimizer": OptimizerConfig(lr=LR)}


@pytest.mark.parametrize("attention", ["cosine", "distance"])
def test_without_its_pull_fedamp_is_local(attention: str) -> None:
    local = final(Local(), cohort=0.5)
    assert close(final(FedAMP(lam=0.0, attention=attention), cohort=0.5), local)
    assert gap(final(FedAMP(attention=attention, sigma=0.5), cohort=0.5), local) > 1e-4


def test_attending_to_itself_fedamp_is_a_proximal_point_method() -> None:
    """One step a round from u_i = w_i feels no pull: Local."""
    assert close(final(FedAMP(self_weight=1.0), **FULL), final(Local(), **FULL))
    assert gap(final(FedAMP(self_weight=0.5), **FULL), final(Local(), **FULL)) > 1e-4


def test_fedamp_may_leave_out_the_first_rounds_pull() -> None:
    """Until then it is Local; afterwards it is pulled from where that has come."""
    late, local = (final(FedAMP(from_round=1), rounds=1), final(Local(), rounds=1))
    assert close(late, local)
    assert gap(final(FedAMP(), rounds=1), local) > 1e-4, "several steps feel the pull to the initial model"
    assert gap(final(FedAMP(from_round=1), rounds=2), final(Local(), rounds=2)) > 1e-4
    assert close(final(FedAMP(from_round=1), **FULL), final(FedAMP(), **FULL)), "one step from u_i feels none"


def test_attention_by_hand() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.0, 2.0], [4.0, -3.0]], dtype=torch.float64)
    e = [np.exp(2 * c) for c in (0.8, 0.0, -0.6)]  # pairs 01, 02, 12
    expected = [
        [0.3, 0.7 * e[0] / (e[0] + e[1]), 0.7 * e[1] / (e[0] + e[1])],
        [0.7 * e[0] / (e[0] + e[2]), 0.3, 0.7 * e[2] / (e[0] + e[2])],
        [0.7 * e[1] / (e[1] + e[2]), 0.7 * e[2] / (e[1] + e[2]), 0.3],
    ]
    assert close(FedAMP(sigma=2.0).attend(rows), torch.tensor(expected, dtype=torch.float64))
    sigma, alpha = 20.0, 5.0
    found = FedAMP(attention="distance", sigma=sigma, alpha=alpha).attend(rows)
    others = {(0, 1): 13.0, (0, 2): 50.0, (1, 2): 41.0}
    for (i, j), squared in others.items():
        xi = alpha / sigma * np.exp(-squared / sigma)
        assert [float(found[i, j]), float(found[j, i])] == pytest.approx([xi, xi])
    assert found.sum(1).tolist() == pytest.approx([1.0] * 3)
    greedy = FedAMP(attention="distance", sigma=sigma, alpha=1e4).attend(rows)
    assert greedy.diagonal().tolist() == [0.0] * 3
    assert greedy.sum(1).tolist() == pytest.approx([1.0] * 3)


def test_two_rounds_of_fedamp_by_hand() -> None:
    """Quadratic clients, one step a round: w - lr (a_i (w - e_i) + lambda / alpha (w - u_i))."""
    lam, alpha, sigma = 3.0, 2.0, 0.7
    method = FedAMP(attention="distance", lam=lam, alpha=alpha, sigma=sigma)
    chosen = quadratic(method, (3, 4), [(10, 200), (90, 40)], [1, 2], rounds=2, **FULL)
    e, curvature = minima(chosen), torch.tensor([[1.0], [2.0]])
    w = u = initial(chosen)["head.bias"].expand(2, -1)
    for _ in range(2):
        w = w - LR * (curvature * (w - e) + lam / alpha * (w - u))
        xi = alpha / sigma * float(torch.exp(-(w[0] - w[1]).square().sum() / sigma))
        xi = min(xi, 1.0)
        u = torch.stack([(1 - xi) * w[0] + xi * w[1], (1 - xi) * w[1] + xi * w[0]])
    state = simulate(chosen)
    assert close(models(chosen, state)["head.bias"], w)
    assert close(chosen.method.send(state.server, chosen.cohort(torch.arange(2), Clock(2, 2)))["head.bias"], u)


def validated(sizes: tuple[int, ...] = FOUR, empty: tuple[int, ...] = ()) -> Federation:
    """Clients with three validation samples, but for those in `empty`."""
    data = federation(sizes)
    held = [data.sets["val"][k].numpy()[: 0 if k in empty else 3] for k in range(len(sizes))]
    data.sets["val"] = Ragged.of(held, data.device)
    return data


def loss(w: Tree, chosen: Setup, client: int) -> float:
    x, y = chosen.federation.gather(chosen.federation.validation_indices(client))
    return float(cross_entropy(logits(w, x), y))


def test_a_round_of_fedfomo_by_hand() -> None:
    """Round 1 trains alone; in round 2 each client weighs the two others."""
    method = FedFomo(M=2, epsilon=0.0)
    chosen = setup(method, validated((6, 13, 8), empty=(1,)), rounds=2, **FULL)
    data = [samples(chosen, k) for k in range(3)]

    def trained(k: int, w: Tree) -> Tree:
        return descend(lambda v: cross_entropy(logits(v, data[k][0]), data[k][1]), w, LR)

    first = [trained(k, initial(chosen)) for k in range(3)]
    P, second = np.zeros((3, 3)), []
    for i in range(3):
        for n in range(3):
            if n != i:
                apart = torch.cat([(first[n][k] - first[i][k]).flatten() for k in sorted(first[i])]).norm()
                P[i, n] = (loss(first[i], chosen, i) - loss(first[n], chosen, i)) / float(apart)
        share = np.maximum(P[i], 0) / max(np.maximum(P[i], 0).sum(), 1e-300)
        start = {k: v + sum(share[n] * (first[n][k] - v) for n in range(3)) for k, v in first[i].items()}
        second.append(trained(i, start))
    assert (P > 0).any()
    assert (P < 0).any()
    state = simulate(chosen)
    np.testing.assert_allclose(state.server["P"].numpy(), P, atol=1e-12)
    found = models(chosen, state)
    for i in range(3):
        assert close(trees.row(found, i), second[i])
    W = chosen.method.collaboration(state.server, chosen.population)
    assert W is not None
    assert close(W.sum(1), torch.ones(3, dtype=torch.float64))


def test_stacked_fedfomo_reads_the_same_validation_samples() -> None:
    chosen = setup(FedFomo(M=2), validated(empty=(1, 3)), rounds=3, cohort=0.75)
    looped, stacked = simulate(chosen), simulate(chosen, StackedTrainer(chosen, 3))
    assert close(looped.server, stacked.server)
    assert close(looped.memory, stacked.memory)
    full = setup(FedFomo(M=2), validated(), rounds=3, cohort=0.75)
    assert gap(simulate(full).server, looped.server) > 1e-6


def test_a_lone_client_is_local_and_a_client_takes_nothing_from_worse_models() -> None:
    assert close(final(FedFomo(), (9,)), final(Local(), (9,)))
    labels = [[0], [1], [2], [3]]  # nobody's model helps on another's only class
    chosen, local = (setup(each, federation(FOUR, labels=labels), rounds=3, epochs=8) for each in (FedFomo(), Local()))
    state = simulate(chosen)
    assert close(models(chosen, state), models(local, simulate(local)))
    assert float(state.server["P"].max()) <= 0


def test_the_best_known_are_sent_and_others_by_lot() -> None:
    chosen = setup(FedFomo(), federation((3,) * 6))
    P = torch.tensor([[0.0, 5.0, -1.0, 3.0, 0.0, 4.0]] + [[0.0] * 6] * 5, dtype=torch.float64)
    cohort = chosen.cohort(torch.arange(6), Clock(0, 50))
    assert sorted(FedFomo(M=3, epsilon=0.0).peers(P, cohort)[0].tolist()) == [1, 3, 5]
    for epsilon in (0.0, 1.0):
        sent = [
            tuple(
                sorted(FedFomo(M=2, epsilon=epsilon).peers(P, chosen.cohort(torch.arange(6), Clock(t, 50)))[4].tolist())
            )
            for t in range(20)
        ]
        assert len(set(sent)) > 3  # ties, and exploration, are by lot
        assert all(4 not in each and len(set(each)) == 2 for each in sent)
    explored = [
        tuple(FedFomo(M=2, epsilon=1.0, decay=0.1).peers(P, chosen.cohort(torch.arange(6), Clock(t, 50)))[0].tolist())
        for t in range(20)
    ]
    assert len(set(map(frozenset, explored[:10]))) > 1
    assert set(map(frozenset, explored[10:])) == {frozenset({1, 5})}


def test_fedfomos_graph_by_loops() -> None:
    """A row of P without what is negative, its sum one; the identity's where nothing is positive."""
    P = torch.tensor([[0.2, -1.0, 0.6, 0.0], [-1, -1, 0, -3], [5, 0, 0, 15], [0, 1e-3, -2, 0]], dtype=torch.float64)
    chosen = setup(FedFomo(M=2), federation(FOUR))
    found = chosen.method.collaboration({"P": P}, chosen.population)
    assert found is not None
    expected = [[0.25, 0, 0.75, 0], [0, 1, 0, 0], [0.25, 0, 0, 0.75], [0, 1, 0, 0]]
    assert close(found, torch.tensor(expected, dtype=torch.float64))


def test_fedfomos_traffic_is_m_models_down_and_one_up() -> None:
    chosen = setup(FedFomo(M=2), federation(FOUR), rounds=3)
    state = simulate(chosen)
    model = 8 * sum(v.numel() for v in initial(chosen).values())
    assert state.bytes_down == 3 * 4 * (2 * model + 2 * 8)
    assert state.bytes_up == 3 * 4 * (model + 2 * 8 + 2 * 8)


@pytest.mark.parametrize("similarity", ["parameters", "updates"])
def test_fedamps_cosine_attention_is_of_what_is_named_by_loops(similarity: str) -> None:
    """Xi_ij is the softmax over j of sigma cos(i, j), i apart, of models or of what they moved since the beginning."""
    method = FedAMP(attention="cosine", similarity=similarity, sigma=3.0, self_weight=0.25)
    chosen = setup(method, federation(FOUR))
    server, _ = method.init(chosen.task, chosen.population, torch.Generator().manual_seed(0))
    uploads = trees.stack([chosen.task.init(torch.Generator().manual_seed(k)) for k in range(1, 5)])
    found = method.graph(server, uploads, chosen.cohort(torch.arange(4), Clock(0, 3)))["*"]
    begin = trees.part(server, "initial") if similarity == "updates" else {}
    rows = [
        torch.cat([(uploads[name][k] - begin.get(name, 0)).flatten() for name in sorted(uploads)]).double()
        for k in range(4)
    ]
    for i in range(4):
        raised = {j: math.exp(3 * float(rows[i] @ rows[j] / rows[i].norm() / rows[j].norm())) for j in range(4)}
        others = sum(value for j, value in raised.items() if j != i)
        expected = [0.25 if j == i else 0.75 * raised[j] / others for j in range(4)]
        assert found[i].tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("corners", "points"), [(1, 5), (2, 7), (3, 6), (3, 9), (3, 10), (4, 20)])
def test_a_grid_has_as_many_points_as_are_allowed(corners: int, points: int) -> None:
    """The compositions of the largest whole number that gives no more, in the middle of their cells."""
    R = max(r for r in range(points + 1) if math.comb(r + corners - 1, corners - 1) <= points) if corners > 1 else 0
    every = itertools.product(range(R + 1), repeat=corners)
    expected = sorted([(c + 1 / corners) / (R + 1) for c in each] for each in every if sum(each) == R)
    assert sorted(simplex.grid(corners, points).tolist()) == [pytest.approx(each) for each in expected]
