"""FedEM and FedRC: limits, statistics, concepts that are told apart."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedbench.config.schema import OptimizerConfig
from fedbench.core import trees
from fedbench.core.trees import Tree
from fedbench.data.federation import Federation
from fedbench.engine.contract import Clock
from fedbench.engine.method import Method
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedem import FedEM
from fedbench.methods.fedrc import FedRC
from tests.methods.toys import (
    close,
    disjoint,
    federation,
    logits,
    models,
    normalised,
    permuted,
    run,
    samples,
    setup,
    simulate,
)


def components(server: Tree) -> list[Tree]:
    """Each model of a server's."""
    whole = trees.part(server, "component")
    return [trees.row(whole, m) for m in range(len(whole["head.bias"]))]


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


def test_shares_of_rare_labels_by_hand() -> None:
    """A sum below 1 counts as it is; a label that no client has counts 1e-8."""
    chosen = setup(FedRC(components=1), federation((2, 3)))
    labels = torch.tensor([[[0.25, 1.0, 0.0, 1.0]], [[0.25, 0.5, 0.0, 1.0]]], dtype=torch.float64)
    sent = chosen.method.send({"labels": labels}, chosen.cohort(torch.tensor([1]), Clock(1, 2)))["labels"]
    expected = torch.tensor([0.5, 1.5, 1e-8, 2.0], dtype=torch.float64) / (4 + 1e-8)
    assert close(sent, expected.view(1, 1, 4), 1e-15)


@pytest.mark.parametrize("method", [FedEM(components=2), FedRC(components=2)])
def test_weight_decay_leaves_what_the_e_step_found(method: Method) -> None:
    """Weights are means of shares, and sums of shares by label count each sample once."""
    chosen, state = run(method, rounds=1, optimizer=OptimizerConfig(lr=0.1, weight_decay=0.5))
    assert close(state.memory["pi"].sum(1), torch.ones(4, dtype=torch.float64))
    if isinstance(method, FedRC):
        assert close(state.server["labels"].sum(1), chosen.population.label_counts)
    plain = run(method, rounds=1, optimizer=OptimizerConfig(lr=0.1))[1]
    assert close(state.memory["pi"], plain.memory["pi"])
    assert not close(components(state.server)[0], components(plain.server)[0], 1e-3)


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


def first_share(method: Method, data: Federation) -> Tensor:
    """The weight of one of two components on each client, after twenty short rounds."""
    return run(method, data, rounds=20, epochs=None, iterations=10, eval_every=99)[1].memory["pi"][:, 0]


@pytest.mark.slow
@pytest.mark.parametrize("method", [FedEM(components=2), pytest.param(FedRC(components=2), marks=pytest.mark.slow)])
def test_concepts_are_told_apart(method: Method) -> None:
    shares = first_share(method, permuted(PLANTED, 40))
    assert shares.gt(0.5).int().tolist() in (PLANTED, [1 - group for group in PLANTED])
    assert float((shares - 0.5).abs().min()) > 0.4


@pytest.mark.slow
def test_shares_of_labels_part_clients_under_fedem_and_not_under_fedrc() -> None:
    data = disjoint(PLANTED, 40)
    parted, together = (first_share(method, data) for method in (FedEM(components=2), FedRC(components=2)))
    assert parted.gt(0.5).int().tolist() in (PLANTED, [1 - group for group in PLANTED])
    assert float((parted - 0.5).abs().min()) > 0.4
    assert float(together.max() - together.min()) < 0.1
