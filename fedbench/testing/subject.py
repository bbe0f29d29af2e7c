"""A method under test, and its runs on two toys, which all checks share.

Both toys have five clients with 1 to 21 samples, of whom four take part in each of three rounds: an MLP scored as
received ("mlp"), and LeNet5 with batch normalisation scored after training ("batch_norm").
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from omegaconf import OmegaConf
from torch import Tensor

from fedbench.config import compose, groups
from fedbench.core import trees
from fedbench.core.errors import ConfigError, unknown
from fedbench.core.trees import Tree
from fedbench.engine.conformance import Conformance
from fedbench.engine.contract import Clock
from fedbench.engine.method import Method
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation
from fedbench.engine.state import State, pack, unpack
from fedbench.engine.train.looped import LoopedTrainer
from fedbench.engine.train.trainer import Outcome
from fedbench.methods import METHODS
from fedbench.models.base import Model
from fedbench.models.small import MLP, LeNet5
from fedbench.testing.toys import SIZES, federation, setup

KINDS = ("mlp", "batch_norm")
ROUNDS = 3


class Meter(LoopedTrainer):
    """Counts the bytes that cross the network, leaf by leaf and client by client; keeps the last trees."""

    up = down = 0

    def train(
        self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str] = ()
    ) -> Outcome:
        """As the looped engine, counted."""
        outcome = super().train(ids, message, memory, clock, score)
        for client in range(len(ids)):
            self.down += sum(len(leaf[client].numpy().tobytes()) for leaf in message.values())
            self.up += sum(len(leaf[client].numpy().tobytes()) for leaf in outcome.uploads.values())
        self.message, self.memory, self.outcome = message, memory, outcome
        return outcome


class Watched(Simulation):
    """Leaves what crosses for the method's preparation out of the meter."""

    trainer: Meter

    def prepare(self, state: State) -> None:
        """As any simulation."""
        counted = self.trainer.up, self.trainer.down
        super().prepare(state)
        self.trainer.up, self.trainer.down = counted


@dataclass
class Run:
    """A finished run, what it began with, and what crossed the network in rounds."""

    start: State
    state: State
    meter: Meter


class Subject:
    """A method, made cheap by the settings that it declares for toys; its runs are made once."""

    def __init__(self, method: Method, name: str = "") -> None:
        self.name = name or type(method).__name__
        self.declared: Conformance = method.conformance
        self.method = with_settings(method, self.declared.settings)
        self._runs: dict[str, Run] = {}

    @classmethod
    def of(cls, given: Method | type[Method] | str) -> Subject:
        """From a method, its class, a preset's name ("ditto"), or "package.module:Class".

        Raises:
            UnknownName: no preset is called so.
            ConfigError: a class that is no method, or has fields without a default.
        """
        if isinstance(given, Method):
            return cls(given)
        if isinstance(given, str) and ":" not in given:
            presets = [file.stem for file in (groups.conf_dir() / "method").glob("*.yaml")]
            if given not in presets:
                raise unknown("method", given, presets)
            config: Any = OmegaConf.to_container(compose.compose([f"method={given}"]).method, resolve=True)
            return cls(METHODS.build(config), given)
        kind = imported(given) if isinstance(given, str) else given
        if not (isinstance(kind, type) and issubclass(kind, Method)):
            raise ConfigError(f"{given} is no subclass of fedbench.engine.method.Method")
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

    def run(self, kind: str) -> Run:
        """The run on toy `kind` that all checks share, by the looped engine."""
        if kind not in self._runs:
            with torch.enable_grad():
                self._runs[kind] = self._run(kind)
        return self._runs[kind]

    def _run(self, kind: str) -> Run:
        chosen = self.toy(kind)
        meter = Meter(chosen)
        simulation = Watched(chosen, meter)
        state = simulation.begin()
        start = unpack(*pack(state), torch.device("cpu"))
        start.server = trees.clone(start.server)
        while not simulation.done(state):
            simulation.step(state)
        return Run(start, state, meter)


def imported(path: str) -> object:
    """What "package.module:Class" names.

    Raises:
        ConfigError: there is no such module, or nothing of that name in it.
    """
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{path}: {error}") from error


def with_settings(method: Method, settings: Mapping[str, Any]) -> Method:
    """`method` with some fields changed; a dot leads into a field that is a dataclass."""
    changed: Any = method
    for path, value in settings.items():
        changed = _replaced(changed, path, value)
    return cast("Method", changed)


def _replaced(component: Any, path: str, value: Any) -> Any:
    name, _, rest = path.partition(".")
    return dataclasses.replace(
        component, **{name: _replaced(getattr(component, name), rest, value) if rest else value}
    )
