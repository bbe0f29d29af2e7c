"""FedReMa by hand: segmentation, probes, and the local steps of its variants."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedbench.config.schema import OptimizerConfig
from fedbench.core import trees
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.methods import fedrema
from fedbench.methods.fedrema import FedReMa
from fedbench.models.small import LeNet5
from tests.methods.toys import (
    FOUR,
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

HEAD = ("@head",)


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


def soft(z: np.ndarray, temperature: float) -> np.ndarray:
    e = np.exp(z / temperature - (z / temperature).max())
    return np.asarray(e / e.sum())


@pytest.mark.parametrize("code", [False, True])
def test_probes_by_hand(code: bool) -> None:
    """S from the classifier layers alone, one probe for all or one a row."""
    chosen = setup(FedReMa(), federation(FOUR))
    generator = torch.Generator().manual_seed(1)
    shapes = {"head.weight": (4, 7), "head.bias": (4,), "fc.0.weight": (7, 16), "fc.0.bias": (7,)}
    drawn = {k: torch.randn(4, *s, generator=generator, dtype=torch.float64) for k, s in shapes.items()}
    scale = 0.5 if code else 1.0
    found = fedrema.Probe(0.5, scale, code, not code).similarities(
        drawn, "head", chosen.cohort(torch.arange(4), Clock(0, 5))
    )
    same = chosen.cohort(torch.arange(4), Clock(0, 5)).generator
    h = (torch.rand(4 if code else 1, 7, generator=same) * scale).double().numpy()
    W, b = drawn["head.weight"].numpy(), drawn["head.bias"].numpy()
    for k in range(4):
        z = [W[j] @ h[k if code else 0] + b[j] for j in range(4)]
        for j in range(4):
            p, q = soft(z[k], 0.5), soft(z[j], 1.0 if code else 0.5)
            expected = 1.0 if j == k else p @ q / np.linalg.norm(p) / np.linalg.norm(q)
            assert float(found[k, j]) == pytest.approx(expected)


def test_the_classifier_is_the_last_stages() -> None:
    lenet = LeNet5().task((1, 16, 16), 4)
    assert fedrema.classifier_stage(lenet, ("@classifier",)) == "fc"
    assert fedrema.classifier_stage(lenet, HEAD) == "head"
    for wrong in (("conv.*",), ("head.weight",), ("fc.*",), ()):
        with pytest.raises(ConfigError, match="last stages"):
            fedrema.classifier_stage(lenet, wrong)


# ---- local steps of the variants


LR, LAM = 0.1, 2.0
FULL: dict[str, Any] = {"epochs": 1, "batch": 50, "optimizer": OptimizerConfig(lr=LR)}


@pytest.mark.parametrize("mean", [False, True])
def test_alignment_by_hand(mean: bool) -> None:
    """Round 1 has no class means; round 2 adds lambda |f(x) - h_y|^2 with h over both clients."""
    method = FedReMa(align=LAM, align_mean=mean, classifier=HEAD, last_gap=False)  # two clients: FedAvg
    sizes = (5, 9)
    chosen = setup(method, federation(sizes), rounds=2, **FULL)
    data = [samples(chosen, k) for k in (0, 1)]
    w = initial(chosen)

    def averaged(trained: list[Tree]) -> Tree:
        return {k: (5 * trained[0][k] + 9 * trained[1][k]) / 14 for k in w}

    def plain(x: torch.Tensor, y: torch.Tensor) -> Any:
        return lambda v: cross_entropy(logits(v, x), y)

    first = [descend(plain(x, y), w, LR) for x, y in data]
    z = torch.cat([features(first[k], data[k][0]) for k in (0, 1)])
    y = torch.cat([labels for _, labels in data])
    h = torch.stack([z[y == c].mean(0) for c in range(4)])

    def aligned(x: torch.Tensor, y: torch.Tensor) -> Any:
        def loss(v: Tree) -> torch.Tensor:
            apart = (features(v, x) - h[y]).square()
            return cross_entropy(logits(v, x), y) + LAM * (apart.mean(1) if mean else apart.sum(1)).mean()

        return loss

    assert set(y.tolist()) == {0, 1, 2, 3}
    start = averaged(first)
    second = [descend(aligned(x, y), start, LR) for x, y in data]
    assert gap(second[0], descend(plain(*data[0]), start, LR)) > 1e-4
    state = simulate(chosen)
    assert close(trees.row(models(chosen, state), 0), averaged(second))
    parameters = sum(v.numel() for v in w.values())
    assert state.bytes_up == 2 * 2 * 8 * (parameters + 4 * 7 + 4)
    assert state.bytes_down == 2 * 2 * 8 * (parameters + 4 * 7 + 4)


def test_class_means_of_the_code_weigh_clients_equally_and_a_class_nobody_had_stays() -> None:
    uploads = {
        "classes/sums": torch.tensor([[[6.0], [0.0], [0.0]], [[8.0], [5.0], [0.0]]]),
        "classes/counts": torch.tensor([[3.0, 0.0, 0.0], [1.0, 1.0, 0.0]]),
    }
    server = {
        "classes/means": torch.tensor([[9.0], [9.0], [7.0]]),
        "classes/seen": torch.tensor([0.0, 0.0, 1.0]),
    }
    assert FedReMa(align=1.0)._class_means(server, uploads)["classes/means"].flatten().tolist() == [
        3.5,
        5.0,
        7.0,
    ]
    plain = FedReMa(align=1.0, uniform=True)._class_means(server, uploads)
    assert plain["classes/means"].flatten().tolist() == [5.0, 5.0, 7.0]
    assert plain["classes/seen"].tolist() == [1.0, 1.0, 1.0]


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
