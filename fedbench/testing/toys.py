"""Tiny federations, and a method's runs on them: given client sizes, random images, float64 for sharp equalities."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from omegaconf import OmegaConf
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedbench.config import compose, groups
from fedbench.config.schema import LocalConfig, OptimizerConfig, ProtocolConfig
from fedbench.core import trees
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.data.dataset import Dataset
from fedbench.data.federation import Federation
from fedbench.data.partition import Partition
from fedbench.engine.contract import Clock, Conformance
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.method import Method
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation, State, pack, unpack
from fedbench.engine.trainer import Outcome, Trainer
from fedbench.methods import METHODS
from fedbench.models.small import MLP, LeNet5
from fedbench.models.task import Model, Task

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
    device: torch.device | str = "cpu",
) -> Federation:
    """Client k owns sizes[k] training, 3 validation and `tests` test samples of the classes `labels[k]`.

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
    sets: Any = [[split[name][k] for k in chosen] for name in ("train", "val", "test")]
    made = Federation(data, Partition("toy", seed, "toy", classes, *sets), device, dtype)
    made.ids = chosen
    return made


@functools.cache
def _task(model: Model, shape: tuple[int, ...], classes: int) -> Task:
    """Return a cached network, because building one takes 20 ms and many toys have the same."""
    return model.task(shape, classes)


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
    """A Setup over a toy federation; a float cohort is a share; further keywords go to ProtocolConfig."""
    data = data or federation()
    task = _task(model or MLP(hidden=(7,)), data.shape, data.classes)
    chosen = ProtocolConfig(
        rounds=rounds,
        cohort=str(cohort) if isinstance(cohort, int) else f"{100 * cohort:g}%",
        local=LocalConfig(epochs=epochs, iterations=iterations, batch_size=batch),
        optimizer=optimizer or OptimizerConfig(lr=0.1),
        **protocol,
    )
    return Setup(method, task, data, chosen, seed)


def simulate(chosen: Setup, trainer: Trainer | None = None) -> State:
    """Make all rounds of a run."""
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
    """Every client's personal model after a run, stacked [N, ...]: the scored models.

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


def gap(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """Largest difference between two trees, whose names must agree; a nan equals another nan only."""
    assert set(a) == set(b), f"leaves of one tree only: {sorted(set(a) ^ set(b))}"
    return max((_apart(a[k].detach().double(), b[k].detach().double()) for k in a), default=0.0)


def _apart(x: Tensor, y: Tensor) -> float:
    same = (x == y) | (x.isnan() & y.isnan())
    apart = (x - y).abs().nan_to_num(nan=math.inf, posinf=math.inf).masked_fill(same, 0)
    return float(apart.max()) if apart.numel() else 0.0


# A method under test, and its runs on two toys, which all checks share.
#
# Both toys have five clients with 1 to 21 samples, of whom four take part in each of three rounds: an MLP scored as
# received ("mlp"), and LeNet5 with batch normalisation scored after training ("batch_norm").

KINDS = ("mlp", "batch_norm")
ROUNDS = 3


class ToyMeter(LoopedTrainer):
    """Counts the bytes that cross the network, leaf by leaf and client by client; keeps the last trees."""

    up = down = 0

    def train(self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str] = ()) -> Outcome:
        """As the looped engine, with the traffic counted."""
        outcome = super().train(ids, message, memory, clock, score)
        for client in range(len(ids)):
            self.down += sum(len(leaf[client].numpy().tobytes()) for leaf in message.values())
            self.up += sum(len(leaf[client].numpy().tobytes()) for leaf in outcome.uploads.values())
        self.message, self.memory, self.outcome = message, memory, outcome
        return outcome


class Watched(Simulation):
    """Keeps the traffic of the method's preparation out of the meter."""

    trainer: ToyMeter

    def prepare(self, state: State) -> None:
        """As any simulation."""
        counted = self.trainer.up, self.trainer.down
        super().prepare(state)
        self.trainer.up, self.trainer.down = counted


