"""Finetune: FedAvg (McMahan et al., AISTATS 2017), whose model each client trains a little before it is scored.

It is a baseline of FedCollab (Bao et al., ICML 2023: 2 steps) and of many others (Yu et al., Salvaging Federated
Learning by Local Adaptation, 2020). Training is FedAvg's. The tuned models are scored and discarded.
Presets tune all leaves, the head, or batch normalisation for one local work. `lpft` tunes the head and then all leaves,
a local work each (linear probing, then fine-tuning: Kumar et al., ICLR 2022; Chen et al., arXiv 2511.12695, compare
these in FL).
Batch normalisation: running statistics are shared. Tuning moves the client's copy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from fedbench.config.fields import at_least, positive, selectors
from fedbench.config.schema import LocalConfig, added
from fedbench.core.errors import ConfigError
from fedbench.engine.contract import Clock, Conformance, Stage
from fedbench.methods.fedavg import FedAvg


@dataclass(frozen=True)
class Finetune(FedAvg):
    """FedAvg, fine-tuned on the client before scoring."""

    steps: int | None = at_least(0, 2)  # mini-batch steps before scoring
    # epochs before scoring, if steps is null; both null: the protocol's local work
    epochs: int | None = at_least(0, None)
    lr: float | None = positive(None)  # learning rate of the tuning; null: the protocol's
    tuned: tuple[str, ...] = selectors(("*",))  # leaves that are tuned, see Task.select
    probed: tuple[str, ...] = added(selectors(()))  # leaves that are tuned alone first, for equally long; (): none

    family: ClassVar[str] = "personalised"
    paper: ClassVar[str] = "Yu et al., 2020"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps is not None and self.epochs is not None:
            raise ConfigError(
                f"method.epochs={self.epochs} has no effect with steps={self.steps}; use steps=null, or epochs=null"
            )

    @property
    def conformance(self) -> Conformance:
        """An MLP, which has no batch normalisation, tunes its head."""
        return Conformance(settings={"tuned": (*self.tuned, "@head")} if "@norm" in self.tuned else {})

    def adapt(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        tuning = Stage(self.loss, moves=self.tuned, iterations=self.steps, epochs=self.epochs, lr=self.lr)
        return (replace(tuning, moves=self.probed, order=1), tuning) if self.probed else (tuning,)
