"""FedEM and FedRC: one component is FedAvg, two rounds by hand, concepts are told apart."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedbench.core import trees
from fedbench.core.trees import Tree
from fedbench.data.federation import Federation
from fedbench.engine.contract import Clock
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.method import Method
from fedbench.engine.simulation import Simulation
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedem import FedEM
from fedbench.methods.fedrc import FedRC
from tests.methods.toys import (
    ONE_STEP,
    close,
    descend,
    federation,
    gap,
    logits,
    models,
    normalised,
    run,
    samples,
    setup,
    simulate,
)


def components(server: Tree) -> list[Tree]:
    """Each model of a server's."""
    whole = trees.part(server, "component")
    return [trees.row(whole, m) for m in range(len(whole["head.bias"]))]


def losses(model: Tree, x: Tensor, y: Tensor) -> Tensor:
    scores = logits(model, x)
    return scores.logsumexp(1) - scores[torch.arange(len(y)), y]


# ---- limits


@pytest.mark.parametrize("method", [FedEM(components=1), FedRC(components=1)])
def test_one_component_is_fedavg(method: Method) -> None:
    chosen, state = run(method, cohort=0.75)
    fedavg = run(FedAvg(), cohort=0.75)[1].server
    common = method.common(state.server, chosen.task)
    assert common is not None
    assert close(common, fedavg)
    x, _ = samples(chosen, 1)
    shown = method.predict(trees.row(models(chosen, state), 1), x, chosen.task)
    assert close(shown, logits(fedavg, x).log_softmax(1))
    assert FedEM(components=2).common(state.server, chosen.task) is None


def test_with_uniform_labels_fedrc_is_fedem() -> None:
    """In the first round P is; after it, it is not."""
    fedem, fedrc = (run(method, rounds=1, cohort=0.75)[1] for method in (FedEM(), FedRC()))
    assert close({k: fedrc.server[k] for k in fedem.server}, fedem.server)
    assert close(fedrc.memory["pi"], fedem.memory["pi"])
    later = [run(method, rounds=2)[1].memory["pi"] for method in (FedEM(), FedRC())]
    assert not close(*later, 1e-4)


@pytest.mark.parametrize("method", [FedEM(), FedRC()])
def test_equal_components_stay_equal(method: Method) -> None:
    chosen = setup(method)
    simulation = Simulation(chosen, LoopedTrainer(chosen))
    state = simulation.begin()
    for name, leaf in trees.part(state.server, "component").items():
        state.server[f"component/{name}"] = leaf[:1].expand(leaf.shape).clone()
    for _ in range(2):
        simulation.step(state)
    first, *others = components(state.server)
    assert all(close(first, other) for other in others)
    assert close(state.memory["pi"], torch.full((5, 3), 1 / 3), 1e-6)


def test_a_client_without_samples_of_a_cluster_does_not_move_its_model() -> None:
    """pi one-hot: q is 0 for the others, whose models stay as they are."""
    chosen = setup(FedEM(components=2), federation((9,)), **ONE_STEP)
    simulation = Simulation(chosen, LoopedTrainer(chosen))
    state = simulation.begin()
    before = components(trees.clone(state.server))
    state.memory.put(torch.tensor([0]), {"pi": torch.tensor([[0.0, 1.0]], dtype=torch.float64)})
    simulation.step(state)
    after = components(state.server)
    assert close(after[0], before[0], 1e-14)
    assert gap(after[1], before[1]) > 1e-3
    assert state.memory["pi"].tolist() == [[0.0, 1.0]]


# ---- by hand


