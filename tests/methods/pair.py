"""Five small clients of two kinds: two see images, three see captions of the same classes; float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from fedbench.config.schema import LocalConfig, OptimizerConfig, ProtocolConfig
from fedbench.core import trees
from fedbench.core.trees import Tree
from fedbench.data.dataset import Dataset
from fedbench.data.datasets.captioned import Captioned
from fedbench.data.federation import Federation
from fedbench.data.partition import Partition
from fedbench.engine.contract import Clock
from fedbench.engine.kinds import KindsSetup, joined
from fedbench.engine.method import Method
from fedbench.engine.setup import Setup
from fedbench.engine.state import State
from fedbench.engine.train.by_kind import KindsTrainer
from fedbench.engine.train.looped import LoopedTrainer
from fedbench.engine.train.trainer import Trainer
from fedbench.models.base import Model
from fedbench.models.cub import TextCNN
from fedbench.models.joint_task import JointTask
from fedbench.models.mlp import MLP
from fedbench.testing import toys

KIND = (0, 0, 1, 1, 1)
SIZES = (9, 14, 6, 11, 8)
NETWORKS: dict[str, Model] = {"image": MLP(hidden=(8,)), "text": TextCNN(vocabulary=20, width=8)}


def data() -> Dataset:
    """Four classes in small pictures with short captions."""
    source = Captioned(classes=4, size=4, channels=1, train=80, test=24, vocabulary=20, words=4, traits=3)
    return source.load()


def pair(
    method: Method,
    sizes: Sequence[int] = SIZES,
    kind: Sequence[int] = KIND,
    ids: Sequence[int] | None = None,
    networks: dict[str, Model] | None = None,
    **options: Any,
) -> KindsSetup:
    """The federation; `ids`: its clients in that order, each with its own data, kind and randomness."""
    chosen = list(range(len(sizes)) if ids is None else ids)
    begins = np.cumsum([0, *sizes])
    own = [np.arange(begins[k], begins[k + 1]) for k in chosen]
    tests = [np.arange(80 + 4 * k, 84 + 4 * k) for k in chosen]
    held = [rows[:2] for rows in own]
    partition = Partition("pair", 0, "pair", 4, [rows[2:] for rows in own], held, tests)
    networks, whole = networks or NETWORKS, data()
    federations = [Federation(each.view(whole), partition, dtype=torch.float64) for each in networks.values()]
    for federation in federations:
        federation.ids = chosen
    tasks = [net.task(f.shape, f.classes) for net, f in zip(networks.values(), federations, strict=True)]
    options = {"rounds": 3, "eval_every": 9, **options}
    protocol = ProtocolConfig(
        local=LocalConfig(iterations=3, batch_size=4), optimizer=OptimizerConfig(lr=0.1), **options
    )
    joint = JointTask(tasks, list(networks), torch.tensor(kind)[chosen])
    return joined(method, joint, federations, protocol, 0)


def trainer(chosen: Setup, build: Callable[[Setup], Trainer] = LoopedTrainer) -> Trainer:
    """An engine for each kind."""
    return KindsTrainer(chosen, [build(kind) for kind in chosen.kinds])


def simulate(chosen: Setup, build: Callable[[Setup], Trainer] = LoopedTrainer) -> State:
    """All rounds of a run."""
    return toys.simulate(chosen, trainer(chosen, build))


def personal(chosen: Setup, state: State) -> list[Tree]:
    """Every client's model after a run: what it is scored by."""
    clock = Clock(state.round, chosen.protocol.rounds)
    ids = chosen.everyone
    with torch.no_grad():
        message = chosen.method.send(state.server, chosen.cohort(ids, clock, "evaluate"))
        views = [
            chosen.client(k, trees.row(message, k), trees.row(state.memory, k), clock) for k in ids.tolist()
        ]
        return [trees.clone(chosen.method.personal(view)) for view in views]


def apart(a: Sequence[Tree], b: Sequence[Tree]) -> float:
    """Largest difference between clients' models, which have the same leaves."""
    for one, other in zip(a, b, strict=True):
        assert one.keys() == other.keys()
    gaps = [float((one[n] - other[n]).abs().max()) for one, other in zip(a, b, strict=True) for n in one]
    assert not any(np.isnan(gaps)), "a leaf that a client does not have was read"
    return max(gaps)
