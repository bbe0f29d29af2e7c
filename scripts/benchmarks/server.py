"""W5 and PHASES: the server side alone, and where the time of a run goes."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, vmap

from benchmarks.rounds import timed
from fedbench.config.compose import compose
from fedbench.config.schema import OptimizerConfig
from fedbench.core import trees
from fedbench.core.trees import Tree
from fedbench.engine import graphs, optim
from fedbench.engine.hardware import pick_trainer
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.simulation import Simulation
from fedbench.methods.fedcollab.solver import solve
from fedbench.methods.fedrema import segment
from fedbench.methods.fedtgp import contrast, prototypes
from fedbench.methods.parts.features import complementarity, directions, shuffled
from fedbench.methods.parts.layers import linear
from fedbench.methods.parts.mixing import cosines, project
from fedbench.methods.pfedsim import PFedSim
from fedbench.models.small import LeNet5
from fedbench.runs.building import build
from fedbench.runs.config import resolve

FEATURES, RANK, CLASSES = 84, 3, 10  # LeNet5's representation, FedSaC's k
PARAMETERS = 62_006  # LeNet5
RESTARTS = 100  # FedCollab's
LEARNING_STEPS = 500  # of FedTGP's server, which takes 100 epochs over the class means of all clients
REPEATS = 3
FASHION = "dataset=fashion_mnist"
HUNDRED = "partition.num_clients=100"
FEDREMA = ("method=fedrema", "partition=groups_s0.2", "model=fedrema_cnn", "protocol=fedrema")
FEDSAC = ("method=fedsac", "model=lenet5", "protocol=fedsac")
CASES = {  # each paper's method and protocol, on Fashion-MNIST where it used another data set
    "FedCollab, label shift": (
        *("method=fedcollab", "partition=label_shift", "model=mlp", "protocol=fedcollab_label_shift"),
    ),
    "pFedSim": (
        *("method=pfedsim", "partition=dir0.1", HUNDRED, "partition.min_size=40"),
        *("model=lenet5_bn", "protocol=pfedsim"),
    ),
    "SosicFL": (*("method=sosicfl", "partition=fold5", HUNDRED, "model=simple_cnn", "protocol=sosicfl_simplecnn"),),
    "FedReMa": FEDREMA,
    "FedReMa, 100 clients": (*FEDREMA, HUNDRED, "partition.size=400"),
    "FedSaC": (*FEDSAC, "partition=dir0.1"),
    "FedSaC, 100 clients, scored on their own samples": (
        *(*FEDSAC, "partition=dir0.5", HUNDRED, "protocol.test.sets=local", "protocol.test.fraction=0.2"),
    ),
}
ROUNDS = 10  # of a case timed at most, after one to warm up
ENOUGH = 8.0  # seconds of rounds that no further one is timed after


def has_images() -> bool:
    """Whether the data set of all cases is on this machine."""
    return bool(resolve(compose([FASHION])).dataset.state().ready)


def discriminators(device: str) -> dict[str, Any] | None:
    """Seconds of FedCollab's 190 discriminators on Fashion-MNIST's label shift; None without the data set."""
    if not has_images():
        return None
    setup = build(resolve(compose(["method=fedcollab", FASHION, "model=mlp", f"hardware.device={device}"])))
    state = Simulation(setup, LoopedTrainer(setup)).begin()
    return {"pairs": 190, "seconds": round(state.seconds["prepare"], 2)}


def run(n: int, device: torch.device) -> dict[str, Any]:
    """Seconds of one call of each server computation for N = `n` clients, the median of a few."""
    generator = torch.Generator().manual_seed(n)
    models = {"w": torch.randn(n, PARAMETERS, generator=generator).to(device)}
    p = torch.full((n,), 1 / n, device=device)
    bases = torch.linalg.qr(torch.randn(n, FEATURES, RANK, generator=generator)).Q.to(device)
    S, C = cosines(models["w"]), complementarity(bases)
    features = torch.randn(n, 2 * FEATURES, FEATURES, generator=generator)
    grams = (features.mT @ features).to(device)  # of as many clients' samples

    def subspaces(grams: Tensor) -> Tensor:
        return vmap(lambda gram: directions({"gram": gram, "least": torch.zeros_like(gram[0, 0])}, RANK))(grams)

    task = LeNet5().task((3, 32, 32), CLASSES)
    shapes = {name: leaf.shape for name, leaf in task.init(generator).items()}
    heads = {
        name: torch.randn(n, *shapes[name], generator=generator).to(device) for name in task.select(shapes, ("@head",))
    }
    rng = np.random.default_rng(n)
    types = np.arange(n) % 4
    distances = np.where(types[:, None] == types, 0.02, 0.8) * rng.uniform(0.9, 1.1, (n, n))
    distances = np.triu(distances, 1) + np.triu(distances, 1).T
    sizes = np.where(np.arange(n) % 2, 14.0, 2100.0)
    calls: dict[str, Callable[[], Any]] = {
        "aggregation": lambda: trees.mean(models, p),
        "fedsac_similarity": lambda: cosines(models["w"]),
        "fedsac_subspaces": lambda: subspaces(grams),
        "fedsac_subspaces_by_the_host": lambda: subspaces(grams.cpu()).to(device),
        "fedsac_complementarity": lambda: complementarity(bases),
        "fedsac_weights": lambda: project(p - (0.9 * C - 1.4 * S) / 2),
        "pfedsim_similarity": lambda: PFedSim().similarity(heads, task),
        "fedrema_matching": lambda: segment(S, last_gap=True, keep_below=False),
        "fedcollab_solver": lambda: solve(sizes, distances, 10.0, restarts=RESTARTS, rng=np.random.default_rng(0)),
    }
    points, labels = features[:, 0].to(device), torch.arange(n, device=device) % CLASSES  # as if class means
    tgp = {"embedding": torch.randn(CLASSES, FEATURES, generator=generator)}
    tgp |= {k: v for layer in "01" for k, v in linear(layer, FEATURES, FEATURES, generator).items()}
    tgp = {name: leaf.to(device) for name, leaf in tgp.items()}

    def learning() -> Tree:
        def loss(tgp: Tree, drawn: Tree) -> Tensor:
            return contrast(points[drawn["rows"]], labels[drawn["rows"]], prototypes(tgp), points[0, 0].abs())

        steps = itertools.islice(shuffled(n, LEARNING_STEPS, 10, generator), LEARNING_STEPS)
        return optim.fit(tgp, loss, steps, OptimizerConfig(lr=0.01))

    def learning_uncaptured() -> Tree:
        with patch.object(graphs, "capture_for", lambda _: None):
            return learning()

    calls |= {"fedtgp_learning": learning, "fedtgp_learning_without_graphs": learning_uncaptured}
    seconds = {name: [timed(call, device)[0] for _ in range(REPEATS)] for name, call in calls.items()}
    return {"clients": n, **{k: float(f"{statistics.median(v):.3g}") for k, v in seconds.items()}}


def phases(name: str, device: str, settings: tuple[str, ...] = ()) -> dict[str, Any]:
    """Seconds of a round's local work, server and evaluation, and their shares of a run of the case, in percent.

    Scores come as often as the protocol asks for them. `settings` are further overrides. What happens once, before
    round 0, is left out.
    """
    chosen = [FASHION, *CASES[name], *settings, f"hardware.device={device}"]
    protocol = resolve(compose(chosen)).protocol
    if protocol.score != "received":
        raise ValueError(f"{name} scores what it has just trained, in the time of its local work")
    run = resolve(compose([*chosen, "protocol.eval_every=1"]))
    setup = build(run)
    trainer = pick_trainer(setup, run.hardware)
    try:
        simulation = Simulation(setup, trainer)
        state = simulation.begin()
        simulation.step(state)  # to warm up
        before, rounds = dict(state.seconds), 0
        while rounds < ROUNDS and sum(state.seconds.values()) - sum(before.values()) < ENOUGH:
            simulation.step(state)
            rounds += 1
    finally:
        trainer.close()
    seconds = {each: (state.seconds[each] - before[each]) / rounds for each in ("train", "server", "evaluate")}
    a_round = seconds | {"evaluate": seconds["evaluate"] / protocol.eval_every}
    total = sum(a_round.values())
    return {
        "case": name,
        "rounds": rounds,
        "eval_every": protocol.eval_every,
        "seconds": {each: round(value, 4) for each, value in seconds.items()},
        "shares": {each: round(100 * value / total, 1) for each, value in a_round.items()},
    }
