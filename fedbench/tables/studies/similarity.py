"""pFedSim's measurement study (Tan et al., 2023, section 4.1, Table 2): five measures of the similarity of two clients.

Four clients i, i', j and k (partition label_groups) train from the same initial weights, each alone (method local).
The paper defines data similarity (Eq. 1) and classifier similarity (Eq. 2), and the others by reference alone:
- WDB, FedAP (Lu et al., 2022): 1 / d_ij, d_ij the distance of batch-normalisation statistics that FedAP's weights
  are made of;
- MDB, CFL (Sattler et al., 2020): the cosine of the models' changes in training;
- LDB, FedFomo (Zhang et al., 2021), Eq. 4: (L_i(theta_i) - L_i(theta_j)) / |theta_j - theta_i|, L_i on the test samples
  of the first client of the pair.
"""

from __future__ import annotations

import functools
import json
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from fedbench.core import trees
from fedbench.core.batch import Batch
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.engine.pick.hardware import pick_trainer
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation
from fedbench.methods import fedap
from fedbench.methods.parts import passes
from fedbench.runs.config import RunConfig, from_plain
from fedbench.runs.execution import build
from fedbench.tables.studies.base import Study

PAIRS = {"i and i'": (0, 1), "i and j": (0, 2), "j and k": (2, 3), "i and k": (0, 3)}


@dataclass(frozen=True, eq=False)
class Trained:
    """The clients' models [N, ...] before and after training."""

    setup: Setup
    before: Tree
    after: Tree


@dataclass(frozen=True)
class Similarity(Study):
    """A measure of two clients, for the paper's four pairs."""

    trains: ClassVar[bool] = True  # whether it compares trained models

    def run(self, config: RunConfig) -> dict[str, float]:
        """See Study.run."""
        setup = build(config)[0]
        clients = setup.federation.clients
        if clients < 4 or config.labels["method"] != "local":
            raise ConfigError("this study compares four clients trained alone: method=local, four clients")
        models = trained(json.dumps(dict(config.plain))) if self.trains else Trained(setup, {}, {})
        with torch.no_grad():
            return {name: float(self.of(models, first, second)) for name, (first, second) in PAIRS.items()}

    @abstractmethod
    def of(self, models: Trained, first: int, second: int) -> Tensor:
        """The similarity of two clients, a scalar."""


@functools.lru_cache(maxsize=8)
def trained(plain: str) -> Trained:
    """Every client alone, as the config `plain` (JSON) says; the same models for all measures."""
    config = from_plain(json.loads(plain))
    setup = build(config)[0]
    trainer = pick_trainer(setup, config.hardware)
    try:
        simulation = Simulation(setup, trainer)
        state = simulation.begin()
        before = trees.clone(state.memory)
        while not simulation.done(state):
            simulation.step(state)
    finally:
        trainer.close()
    return Trained(setup, before, dict(state.memory))


@dataclass(frozen=True)
class DataSimilarity(Similarity):
    """1 - dist of Eq. 1: the share of the two clients' training samples whose label both have."""

    trains: ClassVar[bool] = False

    def of(self, models: Trained, first: int, second: int) -> Tensor:
        """See Similarity.of."""
        counts = models.setup.population.label_counts[[first, second]]
        shared = (counts > 0).all(0)
        return counts[:, shared].sum() / counts.sum()


@dataclass(frozen=True)
class ClassifierSimilarity(Similarity):
    """CS, Eq. 2: the mean over classes of the cosine of the classifiers' rows (weights, as in pFedSim itself)."""

    def of(self, models: Trained, first: int, second: int) -> Tensor:
        """See Similarity.of."""
        weight = models.after["head.weight"]
        return cosine_similarity(weight[first], weight[second], dim=1).mean()


@dataclass(frozen=True)
class UpdateSimilarity(Similarity):
    """MDB: the cosine of the changes of all weights."""

    def of(self, models: Trained, first: int, second: int) -> Tensor:
        """See Similarity.of."""
        task = models.setup.task
        before, after = task.weights(models.before), task.weights(models.after)
        change = trees.flatten({name: leaf - before[name] for name, leaf in after.items()})
        return cosine_similarity(change[first], change[second], dim=0)


@dataclass(frozen=True)
class StatisticsSimilarity(Similarity):
    """WDB: one over FedAP's distance of batch-normalisation statistics."""

    def of(self, models: Trained, first: int, second: int) -> Tensor:
        """See Similarity.of."""
        task = models.setup.task
        statistics = {name: leaf for name, leaf in models.after.items() if task.is_buffer(name)}
        if not statistics:
            raise ConfigError(
                "the study 'wdb' needs a model with batch normalisation, such as model=lenet5_bn"
            )
        return 1 / fedap.distances(statistics)[first, second]


@dataclass(frozen=True)
class LossSimilarity(Similarity):
    """LDB: FedFomo's weight of the second client's model for the first client."""

    def of(self, models: Trained, first: int, second: int) -> Tensor:
        """See Similarity.of."""
        task, federation = models.setup.task, models.setup.federation
        data = Batch(*federation.gather(federation.indices("local", first)))
        own, other = trees.row(models.after, first), trees.row(models.after, second)
        gain = passes.mean_loss(own, data, task) - passes.mean_loss(other, data, task)
        return gain / trees.squared_distance(task.weights(own), task.weights(other)).sqrt()
