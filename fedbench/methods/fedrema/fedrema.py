"""FedReMa: Liang et al., Improving PFL via Leveraging the Most Relevant Clients, ECAI 2024.

Algorithm 2. Extractors by FedAvg (Eq. 6). Classifiers (all fully connected layers) by the peers A_k that maximum
difference segmentation finds (Algorithm 1, see `mds`), weighted by size (Eq. 7), while in the critical co-learning
period; the choice is counted in G. The period ends for good when the mean largest gap is at most delta of its maximum
so far (Eq. 9); then phi_k = sum_i G_ki phi_i / sum_i G_ki (Eq. 10).
All of this is the server's part, in `peers`.
Table 4's variants: `align` (+F) adds lambda |f(x) - h_y|^2, h_y the class means of features over all clients (Eq. 11);
`alternate` (+A) trains the classifier first, then the extractor. Table 5: `ccp` false stays in the period.
Paper and authors' code disagree in:
- `probe_scale`, `probe_per_client`, `temper_all`: probes in [0, .5), a new one for each client, the temperature for
  that client's answer only;
- `last_gap`, `keep_below`: Algorithm 1 looks at all gaps and keeps idx_m, just below the largest; the code skips the
  last gap and keeps what is above;
- `uniform`: classifiers, and class means, are averaged plainly in the code;
- `shuffle`: the code meets classifiers in a random order, so that A_k's weights go to random clients (a bug);
- `in_turn`: the code overwrites classifiers while it mixes, so that later clients mix what is mixed already;
- `keep_momentum`: the code builds its optimiser once, so that momentum goes on from round to round;
- `align_mean`: the code's alignment is the mean over features, as FedPAC's is, not the sum. The presets of +F follow
  the code: with the sum over the features below all fully connected layers, lambda 1 outweighs the loss.
On a network of fully connected layers only, such as `mlp`, all is classifier: there is no extractor to share or align,
and +F, +A and +A&F are FedReMa.
Batch normalisation: part of the extractor, statistics included, and shared. With partial participation all receive the
new extractor; absent clients keep their classifier.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.config.fields import at_least
from fedbench.config.schema import LocalConfig, OptimizerConfig, added
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, ClientHook, Clock, Cohort, Stage
from fedbench.engine.train.optim import clip
from fedbench.methods.fedrema import mds
from fedbench.methods.fedrema.peers import RelevantPeers
from fedbench.methods.parts import passes
from fedbench.methods.parts.updates import gradient
from fedbench.models.task import Task


@dataclass(frozen=True)
class FedReMa(RelevantPeers):
    """One extractor; classifiers of the most relevant peers.

    h: width of what the classifier sees.

    Server: model/* [N, ...]; W [N, N]; chosen [N, N], G; period/on []; period/largest [];
        classes/means [K, h] if align; classes/seen [K] if align
    Memory: * [N, ...] if private; momentum/* [N, ...] if keep_momentum
    Message: * [...]; classes/means [K, h] if align; classes/seen [K] if align
    Upload: * [...]; classes/sums [K, h] if align; classes/counts [K] if align
    """

    align: float = at_least(0, 0.0)  # lambda of the feature alignment; +F: 1
    align_mean: bool = False  # the code, and +F: true
    alternate: bool = False  # +A: classifier first, then extractor
    classifier_epochs: int | None = at_least(0, None)  # of +A; null: as many as the extractor's
    keep_momentum: bool = added(False)  # the code: true

    paper: ClassVar[str] = "Liang et al., ECAI 2024"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep_momentum and self.alternate:
            raise ConfigError(
                "method.keep_momentum=true is of training all at once; use method.alternate=false"
            )

    @property
    def reads_data(self) -> frozenset[ClientHook]:
        """For the class means of features."""
        return frozenset({"finish"}) if self.align else frozenset()

    # ---- server: the class means of +F

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """No class means yet."""
        server, memory = super().init(task, population, generator)
        if self.align:
            width = math.prod(task.shape_before(mds.classifier_stage(task, self.classifier)))
            server["classes/means"] = torch.zeros(task.classes, width)
            server["classes/seen"] = torch.zeros(task.classes)
        if self.keep_momentum:
            weights = task.weights(
                {**trees.plain(trees.row(trees.part(server, "model"), 0)), **trees.row(memory, 0)}
            )
            still = trees.map_leaves(torch.zeros_like, weights)
            memory = {**memory, **trees.expand(trees.join(momentum=still), population.clients)}
        return server, memory

    def send(self, server: Tree, cohort: Cohort) -> Tree:
        """The extractor, the client's classifier, and the class means to align to."""
        means = trees.join(classes=trees.part(server, "classes"))
        return {**super().send(server, cohort), **trees.expand(means, len(cohort.ids))}

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """The server's part, and the class means."""
        return {**super().aggregate(server, uploads, cohort), **self._means(server, uploads)}

    def _means(self, server: Tree, uploads: Tree) -> Tree:
        """Class means over clients; a class that nobody had keeps its latest."""
        if not self.align:
            return {}
        counts, sums = uploads["classes/counts"], uploads["classes/sums"]  # [C, K], [C, K, d]
        if self.uniform:
            sums, counts = sums / counts.clamp(min=1).unsqueeze(2), (counts > 0).to(sums.dtype)
        total = counts.sum(0)
        fresh = sums.sum(0) / total.clamp(min=1).unsqueeze(1)
        known = total > 0
        means = torch.where(known.unsqueeze(1), fresh, server["classes/means"])
        return {"classes/means": means, "classes/seen": server["classes/seen"].maximum(known.to(means.dtype))}

    # ---- client

    def start(self, client: Client) -> Tree:
        """Extractor and classifier as received."""
        return {**trees.plain(client.message), **client.memory}

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        """All at once, or classifier then extractor."""
        if self.keep_momentum:
            return (Stage(direction=self.going_on, fixed=("momentum/*",), optimizer=OptimizerConfig(lr=1.0)),)
        if not self.alternate:
            return (Stage(self.loss),)
        return (
            Stage(self.loss, moves=self.classifier, epochs=self.classifier_epochs),
            Stage(self.loss, fixed=self.classifier, order=1),
        )

    def going_on(self, work: Tree, client: Client, batch: Batch) -> Tree:
        """The protocol's step of SGD with the momentum of earlier rounds, and what both have moved."""
        sgd = client.optimizer
        if sgd.name != "sgd":
            raise ConfigError("method.keep_momentum=true is of SGD; choose protocol.optimizer.name=sgd")
        model, momentum = trees.plain(work), trees.part(work, "momentum")
        slope, statistics = gradient(partial(self.loss, client=client, batch=batch), model, client.task)
        names, grads = list(slope), list(slope.values())
        if sgd.clip is not None:
            grads = clip(grads, sgd.clip, axes=0)
        speed = {
            name: sgd.momentum * momentum[name] + leaf + sgd.weight_decay * model[name]
            for name, leaf in zip(names, grads, strict=True)
        }
        steps = {name: sgd.lr * leaf for name, leaf in speed.items()}
        return {**steps, **statistics, **trees.join(momentum=speed)}

    def model(self, work: Tree, client: Client) -> Tree:
        """The model without the momentum."""
        return trees.plain(work)

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """Cross-entropy + lambda * mean over samples of |f(x) - h_y|^2, for classes with a mean."""
        if not self.align:
            return super().loss(work, client, batch)
        task = client.task
        stage = mds.classifier_stage(task, self.classifier)
        z = task.apply(work, batch.x, train=True, mask=batch.mask, until=stage)
        logits = task.apply(work, z, train=True, mask=batch.mask, since=stage)
        squares = (z.flatten(1) - client.message["classes/means"][batch.y]).square()
        apart = squares.mean(1) if self.align_mean else squares.sum(1)
        pull = batch.mean(apart * client.message["classes/seen"][batch.y])
        return task.criterion(logits, batch) + self.align * pull

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload the model, and class sums of features where they are aligned."""
        private, shared = client.task.split(trees.plain(work), self.private)
        private |= trees.join(momentum=trees.part(work, "momentum"))
        if not self.align:
            return shared, private
        task = client.task
        stage = mds.classifier_stage(task, self.classifier)
        sums, counts = passes.class_sums(
            lambda block: task.apply(work, block.x, until=stage).flatten(1), client.data, task.classes
        )
        return {**shared, "classes/sums": sums, "classes/counts": counts}, private
