"""Tiny federations for tests: given client sizes, random images, float64 so that equalities are sharp."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedbench.config.schema import LocalConfig, OptimizerConfig, ProtocolConfig
from fedbench.core import rng, trees
from fedbench.core.batch import Batch
from fedbench.core.trees import Tree
from fedbench.data.dataset import Dataset
from fedbench.data.federation import Federation
from fedbench.data.split import Partition
from fedbench.engine.contract import Clock
from fedbench.engine.method import Method
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation
from fedbench.engine.state import State
from fedbench.engine.train.looped import LoopedTrainer
from fedbench.engine.train.trainer import Trainer
from fedbench.models.base import Model
from fedbench.models.mlp import MLP
from fedbench.models.task import Task

SIZES = (1, 13, 8, 21, 5)  # one sample, a short last batch, one full batch, several batches, less than one
BATCH = 8
CLASSES = 4


def federation(
    sizes: Sequence[int] = SIZES,
    shape: tuple[int, int, int] = (1, 4, 4),
    classes: int = CLASSES,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    labels: Sequence[Sequence[int]] | None = None,
    tests: int = 6,
    ids: Sequence[int] | None = None,
) -> Federation:
    """Client k owns sizes[k] training, 3 validation and `tests` test samples; `labels[k]`: the classes it sees.

    Images are class prototypes plus noise, so that there is something to learn. `ids`: only those clients, in that
    order, each with the data and the randomness it has among all.
    """
    rng = np.random.default_rng(seed)
    prototypes = rng.integers(40, 216, (classes, *shape))
    own = [list(range(classes)) if labels is None else list(labels[k]) for k in range(len(sizes))]
    split: dict[str, list[np.ndarray]] = {"train": [], "val": [], "test": []}
    y: list[int] = []
    for name, count in (("train", 0), ("val", 3), ("test", tests)):
        for k, size in enumerate(sizes):
            n = size if name == "train" else count
            split[name].append(np.arange(len(y), len(y) + n))
            y.extend(rng.choice(own[k], n))
    targets = np.array(y, dtype=np.int64)
    x = np.clip(prototypes[targets] + rng.normal(0, 40, (len(y), *shape)), 0, 255).astype(np.uint8)
    channels = shape[0]
    train = sum(sizes)
    data = Dataset("toy", x, targets, train, classes, (0.5,) * channels, (0.25,) * channels)
    chosen = list(range(len(sizes)) if ids is None else ids)
    sets = [[split[name][k] for k in chosen] for name in ("train", "val", "test")]
    made = Federation(data, Partition("toy", seed, "toy", classes, *sets), dtype=dtype)
    made.ids = chosen
    return made


def setup(
    method: Method,
    data: Federation | None = None,
    model: Model | None = None,
    *,
    rounds: int = 2,
    epochs: int | None = 2,
    iterations: int | None = None,
    cohort: float = 1.0,
    seed: int = 0,
    batch: int = BATCH,
    optimizer: OptimizerConfig | None = None,
    **protocol: Any,
) -> Setup:
    """A Setup over a toy federation, a cohort that is no int is a share; further keywords go to ProtocolConfig."""
    data = data or federation()
    task = (model or MLP(hidden=(7,))).task(data.shape, data.classes)
    chosen = ProtocolConfig(
        rounds=rounds,
        cohort=str(cohort) if isinstance(cohort, int) else f"{100 * cohort:g}%",
        local=LocalConfig(epochs=epochs, iterations=iterations, batch_size=batch),
        optimizer=optimizer or OptimizerConfig(lr=0.1),
        **protocol,
    )
    return Setup(method, task, data, chosen, seed)


def simulate(chosen: Setup, trainer: Trainer | None = None) -> State:
    """All rounds of a run."""
    trainer = trainer or LoopedTrainer(chosen)
    simulation = Simulation(chosen, trainer)
    try:
        state = simulation.begin()
        while not simulation.done(state):
            simulation.step(state)
    finally:
        trainer.close()
    return state


def models(chosen: Setup, state: State) -> Tree:
    """Every client's personal model after a run, stacked [N, ...]: what the method is scored by.

    Leaves of different lengths (memorised samples) are padded with zeros.
    """
    clock = Clock(state.round, chosen.protocol.rounds)
    everyone = torch.arange(chosen.federation.clients)
    with torch.no_grad():
        message = chosen.method.send(state.server, chosen.cohort(everyone, clock, "evaluate"))
        each = []
        for k in range(len(everyone)):
            view = chosen.client(k, trees.row(message, k), trees.row(state.memory, k), clock)
            each.append(trees.clone(chosen.method.personal(view)))
    return {
        name: pad_sequence([one[name] for one in each], batch_first=True)
        if leaf.dim()
        else torch.stack([one[name] for one in each])
        for name, leaf in each[0].items()
    }


def gap(a: Tree, b: Tree) -> float:
    """Largest difference between two trees; their names must agree."""
    assert set(a) == set(b), set(a) ^ set(b)
    return max(
        (float((a[k].detach().double() - b[k].detach().double()).abs().max()) for k in a if a[k].numel()),
        default=0.0,
    )


def close(a: Tree | Tensor, b: Tree | Tensor, tolerance: float = 1e-10) -> bool:
    """Whether two trees or tensors agree to `tolerance`."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return gap({"": torch.as_tensor(a)}, {"": torch.as_tensor(b)}) <= tolerance
    return gap(a, b) <= tolerance


