"""pFedFDA: McLaughlin & Su, Personalized Federated Learning via Feature Distribution Adaptation, NeurIPS 2024.

The classifier is a linear discriminant of the features z. It has class means mu, one covariance S (shrunk to (1 - eps)
S + eps tr(S) / d I) and class shares pi: logit_c = mu_c^T S^-1 z - mu_c^T S^-1 mu_c / 2 + log pi_c.
A client receives body, mu and S. It trains the body under the frozen discriminant of these and its own pi. Then it
estimates mu and S of its own features. It sends the body, b mu_own + (1 - b) mu, and S mixed likewise. The server
averages all of them by samples. Each client has one b for means and one for S (`betas: single`: one for both; `local`:
1). They minimise the cross-entropy of such discriminants in two-fold cross-validation. A client is scored by the
received body and the discriminant of its own features and the received mu and S, with a newly chosen b.

The authors' code adds 1e-4 to every entry of an estimated S, and a whole identity (`shift`, `ridge`). It may mean 1e-4
times the identity. Its projection to the nearest positive definite matrix then has no effect and is left out. The
default follows the code. We chose it after a trial: with a ridge of 1e-4 and no shift training diverges on digits.

Deviations:
- Features are those of the trained body in evaluation mode. The code keeps the features of the training steps.
- b is found on a grid of tenths, then of fiftieths around the best. The code makes ten steps of L-BFGS from .5.
- Folds alternate in the order of a class's samples.
- A client is scored with its own mean for each class that it has. The code needs three samples of the class.
- The protocol draws clients in every round, including the last.

Solving for S takes d^3 operations, which is slow for widths above 512.
Batch normalisation: running statistics are shared and averaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fedbench.config.fields import at_least, one_of, positive
from fedbench.config.schema import LocalConfig
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, ClientHook, Clock, Stage
from fedbench.engine.method import ONE_NETWORK, Method
from fedbench.methods.parts.features import blocks
from fedbench.models.task import Task

FOLDS = 2


@dataclass(frozen=True)
class PFedFDA(Method):
    """A shared body, and on each client a discriminant that mixes its own with the average class Gaussians.

    Server: * [...], the body; gaussian/means [K, d]; gaussian/covariance [d, d]
    Memory: nothing
    Message: * [...]; gaussian/means [K, d]; gaussian/covariance [d, d]
    Upload: * [...]; gaussian/means [K, d]; gaussian/covariance [d, d]
    """

    betas: str = one_of("two", "single", "local")  # weights b of own statistics: "two", a "single" one, or 1 ("local")
    eps: float = positive(1e-4)  # weight of the shrinkage, and the least share of a class before normalising
    ridge: float = at_least(0, 1.0)  # added to the diagonal of an estimated covariance
    shift: float = at_least(0, 1e-4)  # added to all entries of an estimated covariance

    family: ClassVar[str] = "personalised"
    paper: ClassVar[str] = "McLaughlin & Su, NeurIPS 2024"
    unfit: ClassVar[Mapping[str, str]] = {**ONE_NETWORK, "regression": "fits a Gaussian to each class"}

    @property
    def reads_data(self) -> frozenset[ClientHook]:
        return frozenset({"start", "finish", "model", "personal"})

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Return a body, uniform means and the identity."""
        model = task.init(generator)
        width = task.features(model, torch.zeros(1, *task.shape)).shape[1]
        means = torch.rand(task.classes, width, generator=generator)
        body = task.split(model, ("@head",))[1]
        return {**body, **trees.join(gaussian={"means": means, "covariance": torch.eye(width)})}, {}

    def start(self, client: Client) -> Tree:
        """Return the received body under the discriminant of the received statistics and the client's own shares."""
        given, data = trees.part(client.message, "gaussian"), client.data
        one = torch.ones(len(data.y), 1, dtype=given["means"].dtype, device=data.y.device)
        log_prior = self.log_shares(data.class_sums(one, client.task.classes)[1])
        return {**trees.plain(client.message), **trees.join(lda=discriminant(given, log_prior, self.eps))}

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        """Train the body."""
        return (Stage(self.loss, fixed=("lda/*",)),)

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """Return the cross-entropy of the discriminant's logits."""
        z = client.task.features(trees.plain(work), batch.x, train=True, mask=batch.mask)
        return client.task.criterion(logits(work, z), batch)

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload the body and the mixed statistics."""
        return {**trees.plain(work), **trees.join(gaussian=self.mixed(work, client)[0])}, {}

    def model(self, work: Tree, client: Client) -> Tree:
        """Return the body under the discriminant of the mixed statistics."""
        mixed, log_prior = self.mixed(work, client)
        return {**trees.plain(work), **trees.join(lda=discriminant(mixed, log_prior, self.eps))}

    def predict(self, model: Tree, x: Tensor, task: Task) -> Tensor:
        return logits(model, task.features(trees.plain(model), x))

    # ---- statistics of features

    def mixed(self, work: Tree, client: Client) -> tuple[Tree, Tensor]:
        """Return (means and covariance between the client's own and the received, log of its class shares [K])."""
        task, data, given = client.task, client.data, trees.part(client.message, "gaussian")
        z = torch.cat([task.features(trees.plain(work), block.x) for block in blocks(data)])
        member = functional.one_hot(data.y, task.classes).to(z.dtype)  # [n, K]
        member = member if data.mask is None else member * data.mask.unsqueeze(1)
        log_prior = self.log_shares(member.sum(0))
        of_means, of_covariance = self.weights(z, member, given, log_prior)
        return interpolated(self.estimate(z, member, given), given, of_means, of_covariance), log_prior

    def log_shares(self, counts: Tensor) -> Tensor:
        """Return log pi [K] of class counts [K], each share at least about eps."""
        shares = counts / counts.sum() + self.eps
        return (shares / shares.sum()).log()

    def estimate(self, z: Tensor, member: Tensor, given: Tree) -> Tree:
        """Return means and covariance of features z [n, d] of classes `member` [n, K]; rows of zeros do not count.

        An absent class has the given mean.
        """
        counts = member.sum(0)
        own = member.t() @ z / counts.clamp(min=1).unsqueeze(1)
        means = torch.where(counts.unsqueeze(1) > 0, own, given["means"])
        centred = (z - member @ means) * member.sum(1, keepdim=True)
        S = centred.t() @ centred / (counts.sum() - 1).clamp(min=1)
        return {"means": means, "covariance": S + self.shift + self.ridge * torch.eye(len(S), device=S.device).to(S)}

    def weights(self, z: Tensor, member: Tensor, given: Tree, log_prior: Tensor) -> tuple[Tensor, Tensor]:
        """Return b of the means and b of the covariance, scalars; 0 where no class has two samples."""
        if self.betas == "local":
            return z.new_ones(()), z.new_ones(())
        member = member * (member.sum(0) >= FOLDS)
        fold = ((member.cumsum(0) * member).sum(1) % FOLDS).unsqueeze(1)
        parts = [(self.estimate(z, member * (fold != f), given), member * (fold == f)) for f in range(FOLDS)]
        grid = torch.linspace(0, 1, 11, dtype=z.dtype, device=z.device)
        around = torch.linspace(-0.1, 0.1, 11, dtype=z.dtype, device=z.device)
        best = self._best(z, parts, given, log_prior, grid, grid)
        return self._best(z, parts, given, log_prior, *((b + around).clamp(0, 1) for b in best))

    def _best(
        self, z: Tensor, parts: list[tuple[Tree, Tensor]], given: Tree, log_prior: Tensor, first: Tensor, second: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the b of `first` [G] for means and of `second` [G] for covariances whose sum of losses is least."""
        single, losses = self.betas == "single", []
        mixtures = [mixed_discriminants(own, given, second, self.eps) for own, _ in parts]
        for g, b in enumerate(second.unbind()):
            tried = b.unsqueeze(0) if single else first
            folds = [
                held_out(z, own, tested, given, log_prior, tried, weights[g])
                for (own, tested), weights in zip(parts, mixtures, strict=True)
            ]
            losses.append(trees.sum_of(folds))
        best = torch.cat(losses).argmin().unsqueeze(0)
        of_covariance = second.gather(0, best // len(tried))[0]
        return of_covariance if single else first.gather(0, best % len(tried))[0], of_covariance


def interpolated(own: Tree, given: Tree, of_means: Tensor, of_covariance: Tensor) -> Tree:
    """Return b own + (1 - b) given, b one of each."""
    b = {"means": of_means, "covariance": of_covariance}
    return {name: b[name] * own[name] + (1 - b[name]) * leaf for name, leaf in given.items()}


def precise(covariances: Tensor, means: Tensor, eps: float) -> Tensor:
    """Return means [K, d] times the inverses of the shrunk covariances [G, d, d], [G, K, d]."""
    level = covariances.diagonal(dim1=1, dim2=2).mean(1)[:, None, None]
    S = (1 - eps) * covariances + eps * level * torch.eye(means.shape[1], device=means.device).to(means)
    right = means.t().expand(len(S), -1, -1)
    solved: Tensor = torch.linalg.solve_ex(S, right)[0]  # a singular S is not asked after: a diverged run is found
    return solved.transpose(1, 2)


def discriminant(statistics: Tree, log_prior: Tensor, eps: float) -> Tree:
    """Return weight [K, d] and bias [K] of the discriminant of `statistics`."""
    weight = precise(statistics["covariance"].unsqueeze(0), statistics["means"], eps)[0]
    return {"weight": weight, "bias": log_prior - (weight * statistics["means"]).sum(1) / 2}


def logits(model: Tree, z: Tensor) -> Tensor:
    """Return the discriminant's logits [B, K] of features z [B, d]."""
    return functional.linear(z, model["lda/weight"], model["lda/bias"])


def mixed_discriminants(own: Tree, given: Tree, of_covariance: Tensor, eps: float) -> Tensor:
    """Return the weights [G, 2, K, d] of own and of given means under G covariances, mixed by `of_covariance` [G].

    All are solved for at once, since a GPU takes as long for one.
    """
    b = of_covariance.view(-1, 1, 1)
    S = b * own["covariance"] + (1 - b) * given["covariance"]
    both = torch.cat([own["means"], given["means"]])
    weights: Tensor = precise(S, both, eps).view(len(S), 2, *own["means"].shape)
    return weights


def held_out(
    z: Tensor, own: Tree, tested: Tensor, given: Tree, log_prior: Tensor, first: Tensor, weights: Tensor
) -> Tensor:
    """Return the mean cross-entropy [G] on the samples `tested` [n, K] of G discriminants.

    Their means are mixed by `first` [G]. `weights` [2, K, d] are of own and of given means, under one S. So logits and
    biases are mixed, and nothing is solved for again.
    """
    ours, theirs = weights.unbind()
    a = first.view(-1, 1, 1)
    weight, means = a * ours + (1 - a) * theirs, a * own["means"] + (1 - a) * given["means"]  # [G, K, d]
    bias = log_prior - (weight * means).sum(2) / 2
    scores = a * (z @ ours.t()) + (1 - a) * (z @ theirs.t()) + bias.unsqueeze(1)  # [G, n, K]
    return -(tested * scores.log_softmax(2)).sum((1, 2)) / tested.sum().clamp(min=1)
