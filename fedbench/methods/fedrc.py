"""FedRC: Guo et al., Tackling Diverse Distribution Shifts Challenge in FL by Robust Clustering, ICML 2024.

FedEM with another E-step. In each of M clusters a sample is judged by how much likelier its label is with its input
than without it: q_im ~ pi_tm exp(-loss_m(x_i, y_i)) / P_m(y_i). So clients whose labels are merely rarer stay together,
and clients whose labels mean something else separate. P_m(y) is the share of label y in the samples of cluster m, each
weighted by q_im (Eqs. 1, 4 and 5). Clients upload the sums of q by label and receive P with the next models.
From the authors' code: P is uniform in the first round, and each sum counts at least 1e-8. Clients that are not drawn
count with their latest sums. Clients that have never been drawn count with 1 / K for each label in the code, and do not
count here.
Deviations: those of FedEM. The paper's variants in which M or the samples' weights change are left out.
Batch normalisation: each model has its own statistics, which are averaged. The E-step runs in evaluation mode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Cohort
from fedbench.methods.fedem import FedEM
from fedbench.models.task import Task

FLOOR = 1e-8  # least sum of q of a label


@dataclass(frozen=True)
class FedRC(FedEM):
    """A few models shared by all clients; a client's weights separate concepts and ignore label shares.

    Server: component/* [M, ...]; labels [N, M, K], sums of q
    Message: component/* [M, ...]; labels [M, K], P
    Upload: component/* [M, ...]; labels [M, K], sums of q
    """

    family: ClassVar[str] = "clustered"
    paper: ClassVar[str] = "Guo et al., ICML 2024"

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Start as FedEM, with no label counted."""
        server, memory = super().init(task, population, generator)
        return {**server, "labels": torch.zeros(population.clients, self.components, task.classes)}, memory

    def send(self, server: Tree, cohort: Cohort) -> Tree:
        """Send the models and the share P of each label in each cluster, among this server's clients."""
        sums = trees.take({"labels": server["labels"]}, cohort.served)["labels"].sum(0).clamp(min=FLOOR)
        return trees.expand({**server, "labels": sums / sums.sum(1, keepdim=True)}, len(cohort.ids))

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Average each component, and remember each client's latest sums."""
        return trees.put(super().aggregate(server, uploads, cohort), cohort.ids, {"labels": uploads["labels"]})

    def expected(self, sums: Tensor, counts: Tensor) -> Tree:
        """Return pi [M], and the sums of q by label [M, K]."""
        return {**super().expected(sums, counts), "labels": sums.t()}

    def misfit(self, client: Client, batch: Batch) -> Tensor:
        """Return loss_m + log P_m(y), [B, M]."""
        return super().misfit(client, batch) + client.message["labels"].log().t()[batch.y]

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload the models and the sums of q by label."""
        models, memory = super().finish(work, client)
        return {**models, "labels": work["labels"]}, memory