def adapted(chosen: Setup, state: State) -> Tree:
    """As `models`, after what each client trains before it is scored."""
    clock = Clock(state.round, chosen.protocol.rounds)
    everyone = torch.arange(chosen.federation.clients)
    message = chosen.method.send(state.server, chosen.cohort(everyone, clock, "evaluate"))
    each = []
    for k in range(len(everyone)):
        view = chosen.client(k, trees.row(message, k), trees.row(state.memory, k), clock)
        work = trees.clone(chosen.method.start(view))
        stages = chosen.method.adapt(chosen.protocol.local, clock)
        LoopedTrainer(chosen).descend(k, work, view, stages, "adapt")
        each.append(trees.clone(chosen.method.model(work, view)))
    return trees.stack(each)


def initial(chosen: Setup) -> Tree:
    """The weights that every client and the server start from."""
    drawn = chosen.task.init(rng.torch_rng(chosen.seed, "init"))
    return {name: leaf.to(chosen.federation.dtype) for name, leaf in drawn.items()}


def samples(chosen: Setup, client: int) -> tuple[Tensor, Tensor]:
    """(x, y) of all training samples of a client."""
    return chosen.federation.gather(chosen.federation.indices("train", client))


# ---- a one-hidden-layer MLP written out, for rounds computed by hand


def features(w: Tree, x: Tensor) -> Tensor:
    """Its hidden layer."""
    return torch.relu(x.flatten(1) @ w["fc.0.weight"].t() + w["fc.0.bias"])


def logits(w: Tree, x: Tensor) -> Tensor:
    """Its output."""
    return features(w, x) @ w["head.weight"].t() + w["head.bias"]


def cross_entropy(scores: Tensor, y: Tensor) -> Tensor:
    """Mean of -log softmax at the labels."""
    return (scores.logsumexp(1) - scores[torch.arange(len(y)), y]).mean()


def derivative(loss: Callable[[Tree], Tensor], weights: Tree) -> Tree:
    """Gradient of `loss` at `weights`; zero for a leaf it does not depend on."""
    leaves = {k: v.detach().clone().requires_grad_(True) for k, v in weights.items()}
    found = torch.autograd.grad(loss(leaves), list(leaves.values()), allow_unused=True)
    return {
        k: torch.zeros_like(v) if g is None else g for (k, v), g in zip(leaves.items(), found, strict=True)
    }


def descend(
    loss: Callable[[Tree], Tensor], weights: Tree, lr: float, moves: Sequence[str] = ("fc", "head")
) -> Tree:
    """One gradient step on the leaves whose first name is in `moves`."""
    slope = derivative(loss, weights)
    return {k: v - lr * slope[k] if k.split(".")[0] in moves else v for k, v in weights.items()}


# ---- quadratic clients: F_k(w) = a_k / 2 ||w - e_k||^2 for w the classifier's bias, the same on every mini-batch


class Quadratic(Task):
    """Loss (1 + y) / 2 ||head.bias - x||^2: with constant x and y on a client, a_k = 1 + y and e_k = x."""

    def loss(self, model: Tree, batch: Batch) -> Tensor:
        apart = (model["head.bias"] - batch.x.flatten(1)).square().sum(1)
        return batch.mean((1 + batch.y) * apart) / 2


@dataclass(frozen=True)
class QuadraticModel(MLP):
    """Makes a `Quadratic`; its network serves only to have leaves."""

    def task(self, shape: tuple[int, ...], classes: int) -> Task:
        return Quadratic(partial(self.build, shape, classes), shape, classes)


def quadratics(
    sizes: Sequence[int], points: Sequence[tuple[int, int]], curvatures: Sequence[int] | None = None
) -> Federation:
    """Client k: sizes[k] samples, all with the two pixels points[k] and label curvatures[k] - 1 (0 or 1)."""
    owner = np.repeat(np.arange(len(sizes)), [size + 2 for size in sizes])
    x = np.array(points, dtype=np.uint8)[owner].reshape(-1, 1, 1, 2)
    y = np.array(curvatures or [1] * len(sizes), dtype=np.int64)[owner] - 1
    own = [np.flatnonzero(owner == k) for k in range(len(sizes))]
    data = Dataset("quadratic", x, y, len(y), 2, (0.5,), (0.25,))
    sets = [rows[:-2] for rows in own], [rows[-2:-1] for rows in own], [rows[-1:] for rows in own]
    return Federation(data, Partition("quadratic", 0, "quadratic", 2, *sets), dtype=torch.float64)


def quadratic(
    method: Method,
    sizes: Sequence[int],
    points: Sequence[tuple[int, int]],
    curvatures: Sequence[int] | None = None,
    **options: Any,
) -> Setup:
    """A Setup of quadratic clients."""
    options = {"eval_every": 10**6, **options}
    return setup(method, quadratics(sizes, points, curvatures), QuadraticModel(hidden=(2,)), **options)


def minima(chosen: Setup) -> Tensor:
    """e_k of quadratic clients, [N, 2]."""
    return torch.stack([samples(chosen, k)[0][0].flatten() for k in range(chosen.federation.clients)])
