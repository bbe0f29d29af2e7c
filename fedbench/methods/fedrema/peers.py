"""FedReMa's server: classifiers of the most relevant peers (Liang et al., ECAI 2024, Algorithm 2, Eqs. 6-7, 9-10)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fedbench.config.fields import positive, selectors, share
from fedbench.config.schema import added
from fedbench.core import trees
from fedbench.core.batch import Population
from fedbench.core.errors import ConfigError
from fedbench.core.transfer import sent
from fedbench.core.trees import Tree
from fedbench.engine.conformance import Conformance
from fedbench.engine.contract import Cohort
from fedbench.engine.method import Method
from fedbench.methods.fedrema import mds
from fedbench.methods.parts.mixing import one_each, scatter
from fedbench.models.task import Task


@dataclass(frozen=True)
class RelevantPeers(Method):
    """One extractor by FedAvg; each client's classifier is a mean over the peers that segmentation finds."""

    private: tuple[str, ...] = selectors(())  # leaves that never leave a client, see Task.select
    delta: float = share(0.5)  # share of the largest mean gap at which the period ends
    ccp: bool = True  # false: the period never ends
    temperature: float = positive(0.5)  # M of the soft predictions
    classifier: tuple[str, ...] = selectors(("@classifier",))  # the personal part: the network's last stages
    probe_scale: float = positive(1.0)  # the code: .5
    probe_per_client: bool = False  # the code: true
    temper_all: bool = True  # the code: false
    last_gap: bool = True  # the code: false
    keep_below: bool = True  # the code: false
    uniform: bool = False  # the code: true
    shuffle: bool = False  # the code: true
    in_turn: bool = added(False)  # the code: true

    family: ClassVar[str] = "personalised"

    @property
    def conformance(self) -> Conformance:
        """The code's probes, and its shuffling."""
        drawn = self.probe_per_client or self.shuffle
        reason = (
            "a probe is drawn for each place in the cohort, and classifiers are shuffled" if drawn else ""
        )
        return Conformance(draws_by_position=reason)

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """In the period, no choices yet."""
        server, memory = one_each(task, self.private, population, generator)
        mds.classifier_stage(task, self.classifier)  # refuses what is no classifier before anything trains
        if hidden := task.select(memory, self.classifier):
            raise ConfigError(f"method.private keeps {hidden[0]} from the server, which compares classifiers")
        server["W"] = torch.eye(population.clients, dtype=torch.float64)
        server["chosen"] = torch.zeros_like(server["W"])  # G
        server["period/on"] = torch.ones((), dtype=torch.bool)
        server["period/largest"] = torch.zeros((), dtype=torch.float64)
        return server, memory

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Mix classifiers, average extractors; record choices and the period."""
        models = trees.plain(uploads)
        chosen, gaps = self._segment(models, cohort)
        weights = self._weights(server, chosen, cohort)
        classifiers, extractors = cohort.task.split(models, self.classifier)
        rows = {**trees.join(model=trees.mix(weights, classifiers)), "W": scatter(weights, cohort)}
        average = trees.expand(trees.mean(extractors, cohort.weights), cohort.population.clients)
        updated = {**trees.put(server, cohort.ids, rows), **trees.join(model=average)}
        if bool(server["period/on"]):
            updated.update(self._period(server, chosen, gaps, cohort))
        return updated

    def _segment(self, models: Tree, cohort: Cohort) -> tuple[Tensor, Tensor]:
        """A [C, C] and the largest gaps [C]."""
        probe = mds.Probe(self.temperature, self.probe_scale, self.probe_per_client, self.temper_all)
        S = probe.similarities(models, mds.classifier_stage(cohort.task, self.classifier), cohort)
        return mds.segment(S, self.last_gap, self.keep_below)

    def _weights(self, server: Tree, chosen: Tensor, cohort: Cohort) -> Tensor:
        """W [C, C] of the classifiers, Eq. 7 or 10; the identity's row without any choice on record."""
        if bool(server["period/on"]):
            weights = chosen.to(torch.float64)
            weights = weights if self.uniform else weights * sent(cohort.weights, weights.device)
        else:
            ids = sent(cohort.ids, chosen.device)
            weights = server["chosen"][ids.unsqueeze(1), ids]
            alone = torch.eye(len(ids), dtype=weights.dtype, device=weights.device)
            weights = torch.where(weights.sum(1, keepdim=True) > 0, weights, alone)
        if self.shuffle:
            order = torch.randperm(len(weights), generator=cohort.generator)
            weights = weights[:, sent(order, weights.device)]
        weights = functional.normalize(weights, p=1, dim=1)
        return one_by_one(weights) if self.in_turn else weights

    def send(self, server: Tree, cohort: Cohort) -> Tree:
        """The extractor, and the client's classifier."""
        return trees.take(trees.part(server, "model"), cohort.ids)

    def collaboration(self, server: Tree, population: Population) -> Tensor:
        """Each client's latest row for the classifier."""
        return server["W"]

    def record(self, server: Tree) -> Mapping[str, Tensor]:
        """Rounds of the critical co-learning period [N] of each client: it always chooses itself."""
        return {"ccp_rounds": server["chosen"].diagonal()}

    def _period(self, server: Tree, chosen: Tensor, gaps: Tensor, cohort: Cohort) -> Tree:
        """G with this round's choices, and Eq. 9."""
        counts = server["chosen"].clone()
        ids = sent(cohort.ids, counts.device)
        counts[ids.unsqueeze(1), ids] += chosen.to(counts)
        gap = gaps.mean().to(server["period/largest"])
        largest = torch.maximum(server["period/largest"], gap)
        on = (gap > self.delta * largest) | (largest == 0) | (not self.ccp)
        return {"chosen": counts, "period/on": on, "period/largest": largest}


def one_by_one(weights: Tensor) -> Tensor:
    """What W [C, C] comes to where client k's mixture takes the place of its model before client k + 1 mixes."""
    rows = torch.eye(len(weights)).to(weights)
    for client, own in enumerate(weights):
        rows[client] = own @ rows
    return rows
