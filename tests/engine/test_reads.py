"""A hook reads its client's samples only if the method announced it, whichever engine calls it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from fedbench.config.schema import TestConfig
from fedbench.core.batch import Batch
from fedbench.core.errors import UnknownName
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, ClientHook
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.method import HookError
from fedbench.engine.stacked import StackedTrainer
from fedbench.methods.fedavg import FedAvg
from tests.methods.toys import setup, simulate

ENGINES = {"looped": LoopedTrainer, "stacked": lambda chosen: StackedTrainer(chosen, 2)}


@dataclass(frozen=True)
class Reader(FedAvg):
    """Reads the samples in one hook, and announces that it does in others."""

    hook: str = ""
    what: str = "data"
    announced: tuple[str, ...] = ()

    @property
    def reads_data(self) -> frozenset[ClientHook]:
        return frozenset(self.announced)  # type: ignore[arg-type]

    def read(self, name: str, client: Client) -> None:
        if name == self.hook:
            getattr(client, self.what)

    def start(self, client: Client) -> Tree:
        self.read("start", client)
        return super().start(client)

    def draw(self, generator: torch.Generator, steps: int, client: Client) -> Tree:
        self.read("draw", client)
        return {}

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        self.read("loss", client)
        return client.task.loss(work, batch)

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        self.read("finish", client)
        return super().finish(work, client)

    def model(self, work: Tree, client: Client) -> Tree:
        self.read("model", client)
        return work

    def personal(self, client: Client) -> Tree:
        self.read("personal", client)
        return client.message


HOOKS = ("start", "draw", "loss", "finish", "model", "personal")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("what", ["data", "validation"])
@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_reads_only_what_the_method_announced(hook: str, what: str, engine: str) -> None:
    options: dict[str, Any] = {"rounds": 1, "score": "received" if hook == "personal" else "trained"}
    if what == "validation":
        options["test"] = TestConfig(val_fraction=0.1)
    others = tuple(name for name in HOOKS if name != hook)
    for announced in ((), others):
        told = setup(Reader(hook=hook, what=what, announced=announced), **options)
        with pytest.raises(HookError, match=rf"Reader.{hook} failed .*client\.{what}: list its name in .*`reads_data`"):
            simulate(told, ENGINES[engine](told))
    allowed = setup(Reader(hook=hook, what=what, announced=(hook,)), **options)
    simulate(allowed, ENGINES[engine](allowed))


def test_a_hook_that_does_not_exist_cannot_be_announced() -> None:
    with pytest.raises(UnknownName, match="hook in reads_data of Reader 'finsh'; nearest: finish"):
        setup(Reader(announced=("finsh",)))
