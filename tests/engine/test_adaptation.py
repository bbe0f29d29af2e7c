"""Methods that look at all samples of a client, adapt before scores, or do not train. Looped and stacked alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from fedbench.config.schema import LocalConfig
from fedbench.core import rng, trees
from fedbench.core.batch import Batch
from fedbench.core.trees import Tree
from fedbench.engine import schedule
from fedbench.engine.contract import Client, Clock, Stage
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.stacked import StackedTrainer
from fedbench.engine.trainer import Trainer
from fedbench.methods.fedavg import FedAvg
from tests.engine.toys import both
from tests.methods.toys import SIZES, close, gap, setup, simulate


@dataclass(frozen=True)
class Sums(FedAvg):
    """Uploads, beside the model, class sums of the client's training pixels and what it knows of itself."""

    reads: tuple[str, ...] = ("finish",)
    family: ClassVar[str] = "global"

    @property
    def reads_data(self) -> frozenset[str]:
        return frozenset(self.reads)

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        sums, counts = client.data.class_sums(client.data.x.flatten(1), client.task.classes)
        mean = client.data.mean(client.data.x.flatten(1))
        own = {"sums": sums, "counts": counts, "mean": mean, "size": client.size, "steps": client.steps}
        return {**work, **own}, {}

    def aggregate(self, server: Tree, uploads: Tree, cohort: object) -> Tree:
        return uploads  # kept apart by client for the test to see

    def send(self, server: Tree, cohort: object) -> Tree:
        return {k: v if v.dim() and len(v) == 5 else v.expand(5, *v.shape) for k, v in server.items()}

    def start(self, client: Client) -> Tree:
        own = {"sums", "counts", "mean", "size", "steps"}
        return {k: v for k, v in client.message.items() if k not in own}


@pytest.mark.parametrize("chunk", [None, 1, 2, 9])
def test_hooks_that_ask_see_all_of_their_client_s_samples(chunk: int | None) -> None:
    chosen = setup(Sums(), rounds=1)
    trainer: Trainer = LoopedTrainer(chosen) if chunk is None else StackedTrainer(chosen, chunk)
    message = chosen.method.send(chosen.method.init(chosen.task, chosen.population, rng.torch_rng(0, "x"))[0], None)  # type: ignore[arg-type]
    found = trainer.train(torch.arange(5), {k: v.double() for k, v in message.items()}, {}, Clock(0, 1)).uploads
    for client, size in enumerate(SIZES):
        x, y = chosen.federation.gather(chosen.federation.indices("train", client))
        expected = torch.zeros(4, 16, dtype=torch.float64).index_add(0, y, x.flatten(1))
        assert close(found["sums"][client], expected)
        assert found["counts"][client].tolist() == chosen.population.label_counts[client].tolist()
        assert close(found["mean"][client], x.flatten(1).mean(0))
        assert float(found["size"][client]) == size
        assert float(found["steps"][client]) == 2 * -(-size // 8)


@dataclass(frozen=True)
class Finetuned(FedAvg):
    """FedAvg whose clients train once more before they are scored."""

    def adapt(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        return (Stage(self.loss, moves=("@head",), epochs=4, lr=0.5),)


def test_adaptation_is_scored_and_forgotten() -> None:
    adapted, _ = both(setup(Finetuned(), cohort=0.8))
    plain = simulate(setup(FedAvg(), cohort=0.8))
    assert gap(adapted.server, plain.server) == 0
    chosen = setup(Finetuned())
    data, clock = chosen.federation, Clock(2, 2)
    model = simulate(chosen).server
    for client in (1, 3):
        tuned = {k: v.clone() for k, v in model.items()}
        head = [tuned[k].requires_grad_(True) for k in ("head.weight", "head.bias")]
        optimizer = torch.optim.SGD(head, lr=0.5)
        x, y = data.gather(data.indices("train", client))
        keyed = rng.torch_rng(0, "adapt", 2, client, 0)
        for rows in schedule.batches(len(y), chosen.protocol.local, Stage(epochs=4), keyed):
            optimizer.zero_grad()
            chosen.task.loss(tuned, Batch(x[rows], y[rows])).backward()
            optimizer.step()
        x, y = data.gather(data.indices("local", client))
        right = int((chosen.task.apply(tuned, x).argmax(1) == y).sum())
        message = trees.expand(model, 1)
        counts = LoopedTrainer(chosen).evaluate(torch.tensor([client]), message, {}, clock, ("local",))
        assert int(counts["local"][0].sum()) == right


@dataclass(frozen=True)
class Untrained(FedAvg):
    """No local training at all."""

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        return ()


def test_without_a_stage_nothing_is_trained() -> None:
    looped, _ = both(setup(Untrained()))
    start = setup(FedAvg()).task.init(rng.torch_rng(0, "init"))
    assert gap(looped.server, start) < 1e-12
