"""Small clients of two kinds: of five, two see images and three captions of the same classes; float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from fedbench.config.schema import LocalConfig, OptimizerConfig, ProtocolConfig
from fedbench.core import trees
from fedbench.core.trees import Tree
from fedbench.data.dataset import Dataset
from fedbench.data.datasets.synthetic import Captioned
from fedbench.data.federation import Federation
from fedbench.data.partition import Partition
from fedbench.engine.contract import Clock
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.method import Method
from fedbench.engine.setup import Setup, joined
from fedbench.engine.simulation import State
from fedbench.engine.trainer import Engine, ModalitiesTrainer, Trainer
from fedbench.methods import METHODS
from fedbench.models.modalities import JointTask, TextCNN
from fedbench.models.small import MLP
from fedbench.models.task import Model
from fedbench.testing import toys

KIND = (0, 0, 1, 1, 1)
SIZES = (9, 14, 6, 11, 8)
NETWORKS: dict[str, Model] = {"image": MLP(hidden=(8,)), "text": TextCNN(vocabulary=20, width=8)}


QUICK: dict[str, dict[str, Any]] = {"fedbn": {"private": ["*.bias"]}, "fediot": {"steps": 5}}
UNLIKE = tuple(
    name for name in METHODS if not {"modalities", "views"} & {*METHODS.build({"name": name}).unfit}
)  # methods that serve several kinds


def serving(name: str, **fields: Any) -> Method:
    """The method `name` with `fields`, quick on these networks, which have no batch normalisation."""
    return METHODS.build({"name": name, **QUICK.get(name, {}), **fields})


def data(train: int = 80, test: int = 24, size: int = 4) -> Dataset:
    """Four classes in small pictures with short captions."""
    return Captioned(classes=4, size=size, channels=1, train=train, test=test, vocabulary=20, words=4, traits=3).load()


def pair(
    method: Method,
    sizes: Sequence[int] = SIZES,
    kind: Sequence[int] = KIND,
    ids: Sequence[int] | None = None,
    networks: dict[str, Model] | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float64,
    size: int = 4,
    **options: Any,
) -> Setup:
    """The federation; `ids`: its clients in that order, each with its own data, kind and randomness.

    Pictures have `size` pixels a side.
    """
    chosen = list(range(len(sizes)) if ids is None else ids)
    begins = np.cumsum([0, *sizes])
    whole = data(max(80, sum(sizes)), max(24, 4 * len(sizes)), size)
    own = [np.arange(begins[k], begins[k + 1]) for k in chosen]
    tests = [whole.num_train + np.arange(4 * k, 4 * k + 4) for k in chosen]
    held = [rows[:2] for rows in own]
    partition = Partition("pair", 0, "pair", 4, [rows[2:] for rows in own], held, tests)
    networks = networks or NETWORKS
    federations = [Federation(each.view(whole), partition, device, dtype) for each in networks.values()]
    for federation in federations:
        federation.ids = chosen
    tasks = [net.task(f.shape, f.classes) for net, f in zip(networks.values(), federations, strict=True)]
    options = {"rounds": 3, "eval_every": 9, **options}
    protocol = ProtocolConfig(
        local=LocalConfig(iterations=3, batch_size=4), optimizer=OptimizerConfig(lr=0.1), **options
    )
    joint = JointTask(tasks, list(networks), torch.tensor(kind)[chosen])
    return joined(method, joint, federations, protocol, 0)


def trainer(chosen: Setup, build: Callable[[Setup], Engine] = LoopedTrainer) -> Trainer:
    """An engine for each kind."""
    return ModalitiesTrainer(chosen, [build(kind) for kind in chosen.modalities])


def simulate(chosen: Setup, build: Callable[[Setup], Engine] = LoopedTrainer) -> State:
    """All rounds of a run."""
    return toys.simulate(chosen, trainer(chosen, build))


def personal(chosen: Setup, state: State) -> list[Tree]:
    """Every client's model after a run: what it is scored by."""
    clock = Clock(state.round, chosen.protocol.rounds)
    ids = chosen.everyone
    with torch.no_grad():
        message = chosen.method.send(state.server, chosen.cohort(ids, clock, "evaluate"))
        views = [chosen.client(k, trees.row(message, k), trees.row(state.memory, k), clock) for k in ids.tolist()]
        return [trees.clone(chosen.method.personal(view)) for view in views]


def apart(a: Sequence[Tree], b: Sequence[Tree]) -> float:
    """Largest difference between clients' models, which have the same leaves."""
    for model in (*a, *b):
        assert not any(bool(leaf.isnan().any()) for leaf in model.values()), "a leaf of another kind was read"
    return max(toys.gap(one, other) for one, other in zip(a, b, strict=True))
