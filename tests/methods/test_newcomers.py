"""Clients that no round met, of methods with groups: each rule by hand, and planted groups are joined."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from fedbench.config.schema import LocalConfig, OptimizerConfig
from fedbench.core import trees
from fedbench.core.batch import Batch
from fedbench.core.rng import torch_rng
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Clock, Stage
from fedbench.engine.method import Method
from fedbench.engine.newcomers import Newcomers
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import State
from fedbench.methods.cfl import CFL
from fedbench.methods.fedcollab import distances
from fedbench.methods.fedcollab.distances import DiscriminatorConfig
from fedbench.methods.fedcollab.fedcollab import FedCollab
from fedbench.methods.fesem import FeSEM
from fedbench.methods.flux import FLUX
from fedbench.methods.ifca import IFCA
from fedbench.methods.kmeans import KMeans
from fedbench.methods.pacfl import PACFL
from fedbench.methods.per_kind import PerKind
from fedbench.testing.checks import everything
from tests.helpers.tiers import sampled
from tests.methods.games import by_loops
from tests.methods.literal import Literal, literal_accuracy, literal_round
from tests.methods.test_histories import flat, loss_on
from tests.methods.toys import (
    ONE_STEP,
    close,
    descend,
    disjoint,
    federation,
    models,
    permuted,
    samples,
    setup,
    simulate,
    steps,
)

PLANTED = [0, 1, 0, 1, 1, 0, 1, 0, 1]  # groups, of which the last three clients are unseen
SIZES = (9, 13, 8, 21, 10, 7, 11)  # the last two are
LABELS = [[0, 1], [0], [2, 3], [3], [2, 3], [0, 1], [2]]
STEP: dict[str, Any] = {**ONE_STEP, "rounds": 4}


def met(whole: Setup) -> tuple[Newcomers, State, list[int]]:
    """Who came, the state of the others, and in which groups those are who came."""
    newcomers, state = Newcomers(whole, whole.seen), simulate(whole.seen)
    return newcomers, state, joined(newcomers, state)


def joined(newcomers: Newcomers, state: State) -> list[int]:
    found = newcomers._joined(state, Clock(state.round, state.round))["coalition"]
    assert torch.equal(found[: newcomers.ids[0]], state.server["coalition"])
    return found[newcomers.ids].tolist()


def received(newcomers: Newcomers, state: State) -> list[Tree]:
    """The models that they get."""
    clock = Clock(state.round, state.round)
    views = newcomers._views(state, clock, newcomers._joined(state, clock), lend=False)
    return [newcomers.whole.method.personal(view) for view in views]


CONFIG = DiscriminatorConfig(hidden=8, rounds=60, lr=0.5)
BY_MODELS = [
    IFCA(k=2),
    KMeans(k=2),
    FeSEM(k=2, pretrain_rounds=3),
    CFL(eps1=0.3, eps2=0.3, gamma_max=0.6),
    PerKind(base={"name": "kmeans", "k": 2}),
]
BY_SAMPLES = [
    FLUX(cluster_round=1, eps_scale=1.5),
    FedCollab(C=1.0, restarts=5, discriminator=CONFIG),
    PACFL(p=1, threshold=10.0),
]


@pytest.mark.parametrize(
    ("method", "data"),
    sampled(
        [
            *itertools.product(BY_MODELS, (disjoint, permuted)),
            *itertools.product(BY_SAMPLES, (disjoint,)),  # which look at pixels, and at labels apart from these
        ],
        every=3,
    ),
)
def test_they_get_the_model_of_their_own_group_and_change_nothing(method: Method, data: Any) -> None:
    whole = setup(method, data(PLANTED), rounds=6, epochs=2, unseen=3, optimizer=OptimizerConfig(lr=0.1))
    newcomers, state = Newcomers(whole, whole.seen), simulate(whole.seen)
    before, given = trees.clone(everything(state)), models(whole.seen, state)
    for group, model in zip(PLANTED[6:], received(newcomers, state), strict=True):
        assert close(model, trees.row(given, PLANTED.index(group)), 0)
        assert not close(model, trees.row(given, PLANTED.index(1 - group)), 1e-3)
    found = newcomers.score(state)
    assert (found.note, set(found.tallies)) == ("", {"received", "1", "5"})
    assert close(everything(state), before, 0)


@pytest.mark.parametrize("method", [KMeans(k=2), *BY_SAMPLES[:2]])
def test_who_else_comes_does_not_matter(method: Method) -> None:
    whole = setup(method, disjoint(PLANTED), rounds=2, unseen=3)
    newcomers, state, together = met(whole)
    for client, group in zip(newcomers.ids.tolist(), together, strict=True):
        newcomers.ids = torch.tensor([client])
        alone = newcomers._joined(state, Clock(2, 2))["coalition"]
        assert alone[client] == group


def test_coalitions_in_coalitions_have_no_place_for_them() -> None:
    method = FedCollab(base={"name": "kmeans", "k": 2}, C=1.0, restarts=5, discriminator=CONFIG)
    whole = setup(method, disjoint(PLANTED), rounds=1, unseen=3)
    found = Newcomers(whole, whole.seen).score(simulate(whole.seen))
    assert (found.note, found.tallies) == ("the server keeps no state for new clients", {})


def test_one_whose_visit_diverges_does_not_end_the_run() -> None:
    class Exploding(KMeans):
        def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
            return (Stage(self.loss),)

        def loss(self, work: Tree, client: Client, batch: Batch) -> torch.Tensor:
            return super().loss(work, client, batch) * (torch.inf if int(client.size) == SIZES[6] else 1)

    whole = setup(Exploding(k=2), federation(SIZES, labels=LABELS), rounds=1, unseen=2)
    found = Newcomers(whole, whole.seen).score(simulate(whole.seen))
    assert found.note.startswith("the server cannot prepare new clients: training diverged in round 1 on client 6")
    assert found.tallies == {}


# ---- rules by hand


def test_the_least_training_loss() -> None:
    """IFCA's."""
    whole = setup(IFCA(k=3), federation(SIZES, labels=LABELS), **STEP, unseen=2)
    newcomers, state = Newcomers(whole, whole.seen), simulate(whole.seen)
    for client, model in zip((5, 6), received(newcomers, state), strict=True):
        losses = [float(loss_on(samples(whole, client))(trees.row(state.server, j))) for j in range(3)]
        assert close(model, trees.row(state.server, int(np.argmin(losses))), 0)


