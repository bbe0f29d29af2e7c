"""Studies: cells of a table that no training run's accuracy fills. A table's row names one by `study: NAME`.

A study returns numbers by name, for the data, partition, model, method, protocol and seed of a config; the measure
`result` reads them as it reads a run's columns. A FedbenchError says that it does not fit them.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from fedbench.core import trees
from fedbench.core.batch import Batch
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Clock, Stage
from fedbench.engine.hardware import pick_trainer
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation, State
from fedbench.engine.trainer import Outcome
from fedbench.methods import fedap
from fedbench.methods.fedcollab import distances
from fedbench.methods.fedcollab.fedcollab import FedCollab
from fedbench.methods.fedsac import FedSaC
from fedbench.methods.parts import features, mixing
from fedbench.models.layers import GlobalMean
from fedbench.runs.building import build
from fedbench.runs.config import RunConfig, from_plain
from fedbench.runs.fingerprint import load_data

# Operations and parameters of networks, counted (FedCollab, Table 5).
#
# Multiply-adds (MACs) of one forward pass of one sample: the weights of convolutions and linear layers, each as often
# as it is used, without biases and activations. The paper's number for ResNet-18, 37,220,352, is met to the last
# digit when a value in batch normalisation counts four, and a mean over n places n + 1, as a common profiler has it;
# so do we.


def model_cost(config: RunConfig) -> dict[str, float]:
    """Return `macs` and `params` of the clients' model (statistics of batch normalisation do not count as params)."""
    data = config.model.view(load_data(config.dataset))
    net = config.model.build(data.shape, data.classes)
    params = sum(leaf.numel() for leaf in net.parameters())
    return {"macs": float(multiply_adds(net, data.shape)), "params": float(params)}


def discriminator_cost(config: RunConfig) -> dict[str, float]:
    """Return `macs` and `params` of FedCollab's client discriminator.

    It sees the features of the model before its classifier, and a label.
    """
    if not isinstance(config.method, FedCollab):
        raise ConfigError("the study 'discriminator_cost' needs method=fedcollab")
    data = config.model.view(load_data(config.dataset))
    task = config.model.task(data.shape, data.classes)
    model = task.init(torch.Generator().manual_seed(0))
    width = task.features(model, torch.zeros(1, *data.shape)).numel()
    hidden = config.method.discriminator.hidden
    leaves = distances.initial(width, data.classes, hidden, torch.Generator().manual_seed(0))
    macs = sum(leaves[name].numel() for name in ("Wx", "Wy", "w2"))
    return {"macs": float(macs), "params": float(sum(leaf.numel() for leaf in leaves.values()))}


