"""FedDistill: Jeong et al., Federated Distillation and Augmentation under Non-IID Private Data, NeurIPS workshop 2018.

Algorithm 1 (FD): for each label j client k uploads the mean logits F_k,j of its samples. It receives their mean over
the *other* clients that have the label, and minimises phi(F(x), y) + gamma phi(F(x), F_-k,y), where phi is the
cross-entropy.
Benchmarks take the mean over all clients (`own: true`). PFLlib takes the squared error of logits (`distance: mse`) in
versions up to 22 April 2024.

Deviations:
- Logits are averaged over all samples after local training. The paper averages them during training.
- FAug, the other half of the paper, is left out, as in those benchmarks. It needs a shared generator of samples.
- The latest logits of clients that are not in the cohort count too.
- Traffic counts a row for every class. Benchmarks send those of a client's own classes.

Batch normalisation: statistics are the client's own, as its model is. Uploaded logits are computed in evaluation mode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional

from fedbench.config.fields import one_of
from fedbench.methods.fedproto import ClassMeans


@dataclass(frozen=True)
class FedDistill(ClassMeans):
    """Own models, shared mean logits; lam is the paper's gamma.

    Server: sums [N, K, K]; counts [N, K]
    Memory: * [N, ...]
    Message: classes/means [K, K]; classes/present [K]
    Upload: sums [K, K]; counts [K]
    """

    distance: str = one_of("cross_entropy", "mse")  # distance to the received logits
    own: bool = False  # whether a client's own logits count in the means it receives

    paper: ClassVar[str] = "Jeong et al., NeurIPS workshop 2018"

    def split(self, features: Tensor, logits: Tensor) -> Tensor:
        return logits

    def means(self, sums: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Return for each client the mean over the others of their mean logits."""
        own = sums / counts.clamp(min=1).unsqueeze(2)
        has = (counts > 0).to(counts.dtype)
        total, clients = own.sum(0, keepdim=True), has.sum(0, keepdim=True)
        if not self.own:
            total, clients = total - own, clients - has
        return total / clients.clamp(min=1).unsqueeze(2), clients > 0

    def pull(self, values: Tensor, targets: Tensor) -> Tensor:
        """Return phi of a sample's logits against the received ones of its class."""
        if self.distance == "mse":
            return (values - targets).square().mean(1)
        return -(targets.softmax(1) * functional.log_softmax(values, 1)).sum(1)