@pytest.mark.parametrize("method", [KMeans, FeSEM])
def test_the_model_to_which_it_stays_nearest(method: type[KMeans | FeSEM]) -> None:
    """By all weights, or by the classifier's alone, which say different things of some of nine clients."""
    labels = [*LABELS[:5], *([c] for c in range(4)), [0, 3], [1, 2], [0, 2], [1, 3], [0, 1, 2, 3]]
    by: dict[str, list[int]] = {}
    for compared, names in (("*", ("head", "fc")), ("@head", ("head",))):
        data = federation((*SIZES[:5], *range(6, 15)), labels=labels)
        whole = setup(method(k=3, compared=(compared,)), data, **STEP, unseen=9)
        _, state, by[compared] = met(whole)
        for client, group in zip(range(5, 14), by[compared], strict=True):
            apart = []
            for k in range(3):
                centre = trees.row(trees.part(state.server, "base"), k)
                model = descend(loss_on(samples(whole, client)), centre, 0.2)
                apart.append(sum(float((model[n] - centre[n]).square().sum()) for n in centre if n.startswith(names)))
            assert group == int(np.argmin(apart))
    assert by["*"] != by["@head"]


@pytest.mark.parametrize("uniform", [False, True])
def test_down_the_tree_of_cuts(uniform: bool) -> None:
    """A cut a round; models before it and updates are followed by hand, and so is where a new client's update leads."""
    method = CFL(eps1=10.0, eps2=1e-3, uniform=uniform)
    data = federation((*SIZES, 12, 6), labels=[*LABELS, [0], [3]])
    whole = setup(method, data, **STEP, unseen=4)
    simulation, state = steps(whole.seen, 0)
    cuts: list[tuple[int, Tree, list[np.ndarray]]] = []
    for _ in range(4):
        before, models_before = state.server["coalition"].tolist(), trees.part(state.server, "base")
        simulation.step(state)
        after = state.server["coalition"].tolist()
        for new in sorted({*after} - {*before}):
            (old,) = {before[k] for k in range(5) if after[k] == new}
            model = trees.row(models_before, old)
            halves = []
            for side in (old, new):
                members = [k for k in range(5) if before[k] == old and after[k] == side]
                weights = [1 if uniform else SIZES[k] for k in members]
                updates = [flat(descend(loss_on(samples(whole, k)), model, 0.2)) - flat(model) for k in members]
                halves.append(sum(w * d for w, d in zip(weights, updates, strict=True)) / sum(weights))
            cuts.append((old, model, halves))
    assert len(cuts) > 2
    newcomers = Newcomers(whole, whole.seen)
    found, expected = joined(newcomers, state), []
    for (_, _, halves), way in zip(cuts, state.server["cut/way"].numpy(), strict=True):
        stay, leave = (half / np.linalg.norm(half) for half in halves)
        np.testing.assert_allclose(way, leave - stay, atol=1e-6)
    for client in range(5, 9):
        place = 0
        for s, (old, model, halves) in enumerate(cuts):
            d = flat(descend(loss_on(samples(whole, client)), model, 0.2)) - flat(model)
            stay, leave = (d @ half / np.linalg.norm(half) for half in halves)
            if place == old and leave > stay:
                place = s + 1
        expected.append(place)
    assert found == expected
    assert len(set(found)) > 2