@pytest.mark.parametrize("kind", [FedEM, FedRC])
def test_two_rounds_by_hand(kind: type[FedEM]) -> None:
    """Two steps a round on q loss, q of the received models; pi and (FedRC) shares of labels from q."""
    lr, sizes = 0.2, (6, 9)
    chosen = setup(kind(components=2), federation(sizes), **{**ONE_STEP, "rounds": 2, "epochs": 2})
    theta = components(trees.clone(Simulation(chosen, LoopedTrainer(chosen)).begin().server))
    pi = torch.full((2, 2), 0.5, dtype=torch.float64)
    share = torch.full((2, 4), 0.25, dtype=torch.float64)  # P_m(y)
    for _ in range(2):
        mass = torch.zeros(2, 4, dtype=torch.float64)
        trained: list[list[Tree]] = []
        for k in (0, 1):
            x, y = samples(chosen, k)
            odds = [pi[k, m] * (-losses(theta[m], x, y)).exp() for m in (0, 1)]
            if kind is FedRC:
                odds = [odds[m] / share[m, y] for m in (0, 1)]
            q = [each / sum(odds) for each in odds]
            pi[k] = torch.stack([each.mean() for each in q])
            for m in (0, 1):
                mass[m].index_add_(0, y, q[m])

            def weighted(w: Tree, q: Tensor, x: Tensor = x, y: Tensor = y) -> Tensor:
                return (q * losses(w, x, y)).mean()

            moved = []
            for m in (0, 1):
                w = theta[m]
                for _ in range(2):
                    w = descend(lambda v, q=q[m]: weighted(v, q), w, lr)  # type: ignore[misc]
                moved.append(w)
            trained.append(moved)
        theta = [{n: (6 * trained[0][m][n] + 9 * trained[1][m][n]) / 15 for n in theta[m]} for m in (0, 1)]
        mass = mass.clamp(min=1e-8)
        share = mass / mass.sum(1, keepdim=True)
    state = simulate(chosen)
    assert close(state.memory["pi"], pi, 1e-6)  # its first value is in single precision
    assert all(close(found, expected, 1e-6) for found, expected in zip(components(state.server), theta, strict=True))
    assert float((pi - 0.5).abs().min()) > 1e-3
    x, _ = samples(chosen, 1)
    shown = chosen.method.predict(trees.row(models(chosen, state), 1), x, chosen.task)
    expected = sum(pi[1, m] * logits(theta[m], x).softmax(1) for m in (0, 1))
    assert close(shown.exp(), torch.as_tensor(expected), 1e-6)
    if kind is FedRC:
        message = chosen.method.send(state.server, chosen.cohort(torch.tensor([0]), Clock(2, 2)))
        assert close(message["labels"][0], share, 1e-6)


def test_damped_averages_count_those_that_stayed_away() -> None:
    """Two clients of three are drawn: the third counts with the models of before."""
    sizes = (6, 9, 5)
    plain, damped = (
        setup(FedEM(components=2, damped=damped), federation(sizes), cohort=0.67, **ONE_STEP)
        for damped in (False, True)
    )
    before = trees.clone(Simulation(plain, LoopedTrainer(plain)).begin().server)
    moved, held = simulate(plain).server, simulate(damped).server
    drawn = plain.draw_cohort(Clock(0, 1))
    share = sum(sizes[k] for k in drawn.tolist()) / sum(sizes)
    assert len(drawn) == 2
    assert close(held, {k: (1 - share) * before[k] + share * moved[k] for k in before})
    assert gap(held, moved) > 1e-3


def test_statistics_of_each_component_are_its_own() -> None:
    chosen = normalised(FedEM(components=2), rounds=1)
    first, second = components(simulate(chosen).server)
    names = [name for name in first if chosen.task.is_buffer(name)]
    assert names
    for name in names:
        assert not close(first[name], chosen.task.init(torch.Generator())[name], 1e-3)
        assert not close(first[name], second[name], 1e-6)


# ---- what a mixture is for

PLANTED = [0, 1, 0, 1, 1, 0]


def permuted() -> Federation:
    """The second group's labels are those of the first in reverse."""
    data = federation([40] * 6)
    for k, group in enumerate(PLANTED):
        if group:
            own = torch.cat([data.indices(name, k) for name in ("train", "val", "local")])
            data.y[own] = 3 - data.y[own]
    return data


def first_share(method: Method, data: Federation) -> Tensor:
    """The weight of one of two components on each client, after twenty short rounds."""
    return run(method, data, rounds=20, epochs=None, iterations=10, eval_every=99)[1].memory["pi"][:, 0]


@pytest.mark.parametrize("method", [FedEM(components=2), pytest.param(FedRC(components=2), marks=pytest.mark.slow)])
def test_concepts_are_told_apart(method: Method) -> None:
    shares = first_share(method, permuted())
    assert shares.gt(0.5).int().tolist() in (PLANTED, [1 - group for group in PLANTED])
    assert float((shares - 0.5).abs().min()) > 0.4


@pytest.mark.slow
def test_shares_of_labels_part_clients_under_fedem_and_not_under_fedrc() -> None:
    data = federation([40] * 6, labels=[[0, 1] if g == 0 else [2, 3] for g in PLANTED])
    parted, together = (first_share(method, data) for method in (FedEM(components=2), FedRC(components=2)))
    assert parted.gt(0.5).int().tolist() in (PLANTED, [1 - group for group in PLANTED])
    assert float((parted - 0.5).abs().min()) > 0.4
    assert float(together.max() - together.min()) < 0.1
