"""Finetune: FedAvg (McMahan et al., AISTATS 2017), whose model each client trains a little before it is scored.

The baseline of FedCollab (Bao et al., ICML 2023: 2 steps) and of many others (Yu et al., Salvaging Federated Learning
by Local Adaptation, 2020). Training is FedAvg's; the tuned models are scored and thrown away.
Batch normalisation: running statistics are shared; tuning moves the client's copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedbench.config.fields import at_least, positive, selectors
from fedbench.config.schema import LocalConfig
from fedbench.core.errors import ConfigError
from fedbench.engine.contract import Clock, Stage
from fedbench.methods.fedavg import FedAvg


@dataclass(frozen=True)
class Finetune(FedAvg):
    """FedAvg, fine-tuned on the client before scoring."""

    steps: int | None = at_least(0, 2)  # mini-batch steps before scoring
    # epochs before scoring, if steps is null; both null: the protocol's local work
    epochs: int | None = at_least(0, None)
    lr: float | None = positive(None)  # learning rate of those; null: the protocol's
    tuned: tuple[str, ...] = selectors(("*",))  # leaves that are tuned, see Task.select

    family: ClassVar[str] = "personalised"
    paper: ClassVar[str] = "Yu et al., 2020"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps is not None and self.epochs is not None:
            raise ConfigError(
                f"method.epochs={self.epochs} counts only without steps, of which there are {self.steps}; use "
                "steps=null, or epochs=null"
            )

    def adapt(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        return (Stage(self.loss, moves=self.tuned, iterations=self.steps, epochs=self.epochs, lr=self.lr),)