@pytest.mark.parametrize("linkage", ["average", "maximum", "minimum"])
def test_the_nearest_cluster_by_the_linkage(linkage: str) -> None:
    """Angles by loops to all that are known, of which each cluster's mean, largest or smallest counts."""
    data = federation((*SIZES, 12, 6), labels=[*LABELS, [0], [1, 3]])
    probe, bases = setup(PACFL(), data), []
    for k in range(9):
        x, y = samples(probe, k)
        pixels = (x.flatten(1) * 0.25 + 0.5).numpy()
        bases.append(np.stack([np.linalg.svd(pixels[y.numpy() == c])[2][0] for c in np.unique(y)], axis=1))
    apart = np.array([[np.degrees(np.arccos(min(1.0, np.abs(a.T @ b).max()))) for b in bases] for a in bases])
    threshold = float(np.median(apart[:5, :5][np.triu_indices(5, 1)])) / 2
    _, state, found = met(setup(PACFL(p=1, threshold=threshold, linkage=linkage), data, **STEP, unseen=4))
    coalition = state.server["coalition"].numpy()
    assert 1 < len({*coalition}) < 5
    of = {"average": np.mean, "maximum": np.max, "minimum": np.min}[linkage]
    for client, group in zip(range(5, 9), found, strict=True):
        assert group == np.argmin([of(apart[client, :5][coalition == c]) for c in range(coalition.max() + 1)])
    assert len({*found}) > 1


@pytest.mark.parametrize("C", [0.3, 3.0])
def test_the_coalition_that_minimises_eq_10(C: float) -> None:
    """Discriminators of a new client and each of the others by loops; Eq. 10 over the coalitions that there are."""
    config = DiscriminatorConfig(hidden=6, rounds=10, lr=0.5, batch=50)
    method = FedCollab(C=C, restarts=40, discriminator=config)
    whole = setup(method, federation(SIZES, labels=LABELS), **STEP, unseen=2)
    _, state, found = met(whole)
    assert len({*state.server["coalition"].tolist()}) > 1
    weights = distances.initial(16, 4, 6, torch_rng(0, "discriminator weights"))
    for client, group in zip((5, 6), found, strict=True):
        own = [samples(whole, k) for k in (*range(5), client)]
        x, y = torch.cat([x.flatten(1) * 0.25 + 0.5 for x, _ in own]), torch.cat([y for _, y in own])
        rows = list(torch.arange(len(y)).split([len(y) for _, y in own]))
        m = min(map(len, rows)) // 2
        D = np.zeros((6, 6))
        D[:5, :5] = state.arrays["distances"]
        for i in range(5):
            (a, left), (b, right) = (distances.split(rows[k], y, m, 0, k) for k in (i, 5))
            model = Literal(weights).double()
            for _ in range(10):
                literal_round(model, (a, b), x, y, 0.5)
            D[i, 5] = D[5, i] = max(0.0, 2 * literal_accuracy(model, (left, right), x, y) - 1)
        n = np.array([*SIZES[:5], SIZES[client]], dtype=float)
        known = state.server["coalition"].tolist()
        values = [by_loops([*known, c], n, D, C) for c in range(max(known) + 1)]
        assert group == int(np.argmin(values))
