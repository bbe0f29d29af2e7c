"""FedPHP: limits, and rounds by hand with clients that are not always there."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from fedbench.config.schema import OptimizerConfig, WorkConfig
from fedbench.core import trees
from fedbench.core.batch import Batch
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedphp import FedPHP, widths
from fedbench.methods.parts.features import discrepancy
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

LR, SIZES = 0.2, (5, 9)
FULL: dict[str, Any] = {"epochs": 1, "batch": 50, "optimizer": OptimizerConfig(lr=LR)}


def served(method: FedPHP, **options: Any) -> Tree:
    state = simulate(setup(method, **options))
    return {name: leaf for name, leaf in state.server.items() if name != "share"}


@pytest.mark.slow
def test_without_transfer_the_server_is_fedavgs() -> None:
    fedavg = simulate(setup(FedAvg(), rounds=3, cohort=0.8)).server
    assert close(served(FedPHP(lam=0.0), rounds=3, cohort=0.8), fedavg)
    for transfer in ("kd", "mmd"):
        assert gap(served(FedPHP(lam=0.5, transfer=transfer), rounds=3, cohort=0.8), fedavg) > 1e-4


def test_features_that_agree_are_at_rest() -> None:
    """In round 1 w is v_k, where the discrepancy is least; its widths follow the batch, and stay finite."""
    chosen = setup(FedPHP(lam=1.0, transfer="mmd"), federation(SIZES), rounds=1, **FULL)
    assert close({k: v for k, v in simulate(chosen).server.items() if k != "share"}, initial(chosen))


def distilled(x: Tensor, y: Tensor, v: Tree, lam: float, w: Tree) -> Tensor:
    teacher, own = (logits(v, x) / 4).exp(), logits(w, x).exp()
    teacher, own = (each / each.sum(1, keepdim=True) for each in (teacher, own))
    return (1 - lam) * cross_entropy(logits(w, x), y) - lam * (teacher * own.log()).sum() / len(y)


def matched(x: Tensor, y: Tensor, v: Tree, lam: float, w: Tree) -> Tensor:
    z, target = features(w, x), features(v, x)
    every = torch.cat([z, target]).detach()
    width = sum(float(((p - q) ** 2).sum()) for p in every for q in every) / (len(every) ** 2 - len(every))

    def mean(a: Tensor, b: Tensor) -> Tensor:
        each = [(-((p - q) ** 2).sum() / (width * 2.0**k)).exp() for p in a for q in b for k in (-2, -1, 0, 1, 2)]
        return torch.stack(each).sum() / len(a) / len(b)

    R = mean(z, z) + mean(target, target) - 2 * mean(z, target)
    return (1 - lam) * cross_entropy(logits(w, x), y) + lam * R


@pytest.mark.parametrize(("transfer", "objective"), [("kd", distilled), ("mmd", matched)])
def test_six_rounds_of_one_client_in_two_by_hand(transfer: str, objective: Any) -> None:
    """A client takes part in three rounds of six, so that its c-th keeps .9 (c - 1) / 3, and .9 from the fourth on."""
    lam = 0.4
    chosen = setup(FedPHP(lam=lam, transfer=transfer), federation(SIZES), cohort=0.5, rounds=6, **FULL)
    w, private, count = initial(chosen), [initial(chosen)] * 2, [0, 0]
    for t in range(6):
        (k,) = chosen.draw_cohort(Clock(t, 6)).tolist()
        x, y = samples(chosen, k)
        w = descend(partial(objective, x, y, private[k], lam), w, LR)
        m = 0.9 * min(1.0, count[k] / 3)
        moved = {name: m * private[k][name] + (1 - m) * w[name] for name in w}
        private = [moved if i == k else private[i] for i in (0, 1)]
        count[k] += 1
    assert max(count) > 3, "nobody came more often than expected"
    state = simulate(chosen)
    assert close({name: state.server[name] for name in w}, w, 1e-7)
    assert close(models(chosen, state), trees.stack(private), 1e-7)


def test_an_upload_that_is_lost_does_not_hurry_what_stays() -> None:
    """All take part in each of four rounds, so that the c-th keeps .9 (c - 1) / 4, whoever is heard."""
    chosen = setup(FedPHP(lam=0.0), federation(SIZES), rounds=4, work=WorkConfig(dropout=0.5), **FULL)
    w, private, heard = initial(chosen), [initial(chosen)] * 2, []
    for t in range(4):
        data = [samples(chosen, k) for k in (0, 1)]
        trained = [descend(lambda v, x=x, y=y: cross_entropy(logits(v, x), y), w, LR) for x, y in data]  # type: ignore[misc]
        m = 0.9 * t / 4
        private = [{n: m * private[k][n] + (1 - m) * trained[k][n] for n in w} for k in (0, 1)]
        arrived = [k for k in (0, 1) if chosen.falls_short(k, Clock(t, 4))[1]]
        heard.append(len(arrived))
        whole = sum(SIZES[k] for k in arrived)
        w = {n: sum(SIZES[k] / whole * trained[k][n] for k in arrived) for n in w} if arrived else w  # type: ignore[misc]
    assert 1 in heard[:-1], "no round loses one upload of two"
    state = simulate(chosen)
    assert close(models(chosen, state), trees.stack(private), 1e-7)


def test_without_inheritance_the_private_model_is_the_last_trained() -> None:
    chosen = setup(FedPHP(q=0.0), federation(SIZES[:1]), rounds=2)
    state = simulate(chosen)
    assert close(trees.row(models(chosen, state), 0), {k: v for k, v in state.server.items() if k != "share"})


def test_padding_has_no_part_in_the_discrepancy() -> None:
    a, b = torch.rand(2, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = torch.zeros(5, dtype=torch.int64)
    mask = torch.tensor([True, True, True, False, False])
    few, padded = Batch(a[:3], y[:3]), Batch(a, y, mask)
    plain = discrepancy(a[:3], b[:3], few, widths(a[:3], b[:3], few))
    assert float(plain) > 0
    assert close(discrepancy(a, b, padded, widths(a, b, padded)), plain)
