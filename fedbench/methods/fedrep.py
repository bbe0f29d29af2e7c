"""FedRep: Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML 2021.

Algorithm 1: client i first trains its private head on the received representation. It then trains the representation
under the fixed head. Only the representation is averaged. Comparisons divide the local work in three ways:

- The paper: 10 epochs of the head, then 1 of the body (`head_epochs=10`).
- pFedSim: the last of the protocol's E epochs trains the body (`body_epochs=1`), the others the head. This is the
  default.
- pFedGraph's code, which also produced FedSaC's row: 80 iterations of the head (`head_iterations=80`), then all of the
  protocol's 200 or 400 on the body (`whole_body`; without it the body has the remaining ones).

Deviation: the average is weighted by n_k / n; the paper's clients are equally large.
Batch normalisation: affine parameters and running statistics belong to the representation and are shared. The
statistics move in both stages, as in the authors' code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedbench.config.fields import at_least, selectors
from fedbench.config.schema import LocalConfig, added
from fedbench.core.errors import ConfigError
from fedbench.engine.contract import Clock, Stage
from fedbench.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedRep(FedAvg):
    """Private heads on a shared representation, trained in turns."""

    private: tuple[str, ...] = selectors(("@head",))  # the head: globs or groups, see Task.select
    # epochs of the head; null: the protocol's less body_epochs, at least one
    head_epochs: int | None = at_least(0, None)
    body_epochs: int = at_least(0, 1)  # epochs of the body
    # if the protocol has iterations, those of the head instead of head_epochs; null: two fifths of them
    head_iterations: int | None = at_least(0, None)
    whole_body: bool = added(False)  # the body has all of the protocol's iterations, and the head's are additional

    family: ClassVar[str] = "personalised"
    paper: ClassVar[str] = "Collins et al., ICML 2021"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head_epochs is not None and self.head_iterations is not None:
            raise ConfigError(
                f"method.head_epochs={self.head_epochs} has no effect with head_iterations={self.head_iterations}; use "
                "one of them"
            )

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        """Train the head, then the body on other mini-batches."""
        head, body = self._iterations(local)
        left = max(1, (local.epochs or 0) - self.body_epochs)
        head_epochs = left if self.head_epochs is None else self.head_epochs
        return (
            Stage(self.loss, moves=self.private, epochs=head_epochs, iterations=head),
            Stage(self.loss, fixed=self.private, epochs=self.body_epochs, iterations=body, order=1),
        )

    def _iterations(self, local: LocalConfig) -> tuple[int | None, int | None]:
        """Of head and body; None where epochs count."""
        if local.iterations is None:
            if self.whole_body:
                raise ConfigError("method.whole_body counts only where the protocol counts iterations; leave it out")
            return self.head_iterations, None
        if self.head_epochs is not None or self.body_epochs != FedRep.body_epochs:
            raise ConfigError(
                f"method.head_epochs={self.head_epochs} and body_epochs={self.body_epochs} count only where the "
                f"protocol counts epochs, not iterations={local.iterations}; use method.head_iterations"
            )
        head = int(0.4 * local.iterations) if self.head_iterations is None else self.head_iterations
        if self.whole_body:
            return head, local.iterations
        if head >= local.iterations:
            raise ConfigError(
                f"method.head_iterations={head} leaves none of protocol.local.iterations={local.iterations} for the "
                "body; lower it"
            )
        return head, local.iterations - head
