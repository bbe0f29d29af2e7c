"""Recorder of accuracy over SosicFL's solution simplex (Figure 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedbench.core import trees
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.engine.recording import Arrays, Moment, Recorder
from fedbench.methods.sosicfl import region
from fedbench.methods.sosicfl.sosicfl import at, shared

POINTS = 2000


@dataclass(frozen=True)
class Simplex(Recorder):
    """Accuracy of the models at `points` [2000, M + 1] drawn uniformly from the simplex.

    `global` [2000] is on the test set (nan where there is none), `local` [2000, N] on each client's own test samples.
    """

    name: ClassVar[str] = "simplex"

    def fits(self, moment: Moment) -> None:
        """Raise ConfigError where there are no endpoints."""
        if not trees.part(moment.server, "endpoints"):
            raise ConfigError("its model has no endpoints; sosicfl and its presets have")

    def look(self, moment: Moment) -> Arrays:
        """See Recorder.look."""
        self.fits(moment)
        setup, work = moment.setup, shared(moment.server)
        corners = len(next(iter(trees.part(work, "endpoints").values())))
        points = region.dirichlet(POINTS, corners, moment.generator(self.name))
        federation = setup.federation
        tests = [federation.global_test, *(federation.sets["local"][k] for k in range(federation.clients))]
        samples = torch.cat(tests)
        hits = torch.from_numpy(self._hits(moment, work, points, samples))  # [P, all samples]
        each = hits.split([len(test) for test in tests], dim=1)
        found = np.stack([part.double().mean(1).numpy() for part in each], axis=1)
        trained = setup.protocol.test.pool  # then clients train on the test set too
        return {
            "points": points.numpy(),
            "global": np.full(POINTS, np.nan) if trained else found[:, 0],
            "local": found[:, 1:],
        }

    def _hits(self, moment: Moment, work: Tree, points: Tensor, samples: Tensor) -> np.ndarray:
        """Whether the model at each point is right, bool [P, n]; the part without endpoints runs once."""
        task = moment.setup.task
        x, y = moment.setup.federation.gather(samples)
        model = at(work, points[0].to(x))
        inside = set(trees.part(work, "endpoints")) <= task.groups["@head"]
        z = task.apply(model, x, until="head") if inside else x
        since = "head" if inside else None
        rows = [task.apply(at(work, alpha.to(x)), z, since=since).argmax(1) == y for alpha in points]
        return torch.stack(rows).cpu().numpy()
