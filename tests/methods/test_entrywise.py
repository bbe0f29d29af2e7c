"""Methods that decide entry by entry, FedALA, FedCAC and FedSelect; a limit of APPLE."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedbench.config.schema import OptimizerConfig
from fedbench.core import trees
from fedbench.core.batch import Batch
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.methods.apple import APPLE
from fedbench.methods.fedala import FedALA, first
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedcac import overlaps
from fedbench.methods.fedselect import FedSelect
from fedbench.methods.local import Local
from tests.methods.toys import (
    HEAD,
    adapted,
    close,
    cross_entropy,
    derivative,
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
    steps,
)

LR = 0.5
FULL: dict[str, Any] = {"epochs": 1, "batch": 50, "optimizer": OptimizerConfig(lr=LR)}


def losses(chosen: Any) -> list[Callable[[Tree], Tensor]]:
    """Each client's mean cross-entropy on all its samples."""

    def of(k: int) -> Callable[[Tree], Tensor]:
        x, y = samples(chosen, k)
        return lambda w: cross_entropy(logits(w, x), y)

    return [of(k) for k in range(chosen.federation.clients)]


def average(each: list[Tree], weights: list[float]) -> Tree:
    return {k: sum(a * w[k] for a, w in zip(weights, each, strict=True)) for k in each[0]}  # type: ignore[misc]


# ---- FedALA


def test_two_rounds_of_fedala_by_hand() -> None:
    """In the second the head's A takes two projected steps; the next score follows another one."""
    eta = 3.0
    chosen = setup(FedALA(eta=eta, samples=1.0, start_epochs=2), federation((5, 9)), rounds=3, **FULL)
    F, share = losses(chosen), [5 / 14, 9 / 14]
    w = initial(chosen)
    own = [descend(F[k], w, LR) for k in (0, 1)]
    w = average(own, share)
    A = [{name: torch.ones_like(w[name]) for name in HEAD} for _ in (0, 1)]

    def mixed(k: int) -> Tree:
        return {**w, **{n: own[k][n] + (w[n] - own[k][n]) * A[k][n] for n in HEAD}}

    def learn(k: int) -> None:
        slope = derivative(F[k], mixed(k))
        A[k] = {n: (a - eta * slope[n] * (w[n] - own[k][n])).clamp(0, 1) for n, a in A[k].items()}

    for k in (0, 1):
        learn(k)
        learn(k)
    own = [descend(F[k], mixed(k), LR) for k in (0, 1)]
    w = average(own, share)
    _, state = steps(chosen, 2)
    assert close(state.server, w)
    memory = state.memory.take(torch.arange(2))
    assert close(trees.part(memory, "A"), trees.stack(A))
    entries = torch.cat([a.flatten() for each in A for a in each.values()])
    assert entries.min() < 1 - 1e-4
    assert (entries == 1).any()
    for k in (0, 1):
        learn(k)
    assert close(adapted(chosen, state), trees.stack([mixed(k) for k in (0, 1)]))


def test_fedala_begins_to_learn_when_models_differ() -> None:
    method, local = FedALA(), setup(FedALA()).protocol.local
    epochs = [[stage.epochs for stage in method.stages(local, Clock(t, 9)) if stage.direction] for t in range(4)]
    assert epochs == [[0], [11], [1], [1]]


def test_fedala_learns_from_the_first_of_the_real_samples() -> None:
    batch = Batch(torch.zeros(10, 1), torch.zeros(10, dtype=torch.int64))
    mask = torch.arange(10) < 5
    assert first(batch, 0.8).count == 8
    assert first(Batch(batch.x, batch.y, mask), 0.8).mask.tolist() == [True] * 4 + [False] * 6  # type: ignore[union-attr]
    assert first(Batch(batch.x, batch.y, mask), 0.01).count == 1
    assert gap(final(FedALA(samples=0.5)), final(FedALA(samples=1.0))) > 1e-6


# ---- FedCAC


def test_fedcacs_overlap_is_over_a_clients_own_critical_entries() -> None:
    masks = {"a": torch.tensor([[True, True], [False, True]]), "b": torch.tensor([[False], [False]])}
    assert overlaps(masks).tolist() == [[1.0, 1 - 1 / 4], [1 - 1 / 2, 1.0]]


# ---- FedSelect


def test_fedselect_that_selects_nothing_is_fedavg() -> None:
    equal = (8, 8, 8, 8)
    options: dict[str, Any] = {"cohort": 0.75, "epochs": 1}
    assert close(final(FedSelect(p=0.0), equal, **options), final(FedAvg(), equal, **options))
    assert gap(final(FedSelect(every=1), equal, **options), final(FedAvg(), equal, **options)) > 1e-4


def test_fedselect_that_selects_all_goes_on_alone_after_one_last_average() -> None:
    method = FedSelect(p=1.0, limit=1.0, every=1, maskable=("*",))
    chosen = setup(method, federation((5, 9)), rounds=4, **FULL)
    w = steps(chosen, 2)[1].server
    F = losses(chosen)
    alone = [descend(F[k], descend(F[k], w, LR), LR) for k in (0, 1)]
    assert close(models(chosen, simulate(chosen)), trees.stack(alone))


