"""Methods that decide entry by entry: FedALA, FedCAC, FedSelect; and APPLE, whose clients weigh each other's models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from fedbench.config.schema import OptimizerConfig
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.methods.apple import APPLE
from fedbench.methods.fedala import FedALA, first
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedcac import FedCAC, overlaps
from fedbench.methods.fedselect import FedSelect
from fedbench.methods.local import Local
from fedbench.methods.oracle import Oracle
from fedbench.models.task import Task
from tests.methods.toys import (
    FOUR,
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
    run,
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


def test_fedala_that_does_not_learn_is_fedavg() -> None:
    fedavg = run(FedAvg(), cohort=0.75)[1]
    assert close(run(FedALA(eta=0.0), cohort=0.75)[1].server, fedavg.server)
    assert gap(run(FedALA(), cohort=0.75)[1].server, fedavg.server) > 1e-4
    alone = {"epochs": 2, "rounds": 3}
    assert close(final(FedALA(), (9,), **alone), final(Local(), (9,), **alone))


@dataclass(frozen=True)
class Kept(FedALA):
    """Of the global model it takes nothing."""

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        server, memory = super().init(task, population, generator)
        return server, {k: torch.zeros_like(v) if k.startswith("A/") else v for k, v in memory.items()}


def test_fedala_that_takes_nothing_is_local() -> None:
    chosen, state = run(Kept(eta=0.0, top=("*",)), cohort=0.75)
    assert close(models(chosen, state), final(Local(), cohort=0.75))


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
    assert epochs == [[], [11], [1], [1]]


def test_fedala_learns_from_the_first_of_the_real_samples() -> None:
    batch = Batch(torch.zeros(10, 1), torch.zeros(10, dtype=torch.int64))
    mask = torch.arange(10) < 5
    assert first(batch, 0.8).count == 8
    assert first(Batch(batch.x, batch.y, mask), 0.8).mask.tolist() == [True] * 4 + [False] * 6  # type: ignore[union-attr]
    assert first(Batch(batch.x, batch.y, mask), 0.01).count == 1
    assert gap(final(FedALA(samples=0.5)), final(FedALA(samples=1.0))) > 1e-6


# ---- FedCAC


def test_fedcac_without_critical_entries_is_fedavg() -> None:
    options: dict[str, Any] = {"cohort": 0.75}
    assert close(final(FedCAC(tau=0.0), **options), final(FedAvg(), **options))
    assert gap(final(FedCAC(), **options), final(FedAvg(), **options)) > 1e-4
    assert close(final(FedCAC(), (9,)), final(Local(), (9,)))


def test_two_rounds_of_fedcac_by_hand() -> None:
    tau, beta, sizes = 0.3, 4.0, (5, 9, 7, 11)
    labels = [[0, 1], [0, 1], [2, 3], [1, 2]]
    chosen = setup(FedCAC(tau=tau, beta=beta), federation(sizes, labels=labels), rounds=2, **FULL)
    F, everyone = losses(chosen), range(len(sizes))
    starts, graphs = [initial(chosen)] * len(sizes), []
    for t in (1, 2):
        ends = [descend(F[k], starts[k], LR) for k in everyone]
        Q: list[Tree] = []
        for k in everyone:
            worth = {n: ((w - starts[k][n]) * w).abs() for n, w in ends[k].items()}
            ranked = {n: v.flatten().sort(descending=True).values for n, v in worth.items()}
            last = {n: v[int(tau * len(v)) - 1] if int(tau * len(v)) else torch.inf for n, v in ranked.items()}
            Q.append({n: (v >= last[n]) & (v > 1e-10) for n, v in worth.items()})
        flat = [torch.cat([q[n].flatten() for n in sorted(q)]).double() for q in Q]
        overlap = torch.stack([torch.stack([1 - (a - b).abs().sum() / (2 * a.sum()) for b in flat]) for a in flat])
        pairs = overlap[~torch.eye(len(sizes), dtype=torch.bool)]
        threshold = pairs.mean() + t / beta * (pairs.max() - pairs.mean())
        partners = [[m for m in everyone if m == k or overlap[k, m] >= threshold] for k in everyone]
        u = [average([ends[m] for m in each], [1 / len(each)] * len(each)) for each in partners]
        w = average(ends, [size / sum(sizes) for size in sizes])
        starts = [{n: torch.where(Q[k][n], u[k][n], w[n]) for n in w} for k in everyone]
        graphs.append([len(each) for each in partners])
    state = simulate(chosen)
    assert close(trees.part(state.server, "common"), w)
    assert close(models(chosen, state), trees.stack(starts))
    W = chosen.method.collaboration(state.server, chosen.population)
    assert W is not None
    assert [int((row > 0).sum()) for row in W] == graphs[-1]
    assert all(1 < sum(each) / len(sizes) < len(sizes) for each in graphs)


def test_fedcacs_overlap_is_over_a_clients_own_critical_entries() -> None:
    masks = {"a": torch.tensor([[True, True], [False, True]]), "b": torch.tensor([[False], [False]])}
    assert overlaps(masks).tolist() == [[1.0, 1 - 1 / 4], [1 - 1 / 2, 1.0]]


def test_fedcac_ends_with_critical_entries_of_ones_own() -> None:
    """And where all overlaps are equal, with a mean of all."""
    chosen, state = run(FedCAC(beta=0.5), federation(FOUR, labels=[[0], [1], [2, 3], [0, 3]]))
    assert close(state.server["W"], torch.eye(4, dtype=torch.float64))
    assert gap(models(chosen, state), final(Local())) > 1e-4
    same = setup(FedCAC(tau=0.0), federation(FOUR), rounds=3)
    assert close(simulate(same).server["W"], torch.full((4, 4), 0.25, dtype=torch.float64))


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


def test_apple_with_fixed_p_is_fedavg_at_another_rate() -> None:
    """One step a round of four equal clients: sum_j p_j (c_j - N eta p_j g_j) is w minus eta times the mean of g."""
    equal, one = (8, 8, 8, 8), {"epochs": 1, "batch": 50}
    rates = {n: {**one, "optimizer": OptimizerConfig(lr=0.1 * n)} for n in (1, 4)}
    assert close(final(APPLE(p_lr=0.0), equal, **rates[4]), final(FedAvg(), equal, **rates[1]))
    assert gap(final(APPLE(p_lr=0.1), equal, **rates[4]), final(FedAvg(), equal, **rates[1])) > 1e-4
    assert close(final(APPLE(p_lr=0.0), (9,)), final(Local(), (9,)))


def test_two_rounds_of_apple_by_hand() -> None:
    """Two steps a round on c_k and p together; in the second round the pull is the square root of .001 as strong."""
    p_lr, mu = 0.3, 2.0
    options = {**FULL, "epochs": 2}
    chosen = setup(APPLE(p_lr=p_lr, mu=mu, pulled=1.0), federation((5, 9)), rounds=2, **options)
    F, c = losses(chosen), [initial(chosen)] * 2
    p0 = torch.tensor([5 / 14, 9 / 14], dtype=torch.float64)
    p = [p0, p0]
    for pull in (mu, mu * 0.001**0.5):
        received, c = c, []
        for k in (0, 1):
            work = {**received[k], "p": p[k]}
            for _ in range(2):

                def loss(work: Tree, k: int = k, received: list[Tree] = received, pull: float = pull) -> Tensor:
                    cores = [work if j == k else received[j] for j in (0, 1)]
                    w = {n: work["p"][0] * cores[0][n] + work["p"][1] * cores[1][n] for n in received[k]}
                    return F[k](w) + pull / 2 * (work["p"] - p0).square().sum()

                slope = derivative(loss, work)
                work = {n: v - (p_lr if n == "p" else LR) * slope[n] for n, v in work.items()}
            p[k] = work.pop("p")
            c.append(work)
    state = simulate(chosen)
    assert close(trees.part(state.server, "core"), trees.stack(c))
    assert close(state.memory["moved"], torch.stack(p) - p0)
    assert close(models(chosen, state), trees.stack([average(c, each.tolist()) for each in p]))
    assert gap({"": p[0]}, {"": p0}) > 1e-2


def test_apples_pull_falls_to_nothing() -> None:
    for schedule, expected in (("exponential", [1.0, 0.001**0.25, 0.001**0.5]), ("cosine", [1.0, 0.853553, 0.5])):
        method = APPLE(schedule=schedule, pulled=0.5)
        weights = [method.weight(Clock(t, 8)) for t in range(8)]
        assert weights[:3] == pytest.approx(expected, abs=1e-6)
        assert weights[4:] == [0.0] * 4
    assert APPLE(pulled=0.0).weight(Clock(0, 8)) == 0


def test_apple_in_a_coalition_knows_its_members_alone() -> None:
    apple = {"name": "apple", "p_lr": 0.1}
    pairs = final(Oracle(base=apple, coalition=(0, 1, 0, 1)))
    for members in ([0, 2], [1, 3]):
        alone = setup(APPLE(p_lr=0.1), federation(FOUR, ids=members), rounds=3)
        assert close({k: v[members] for k, v in pairs.items()}, models(alone, simulate(alone)))


def test_apples_cores_start_together_or_apart() -> None:
    for apart in (False, True):
        chosen = setup(APPLE(apart=apart))
        server, _ = chosen.method.init(chosen.task, chosen.population, torch.Generator())
        cores = trees.part(server, "core")
        assert (gap(trees.row(cores, 0), trees.row(cores, 1)) > 1e-2) is apart
