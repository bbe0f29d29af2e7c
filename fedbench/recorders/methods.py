"""Recorders of the matrices that methods are about, on any run: W, FedReMa's S, FedSaC's C."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from fedbench.core import trees
from fedbench.core.errors import ConfigError
from fedbench.engine.recording import Arrays, Moment, Recorder
from fedbench.methods.fedrema import mds
from fedbench.methods.parts import subspace
from fedbench.recorders.models import VALUE

TEMPERATURE = 0.5  # of FedReMa's soft predictions
DIRECTIONS = 3  # of FedSaC's subspaces


@dataclass(frozen=True)
class Collaboration(Recorder):
    """The collaboration matrix W [N, N] after the round."""

    name: ClassVar[str] = "collaboration"

    def look(self, moment: Moment) -> Arrays:
        """See Recorder.look."""
        matrix = moment.setup.method.collaboration(moment.server, moment.setup.population)
        if matrix is None:
            raise ConfigError("it has no collaboration matrix")
        return {VALUE: matrix.double().cpu().numpy()}


@dataclass(frozen=True)
class Similarity(Recorder):
    """S [N, N], cosines of what clients' classifiers answer to one random feature (FedReMa, Eqs. 4-5, Figure 3)."""

    name: ClassVar[str] = "similarity"

    def look(self, moment: Moment) -> Arrays:
        """See Recorder.look."""
        stage = mds.classifier_stage(moment.setup.task, ("@classifier",))
        probe = mds.Probe(TEMPERATURE, 1.0, per_client=False, temper_all=True)
        cohort = replace(moment.cohort, generator=moment.generator(self.name))
        return {VALUE: moment.square(probe.similarities(moment.models, stage, cohort))}


@dataclass(frozen=True)
class Complementarity(Recorder):
    """C [N, N], cosines of the mean angle between clients' subspaces of features (FedSaC, Eqs. 5-7, k = 3)."""

    name: ClassVar[str] = "complementarity"

    def look(self, moment: Moment) -> Arrays:
        """See Recorder.look."""
        setup = moment.setup
        products = [
            subspace.products(trees.row(moment.models, place), setup.federation.all_of(client), setup.task)
            for place, client in enumerate(moment.cohort.ids.tolist())
        ]
        bases = torch.vmap(lambda each: subspace.directions(each, DIRECTIONS))(trees.stack(products))
        return {VALUE: moment.square(subspace.complementarity(bases))}
