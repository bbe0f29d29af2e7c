"""FedNTD: Lee et al., Preservation of the Global Knowledge by Not-True Distillation in FL, NeurIPS 2022.

Client k minimises F_k(w) + beta L_NTD with L_NTD = tau^2 mean_i KL(q^g_i || q_i) over its samples. q^g_i and q_i are
the softmax, without the true class, of the received and the local model's logits over tau. So the model keeps what the
received model knows of the other classes, and is free to learn the true class. With two classes L_NTD is zero.
The authors' configuration has beta 1 and tau 1. Two versions of their repository differ in the factor tau^2, which is 1
there.
Deviation: the received model is in evaluation mode, as in PFLlib. The authors' copy stays in the mode that it has at
that moment.
Batch normalisation: running statistics are shared and averaged. The received model uses its own and moves none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fedbench.config.fields import at_least, positive
from fedbench.core.batch import Batch
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client
from fedbench.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedNTD(FedAvg):
    """FedAvg that distils the received model's predictions of all classes but a sample's own."""

    beta: float = at_least(0, 1.0)  # weight of the distillation
    tau: float = positive(1.0)  # temperature

    paper: ClassVar[str] = "Lee et al., NeurIPS 2022"
    unfit: ClassVar[Mapping[str, str]] = {"regression": "compares probabilities of classes"}

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """Return F_k(w) + beta L_NTD."""
        task = client.task
        logits = task.apply(work, batch.x, train=True, mask=batch.mask)
        received = task.apply(self.start(client), batch.x).detach()
        own, target = (not_true(z / self.tau, batch.y).log_softmax(1) for z in (logits, received))
        divergence = functional.kl_div(own, target, reduction="none", log_target=True).sum(1)
        return task.criterion(logits, batch) + self.beta * self.tau**2 * batch.mean(divergence)


def not_true(logits: Tensor, y: Tensor) -> Tensor:
    """Return `logits` [B, K] without each sample's own class y [B], [B, K - 1]."""
    others = torch.arange(logits.shape[1] - 1, device=y.device)
    return logits.gather(1, others + (others >= y.unsqueeze(1)))
