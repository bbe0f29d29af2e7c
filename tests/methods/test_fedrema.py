"""FedReMa: limits, who receives what, and the critical period."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedbench.config import compose
from fedbench.config.schema import LocalConfig, OptimizerConfig
from fedbench.core import trees
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.engine import schedule
from fedbench.engine.contract import Clock, Stage
from fedbench.methods import fedrema
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedrema import FedReMa, overwritten_in_turn
from fedbench.methods.local import Local
from fedbench.models.small import FedReMaAlexNet, LeNet5
from fedbench.runs.config import resolve
from tests.methods.toys import (
    FOUR,
    close,
    cross_entropy,
    descend,
    features,
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

HEAD = ("@head",)
CODE: dict[str, Any] = {
    "probe_scale": 0.5,
    "probe_per_client": True,
    "temper_all": False,
    "last_gap": False,
    "keep_below": False,
    "uniform": True,
}


# ---- limits


def test_with_everyone_relevant_it_is_fedavg() -> None:
    """Two clients have only the gap to oneself: without it, both are kept."""
    sizes = (6, 13)
    assert close(final(FedReMa(last_gap=False, classifier=HEAD), sizes), final(FedAvg(), sizes))
    plain = final(FedReMa(last_gap=False, classifier=HEAD, uniform=True), sizes)
    assert gap(plain, final(FedAvg(), sizes)) > 1e-4


def test_the_extractor_is_fedavgs_and_a_lone_client_is_local() -> None:
    once, fedavg = final(FedReMa(classifier=HEAD), rounds=1), final(FedAvg(), rounds=1)
    extractor = [name for name in once if not name.startswith("head")]
    assert close({k: once[k] for k in extractor}, {k: fedavg[k] for k in extractor})
    assert gap(once, fedavg) > 1e-4
    assert close(final(FedReMa(), (9,)), final(Local(), (9,)))


def test_all_receive_the_extractor_and_absent_clients_keep_their_classifier() -> None:
    chosen = setup(FedReMa(classifier=HEAD), federation(FOUR), rounds=1, cohort=0.5)
    received, start = models(chosen, simulate(chosen)), initial(chosen)
    present = chosen.draw_cohort(Clock(0, 1)).tolist()
    for client in range(4):
        assert close(received["fc.0.weight"][client], received["fc.0.weight"][0])
        assert torch.equal(received["head.weight"][client], start["head.weight"]) is (client not in present)
    assert not close(received["fc.0.weight"][0], start["fc.0.weight"])


# ---- the critical period


def test_outside_the_period_classifiers_are_mixed_by_the_record() -> None:
    chosen = setup(FedReMa(delta=1.0, classifier=HEAD), federation(FOUR), rounds=1)
    state = simulate(chosen)
    assert not bool(state.server["period/on"])  # the first round's gap is its own maximum, not above it
    counts = state.server["chosen"]
    assert bool((counts.diagonal() == 1).all())
    assert 4 < float(counts.sum()) < 16
    W = chosen.method.collaboration(state.server, chosen.population)
    assert W is not None
    sized = counts * torch.tensor(FOUR)
    assert close(W, sized / sized.sum(1, keepdim=True))
    later = setup(FedReMa(delta=1.0, classifier=HEAD), federation(FOUR), rounds=2)
    state = simulate(later)
    assert torch.equal(state.server["chosen"], counts)
    W = later.method.collaboration(state.server, later.population)
    assert close(W, counts / counts.sum(1, keepdim=True))  # type: ignore[arg-type]


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


def test_a_client_without_a_record_keeps_its_classifier() -> None:
    method, chosen = FedReMa(), setup(FedReMa(), federation(FOUR))
    server, _ = method.init(chosen.task, chosen.population, torch.Generator().manual_seed(0))
    server["period/on"] = torch.tensor(False)
    server["chosen"][1] = torch.tensor([2.0, 1.0, 1.0, 0.0])
    cohort = chosen.cohort(torch.tensor([1, 2]), Clock(3, 5))
    found = method._classifier_weights(server, torch.ones(2, 2, dtype=torch.bool), cohort)
    assert found.tolist() == [[0.5, 0.5], [0.0, 1.0]]


def test_planted_groups_find_each_other() -> None:
    labels = [[0, 1], [2, 3], [0, 1], [2, 3], [0, 1]]
    data = federation((40,) * 5, labels=labels)
    for extra in ({"keep_below": False}, CODE):
        method = FedReMa(classifier=HEAD, ccp=False, **extra)
        state = simulate(setup(method, data, rounds=3, epochs=10))
        found = state.server["W"] > 0
        for i in range(5):
            assert bool(found[i, i])
            assert not any(bool(found[i, j]) for j in range(5) if i % 2 != j % 2)
        assert int(found.sum()) > 5


def test_the_codes_bug_gives_the_weights_to_others() -> None:
    straight, shuffled = (FedReMa(**CODE, shuffle=bug, classifier=HEAD) for bug in (False, True))
    assert gap(final(straight, rounds=1), final(shuffled, rounds=1)) > 1e-4


HEAD_LEAVES = ("@head",)


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
    assert fedrema.classifier_stage(lenet, HEAD_LEAVES) == "head"
    for wrong in (("conv.*",), ("head.weight",), ("fc.*",), ()):
        with pytest.raises(ConfigError, match="last stages"):
            fedrema.classifier_stage(lenet, wrong)


# ---- local steps of the variants


LR, LAM = 0.1, 2.0
FULL: dict[str, Any] = {"epochs": 1, "batch": 50, "optimizer": OptimizerConfig(lr=LR)}


@pytest.mark.parametrize("mean", [False, True])
def test_alignment_by_hand(mean: bool) -> None:
    """Round 1 has no class means; round 2 adds lambda |f(x) - h_y|^2 with h over both clients."""
    method = FedReMa(align=LAM, align_mean=mean, classifier=HEAD_LEAVES, last_gap=False)  # two clients: FedAvg
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
    method = FedReMa(alternate=True, classifier=HEAD_LEAVES, classifier_epochs=2)
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


def test_short_batches_are_left_out() -> None:
    local = LocalConfig(epochs=2, batch_size=8, drop_last=True)
    order = schedule.batches(21, local, Stage(), torch.Generator().manual_seed(0))
    assert [len(batch) for batch in order] == [8] * 4
    assert schedule.steps(21, local) == 4
    assert schedule.all_steps(torch.tensor([21.0, 8.0]), local).tolist() == [4.0, 2.0]
    few = LocalConfig(iterations=3, batch_size=8, drop_last=True)
    assert [len(batch) for batch in schedule.batches(9, few, Stage(), torch.Generator())] == [8] * 3
    with pytest.raises(ConfigError, match="drop_last=true leaves nothing of a client with 7"):
        schedule.steps(7, local)


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
