"""What a method sends, found by running it: every message and upload of a toy federation, leaf by leaf."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.config.schema import LocalConfig, OptimizerConfig, ProtocolConfig, TestConfig
from fedbench.core import trees
from fedbench.core.trees import Tree
from fedbench.data.datasets.synthetic import Synthetic
from fedbench.data.federation import Federation
from fedbench.data.partition import make_partition
from fedbench.data.partitions.label import Homogeneous
from fedbench.engine.contract import Clock
from fedbench.engine.method import Method
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation
from fedbench.engine.train.looped import LoopedTrainer
from fedbench.engine.train.trainer import Outcome
from fedbench.methods.fedavg import FedAvg
from fedbench.models.small import LeNet5
from fedbench.models.task import Task

ROUNDS = 4  # enough for a method of two phases to show both
CLIENTS, CLASSES, FEATURES = 9, 7, 84  # all different, so that a leaf's size says what it counts
MANY = 3  # leaves of one namespace that are named together
SYMBOLS = {CLIENTS: "N", CLASSES: "K", FEATURES: "d"}
GROUPS = ("@body", "@head", "@classifier", "@norm", "@stats")
WORDS = {
    "@body": "body",
    "@head": "head",
    "@classifier": "linear layers",
    "@norm": "norm",
    "@stats": "statistics",
}


@dataclass(frozen=True)
class Traffic:
    """What crosses the network in a round, and how much of it relative to FedAvg."""

    down: tuple[str, ...]  # server to client; several where the rounds differ
    up: tuple[str, ...]  # client to server
    down_ratio: float  # bytes over those of FedAvg, mean over rounds and clients
    up_ratio: float
    prepares: bool  # whether something crosses for Method.prepare too


class Recorder(LoopedTrainer):
    """Keeps what each round sent and uploaded."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.rounds: list[tuple[Tree, Tree]] = []

    def train(
        self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str] = ()
    ) -> Outcome:
        """See Trainer.train."""
        outcome = super().train(ids, message, memory, clock, score)
        self.rounds.append((message, outcome.uploads))
        return outcome


def probe(method: Method) -> Traffic:
    """Run `method` for a few rounds and read its traffic off."""
    setup = Setup(
        method, LeNet5(batch_norm=True).task((1, 16, 16), CLASSES), _federation(), _protocol(), seed=0
    )
    recorder = Recorder(setup)
    simulation = Simulation(setup, recorder)
    with _one_thread():
        state = simulation.begin()
        prepared = state.bytes_up + state.bytes_down
        recorder.rounds.clear()
        while not simulation.done(state):
            simulation.step(state)
    down, up = ([each[side] for each in recorder.rounds] for side in (0, 1))
    whole = _model_bytes(setup.task)
    return Traffic(
        tuple(dict.fromkeys(describe(tree, setup.task) for tree in down)),
        tuple(dict.fromkeys(describe(tree, setup.task) for tree in up)),
        sum(map(trees.row_bytes, down)) / len(down) / whole,
        sum(map(trees.row_bytes, up)) / len(up) / whole,
        prepared > 0 or method.prepare_round > 0,
    )


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Several threads on so small a net can be fifty times slower while the machine is busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@functools.lru_cache(maxsize=1)
def _federation() -> Federation:
    data = Synthetic(classes=CLASSES, train=30 * CLIENTS, test=0).load()
    return Federation(data, make_partition(Homogeneous(num_clients=CLIENTS), data, _protocol().test, seed=0))


def _protocol() -> ProtocolConfig:
    return ProtocolConfig(
        rounds=ROUNDS,
        local=LocalConfig(epochs=None, iterations=1, batch_size=8),
        optimizer=OptimizerConfig(lr=0.01),
        test=TestConfig(fraction=0.2, val_fraction=0.2),
        eval_every=ROUNDS,
    )


def _model_bytes(task: Task) -> int:
    """FedAvg's message to one client."""
    server, _ = FedAvg().init(task, _federation().population, torch.Generator().manual_seed(0))
    return sum(leaf.numel() * leaf.element_size() for leaf in server.values())


def describe(tree: Tree, task: Task) -> str:
    """The leaves of a stacked tree in words: groups of the model by namespace, other leaves by name and size.

    "4 × model" is a leaf with an axis of length 4 before the model's own. A namespace of many other leaves, such as a
    second network, is named once.
    """
    shapes = _shapes(task)
    groups: dict[tuple[str, int], set[str]] = {}
    others: dict[str, list[str]] = {}
    for key, leaf in tree.items():
        space, _, name = key.rpartition("/")
        size = tuple(leaf.shape[1:])
        own = shapes.get(name)
        if own is not None and size in (own, (*size[:1], *own)):
            groups.setdefault((space, size[0] if size != own else 0), set()).add(name)
        else:
            text = ", ".join(SYMBOLS.get(n, str(n)) for n in size)
            others.setdefault(space, []).append(f"{key} [{text}]" if text else key)
    words = [_named(space, count, _group(names, task)) for (space, count), names in groups.items()]
    for space, found in others.items():
        words += found if len(found) < MANY or not space else [f"{space} ({len(found)} leaves)"]
    return " + ".join(words) or "nothing"


def _named(space: str, count: int, group: str) -> str:
    text = f"{SYMBOLS.get(count, count)} × {group}" if count else group
    return text if space in ("", group) else f"{space}: {text}"


def _group(names: set[str], task: Task) -> str:
    """A set of the model's leaves by the groups that make it, or by its leaves."""
    named = {
        "model": task.parameters | task.buffers,
        **{WORDS[group]: task.groups[group] for group in GROUPS},
    }
    for word, leaves in named.items():
        if names == leaves:
            return word
    for word, leaves in named.items():
        for less, removed in named.items():
            if removed & leaves and names == leaves - removed:
                return f"{word} without {less}"
    missing = named["model"] - names
    return (
        "model without " + ", ".join(sorted(missing))
        if len(missing) < len(names)
        else ", ".join(sorted(names))
    )


@functools.lru_cache(maxsize=2)
def _shapes(task: Task) -> dict[str, tuple[int, ...]]:
    return {name: tuple(leaf.shape) for name, leaf in task.fresh().state_dict().items()}
