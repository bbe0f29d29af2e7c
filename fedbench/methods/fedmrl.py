"""FedMRL: Yi et al., Federated Model Heterogeneous Matryoshka Representation Learning, NeurIPS 2024.

Client k has a private network with extractor F and header h. It also trains a small network with extractor G and
header g, which the server averages. A private projector P, a linear map, fuses both representations: R = P [G(x), F(x)]
has as many entries as F(x), d. As in a Matryoshka doll the first d_1 entries, as many as G(x) has, go to g, and all
entries go to h. All parts minimise CE(g(R_1..d_1)) + CE(h(R)). Clients are scored by h(R).
We read only the paper's abstract. The description follows the authors' code, FedMRL_hetero.py.
The small network is the first of the federation, as in HtFLlib. `width` is d_1. G's features are pooled to it, as in
HtFLlib; the authors' networks end in as many units.

Deviations:
- n_k in the average counts training samples. The code counts all samples of a client, HtFLlib clients equally.
- The clipped norm is of all parts. The code clips each of the three at 50.

Batch normalisation: each network has its own. The small network's statistics are averaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fedbench.config.fields import at_least
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client
from fedbench.engine.method import ONE_VIEW, Method
from fedbench.methods.parts.layers import linear
from fedbench.models.task import Task


@dataclass(frozen=True)
class FedMRL(Method):
    """Private networks whose features are fused with those of a small global network.

    Server: small/* [...]
    Memory: * [N, ...]; projector/weight [N, d, d_1 + d]; projector/bias [N, d]
    Message: small/* [...]
    Upload: small/* [...]
    """

    width: int | None = at_least(1, None)  # d_1; null: as many features as the small network has

    family: ClassVar[str] = "personalised"
    paper: ClassVar[str] = "Yi et al., NeurIPS 2024"
    unfit: ClassVar[Mapping[str, str]] = ONE_VIEW

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Return a small network on the server, private ones with the same weights, and a projector as torch's layers.

        Raises:
            ConfigError: `width` is more than d, or the header that takes it is not one layer.
        """
        own, small, first = task.init(generator), task.shared.init(generator), task.modalities[0]
        wide = first.features(own, torch.zeros(1, *first.shape)).shape[1]
        narrow = self.width or wide
        if narrow > wide:
            raise ConfigError(
                f"method.width={narrow} is more than the {wide} features of the clients' networks; lower it"
            )
        if narrow < wide:
            if first.boundary != "head":
                raise ConfigError(
                    f"method.width={narrow} needs a header of one layer; use model.classifier=own, or width=null"
                )
            small |= linear("head", narrow, task.classes, generator)
        layer = linear("", narrow + wide, wide, generator)
        projector = {name.removeprefix("."): leaf for name, leaf in layer.items()}
        memory = {**own, **trees.join(projector=projector)}
        return trees.join(small=small), trees.expand(memory, population.clients)

    def start(self, client: Client) -> Tree:
        """Return both networks and the projector."""
        return {**client.message, **client.memory}

    def fused(self, model: Tree, x: Tensor, task: Task, **how: Any) -> tuple[Tensor, Tensor]:
        """Return R [B, d], and its first d_1 entries; `how` sets the mode of the networks."""
        weight, bias = model["projector/weight"], model["projector/bias"]
        narrow = weight.shape[1] - weight.shape[0]
        small = task.shared.features(trees.part(model, "small"), x, **how)
        if small.shape[1] > narrow:
            small = functional.adaptive_avg_pool1d(small, narrow)
        R = functional.linear(torch.cat([small, task.features(model, x, **how)], dim=1), weight, bias)
        return R, R[:, :narrow]

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """Return the sum of the cross-entropies of both headers."""
        task = client.task
        fine, coarse = self.fused(work, batch.x, task, train=True, mask=batch.mask)
        small = task.shared.head(trees.part(work, "small"), coarse)
        return task.criterion(task.head(work, fine), batch) + task.criterion(small, batch)

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload the small network, keep the rest."""
        return {name: work[name] for name in client.message}, {name: work[name] for name in client.memory}

    def predict(self, model: Tree, x: Tensor, task: Task) -> Tensor:
        """Return h(R)."""
        return task.head(model, self.fused(model, x, task)[0])
