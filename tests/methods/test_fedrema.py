"""FedReMa beside its rounds: the critical period, segmentation, training in turn, its authors' variants."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fedbench.config import compose
from fedbench.config.schema import OptimizerConfig
from fedbench.core import trees
from fedbench.core.errors import ConfigError
from fedbench.engine.contract import Clock
from fedbench.methods import fedrema
from fedbench.methods.fedrema import FedReMa, overwritten_in_turn
from fedbench.models.small import FedReMaAlexNet, LeNet5
from fedbench.runs.config import resolve
from tests.methods.toys import (
    FOUR,
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

HEAD = ("@head",)


# ---- the critical period


def test_the_record_counts_the_rounds_of_the_period() -> None:
    always = setup(FedReMa(ccp=False, classifier=HEAD), federation(FOUR), rounds=3)
    assert FedReMa().record(simulate(always).server)["ccp_rounds"].tolist() == [3] * len(FOUR)
    once = setup(FedReMa(delta=1.0, classifier=HEAD), federation(FOUR), rounds=3)
    assert FedReMa().record(simulate(once).server)["ccp_rounds"].tolist() == [1] * len(FOUR)


def test_the_period_ends_for_good_when_gaps_fall_to_delta_of_the_largest() -> None:
    method, chosen = FedReMa(delta=0.5), setup(FedReMa(), federation(FOUR))
    cohort = chosen.cohort(torch.arange(4), Clock(0, 5))
    server, _ = method.init(chosen.task, chosen.population, torch.Generator().manual_seed(0))
    everyone = torch.ones(4, 4, dtype=torch.bool)
    expected = [(0.0, True), (0.4, True), (0.8, True), (0.41, True), (0.4, False)]
    for mean, on in expected:
        gaps = torch.tensor([mean, mean + 0.1, mean - 0.1, mean], dtype=torch.float64)
        server.update(method._period(server, everyone, gaps, cohort))
        assert bool(server["period/on"]) is on
    assert float(server["period/largest"]) == pytest.approx(0.8)
    assert bool((server["chosen"] == 5).all())
    always = FedReMa(delta=0.5, ccp=False)
    assert bool(always._period(server, everyone, torch.full((4,), 0.1), cohort)["period/on"])


# ---- segmentation


@pytest.mark.parametrize(
    ("row", "last_gap", "keep_below", "kept", "gap_found"),
    [
        ([0.9, 0.1, 1.0, 0.8, 0.2], True, True, [0, 2, 3, 4], 0.6),
        ([0.9, 0.1, 1.0, 0.8, 0.2], True, False, [0, 2, 3], 0.6),
        ([0.1, 0.3, 0.15, 1.0], True, True, [1, 3], 0.7),
        ([0.1, 0.3, 0.15, 1.0], True, False, [3], 0.7),
        ([0.1, 0.3, 0.15, 1.0], False, False, [1, 3], 0.15),
        ([0.1, 0.3, 0.15, 1.0], False, True, [1, 2, 3], 0.15),
        ([0.4, 1.0], False, False, [0, 1], 0.0),
        ([1.0], True, True, [0], 0.0),
    ],
)
def test_segmentation_by_hand(
    row: list[float], last_gap: bool, keep_below: bool, kept: list[int], gap_found: float
) -> None:
    S = torch.tensor([row, row[::-1]], dtype=torch.float64)
    chosen, gaps = fedrema.segment(S, last_gap, keep_below)
    assert chosen[0].nonzero().flatten().tolist() == kept
    assert chosen[1].flip(0).nonzero().flatten().tolist() == kept
    assert gaps.tolist() == pytest.approx([gap_found] * 2)


def test_the_classifier_is_the_last_stages() -> None:
    lenet = LeNet5().task((1, 16, 16), 4)
    assert fedrema.classifier_stage(lenet, ("@classifier",)) == "fc"
    assert fedrema.classifier_stage(lenet, HEAD) == "head"
    for wrong in (("conv.*",), ("head.weight",), ("fc.*",), ()):
        with pytest.raises(ConfigError, match="last stages"):
            fedrema.classifier_stage(lenet, wrong)


# ---- local steps of the variants


LR = 0.1
FULL: dict[str, Any] = {"epochs": 1, "batch": 50, "optimizer": OptimizerConfig(lr=LR)}


def test_alternate_training_moves_the_classifier_then_the_extractor() -> None:
    method = FedReMa(alternate=True, classifier=HEAD, classifier_epochs=2)
    chosen = setup(method, federation((9,)), rounds=1, **FULL)
    x, y = samples(chosen, 0)
    w = initial(chosen)
    for moves in (("head",), ("head",), ("fc",)):
        w = descend(lambda v: cross_entropy(logits(v, x), y), w, LR, moves)
    assert close(trees.row(models(chosen, simulate(chosen)), 0), w)


def test_batch_normalisation_is_shared_with_the_extractor() -> None:
    data = federation(FOUR, (1, 16, 16))
    chosen = setup(FedReMa(), data, LeNet5(batch_norm=True), rounds=2, epochs=1)
    received = models(chosen, simulate(chosen))
    for name in chosen.task.groups["@norm"]:
        assert close(received[name][0], received[name][3])
    assert not close(received["fc.0.weight"][0], received["fc.0.weight"][3], 1e-6)


# FedReMa as its authors' code trains: classifiers overwritten in turn, whole batches.


def test_overwritten_classifiers_are_mixed_again() -> None:
    """The code's loop: a client's mixture is written over its model before the next one is made."""
    generator = torch.Generator().manual_seed(0)
    W = torch.rand(4, 4, generator=generator, dtype=torch.float64)
    W /= W.sum(1, keepdim=True)
    heads = list(torch.rand(4, 3, generator=generator, dtype=torch.float64))
    before = torch.stack(heads)
    for client in range(4):
        heads[client] = sum(w * head for w, head in zip(W[client], heads, strict=True))  # type: ignore[assignment]
    assert close(overwritten_in_turn(W) @ before, torch.stack(heads))
    assert close(overwritten_in_turn(W).sum(1), torch.ones(4, dtype=torch.float64))
    chosen = [setup(FedReMa(in_turn=turn), federation((6, 13, 8)), rounds=1) for turn in (False, True)]
    assert gap(*(models(each, simulate(each)) for each in chosen)) > 1e-6


def test_alexnet_of_the_code_is_linear_between_its_pools() -> None:
    """conv3 to conv5, and the three linear layers, are one affine map each."""
    task = FedReMaAlexNet(activations="code").task((3, 32, 32), 10)
    assert sum(isinstance(module, nn.ReLU) for module in task.fresh().modules()) == 3
    text = FedReMaAlexNet().task((3, 32, 32), 10)
    assert sum(isinstance(module, nn.ReLU) for module in text.fresh().modules()) == 7
    model = task.init(torch.Generator().manual_seed(0))
    a, b = torch.randn(2, 1, 2304, generator=torch.Generator().manual_seed(1)).unbind()
    whole = task.apply(model, (a + b) / 2, since="fc")
    assert close(whole, (task.apply(model, a, since="fc") + task.apply(model, b, since="fc")) / 2, 1e-5)
    assert sum(leaf.numel() for leaf in model.values()) == 3_868_746


def test_the_code_s_protocol() -> None:
    run = resolve(compose.compose(["method=fedrema_code", "protocol=fedrema_code", "model=fedrema_alexnet_code"]))
    assert (run.protocol.local.drop_last, run.protocol.test.pool, run.protocol.score) == (
        True,
        True,
        "received",
    )
    assert (run.protocol.rounds, run.protocol.local.batch_size) == (500, 100)
    assert run.labels["model"] == "fedrema_alexnet_code"