@dataclass
class ToyRun:
    """A finished run, its initial state, and the traffic of its rounds."""

    start: State
    state: State
    meter: ToyMeter


class Subject:
    """A method with its cheap settings for toys; its runs are made once."""

    def __init__(self, method: Method, name: str = "") -> None:
        self.name = name or type(method).__name__
        self.declared: Conformance = method.conformance
        self.method = with_settings(method, self.declared.settings)
        self._runs: dict[str, ToyRun] = {}

    @classmethod
    def of(cls, given: Method | type[Method] | str) -> Subject:
        """From a method, its class, a preset's name ("ditto"), or "package.module:Class".

        Raises:
            UnknownName: there is no preset of that name.
            ConfigError: a class that is no method, or has fields without a default.
        """
        if isinstance(given, Method):
            return cls(given)
        if isinstance(given, str) and ":" not in given:
            groups.file_of("method", given)
            config: Any = OmegaConf.to_container(compose.compose([f"method={given}"]).method, resolve=True)
            return cls(METHODS.build(config), given)
        kind = imported(given) if isinstance(given, str) else given
        if not (isinstance(kind, type) and issubclass(kind, Method)):
            raise ConfigError(f"{given} is not a subclass of fedbench.engine.method.Method")
        try:
            return cls(kind())
        except TypeError as error:  # an abstract hook, or a field without a default
            raise ConfigError(f"{given}: {error}; give the checks an instance") from error

    def __str__(self) -> str:
        return self.name

    def toy(
        self,
        kind: str,
        ids: Sequence[int] | None = None,
        clients: Sequence[int] = SIZES,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
        **options: Any,
    ) -> Setup:
        """A run on toy `kind`; `options` go to `setup`."""
        shape: tuple[int, int, int] = (1, 4, 4) if kind == "mlp" else (1, 16, 16)
        model: Model = MLP(hidden=(6,)) if kind == "mlp" else LeNet5(batch_norm=True)
        score = "received" if kind == "mlp" else "trained"
        options = {"cohort": 0.8, "rounds": ROUNDS, "epochs": 1, "score": score, **options}
        if clients is SIZES:
            clients = tuple(max(self.declared.smallest, size) for size in SIZES)
        data = federation(clients, shape, ids=ids, dtype=dtype, device=device)
        return setup(self.method, data, model, **options)

    def run(self, kind: str) -> ToyRun:
        """The run on toy `kind` that all checks share, by the looped engine."""
        if kind not in self._runs:
            with torch.enable_grad():
                self._runs[kind] = self._run(kind)
        return self._runs[kind]

    def _run(self, kind: str) -> ToyRun:
        chosen = self.toy(kind)
        meter = ToyMeter(chosen)
        simulation = Watched(chosen, meter)
        state = simulation.begin()
        start = unpack(*pack(state), torch.device("cpu"))
        start.server = trees.clone(start.server)
        while not simulation.done(state):
            simulation.step(state)
        return ToyRun(start, state, meter)


def imported(path: str) -> object:
    """Return what "package.module:Class" names.

    Raises:
        ConfigError: there is no such module, or it has nothing of that name.
    """
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise ConfigError(f"{path}: {error}; install its package, or add its folder to PYTHONPATH") from error
    except AttributeError as error:
        raise ConfigError(f"{path}: {error}; give a class of that module") from error


def with_settings(method: Method, settings: Mapping[str, Any]) -> Method:
    """`method` with some fields changed; a dot leads into a field that is a dataclass."""
    changed: Any = method
    for path, value in settings.items():
        changed = _replaced(changed, path, value)
    return cast("Method", changed)


def _replaced(component: Any, path: str, value: Any) -> Any:
    name, _, rest = path.partition(".")
    return dataclasses.replace(component, **{name: _replaced(getattr(component, name), rest, value) if rest else value})
