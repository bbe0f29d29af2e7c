"""What a trial of an engine trains before the run has begun: clients as they would stand in a first round."""

from __future__ import annotations

import torch
from torch import Tensor

from fedbench.core import rng, trees
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.engine.setup import Setup


@torch.no_grad()
def opening(setup: Setup, ids: Tensor, clock: Clock) -> tuple[Tree, Tree]:
    """(message, memory) of clients `ids` [C] as a first round without any preparation has them."""
    server, memory = setup.method.init(setup.task, setup.population, rng.torch_rng(setup.seed, "init"))
    server, memory = (setup.federation.placed(tree) for tree in (server, trees.take(memory, ids)))
    return setup.method.send(server, setup.cohort(ids, clock)), trees.clone(memory)
