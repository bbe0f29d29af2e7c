"""FedSelect: Tamirisa et al., Personalized Federated Learning with Customized Selection of Parameters, CVPR 2024.

A client's mask marks its personal entries. It starts empty. Local work alternates (LocalAlt) between an epoch on the
personal entries and an epoch on the shared ones. The server averages each entry over the clients that share it, with
equal weights. Every few rounds, after training, the mask grows (GradSelect). In each weight tensor the share p of the
still shared entries that changed most since the last growth becomes personal. A tensor of which more than `limit` is
personal does not grow.
As in the authors' code, biases are never masked. A newly personal entry takes one last average, because the mask of the
latest training decides which entries the server overwrites.

Deviations:
- By default the alternations are as many as the protocol's epochs. With a protocol of iterations each stage has one.
  The code has 15 alternations of one epoch.
- The optimiser is the protocol's. The code has plain SGD at .05.
- A mask grows if the client takes part in that round. In the code the same clients always take part.
- Traffic counts uploads as whole tensors with zeros for personal entries, and one byte an entry for the mask of shared
  entries.

Batch normalisation: running statistics stay local, as in the authors' code. Weights are masked, biases are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.config.fields import at_least, selectors, share
from fedbench.config.schema import LocalConfig
from fedbench.core import trees
from fedbench.core.batch import Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Clock, Cohort, Conformance, Stage
from fedbench.engine.method import Method
from fedbench.models.task import Task


@dataclass(frozen=True)
class FedSelect(Method):
    """FedAvg with a growing number of personal entries; the others are averaged over the clients that share them.

    Server: * [...], all but the private leaves
    Memory: * [N, ...] if private; own/* [N, ...], the last model; last/* [N, ...], the model at the last growth;
        mask/* [N, ...], which entries are personal; kept/* [N, ...], which were personal in the last training
    Message: * [...]
    Upload: * [...]; shared/* [...], which entries count
    """

    private: tuple[str, ...] = selectors(("@stats",), may_be_empty=True)
    maskable: tuple[str, ...] = selectors(("*.weight",), among="weights")  # leaves whose entries may become personal
    p: float = share(0.25)  # share of a tensor's shared entries that become personal in a growth
    limit: float = share(0.8)  # personal share of a tensor above which its mask no longer grows
    every: int = at_least(1, 3)  # rounds from one growth to the next
    alternations: int | None = at_least(1, None)  # alternations in a round; null: as many as the protocol has epochs

    family: ClassVar[str] = "personalised"
    paper: ClassVar[str] = "Tamirisa et al., CVPR 2024"

    @property
    def conformance(self) -> Conformance:
        """A short run reaches a growth of the masks as well."""
        return Conformance(settings={"every": 1})

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Start all from one model, with empty masks."""
        private, shared = task.split(task.init(generator), self.private)
        own = task.weights(task.split(shared, self.maskable)[0])
        none = {name: torch.zeros_like(leaf, dtype=torch.bool) for name, leaf in own.items()}
        return shared, trees.expand(
            {**private, **trees.join(own=own, last=own, mask=none, kept=none)}, population.clients
        )

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Average each entry over the clients that share it; an entry that no client shares stays."""
        models, shared = trees.plain(uploads), trees.under(uploads, "shared")
        mean = {name: leaf.mean(0) for name, leaf in models.items()}
        for name, counts in shared.items():
            number = counts.sum(0)
            mean[name] = torch.where(number > 0, models[name].sum(0) / number.clamp(min=1), server[name])
        return {**server, **mean}

    # ---- client

    def start(self, client: Client) -> Tree:
        """Return shared/* as received, personal/*, and the private leaves."""
        own, kept = trees.under(client.memory, "own"), trees.under(client.memory, "kept")
        personal = {name: torch.where(kept[name], leaf, client.message[name]) for name, leaf in own.items()}
        return {**trees.plain(client.memory), **trees.join(shared=client.message, personal=personal)}

    def model(self, work: Tree, client: Client) -> Tree:
        """Return personal/* where the mask says so, shared/* elsewhere."""
        personal, shared = trees.under(work, "personal"), trees.under(work, "shared")
        chosen = {
            name: torch.where(mask, personal[name], shared[name])
            for name, mask in trees.under(client.memory, "mask").items()
        }
        return {**trees.plain(work), **shared, **chosen}

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        """Alternate: an epoch on the personal entries, one on the shared ones."""
        epochs = None if local.epochs is None else 1
        count = self.alternations or local.epochs or 1
        return tuple(
            Stage(self.loss, moves=(moves,), epochs=epochs, order=2 * i + order)
            for i in range(count)
            for moves, order in (("personal/*", 1), ("shared/*", 0))
        )

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload the shared entries; keep the model, and in a round of growth a larger mask."""
        model, mask = self.model(work, client), trees.under(client.memory, "mask")
        own, last, grown = {name: model[name] for name in mask}, trees.under(client.memory, "last"), mask
        if client.clock.round > 0 and client.clock.round % self.every == 0:
            grown = {name: self.grown(mask[name], (leaf - last[name]).abs()) for name, leaf in own.items()}
            last = own
        private, upload = client.task.split(model, self.private)
        upload |= {name: leaf.masked_fill(mask[name], 0) for name, leaf in own.items()}
        shared = {name: ~leaf for name, leaf in mask.items()}
        return {**upload, **trees.join(shared=shared)}, {
            **private,
            **trees.join(own=own, last=last, mask=grown, kept=mask),
        }

    def grown(self, mask: Tensor, change: Tensor) -> Tensor:
        """Return `mask` with the share p of its other entries whose `change` [...] is largest."""
        ranked = change.masked_fill(mask, torch.inf).flatten().sort().values  # shared entries first
        ranked = torch.cat([ranked, torch.full_like(ranked[:1], torch.inf)])
        count = (~mask).sum()
        cutoff = ranked.gather(0, ((1 - self.p) * count.double()).round().long().view(1))
        full = mask.sum() > self.limit * mask.numel()
        return mask | ((change >= cutoff) & ~full)
