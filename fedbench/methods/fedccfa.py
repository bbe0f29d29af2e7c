"""FedCCFA: Chen et al., Classifier Clustering and Feature Alignment under Distributed Concept Drift, NeurIPS 2024.

A round of client i has four steps:

- (1) A balanced classifier, used only for comparison. It starts from the initial classifier and trains under the
  received extractor on equally many samples of each of the client's classes, at most five.
- (2) The client's own classifier trains under the fixed extractor.
- (3) The extractor trains under the fixed classifier on F_i + H_i / gamma CE(cos(f(x), a_i) / tau, y). H_i is the
  entropy of the client's labels (natural logarithm) and a_i,k are its anchors.
- (4) The client computes its mean features of each class, m_i,k.

The server averages extractors by n_i / n. It treats each class k separately. The distance of two clients is MADD of the
cosines of their balanced classifiers' rows (weights and bias), sum_z |cos(i, z) - cos(j, z)| / (C - 2) over the other
clients z. DBSCAN without noise groups the clients: it joins chains of distances up to eps. In each group row k of the
classifiers and m_k are averaged. The averages are each member's next classifier row and anchor.

We know only the abstract of the paper. The description follows the authors' code, entities/ and methods/FedCCFA.py,
with the values of its config file. No preset follows the text. As in the code, a client's first classifier is its
balanced one, anchors count from the 21st round, and averages count clients equally or by samples (`weighting`).

Deviations:
- The code needs samples of every class on every client. Here a class is compared among the clients of the round that
  have it. The other clients keep their row, and a class without an anchor takes no part in the alignment.
- Balanced samples are the first of a class; the code draws them. All of them make one step an epoch. The code has
  mini-batches of 64, which is the same for up to twelve classes.
- Two clients alone are one group. The code divides by zero.
- m_k is averaged over the group alone. In the code the first client's m_k has grown to the sum over all clients when
  its group is averaged.
- The concept drift of its experiments is not built.

Batch normalisation: affine parameters and running statistics belong to the extractor; in the code statistics stay on
the client. Steps (1) and (4) use the running statistics, in the code those of the mini-batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedbench.config.fields import at_least, one_of, positive
from fedbench.config.schema import LocalConfig
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.trees import Tree, fetched, sent
from fedbench.engine.contract import Client, ClientHook, Clock, Cohort, Conformance, Stage
from fedbench.engine.method import ONE_NETWORK, Method
from fedbench.methods.parts.features import blocks, class_sums
from fedbench.models.task import Task, gradient

HEAD = ("head.*",)  # the network's last layer, a row a class
MOST = 5  # samples of a class that a balanced classifier learns from
NEVER = -1e30  # score of a class without an anchor


@dataclass(frozen=True)
class FedCCFA(Method):
    """A shared extractor aligned to anchors; each class's classifier rows are averaged among clients with similar ones.

    Server: body/* [...]; initial/* [...]; heads/* [N, ...]; classes/anchors [N, K, d]; classes/known [N, K]
    Memory: own/entropy [N]
    Message: * [...]; initial/* [...]; classes/anchors [K, d]; classes/known [K]
    Upload: body/* [...]; heads/* [...]; balanced/* [...]; sums [K, d]; counts [K]
    """

    eps: float = at_least(0, 0.1)  # clients whose classifier rows are at most this far apart are in one group
    gamma: float = positive(20.0)  # the weight of a client's alignment is the entropy of its labels over gamma
    tau: float = positive(0.1)  # temperature of the cosines
    from_round: int = at_least(0, 20)  # first round with alignment, counted from 0
    weighting: str = one_of("clients", "samples")  # averages in a group count "clients", or "samples" of the class
    balanced_epochs: int = at_least(0, 5)  # epochs of the balanced classifier; 0: the trained classifiers are compared
    balanced_lr: float = positive(0.1)  # learning rate of the balanced classifier
    classifier_epochs: int = at_least(0, 1)  # epochs of the client's own classifier
    classifier_lr: float = positive(0.1)  # its learning rate
    extractor_epochs: int | None = at_least(0, None)  # epochs of the extractor; null: the protocol's local work

    family: ClassVar[str] = "personalised"
    paper: ClassVar[str] = "Chen et al., NeurIPS 2024"
    unfit: ClassVar[Mapping[str, str]] = {**ONE_NETWORK, "regression": "compares classifiers class by class"}

    @property
    def reads_data(self) -> frozenset[ClientHook]:
        return frozenset({"start", "finish"})

    @property
    def conformance(self) -> Conformance:
        return Conformance(inert={"own/entropy": "a client's samples stay the same"}, settings={"from_round": 0})

    # ---- server

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Return the extractor, N classifiers and no anchors yet; H_i on the clients."""
        head, body = task.split(model := task.init(generator), HEAD)
        width = task.features(model, torch.zeros(1, *task.shape)).shape[1]
        server = trees.join(body=body, initial=head, heads=trees.clone(trees.expand(head, population.clients)))
        server["classes/anchors"] = torch.zeros(population.clients, task.classes, width)
        server["classes/known"] = torch.zeros(population.clients, task.classes, dtype=torch.bool)
        shares = population.label_counts / population.label_counts.sum(1, keepdim=True).clamp(min=1)
        return server, {"own/entropy": torch.special.entr(shares).sum(1).float()}

    def send(self, server: Tree, cohort: Cohort) -> Tree:
        """Send the extractor, the initial classifier, and each client's own one and anchors."""
        common = {**trees.under(server, "body"), **trees.join(initial=trees.part(server, "initial"))}
        own = {**trees.part(server, "heads"), **trees.join(classes=trees.part(server, "classes"))}
        return {**trees.expand(common, len(cohort.ids)), **trees.take(own, cohort.ids)}

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Average extractors, and in each group of a class its classifiers' rows and its mean features."""
        heads, counts = trees.part(uploads, "heads"), uploads["counts"]  # [C, K, ...], [C, K]
        rows = torch.cat([leaf.flatten(2) for _, leaf in sorted(_rows(uploads, "balanced").items())], dim=2)
        seen = fetched([rows, counts])
        M = sent(partners(seen[0], seen[1], self.eps, self.weighting == "samples"), counts.device)
        means = uploads["sums"] / counts.clamp(min=1).unsqueeze(2)

        def grouped(leaf: Tensor) -> Tensor:
            return torch.einsum("kij,jk...->ik...", M.to(leaf.dtype), leaf)

        moved = trees.join(heads=trees.map_leaves(grouped, heads))
        moved |= {"classes/anchors": grouped(means), "classes/known": counts > 0}
        body = cohort.mean(trees.under(uploads, "body"))
        return {**trees.put(server, cohort.ids, moved), **trees.join(body=body)}

    # ---- client

    def start(self, client: Client) -> Tree:
        """Return the received extractor, the client's classifier, and its balanced one."""
        received, balanced = self.personal(client), self.balanced(client)
        first = ~client.message["classes/known"].any()
        own = {name: torch.where(first, leaf, received[name]) for name, leaf in balanced.items()}
        return {**received, **own, **trees.join(balanced=balanced)}

    def balanced(self, client: Client) -> Tree:
        """Return the classifier that the balanced samples make of the initial one."""
        task, data, received = client.task, client.data, self.personal(client)
        head = trees.part(client.message, "initial")
        z = torch.cat([task.features(received, block.x) for block in blocks(data)])
        one = functional.one_hot(data.y, task.classes) * (1 if data.mask is None else data.mask.long().unsqueeze(1))
        counts, place = one.sum(0), (one.cumsum(0) * one).sum(1)  # [K]; of each sample in its class, from 1
        least = torch.where(counts > 0, counts, MOST).amin().clamp(max=MOST)
        chosen = ((place > 0) & (place <= least)).to(z.dtype)

        def loss(head: Tree) -> Tensor:
            losses = functional.cross_entropy(task.head({**received, **head}, z), data.y, reduction="none")
            return (chosen * losses).sum() / chosen.sum()

        momentum, decay = client.optimizer.momentum, client.optimizer.weight_decay
        speed = trees.map_leaves(torch.zeros_like, head)
        for _ in range(self.balanced_epochs):
            slope, _ = gradient(loss, head, task)
            speed = {name: momentum * v + slope[name] + decay * head[name] for name, v in speed.items()}
            head = {name: leaf - self.balanced_lr * speed[name] for name, leaf in head.items()}
        return head

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        """Train the classifier, then the extractor on other mini-batches."""
        return (
            Stage(self.loss, moves=HEAD, epochs=self.classifier_epochs, lr=self.classifier_lr),
            Stage(self.aligned, fixed=(*HEAD, "balanced/*"), epochs=self.extractor_epochs, order=1),
        )

    def draw(self, generator: torch.Generator, steps: int, client: Client) -> Tree:
        """Return whether the round has alignment, [S]."""
        return {"on": torch.full((steps,), float(client.clock.round >= self.from_round), dtype=torch.float64)}

    def aligned(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """Return F_i + H_i / gamma CE(cos(f(x), a_i) / tau, y)."""
        task, known = client.task, client.message["classes/known"]
        z = task.features(work, batch.x, train=True, mask=batch.mask)
        anchors = functional.normalize(client.message["classes/anchors"], dim=1)
        scores = torch.where(known, functional.normalize(z, dim=1) @ anchors.t() / self.tau, NEVER)
        apart = functional.cross_entropy(scores, batch.y, reduction="none") * known[batch.y]
        weight = batch.noise["on"].to(z.dtype) * client.memory["own/entropy"] / self.gamma
        return task.criterion(task.head(work, z), batch) + weight * batch.mean(apart)

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload the model, the classifier to compare, and class sums and counts of features."""
        task = client.task
        head, body = task.split(self.model(work, client), HEAD)
        sums, counts = class_sums(lambda block: task.features(work, block.x), client.data, task.classes)
        compared = trees.part(work, "balanced") if self.balanced_epochs else head
        upload = trees.join(body=body, heads=head, balanced=compared)
        return {**upload, "sums": sums, "counts": counts}, client.memory

    def model(self, work: Tree, client: Client) -> Tree:
        return trees.plain(work)

    def personal(self, client: Client) -> Tree:
        """Return the received extractor and the client's classifier."""
        return trees.plain(client.message)


def _rows(uploads: Tree, name: str) -> Tree:
    """Return classifiers with an axis of numbers behind that of classes: [C, K, 1] of a bias."""
    return {key: leaf.unsqueeze(2) if leaf.dim() < 3 else leaf for key, leaf in trees.part(uploads, name).items()}


def partners(rows: Tensor, counts: Tensor, eps: float, by_samples: bool) -> Tensor:
    """Return M [K, C, C], row-stochastic: M_kij is the weight of client j's row of class k in client i's next one.

    `rows` [C, K, P] are of classifiers, `counts` [C, K] samples of each class. A client without samples keeps its row.
    """
    from scipy.sparse.csgraph import connected_components

    M = torch.eye(len(rows), dtype=torch.float64).repeat(rows.shape[1], 1, 1)
    for k in range(rows.shape[1]):
        members = counts[:, k].nonzero().flatten()
        unit = functional.normalize(rows[members, k].double(), dim=1).numpy()
        _, group = connected_components(madd(unit @ unit.T) <= eps, directed=False)
        alike = torch.from_numpy(group[:, None] == group[None]).double() * (counts[members, k] if by_samples else 1)
        M[k, members.unsqueeze(1), members] = alike / alike.sum(1, keepdim=True)
    return M


def madd(cosines: np.ndarray) -> np.ndarray:
    """Return the mean absolute difference of distances [C, C], over third clients, of `cosines` [C, C]."""
    gaps = np.abs(cosines[:, None] - cosines[None]).sum(2) - 2 * np.abs(1 - cosines)  # without the two themselves
    return np.asarray(gaps / max(1, len(cosines) - 2))
