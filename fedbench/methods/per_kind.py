"""Any method inside each modality: a separate server for the clients of each.

FedSaC's Table 2 runs FedAvg and pFedGraph in this way, "executing tasks separately within each modality". With one
modality this is the inner method. The inner method cannot be one that prepares with all clients' data before round 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedbench.core import trees
from fedbench.core.batch import Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Cohort, Conformance, Preparation
from fedbench.methods.parts.clustered import WrapperMethod, default_base, prepares
from fedbench.models.task import Task


@dataclass(frozen=True)
class PerKind(WrapperMethod):
    """A base server for each modality.

    Server: kind [N], the place of its modality's name in their order; base/**, or base:MODALITY/** if there are several
    Memory: ** [N, ...] if the base has any
    Message: **, the base's
    Upload: **, the base's
    """

    base: Any = field(default_factory=default_base)  # the method inside

    paper: ClassVar[str] = "-"

    @property
    def family(self) -> str:  # type: ignore[override]
        """That of the method inside."""
        return self.inner.family

    @property
    def unfit(self) -> Mapping[str, str]:
        """The method inside may be any that does not prepare."""
        found = {name: why for name, why in self.inner.unfit.items() if name != "modalities"}
        if not prepares(self.inner):
            return found
        return {**found, "modalities": f"runs {type(self.inner).__name__}, which prepares with the data of all clients"}

    @property
    def conformance(self) -> Conformance:
        return self.inner.conformance

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Return a base server for each modality; all begin from the same weights, as far as they share any."""
        modality, state = task.modality_of(torch.arange(population.clients)), generator.get_state()
        places = sorted(
            map(_space, task.modalities)
        )  # the order of leaves says nothing: rounds and checkpoints change it
        server: Tree = {"kind": torch.tensor([places.index(_space(each)) for each in task.modalities])[modality]}
        parts = []
        for index, own_task in enumerate(task.modalities):
            generator.set_state(state)
            own, memory = self.inner.init(own_task, population, generator)
            server |= trees.join(**{_space(own_task): own})
            parts.append((modality == index, trees.rows(memory, modality == index)))
        return server, trees.spread(parts, population.clients)

    def prepare(self, preparation: Preparation, server: Tree, memory: Tree) -> tuple[Tree, Tree]:
        """Let the method inside prepare, where there is one modality only: see `unfit`."""
        modalities = preparation.task.modalities
        if len(modalities) > 1:
            return server, memory
        own, memory = self.inner.prepare(preparation, trees.under(server, _space(modalities[0])), memory)
        return {"kind": server["kind"], **trees.join(**{_space(modalities[0]): own})}, memory

    def send(self, server: Tree, cohort: Cohort) -> Tree:
        """Send each client the message of its modality's server."""
        parts = [
            (members, self.inner.send(trees.under(server, _space(subcohort.task)), subcohort))
            for members, subcohort in cohort.by_modality()
        ]
        return trees.spread(parts, len(cohort.ids))

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Give each modality's server its own clients' uploads; one without a client in the cohort waits."""
        for members, subcohort in cohort.by_modality():
            space, own = _space(subcohort.task), trees.rows(subcohort.task.own(uploads), members)
            updated = self.inner.aggregate(trees.under(server, space), own, subcohort)
            others = {key: leaf for key, leaf in server.items() if not key.startswith(f"{space}/")}
            server = {**others, **trees.join(**{space: updated})}
        return server

    def common(self, server: Tree, task: Task) -> Tree | None:
        """Return the inner method's global model, if there is one modality only."""
        modalities = task.modalities
        return self.inner.common(trees.under(server, _space(modalities[0])), task) if len(modalities) == 1 else None

    def collaboration(self, server: Tree, population: Population) -> Tensor | None:
        """Return the rows of each modality's clients as the method inside has them."""
        servers = {k: trees.under(server, space) for k, space in enumerate(self._spaces(server))}
        return self.combined_rows(servers, server["kind"].cpu(), population)

    def record(self, server: Tree) -> Mapping[str, Tensor]:
        """Return the records of the method inside for each modality."""
        spaces = self._spaces(server)
        return self.combined_records({space.removeprefix("base"): trees.under(server, space) for space in spaces})

    def _spaces(self, server: Tree) -> list[str]:
        return sorted({key.partition("/")[0] for key in server if "/" in key})


def _space(task: Task) -> str:
    """Return the namespace of a modality's server within the state: `base`, or `base:text`."""
    return f"base:{task.prefix}".strip(":.")
