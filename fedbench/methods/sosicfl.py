"""SosicFL: Solution Simplex Clustering for Heterogeneous Federated Learning, arXiv 2403.03333, 2024.

The model's `simplex` leaves have M+1 endpoints theta_m. A point alpha of the simplex gives the model w = sum_m alpha_m
theta_m. Section 3.3: clients' label distributions -> LDA -> alpha_k -> clusters with centres mu_c -> subregions R_c =
{alpha: ||alpha - mu_c||_1 <= rho * mean distance of all centres from all points of the simplex}.
Eq. 8: a local step draws alpha from the client's subregion, theta_m -= alpha_m lr grad F_k(w). Eq. 9: endpoints are
averaged as in FedAvg. Section 3.5: the global model has alpha = 1 / (M+1), a client's model alpha = mu of its cluster.
SosicFL-All: `simplex: ["*"]`. Late start (Section 4.3): before `start_round` every subregion is the whole simplex.

The paper contradicts itself in two points, and each is a setting:
- `samples`: alpha is drawn at every step (Section 3.2; the default, as in the code), or Omega_tr = 1 times a round and
  used in turn (3.4 and Appendix A).
- `metric`: the name of the clustering means Hilbert's metric (the default). The text says "with the L1-distance".

The authors' code (preset `code`) has one bias (`simplex: ["head.weight"]`) and draws alpha = centre + U(0, rho) u even
outside the simplex (`sampling: unprojected`). From round 250 on (`start_round`) each client's centre is a projection of
its trained endpoints' principal components (`positions: trained`).
The paper states M for 2-Fold only (1). With three endpoints the five groups of 5-Fold lie on three corners, so two
pairs of clusters coincide. Tables take ten endpoints there, as the authors' later code does.
Batch normalisation: running statistics are shared and averaged; in the code they stay on the client. Affine parameters
have endpoints only in SosicFL-All.
The published version is Floco: Grinwald et al., Federated Learning over Connected Modes, NeurIPS 2024. The code
described here is Floco's (presets `floco` and `floco_plus`).

SosicFL+ (Section 3.6) is Ditto on the solution simplex. Client k trains SosicFL's shared endpoints and keeps endpoints
of its own that minimise
E_{alpha in R_k} F_k(sum_m alpha_m theta_m) + lambda/2 sum_m ||theta_m - theta_m^t||^2.
It is scored by these at the centre of R_k. The code draws from the whole simplex and scores at its middle. The paper
applies Ditto "after SosicFL training"; here a round ends with it, as in Ditto (Algorithm 1). lambda is not stated; we
take Ditto's 1. The client's own endpoints use Omega_tr = 10 draws of alpha a round (Appendix A, which the shared
endpoints do not follow). The global model is SosicFL's, as Ditto's is FedAvg's. So their curves are equal here, while
the published ones differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedbench.config.fields import at_least, one_of, selectors, within
from fedbench.config.schema import LocalConfig, keyed
from fedbench.core import rng, trees
from fedbench.core.batch import Batch, Population
from fedbench.core.trees import Tree, sent
from fedbench.engine.contract import Client, Clock, Cohort, Conformance, Preparation, Stage
from fedbench.engine.method import Method
from fedbench.methods.parts import simplex
from fedbench.methods.parts.simplex import METRICS, Array, Labels, cluster
from fedbench.models.task import Task

SAMPLERS: dict[str, Callable[[int, Tensor, float, torch.Generator], Tensor]] = {
    "uniform": simplex.uniform,
    "unprojected": simplex.unprojected,
}


@dataclass(frozen=True)
class SosicFL(Method):
    """Federated simplex learning; every cluster of clients has its own subregion.

    Server: * [...] if without endpoints; endpoints/* [E, ...]; region/center [N, E]; region/radius []
    Memory: nothing
    Message: * [...] if without endpoints; endpoints/* [E, ...]; region/center [E]; region/radius []
    Upload: * [...] if without endpoints; endpoints/* [E, ...]
    """

    # M + 1; beyond 30, simplex.uniform can reject all but one draw in thousands
    endpoints: int = within(1, 30, 3)
    # parameters with endpoints; the other parameters are those of one model
    simplex: tuple[str, ...] = selectors(("@head",), among="weights")
    clusters: int = at_least(1, 10)  # C, the number of clusters
    # radius of a subregion in units of the mean distance; with "unprojected" draws the radius itself
    rho: float = at_least(0, 0.4)
    # Omega_tr, draws of alpha a round, used in turn; null: a new one every step
    samples: int | None = at_least(1, None)
    # Late starts have keys of their own, because checkpoints of earlier versions prepare before round 1 in any case.
    # t~: rounds on the whole simplex before subregions are assigned
    start_round: int = keyed(at_least(0, 0), lambda start: start and f"prepares after {start}")
    positions: str = one_of("lda", "trained")  # clients' positions: "lda" and clusters, or "trained" endpoints
    metric: str = one_of("hilbert", *METRICS)  # metric of the clustering
    sampling: str = one_of("uniform", *SAMPLERS)  # draws of alpha: "uniform" in the subregion, or "unprojected"

    paper: ClassVar[str] = "Solution Simplex Clustering, arXiv 2403.03333, 2024"

    @property
    def unfit(self) -> Mapping[str, str]:
        lda = {"regression": "places clients by their counts of classes"} if self.positions == "lda" else {}
        return {**super().unfit, **lda}

    @property
    def conformance(self) -> Conformance:
        """A short run reaches a late start as well."""
        return Conformance(settings={"start_round": min(self.start_round, 1)})

    @property
    def prepare_round(self) -> int:
        """Return the round in which subregions are assigned."""
        return self.start_round

    # ---- preparation: a subregion for each client

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Return a model with independently drawn endpoints; every subregion is the whole simplex."""
        models = [task.init(generator) for _ in range(self.endpoints)]
        names = [name for name in task.select(models[0], self.simplex) if name in task.parameters]
        endpoints, plain = trees.split(trees.stack(models), names)
        server = {**trees.row(plain, 0), **trees.join(endpoints=endpoints)}
        middle = torch.full((population.clients, self.endpoints), 1 / self.endpoints)
        return {**server, "region/center": middle, "region/radius": torch.tensor(simplex.WHOLE)}, {}

    def prepare(self, preparation: Preparation, server: Tree, memory: Tree) -> tuple[Tree, Tree]:
        """Find clients' positions and clusters, and assign subregions."""
        if self.positions == "lda":
            centres, members = self._clustered(preparation)
        else:
            centres = self._trained(preparation, server, memory)
            members = np.arange(len(centres))
        unprojected = self.sampling == "unprojected"
        radius = self.rho if unprojected else self.rho * simplex.mean_distance(centres)
        preparation.keep("centers", centres)
        preparation.keep("cluster", members)
        assigned = {
            "region/center": torch.from_numpy(centres[members]).to(server["region/center"]),
            "region/radius": torch.tensor(radius).to(server["region/radius"]),
        }
        return {**server, **assigned}, memory

    def _clustered(self, preparation: Preparation) -> tuple[Array, Labels]:
        """Return (centres [C, n], cluster of each client [N]) of the label distributions' topics."""
        sent_counts = {"counts": preparation.population.label_counts.to(torch.int32)}
        counts = preparation.received(sent_counts)["counts"]
        seed = rng.derive(preparation.seed, "topics")
        positions = simplex.topics(counts.double().numpy(), self.endpoints, seed)
        preparation.keep("positions", positions)
        members, centres = cluster(positions, self.clusters, METRICS[self.metric])
        return centres, members

    def _trained(self, preparation: Preparation, server: Tree, memory: Tree) -> Array:
        """Return a centre for each client [N, n]: principal components of its head after a round of training."""
        message = self.send(server, preparation.everyone)
        heads = preparation.round(message, memory, sends=lambda work: trees.under(work, "endpoints"))
        return simplex.spread_scores(trees.flatten(heads).double().cpu().numpy(), self.endpoints)

    # ---- server

    def send(self, server: Tree, cohort: Cohort) -> Tree:
        """Return the endpoints, and the client's subregion."""
        center = server["region/center"]
        own = center[sent(cohort.ids, center.device)]
        return {**trees.expand(server, len(cohort.ids)), "region/center": own}

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Average the endpoints and the rest (Eq. 9)."""
        return {**server, **trees.mean(uploads, cohort.weights)}

    def common(self, server: Tree, task: Task) -> Tree | None:
        """Return the middle of the simplex."""
        center = server["region/center"]
        return model_at(without_regions(server), torch.full_like(center[0], 1 / self.endpoints))

    # ---- client

    def start(self, client: Client) -> Tree:
        """Return the endpoints and the rest of the model."""
        return without_regions(client.message)

    def draw(self, generator: torch.Generator, steps: int, client: Client) -> Tree:
        """Return alpha of every step, [S, n]."""
        return {"alpha": self.alphas(generator, steps, client, self.samples)}

    def alphas(self, generator: torch.Generator, steps: int, client: Client, samples: int | None) -> Tensor:
        """Return `steps` draws from the client's subregion, [S, n]; with `samples`, so many are used in turn."""
        center, radius = client.message["region/center"], float(client.message["region/radius"])
        distinct = steps if samples is None else min(samples, steps)
        sampler = simplex.uniform if radius >= simplex.WHOLE else SAMPLERS[self.sampling]
        drawn = sampler(distinct, center, radius, generator)
        return drawn[torch.arange(steps) % distinct].to(center.dtype)

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """Return F_k at this step's alpha: autograd scales the gradient of endpoint m by alpha_m (Eq. 8)."""
        return client.task.loss(model_at(work, batch.noise["alpha"]), batch)

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload all endpoints."""
        return work, {}

    def model(self, work: Tree, client: Client) -> Tree:
        """Return the model at the centre of the client's subregion."""
        return model_at(work, client.message["region/center"])


def without_regions(tree: Tree) -> Tree:
    """Return the endpoints and the rest of the model, without the regions."""
    return {key: leaf for key, leaf in tree.items() if not key.startswith("region/")}


def model_at(work: Tree, alpha: Tensor) -> Tree:
    """Return the model sum_m alpha_m theta_m beside the leaves that have no endpoints; alpha [n]."""
    plain = {key: leaf for key, leaf in work.items() if not key.startswith("endpoints/")}
    mixed = {k: torch.tensordot(alpha, v, dims=1) for k, v in trees.under(work, "endpoints").items()}
    return {**plain, **mixed}


@dataclass(frozen=True)
class SosicFLPlus(SosicFL):
    """SosicFL with additional personal endpoints that are pulled towards the shared ones.

    Memory: personal/* [N, ...] if without endpoints; personal/endpoints/* [N, E, ...]
    """

    lam: float = at_least(0, 1.0)  # lambda, strength of the pull
    # epochs of the personal endpoints; null: as many as of the shared ones
    personal_epochs: int | None = at_least(0, None)
    # Omega_tr of the personal endpoints, draws of alpha a round; null: a new one every step
    personal_samples: int | None = at_least(1, 10)

    family: ClassVar[str] = "personalised"

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Personal endpoints start as the shared ones."""
        server, _ = super().init(task, population, generator)
        return server, trees.join(personal=trees.expand(without_regions(server), population.clients))

    def start(self, client: Client) -> Tree:
        """Return both sets of endpoints: shared/* and personal/*."""
        return {**trees.join(shared=without_regions(client.message)), **client.memory}

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        """Train the shared endpoints, then the personal ones on the same mini-batches."""
        return (
            Stage(self.loss, moves=("shared/*",)),
            Stage(self.personal_loss, moves=("personal/*",), epochs=self.personal_epochs),
        )

    def draw(self, generator: torch.Generator, steps: int, client: Client) -> Tree:
        """Return alpha of every step of either stage, [S, n]."""
        drawn = super().draw(generator, steps, client)  # first, so that it is what SosicFL draws
        return {**drawn, "personal": self.alphas(generator, steps, client, self.personal_samples)}

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """Return SosicFL's loss of the shared endpoints."""
        return super().loss(trees.part(work, "shared"), client, batch)

    def personal_loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """Return F_k at this step's alpha + lambda/2 of the squared distance from all that was received."""
        personal = trees.part(work, "personal")
        pull = trees.squared_distance(client.task.weights(without_regions(client.message)), personal)
        return client.task.loss(model_at(personal, batch.noise["personal"]), batch) + self.lam / 2 * pull

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload the shared endpoints, keep the personal ones."""
        return trees.part(work, "shared"), trees.join(personal=trees.part(work, "personal"))

    def model(self, work: Tree, client: Client) -> Tree:
        """Return the personal endpoints at the centre of the client's subregion."""
        return super().model(trees.part(work, "personal"), client)
