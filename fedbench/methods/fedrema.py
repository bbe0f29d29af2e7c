"""FedReMa: Liang et al., Improving PFL via Leveraging the Most Relevant Clients, ECAI 2024.

Algorithm 2. Extractors are averaged as in FedAvg (Eq. 6). The classifier (all fully connected layers) of client k is
averaged by size over its peers A_k (Eq. 7). Maximum difference segmentation finds the peers (Algorithm 1, `segment`).
This lasts for the critical co-learning period, in which G counts how often each peer is chosen. The period ends for
good when the mean largest gap is at most delta of its maximum so far (Eq. 9). After it phi_k = sum_i G_ki phi_i / sum_i
G_ki (Eq. 10).
Variants of Table 4: `align` (+F) adds lambda |f(x) - h_y|^2, where h_y are the class means of features over all clients
(Eq. 11). `alternate` (+A) trains the classifier first and then the extractor. Table 5: without `ccp` the period never
ends.

Paper and authors' code differ in these settings:
- `probe_scale`, `probe_per_client`, `temper_all`: the code draws probes in [0, .5), draws a new one for each client,
  and applies the temperature to that client's output only.
- `last_gap`, `keep_below`: Algorithm 1 compares all gaps and keeps idx_m, the client just below the largest. The code
  skips the last gap and keeps only the clients above the largest.
- `uniform`: the code averages classifiers and class means without weights.
- `shuffle`: the code iterates over classifiers in a random order, so A_k's weights go to random clients (a bug).
- `in_turn`: the code overwrites classifiers while it mixes, so later clients mix classifiers that are already mixed.
- `align_mean`: the code's alignment is the mean over features, as in FedPAC, and the paper's is the sum. The presets of
  +F follow the code: with the sum over the features below all fully connected layers, lambda 1 outweighs the loss.

A network of fully connected layers only, such as `mlp`, has no extractor to share or align. On it +F, +A and +A&F are
FedReMa.
Batch normalisation: it belongs to the extractor, statistics included, and is shared. With partial participation all
clients receive the new extractor, and clients that are not drawn keep their classifier.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fedbench.config.fields import at_least, positive, selectors, share
from fedbench.config.schema import LocalConfig, added
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree, sent
from fedbench.engine.contract import Client, ClientHook, Clock, Cohort, Conformance, Stage
from fedbench.engine.method import ONE_NETWORK, Method
from fedbench.methods.parts.features import class_sums
from fedbench.methods.parts.mixing import client_models, rows_over_all
from fedbench.models.task import Task


@dataclass(frozen=True)
class FedReMa(Method):
    """One shared extractor; each client's classifier is averaged over its most relevant peers.

    h: width of what the classifier sees.

    Server: model/* [N, ...]; W [N, N]; chosen [N, N], G; period/on []; period/largest [];
        classes/means [K, h] if align; classes/seen [K] if align
    Memory: * [N, ...] if private
    Message: * [...]; classes/means [K, h] if align; classes/seen [K] if align
    Upload: * [...]; classes/sums [K, h] if align; classes/counts [K] if align
    """

    private: tuple[str, ...] = selectors(())  # leaves that never leave a client, see Task.select
    delta: float = share(0.5)  # share of the largest mean gap at which the period ends
    ccp: bool = True  # false: the period never ends
    temperature: float = positive(0.5)  # M of the soft predictions
    classifier: tuple[str, ...] = selectors(("@classifier",))  # the personal leaves: the network's last stages
    probe_scale: float = positive(1.0)  # probes are uniform on [0, probe_scale); the code: .5
    probe_per_client: bool = False  # each client has its own probe; the code: true
    temper_all: bool = True  # false: only the client's own output has the temperature; the code: false
    last_gap: bool = True  # the gap below the highest similarity counts; the code: false
    keep_below: bool = True  # the client just below the largest gap is a peer; the code: false
    uniform: bool = False  # averages count clients equally; the code: true
    shuffle: bool = False  # peers' weights go to random clients; the code: true
    in_turn: bool = added(False)  # a mixture replaces its classifier before the next one; the code: true
    align: float = at_least(0, 0.0)  # lambda of the feature alignment; +F: 1
    align_mean: bool = False  # the alignment is a mean over features, not a sum; the code, and +F: true
    alternate: bool = False  # +A: classifier first, then extractor
    classifier_epochs: int | None = at_least(0, None)  # the classifier's epochs in +A; null: as many as the extractor's

    family: ClassVar[str] = "personalised"
    paper: ClassVar[str] = "Liang et al., ECAI 2024"
    unfit: ClassVar[Mapping[str, str]] = {**ONE_NETWORK, "regression": "compares probabilities of classes"}

    @property
    def reads_data(self) -> frozenset[ClientHook]:
        return frozenset({"finish"}) if self.align else frozenset()

    @property
    def conformance(self) -> Conformance:
        drawn = self.probe_per_client or self.shuffle
        reason = "a probe is drawn for each place in the cohort, and classifiers are shuffled" if drawn else ""
        return Conformance(draws_by_position=reason)

    # ---- server

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Start in the period, without choices or class means."""
        server, memory = client_models(task, self.private, population, generator)
        stage = classifier_stage(task, self.classifier)  # refuses what is no classifier before anything trains
        if hidden := task.select(memory, self.classifier):
            raise ConfigError(f"method.private keeps {hidden[0]} from the server, which compares classifiers")
        server["W"] = torch.eye(population.clients, dtype=torch.float64)
        server["chosen"] = torch.zeros_like(server["W"])  # G
        server["period/on"] = torch.ones((), dtype=torch.bool)
        server["period/largest"] = torch.zeros((), dtype=torch.float64)
        if self.align:
            server["classes/means"] = torch.zeros(task.classes, math.prod(task.shape_before(stage)))
            server["classes/seen"] = torch.zeros(task.classes)
        return server, memory

    def send(self, server: Tree, cohort: Cohort) -> Tree:
        """Send the extractor, the client's classifier, and the class means to align to."""
        model = trees.take(trees.part(server, "model"), cohort.ids)
        means = trees.join(classes=trees.under(server, "classes"))
        return {**model, **trees.expand(means, len(cohort.ids))}

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Mix classifiers, average extractors and class means; record choices and the period (Algorithm 2)."""
        models = trees.plain(uploads)
        probe = Probe(self.temperature, self.probe_scale, self.probe_per_client, self.temper_all)
        S = probe.similarities(models, classifier_stage(cohort.task, self.classifier), cohort)
        relevant, gaps = segment(S, self.last_gap, self.keep_below)
        W = self._classifier_weights(server, relevant, cohort)
        classifiers, extractors = cohort.task.split(models, self.classifier)
        rows = {**trees.join(model=trees.mix(W, classifiers)), "W": rows_over_all(W, cohort)}
        average = trees.expand(trees.mean(extractors, cohort.weights), cohort.population.clients)
        updated = {**trees.put(server, cohort.ids, rows), **trees.join(model=average)}
        if bool(server["period/on"]):
            updated.update(self._period(server, relevant, gaps, cohort))
        if self.align:
            updated.update(self._class_means(server, uploads))
        return updated

    def _classifier_weights(self, server: Tree, relevant: Tensor, cohort: Cohort) -> Tensor:
        """Return W [C, C] of the classifiers, Eq. 7 or 10; the identity's row without any choice on record."""
        if bool(server["period/on"]):
            W = relevant.to(torch.float64)
            W = W if self.uniform else W * sent(cohort.weights, W.device)
        else:
            ids = sent(cohort.ids, relevant.device)
            W = server["chosen"][ids.unsqueeze(1), ids]
            identity = torch.eye(len(ids), dtype=W.dtype, device=W.device)
            W = torch.where(W.sum(1, keepdim=True) > 0, W, identity)
        if self.shuffle:
            order = torch.randperm(len(W), generator=cohort.generator)
            W = W[:, sent(order, W.device)]
        W = functional.normalize(W, p=1, dim=1)
        return overwritten_in_turn(W) if self.in_turn else W

    def _period(self, server: Tree, relevant: Tensor, gaps: Tensor, cohort: Cohort) -> Tree:
        """Return G with this round's choices, and whether the period goes on (Eq. 9)."""
        G = server["chosen"].clone()
        ids = sent(cohort.ids, G.device)
        G[ids.unsqueeze(1), ids] += relevant.to(G)
        gap = gaps.mean().to(server["period/largest"])
        largest = torch.maximum(server["period/largest"], gap)
        on = (gap > self.delta * largest) | (largest == 0) | (not self.ccp)
        return {"chosen": G, "period/on": on, "period/largest": largest}

    def _class_means(self, server: Tree, uploads: Tree) -> Tree:
        """Return class means over clients; a class without samples in the round keeps its latest mean."""
        counts, sums = uploads["classes/counts"], uploads["classes/sums"]  # [C, K], [C, K, d]
        if self.uniform:
            sums, counts = sums / counts.clamp(min=1).unsqueeze(2), (counts > 0).to(sums.dtype)
        total = counts.sum(0)
        fresh = sums.sum(0) / total.clamp(min=1).unsqueeze(1)
        known = total > 0
        means = torch.where(known.unsqueeze(1), fresh, server["classes/means"])
        return {"classes/means": means, "classes/seen": server["classes/seen"].maximum(known.to(means.dtype))}

    def collaboration(self, server: Tree, population: Population) -> Tensor:
        """Return each client's latest row for the classifier."""
        return server["W"]

    def record(self, server: Tree) -> Mapping[str, Tensor]:
        """Return each client's rounds in the critical co-learning period [N]: it always chooses itself."""
        return {"ccp_rounds": server["chosen"].diagonal()}

    # ---- client

    def start(self, client: Client) -> Tree:
        return {**trees.plain(client.message), **client.memory}

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        """Train all at once, or the classifier and then the extractor."""
        if not self.alternate:
            return (Stage(self.loss),)
        return (
            Stage(self.loss, moves=self.classifier, epochs=self.classifier_epochs),
            Stage(self.loss, fixed=self.classifier, order=1),
        )

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """Return cross-entropy + lambda * mean over samples of |f(x) - h_y|^2, for classes with a mean."""
        if not self.align:
            return super().loss(work, client, batch)
        task = client.task
        stage = classifier_stage(task, self.classifier)
        z = task.apply(work, batch.x, train=True, mask=batch.mask, until=stage)
        logits = task.apply(work, z, train=True, mask=batch.mask, since=stage)
        squares = (z.flatten(1) - client.message["classes/means"][batch.y]).square()
        distance = squares.mean(1) if self.align_mean else squares.sum(1)
        pull = batch.mean(distance * client.message["classes/seen"][batch.y])
        return task.criterion(logits, batch) + self.align * pull

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload the model, and class sums of features where they are aligned."""
        private, shared = client.task.split(trees.plain(work), self.private)
        if not self.align:
            return shared, private
        task = client.task
        stage = classifier_stage(task, self.classifier)
        sums, counts = class_sums(
            lambda block: task.apply(work, block.x, until=stage).flatten(1), client.data, task.classes
        )
        return {**shared, "classes/sums": sums, "classes/counts": counts}, private


# ---- relevant peers


def segment(S: Tensor, last_gap: bool, keep_below: bool) -> tuple[Tensor, Tensor]:
    """Return Algorithm 1 for every row of S [C, C]: (A as bool [C, C], largest gaps [C]).

    In ascending order, the largest gap is between s_m and s_m+1; kept are those above it, and, if `keep_below`, the one
    just below. Without `last_gap`, the gap to the largest is not looked at. With no gap to look at, all are kept.
    """
    values, order = S.sort(dim=1, stable=True)
    gaps = values.diff(dim=1)
    gaps = gaps if last_gap else gaps[:, :-1]
    if gaps.shape[1] == 0:
        return torch.ones_like(S, dtype=torch.bool), S.new_zeros(len(S))
    largest, below = gaps.max(dim=1)
    first = below if keep_below else below + 1
    kept = torch.arange(S.shape[1], device=S.device) >= first.unsqueeze(1)
    return torch.zeros_like(kept).scatter(1, order, kept), largest


@dataclass(frozen=True)
class Probe:
    """How classifiers are compared."""

    temperature: float  # M
    scale: float  # probes are uniform on [0, scale)
    per_client: bool  # a new probe for each row of S
    temper_all: bool  # false: only the row's own client has the temperature, the others 1

    def similarities(self, models: Tree, stage: str, cohort: Cohort) -> Tensor:
        """Return S [C, C], s_kj = cos(p_k, p_j) of the probabilities p = softmax(z / M) (Eq. 5), s_kk = 1."""
        task, count = cohort.task, len(cohort.ids)
        shape = (count if self.per_client else 1, *task.shape_before(stage))
        probes = torch.rand(shape, generator=cohort.generator) * self.scale
        probes = probes.to(next(iter(models.values())))
        logits = [task.apply(trees.row(models, j), probes, since=stage) for j in range(count)]
        z = torch.stack(logits, dim=1).to(torch.float64).expand(count, -1, -1)  # [row's probe, client, K]
        tempered = (z / self.temperature).softmax(2)
        own = tempered.diagonal(dim1=0, dim2=1).t().unsqueeze(1)  # [C, 1, K]
        others = tempered if self.temper_all else z.softmax(2)
        return functional.cosine_similarity(own, others, dim=2).fill_diagonal_(1.0)


def classifier_stage(task: Task, selectors: tuple[str, ...]) -> str:
    """Return the first stage of the classifier that `selectors` name: the network from there on.

    Raises:
        ConfigError: the selected leaves are not those of the last stages.
    """
    stage = task.first_stage(selectors)
    if stage is None:
        raise ConfigError(f"method.classifier={list(selectors)} does not select the last stages of the network")
    return stage


def overwritten_in_turn(W: Tensor) -> Tensor:
    """Return the effective W [C, C] if client k's mixture replaces its model before client k + 1 mixes."""
    rows = torch.eye(len(W)).to(W)
    for client, own in enumerate(W):
        rows[client] = own @ rows
    return rows
