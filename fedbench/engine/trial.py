"""One step before the run: what a method refuses is refused before anything is trained."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import torch

from fedbench.core import rng, trees
from fedbench.core.errors import ConfigError, UnknownName
from fedbench.engine.contract import Client, Clock, Stage
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.method import Method
from fedbench.engine.setup import Drawn, Setup, drawn
from fedbench.engine.trainer import by_kind


@torch.no_grad()
def check_hooks(setup: Setup) -> None:
    """Have the smallest client of each kind take a step, and the server their uploads; all of it is forgotten.

    So does a method inside another by itself. What fails for another reason than the config is left to the run: a
    method may need its preparation first.

    Raises:
        ConfigError, UnknownName: a hook refuses the config.
    """
    try:
        _step(setup)
    except (ConfigError, UnknownName):
        raise
    except Exception:  # noqa: BLE001 - the run tells it, with its round and client
        pass
    for field in dataclasses.fields(setup.method):
        if isinstance(inner := getattr(setup.method, field.name), Method):
            parts = tuple(replace(part, method=inner) for part in setup.parts)
            check_hooks(replace(setup, method=inner, parts=parts))


def _step(setup: Setup) -> None:
    clock, sizes, kind_of = Clock(0, setup.protocol.rounds), setup.population.sizes, setup.task.kind_of(setup.everyone)
    smallest = sizes.argsort()
    ids = torch.stack([smallest[kind_of[smallest] == kind][0] for kind in kind_of.unique()]).sort().values
    server, memory = setup.method.init(setup.task, setup.population, rng.torch_rng(setup.seed, "init"))
    server, memory = (setup.federation.placed(tree) for tree in (server, trees.take(memory, ids)))
    cohort = setup.cohort(ids, clock)
    trainer = by_kind(setup, [LoopedTrainer(replace(kind, source=_one_step)) for kind in setup.kinds])
    outcome = trainer.train(ids, setup.method.send(server, cohort), trees.clone(memory), clock)
    setup.method.aggregate(server, outcome.uploads, cohort)


def _one_step(setup: Setup, client: int, stage: Stage, view: Client, purpose: str) -> Drawn:
    order, noise = drawn(setup, client, stage, view, purpose)
    return order.cut(0, 1), {name: leaf[:1] for name, leaf in noise.items()}
