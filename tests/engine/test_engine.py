"""Every engine equals a plain PyTorch loop: nn.Module, torch.optim, one client after another."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Sequence

import pytest
import torch

from fedbench.config.schema import OptimizerConfig
from fedbench.core import rng, trees
from fedbench.core.errors import Diverged, FedbenchError
from fedbench.engine.contract import Client
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.method import HookError
from fedbench.engine.setup import Setup
from fedbench.engine.stacked import StackedTrainer
from fedbench.engine.trainer import Trainer
from fedbench.engine.workers import WorkersTrainer
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.local import Local
from fedbench.models.small import MLP, LeNet5
from fedbench.models.task import Model
from tests.engine.toys import ADAM, CLIPPED, HEAVY, SGD
from tests.helpers.plain import plain_fedavg
from tests.helpers.tiers import tiered
from tests.methods.toys import SIZES, close, federation, gap, setup, simulate


def conv(sizes: Sequence[int] = SIZES) -> tuple[object, Model]:
    return federation(sizes, shape=(2, 16, 16)), LeNet5(batch_norm=True)


def engines(chosen: Setup) -> list[Trainer]:
    return [LoopedTrainer(chosen), *(StackedTrainer(chosen, chunk) for chunk in (1, 2, 99))]


OPTIMIZERS = {"sgd": SGD, "momentum": HEAVY, "clip": CLIPPED, "adam": ADAM}
WORK = {"epochs": 2, "iterations": 5}
ALL = list(itertools.product(("mlp", "batch_norm"), WORK, OPTIMIZERS))
PAIRWISE = [*ALL[0:4:2], *ALL[5:8:2], *ALL[9:12:2], *ALL[12:16:2]]  # every two of the three meet


@pytest.mark.parametrize(("kind", "work", "name"), tiered(ALL, quick=PAIRWISE))
def test_every_engine_equals_the_plain_loop(kind: str, work: str, name: str) -> None:
    optimizer = OPTIMIZERS[name]
    data, model = conv() if kind == "batch_norm" else (federation(), MLP(hidden=(7,)))
    chosen = setup(FedAvg(), data, model, optimizer=optimizer, cohort=0.8, **{work: WORK[work]})
    expected = plain_fedavg(chosen, model)
    # Adam makes steps out of rounding where a gradient is zero, as that of a bias before batch normalisation.
    tolerance = 1e-6 if optimizer is ADAM else 1e-9
    for trainer in engines(chosen):
        assert gap(simulate(chosen, trainer).server, expected) < tolerance, trainer


def test_the_engines_agree_in_single_precision_too() -> None:
    chosen = setup(FedAvg(), federation(dtype=torch.float32), MLP(hidden=(7,)), optimizer=HEAVY)
    expected = plain_fedavg(chosen, MLP(hidden=(7,)))
    for trainer in engines(chosen):
        state = simulate(chosen, trainer)
        assert gap(state.server, expected) < 1e-5
        assert next(iter(state.server.values())).dtype == torch.float32


def test_local_is_each_client_alone() -> None:
    chosen = setup(Local(), rounds=3, optimizer=HEAVY)
    for trainer in engines(chosen):
        state = simulate(chosen, trainer)
        for client in range(len(SIZES)):
            alone = setup(FedAvg(), federation(ids=[client]), rounds=3, optimizer=HEAVY)
            expected = plain_fedavg(alone, MLP(hidden=(7,)))
            assert gap(trees.row(state.memory, client), expected) < 1e-9


def test_scores_are_counted_alike_and_right() -> None:
    chosen = setup(FedAvg(), rounds=2)
    counts = [simulate(chosen, trainer).history.last.tallies["local"] for trainer in engines(chosen)]
    for tally in counts:
        assert tally.total.tolist() == [6.0] * 5
        assert tally.correct.tolist() == counts[0].correct.tolist()
    state = simulate(chosen)
    x, y = chosen.federation.gather(chosen.federation.indices("local", 3))
    right = (chosen.task.apply(state.server, x).argmax(1) == y).sum()
    assert counts[0].correct[3] == float(right)


@pytest.mark.parametrize("kind", ["mlp", "batch_norm"])
def test_worker_processes_equal_the_loop(kind: str) -> None:
    data, model = conv((1, 9, 4)) if kind == "batch_norm" else (federation(), MLP(hidden=(7,)))
    chosen = setup(FedAvg(private=("head.*",)), data, model, cohort=0.8, optimizer=HEAVY)
    looped, workers = simulate(chosen), simulate(chosen, WorkersTrainer(chosen, 2))
    assert close(workers.server, looped.server, 1e-12)
    assert close(workers.memory, looped.memory, 1e-12)
    for a, b in zip(looped.history.records, workers.history.records, strict=True):
        assert a.tallies["local"].correct.tolist() == b.tallies["local"].correct.tolist()


class Broken(FedAvg):
    """Fails on the largest client with an error of its own."""

    def finish(self, work: trees.Tree, client: Client) -> tuple[trees.Tree, trees.Tree]:
        if client.clock.round == 1 and int(client.size) == max(SIZES):
            raise ZeroDivisionError("in a hook")
        return super().finish(work, client)


def test_a_failing_worker_s_error_is_raised_here() -> None:
    diverging = setup(FedAvg(), optimizer=OptimizerConfig(lr=1e30), epochs=5)
    for chosen, error, text in (
        (diverging, Diverged, r"round 1 on client \d"),
        (setup(Broken()), HookError, "ZeroDivisionError: in a hook"),
    ):
        with pytest.raises(error, match=text):
            simulate(chosen, WorkersTrainer(chosen, 1))


def test_a_killed_worker_is_reported() -> None:
    chosen = setup(FedAvg())
    trainer = WorkersTrainer(chosen, 1)
    try:
        os.kill(trainer._processes[0].pid, signal.SIGKILL)
        trainer._processes[0].join()
        with pytest.raises(FedbenchError, match="worker process died"):
            simulate(chosen, trainer)
    finally:
        trainer.close()


@pytest.mark.parametrize("stacked", [False, True])
def test_divergence_names_round_and_client(stacked: bool) -> None:
    chosen = setup(FedAvg(), optimizer=OptimizerConfig(lr=1e30), rounds=3, epochs=5)
    trainer = StackedTrainer(chosen, 9) if stacked else LoopedTrainer(chosen)
    with pytest.raises(Diverged, match=r"diverged in round 1 on client \d"):
        simulate(chosen, trainer)


def test_one_client_federation_does_not_share_state_with_its_server() -> None:
    chosen = setup(Local(), federation((9,)), rounds=1)
    state = simulate(chosen)
    fresh = chosen.task.init(rng.torch_rng(0, "init"))
    assert gap({k: v[0] for k, v in state.memory.items()}, {k: v.double() for k, v in fresh.items()}) > 1e-3
