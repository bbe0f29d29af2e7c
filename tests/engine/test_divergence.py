"""Training that diverged ends with the round and the client, whatever is not finite and whichever engine it ran on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fedbench.config.schema import OptimizerConfig, TestConfig
from fedbench.core import trees
from fedbench.core.batch import Population
from fedbench.core.errors import Diverged
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Clock
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.method import Method
from fedbench.engine.setup import Setup
from fedbench.engine.stacked import StackedTrainer
from fedbench.engine.trainer import Trainer
from fedbench.engine.workers import WorkersTrainer
from fedbench.methods.ditto import Ditto
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedper import FedPer
from fedbench.methods.finetune import Finetune
from fedbench.methods.local import Local
from fedbench.models.task import Task
from tests.helpers import pair
from tests.helpers.tiers import sampled, tiered
from tests.methods.toys import federation, setup, simulate

ENGINES: dict[str, Callable[[Setup], Trainer]] = {
    "looped": LoopedTrainer,
    "chunks": lambda chosen: StackedTrainer(chosen, 2),
    "stacked": lambda chosen: StackedTrainer(chosen, 9),
    "workers": lambda chosen: WorkersTrainer(chosen, 1),
}
VICTIM = 13  # samples of client 1


def spoilt(client: Client, leaf: Tensor) -> Tensor:
    """`leaf`, nan on the victim."""
    return leaf.where(client.size != VICTIM, torch.nan)


class Keeping(FedAvg):
    """Keeps something that no model, loss or upload holds."""

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        server, memory = super().init(task, population, generator)
        return server, {**memory, "kept": torch.ones(population.clients)}

    def start(self, client: Client) -> Tree:
        return dict(client.message)

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        return work, {"kept": spoilt(client, client.memory["kept"])}


class Scoring(FedAvg):
    """Its model is spoilt after training."""

    def model(self, work: Tree, client: Client) -> Tree:
        return {name: spoilt(client, leaf) for name, leaf in work.items()}

    def loss(self, work: Tree, client: Client, batch: Any) -> Tensor:
        return client.task.loss(work, batch)


class Received(FedAvg):
    """Its model is spoilt as received, in the round after the first."""

    def personal(self, client: Client) -> Tree:
        leaves = self.start(client)
        return {n: spoilt(client, leaf) for n, leaf in leaves.items()} if client.clock.round == 1 else leaves


def message(chosen: Setup, engine: str) -> str:
    with pytest.raises(Diverged) as caught:
        simulate(chosen, ENGINES[engine](chosen))
    return str(caught.value)


@pytest.mark.parametrize("engine", tiered(ENGINES, quick=["looped", "chunks", "stacked"]))
@pytest.mark.parametrize(
    ("method", "score", "where"),
    [
        (Keeping(), "received", "in round 1 on client 1: leaf 'kept' is not finite"),
        (Scoring(), "trained", "in round 1 on client 1: its model's scores are not finite"),
        (Received(), "received", "in round 1 on client 1: its model's scores are not finite"),
        (Finetune(lr=1e200), "received", "in round 0 on client 0: its model's scores are not finite"),
    ],
    ids=lambda given: type(given).__name__ if isinstance(given, Method) else None,
)
def test_what_no_loss_or_upload_shows(method: Method, score: str, where: str, engine: str) -> None:
    assert where in message(setup(method, score=score), engine)


@pytest.mark.parametrize("engine", tiered(ENGINES, quick=["looped", "chunks", "stacked"]))
@pytest.mark.parametrize(
    "method", sampled([Local(), FedPer(), Ditto(lam=0.0)], every=2), ids=lambda each: type(each).__name__
)
def test_a_step_too_long(method: Method, engine: str) -> None:
    data = federation(dtype=torch.float32)
    chosen = setup(method, data, rounds=1, epochs=None, iterations=1, optimizer=OptimizerConfig(lr=1e38))
    assert "diverged in round 1 on client 0" in message(chosen, engine)


def test_clients_of_several_kinds() -> None:
    chosen = pair.pair(Finetune(lr=1e200))
    with pytest.raises(Diverged, match="in round 0 on client 0: its model's scores"):
        pair.simulate(chosen)


@pytest.mark.parametrize("labels", [None, [[0, 1]] * 5], ids=["all classes", "some"])
def test_the_global_model_s_scores(labels: list[list[int]] | None) -> None:
    class Lost(FedAvg):
        def common(self, server: Tree, task: Task) -> Tree:
            return trees.map_leaves(lambda leaf: leaf * torch.nan, server)

    chosen = setup(Lost(), federation(labels=labels), test=TestConfig(sets="common"))
    with pytest.raises(Diverged, match="in round 0 on the server: the global model's scores are not finite"):
        simulate(chosen)


@pytest.mark.parametrize("engine", ["looped", "chunks", "stacked"])
@pytest.mark.parametrize("shared", [True, False])
def test_samples_that_do_not_count_for_a_client_are_no_divergence(shared: bool, engine: str) -> None:
    """Of the test set weighted by label shares, classes that weigh nothing are not the client's."""
    data = federation((6, 6, 6), labels=[[0, 1], [1, 2], [0, 2]])
    lost = data.gather(data.global_test[data.y[data.global_test] == 2])[0].flatten(1)

    class Partly(FedAvg):
        def predict(self, model: Tree, x: Tensor, task: Task) -> Tensor:
            wrong = (x.flatten(1).unsqueeze(1) == lost).all(2).any(1, keepdim=True)
            return task.apply(model, x).where(~wrong, torch.nan)

    test = TestConfig(sets="global", weighting="label_shares")
    chosen = setup(Partly(), data, test=test)
    model = data.placed(chosen.task.init(torch.Generator().manual_seed(0)))
    ids = torch.arange(3)
    sent = trees.expand(model, 3) if shared else trees.stack([model] * 3)
    trainer = ENGINES[engine](chosen)
    rows = torch.tensor([0])
    trainer.evaluate(ids[rows], trees.take(sent, rows), {}, Clock(4, 9), ("global",))
    with pytest.raises(Diverged, match="in round 4 on client 1"):
        trainer.evaluate(ids, sent, {}, Clock(4, 9), ("global",))