def test_three_rounds_of_fedselect_by_hand() -> None:
    p, everyone = 0.3, range(3)
    weights = ["fc.0.weight", "head.weight"]
    chosen = setup(FedSelect(p=p, every=1), federation((5, 9, 7)), rounds=3, **FULL)
    F, w = losses(chosen), initial(chosen)
    empty = {n: torch.zeros_like(w[n], dtype=torch.bool) for n in w}
    mask, kept, own, last = [empty] * 3, [empty] * 3, [w] * 3, [w] * 3
    for t in range(3):
        for k in everyone:
            v = {n: torch.where(kept[k][n], own[k][n], w[n]) for n in w}
            for personal in (True, False):
                slope = derivative(F[k], v)
                v = {n: v[n] - LR * slope[n] * (mask[k][n] == personal) for n in v}
            own = [*own[:k], v, *own[k + 1 :]]
        number = {n: torch.stack([~mask[k][n] for k in everyone]).sum(0) for n in w}
        total = {n: torch.stack([own[k][n] * ~mask[k][n] for k in everyone]).sum(0) for n in w}
        w = {n: torch.where(number[n] > 0, total[n] / number[n], w[n]) for n in w}
        kept = mask
        if t > 0:
            mask = [{n: grown(mask[k][n], own[k][n] - last[k][n], p, n in weights) for n in w} for k in everyone]
            last = own
    state = simulate(chosen)
    assert close(state.server, w)
    memory = state.memory.take(torch.arange(3))
    for name in weights:
        assert memory[f"mask/{name}"].tolist() == [mask[k][name].tolist() for k in everyone]
    shares = [float(mask[k]["head.weight"].double().mean()) for k in everyone]
    assert all(0.45 < share < 0.55 for share in shares)  # 1 - .7^2
    starts = [{n: torch.where(kept[k][n], own[k][n], w[n]) for n in w} for k in everyone]
    assert close(models(chosen, state), trees.stack(starts))


def grown(mask: Tensor, change: Tensor, p: float, masked: bool) -> Tensor:
    """The mask with the share p of the other entries that changed most, one after another."""
    free = [i for i, taken in enumerate(mask.flatten().tolist()) if not taken]
    ranked = sorted(free, key=lambda i: -abs(float(change.flatten()[i])))
    flat = mask.flatten().clone()
    flat[ranked[: len(free) - round((1 - p) * len(free))] if masked else []] = True
    return flat.view_as(mask)


def test_fedselects_masks_grow_up_to_the_limit_and_in_rounds_of_their_own() -> None:
    method = FedSelect(p=0.5, limit=0.5)
    mask = torch.tensor([True, True, False, False])
    change = torch.tensor([0.0, 9.0, 1.0, 2.0])
    assert method.grown(mask, change).tolist() == [True, True, False, True]
    assert method.grown(mask | (change == 1), change).tolist() == [True, True, True, False]
    chosen = setup(FedSelect(every=2), federation((5, 9)), rounds=5, **FULL)
    shares = [float(steps(chosen, t)[1].memory["mask/head.weight"].double().mean()) for t in range(1, 6)]
    assert shares[0] == shares[1] == 0 < shares[2] == shares[3] < shares[4]
    epochs = [stage.epochs for stage in FedSelect(alternations=15).stages(chosen.protocol.local, Clock(0, 5))]
    assert epochs == [1] * 30


# ---- APPLE


def test_a_client_that_no_round_met_has_its_own_core_in_its_model() -> None:
    """It has no share in p^0, as one of another server has none, but its own p is trained with its core."""
    method = APPLE(p_lr=0.1)
    chosen = setup(method, federation((5, 5, 5, 5)), optimizer=OptimizerConfig(lr=0.1))
    cores = torch.tensor([[1.0], [2.0], [3.0], [4.0]], dtype=torch.float64)
    message = {"core/a": cores, "p0": torch.tensor([0.75, 0.25, 0.0, 0.0]).double(), "place": torch.tensor([2])}
    moved = torch.tensor([0.1, -0.2, 0.3, 0.4], dtype=torch.float64)
    view = chosen.client(2, message, {"moved": moved}, Clock(3, 3))
    work = {name: leaf.requires_grad_() for name, leaf in method.start(view).items()}
    w = method.model(work, view)["a"]
    assert close(w.detach(), torch.tensor([0.85 * 1 + 0.05 * 2 + 0.3 * 3], dtype=torch.float64))
    core, p = torch.autograd.grad(w.sum(), [work["core/a"], work["moved"]])
    assert close(core, torch.tensor([0.3], dtype=torch.float64))
    assert close(p, torch.tensor([1.0, 2.0, 3.0, 0.0]).double())


def test_apple_with_fixed_p_is_fedavg_at_another_rate() -> None:
    """One step a round of four equal clients: sum_j p_j (c_j - N eta p_j g_j) is w minus eta times the mean of g."""
    equal, one = (8, 8, 8, 8), {"epochs": 1, "batch": 50}
    rates = {n: {**one, "optimizer": OptimizerConfig(lr=0.1 * n)} for n in (1, 4)}
    assert close(final(APPLE(p_lr=0.0), equal, **rates[4]), final(FedAvg(), equal, **rates[1]))
    assert gap(final(APPLE(p_lr=0.1), equal, **rates[4]), final(FedAvg(), equal, **rates[1])) > 1e-4
    assert close(final(APPLE(p_lr=0.0), (9,)), final(Local(), (9,)))