def multiply_adds(net: nn.Module, shape: tuple[int, ...]) -> int:
    """Return the multiply-adds of `net` for one input of `shape`, counted in a forward pass."""
    counted: list[int] = []

    def count(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        counted.append(operations(module, inputs[0], output))

    hooks = [module.register_forward_hook(count) for module in net.modules()]
    training = net.training
    with torch.no_grad():
        net.eval()(torch.zeros(1, *shape))
    net.train(training)
    for hook in hooks:
        hook.remove()
    return sum(counted)


def operations(module: nn.Module, x: torch.Tensor, output: torch.Tensor) -> int:
    """Return the operations of one layer for one sample; 0 for containers and for layers that do not count."""
    if isinstance(module, nn.Conv2d):
        return module.weight.numel() * output[0, 0].numel()
    if isinstance(module, nn.Linear):
        return module.weight.numel() * output[0, ..., 0].numel()
    if isinstance(module, nn.BatchNorm2d):
        return 4 * x.numel()
    if isinstance(module, GlobalMean):
        return x.numel() + output.numel()
    return 0


# pFedSim's measurement study (Tan et al., 2023, section 4.1, Table 2): five measures of two clients' similarity.
#
# Four clients i, i', j and k (partition label_groups) train from the same initial weights, each alone (method local).
# The paper defines data similarity (Eq. 1) and classifier similarity (Eq. 2), and the others by reference alone:
# - WDB, FedAP (Lu et al., 2022): 1 / d_ij, d_ij the distance of batch-normalisation statistics that FedAP's weights
#   are made of;
# - MDB, CFL (Sattler et al., 2020): the cosine of the models' changes in training;
# - LDB, FedFomo (Zhang et al., 2021), Eq. 4: (L_i(theta_i) - L_i(theta_j)) / |theta_j - theta_i|, L_i on
#   the test samples of the first client of the pair.

PAIRS = {"i and i'": (0, 1), "i and j": (0, 2), "j and k": (2, 3), "i and k": (0, 3)}


@dataclass(frozen=True, eq=False)
class Trained:
    """The clients' models [N, ...] before and after training."""

    setup: Setup
    before: Tree
    after: Tree


def of_pairs(
    similarity: Callable[[Trained, int, int], Tensor], config: RunConfig, *, trains: bool = True
) -> dict[str, float]:
    """Return the `similarity` of two clients, a scalar, for the paper's four pairs; `trains`: of trained models."""
    setup = build(config)
    if setup.federation.clients < 4 or config.labels["method"] != "local":
        raise ConfigError("this study compares four clients trained alone: method=local, four clients")
    models = trained(json.dumps(dict(config.plain))) if trains else Trained(setup, {}, {})
    with torch.no_grad():
        return {name: float(similarity(models, first, second)) for name, (first, second) in PAIRS.items()}


@functools.lru_cache(maxsize=8)
def trained(plain: str) -> Trained:
    """Train every client alone by the config `plain` (JSON); the models are the same for all measures."""
    config = from_plain(json.loads(plain))
    setup = build(config)
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


def data_similarity(models: Trained, first: int, second: int) -> Tensor:
    """1 - dist of Eq. 1: the share of the two clients' training samples whose label both have."""
    counts = models.setup.population.label_counts[[first, second]]
    shared = (counts > 0).all(0)
    return counts[:, shared].sum() / counts.sum()


def classifier_similarity(models: Trained, first: int, second: int) -> Tensor:
    """CS, Eq. 2: the mean over classes of the cosine of the classifiers' rows (weights, as in pFedSim itself)."""
    weight = models.after["head.weight"]
    return cosine_similarity(weight[first], weight[second], dim=1).mean()


def update_similarity(models: Trained, first: int, second: int) -> Tensor:
    """MDB: the cosine of the changes of all weights."""
    task = models.setup.task
    before, after = task.weights(models.before), task.weights(models.after)
    change = trees.flatten({name: leaf - before[name] for name, leaf in after.items()})
    return cosine_similarity(change[first], change[second], dim=0)


def statistics_similarity(models: Trained, first: int, second: int) -> Tensor:
    """WDB: one over FedAP's distance of batch-normalisation statistics."""
    task = models.setup.task
    statistics = {name: leaf for name, leaf in models.after.items() if task.is_buffer(name)}
    if not statistics:
        raise ConfigError("the study 'wdb' needs a model with batch normalisation, such as model=lenet5_bn")
    return 1 / fedap.distances(statistics)[first, second]


def loss_similarity(models: Trained, first: int, second: int) -> Tensor:
    """LDB: FedFomo's weight of the second client's model for the first client."""
    task, federation = models.setup.task, models.setup.federation
    data = Batch(*federation.gather(federation.indices("local", first)))
    own, other = trees.row(models.after, first), trees.row(models.after, second)
    gain = features.mean_loss(own, data, task) - features.mean_loss(other, data, task)
    return gain / trees.squared_distance(task.weights(own), task.weights(other)).sqrt()


# Seconds: of FedSaC's phases (Yan et al., 2024, Table 6) and of local training a sample (pFedSim, Table 7).
#
# Clients are trained one after another, whatever engine the config asks for: both tables are about one client's work.

REPEATS = 5  # of what takes milliseconds; the median counts
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Lap:
    """One client in one round."""

    samples: int
    training: float  # seconds in the optimiser's steps
    seconds: float  # in all local work


class Stopwatch(LoopedTrainer):
    """The plain loop, timed client by client; keeps the latest uploads."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.laps: list[Lap] = []
        self.uploads: Tree = {}
        self._steps = 0.0

    def train(self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str] = ()) -> Outcome:
        outcome = super().train(ids, message, memory, clock, score)
        self.uploads = outcome.uploads
        return outcome

    def train_one(self, client: int, view: Client, score: Sequence[str]) -> Outcome:
        """Train one client, timed."""
        self._steps = 0.0
        outcome, seconds = self.timed(lambda: super(Stopwatch, self).train_one(client, view, score))
        self.laps.append(Lap(self.setup.federation.size(client), self._steps, seconds))
        return outcome

    def descend(self, client: int, work: Tree, view: Client, stages: Sequence[Stage], purpose: str) -> list[Tensor]:
        losses, seconds = self.timed(lambda: super(Stopwatch, self).descend(client, work, view, stages, purpose))
        self._steps += seconds
        return losses

    def timed(self, work: Callable[[], ResultT]) -> tuple[ResultT, float]:
        """Return (result, seconds) of `work`, waiting for a GPU to end it."""
        device = self.setup.federation.device
        begin = time.perf_counter()
        result = work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return result, time.perf_counter() - begin

    def median(self, work: Callable[[], object]) -> float:
        """Return median seconds of `work` over a few repeats."""
        return median(self.timed(work)[1] for _ in range(REPEATS))


def play(config: RunConfig) -> tuple[Stopwatch, State]:
    """Make all rounds of a run, timed; clients are scored only before the first and after the last."""
    setup = build(config)
    setup = replace(setup, protocol=replace(setup.protocol, score="received", eval_every=setup.protocol.rounds))
    watch = Stopwatch(setup)
    simulation = Simulation(setup, watch)
    state = simulation.begin()
    while not simulation.done(state):
        simulation.step(state)
    return watch, state


def local_seconds(config: RunConfig) -> dict[str, float]:
    """Return `seconds_per_sample`, pFedSim's xi_p.

    Seconds of a client's local work over its training samples, mean over rounds and cohorts.
    """
    laps = play(config)[0].laps
    return {"seconds_per_sample": sum(lap.seconds / lap.samples for lap in laps) / len(laps)}


def fedsac_phases(config: RunConfig) -> dict[str, float]:
    """Return seconds in a round: `training` of one client, and FedSaC's additional work for all of its clients.

    The latter is `similarity`, `complementarity` (subspaces, their angles) and `optimization` (Eq. 8).
    """
    method = config.method
    if not isinstance(method, FedSaC):
        raise ConfigError("the study 'fedsac_phases' needs method=fedsac")
    watch, state = play(config)
    ids = torch.arange(watch.setup.federation.clients)
    cohort = watch.setup.cohort(ids, Clock(0, config.protocol.rounds))
    with torch.no_grad():
        S = method.similarities(state.server, watch.uploads, cohort)
        U = watch.uploads["subspace/U"]
        C = features.complementarity(U, method.angles == "greedy").to(S)
        rows = cohort.weights.to(S) - (method.alpha * C - method.beta * S) / 2
        similarity = watch.median(lambda: method.similarities(state.server, watch.uploads, cohort))
        angles = watch.median(lambda: features.complementarity(U, method.angles == "greedy"))
        optimization = watch.median(lambda: mixing.project(rows))
    subspaces = median(lap.seconds - lap.training for lap in watch.laps)
    return {
        "training": median(lap.training for lap in watch.laps),
        "similarity": similarity,
        "complementarity": len(ids) * subspaces + angles,
        "optimization": optimization,
    }


STUDIES: Mapping[str, Callable[[RunConfig], dict[str, float]]] = {
    "cs": partial(of_pairs, classifier_similarity),
    "data_similarity": partial(of_pairs, data_similarity, trains=False),
    "discriminator_cost": discriminator_cost,
    "fedsac_phases": fedsac_phases,
    "ldb": partial(of_pairs, loss_similarity),
    "local_seconds": local_seconds,
    "mdb": partial(of_pairs, update_similarity),
    "model_cost": model_cost,
    "wdb": partial(of_pairs, statistics_similarity),
}


def roots(name: str) -> tuple[str, ...]:
    """Return the definitions, as "module:Name", with which the code of a study begins; none of an unknown one."""
    study = STUDIES.get(name)
    functions = (study.func, *study.args) if isinstance(study, partial) else (study,) if study else ()
    return tuple(f"{each.__module__}:{each.__name__}" for each in functions)
