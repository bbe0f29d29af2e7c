"""FedProto and FedDistill: limits, one round and one loss by hand, what crosses the network."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fedbench.config.schema import OptimizerConfig
from fedbench.core import trees
from fedbench.core.errors import ConfigError, UnknownName
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.engine.method import Method
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import State
from fedbench.methods.feddistill import FedDistill
from fedbench.methods.fedproto import ClassMeans, FedProto
from fedbench.methods.local import Local
from tests.methods.toys import (
    close,
    cross_entropy,
    descend,
    features,
    federation,
    gap,
    initial,
    logits,
    models,
    samples,
    setup,
    simulate,
)

SIZES = (6, 13, 8)
LABELS = [[0, 1], [1, 2], [1]]  # class 3 is nobody's, class 0 the first client's alone
METHODS = [FedProto(), FedDistill(), FedDistill(distance="mse", own=True)]
WHOLE = {"rounds": 1, "epochs": 1, "batch": 50, "optimizer": OptimizerConfig(lr=0.1)}


def run(method: Method, **options: object) -> tuple[Setup, State]:
    chosen = setup(method, federation(SIZES, labels=LABELS), **options)  # type: ignore[arg-type]
    return chosen, simulate(chosen)


def values(method: ClassMeans, w: Tree, x: Tensor) -> Tensor:
    return features(w, x) if isinstance(method, FedProto) else logits(w, x)


def pull(method: ClassMeans, w: Tree, x: Tensor, target: Tensor) -> Tensor:
    """Of one sample towards the mean of its class."""
    own = values(method, w, x.unsqueeze(0))[0]
    if isinstance(method, FedDistill) and method.distance == "cross_entropy":
        return -(target.softmax(0) * own.log_softmax(0)).sum()
    return functional.mse_loss(own, target)


def mean_by_loops(method: ClassMeans, chosen: Setup, state: State, receiver: int) -> dict[int, Tensor]:
    """What `receiver` is sent: {class: mean}, from the clients' models and data alone."""
    found = {}
    for label in range(4):
        means, sizes = [], []
        for k in range(3):
            x, y = samples(chosen, k)
            others = isinstance(method, FedProto) or method.own or k != receiver
            if others and bool((y == label).any()):
                means.append(values(method, trees.row(state.memory, k), x[y == label]).mean(0))
                sizes.append(int((y == label).sum()))
        if means:
            weighted = isinstance(method, FedProto) and method.weighting == "samples"
            shares = [n / sum(sizes) for n in sizes] if weighted else [1 / len(sizes)] * len(sizes)
            found[label] = sum((s * m for s, m in zip(shares, means, strict=True)), torch.zeros(()))
    return found


@pytest.mark.parametrize("method", [FedProto(lam=0.0, inference="head"), FedDistill(lam=0.0)])
def test_without_its_pull_every_client_is_alone(method: Method) -> None:
    local = run(Local())
    assert close(models(*run(method)), models(*local))


@pytest.mark.parametrize("method", METHODS)
def test_the_pull_changes_models_from_the_second_round(method: Method) -> None:
    for rounds, moved in ((1, False), (2, True)):
        found, local = run(method, rounds=rounds)[1].memory, run(Local(), rounds=rounds)[1].memory
        assert (gap(found, local) > 1e-4) is moved


@pytest.mark.parametrize("method", [*METHODS, FedProto(weighting="clients")])
def test_clients_receive_the_means_of_the_others_classes(method: ClassMeans) -> None:
    chosen, state = run(method, rounds=1)
    message = method.send(state.server, chosen.cohort(torch.arange(3), Clock(1, 1)))
    for k in range(3):
        expected = mean_by_loops(method, chosen, state, k)
        assert message["classes/present"][k].nonzero().flatten().tolist() == sorted(expected)
        for label, mean in expected.items():
            assert close(message["classes/means"][k, label], mean)
    if isinstance(method, FedDistill) and not method.own:
        assert not bool(message["classes/present"][0, 0]), "nobody else has class 0"


@pytest.mark.parametrize("method", METHODS)
def test_the_second_round_by_hand(method: ClassMeans) -> None:
    """One full-batch step on CE, means of what it made, one step on CE + lam * mean pull (0 without a mean)."""
    lam = 1.0
    chosen, first = run(method, **WHOLE)
    _, second = run(method, **{**WHOLE, "rounds": 2})
    for k in range(3):
        x, y = samples(chosen, k)
        once = descend(lambda w, x=x, y=y: cross_entropy(logits(w, x), y), initial(chosen), 0.1)
        assert close(trees.row(first.memory, k), once)
        targets = mean_by_loops(method, chosen, first, k)

        def loss(w: Tree, x: Tensor = x, y: Tensor = y, targets: dict[int, Tensor] = targets) -> Tensor:
            pulls = [
                pull(method, w, one, targets[int(label)])
                for one, label in zip(x, y, strict=True)
                if int(label) in targets
            ]
            return cross_entropy(logits(w, x), y) + lam * trees.sum_of(pulls) / len(y)

        assert close(trees.row(second.memory, k), descend(loss, once, 0.1))


def test_a_client_that_is_away_still_counts() -> None:
    chosen = setup(FedProto(), federation(SIZES, labels=LABELS), rounds=4, cohort=0.34)
    state = simulate(chosen)
    assert chosen.protocol.cohort_size(3) == 1
    seen = {int(chosen.draw_cohort(clock)[0]) for clock in (Clock(t, 4) for t in range(4))}
    counted = {k for k in range(3) if float(state.server["counts"][k].sum()) == SIZES[k]}
    assert len(seen) > 1
    assert counted == seen


def test_prediction_is_the_nearest_prototype() -> None:
    chosen, state = run(FedProto())
    personal = trees.row(models(chosen, state), 1)
    x, _ = samples(chosen, 0)
    scores = chosen.method.predict(personal, x, chosen.task)
    for one, score in zip(features(personal, x), scores, strict=True):
        gaps = [float((one - personal["classes/means"][c]).norm()) for c in range(3)]
        assert int(score.argmax()) == gaps.index(min(gaps)), "class 3 has no prototype"
    untrained = trees.row(models(chosen, simulate(setup(FedProto(), federation(SIZES), rounds=1, cohort=0.34))), 1)
    untrained["classes/present"] = torch.zeros(4, dtype=torch.bool)
    assert close(chosen.method.predict(untrained, x, chosen.task), logits(untrained, x))
    by_head = setup(FedProto(inference="head"), federation(SIZES)).method
    assert close(by_head.predict(personal, x, chosen.task), logits(personal, x))


def test_only_class_means_cross_the_network() -> None:
    for method, width in ((FedProto(), 7), (FedDistill(), 4)):
        _, state = run(method, rounds=1)
        assert state.bytes_up == 3 * 8 * 4 * (width + 1)
        assert state.bytes_down == 3 * 4 * (8 * width + 1)


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(UnknownName, match="samples"):
        FedProto(weighting="sample")
    with pytest.raises(UnknownName, match="mse"):
        FedDistill(distance="msee")
    with pytest.raises(ConfigError, match="lam"):
        FedDistill(lam=-1.0)
