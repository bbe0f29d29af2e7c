"""The leaves that a method's docstring lists are those that exist: on the server, on clients, and in between.

The notation is that of `Method`'s docstring. Every preset is run, and variants for what no preset shows.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from fedbench.config import compose, groups
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation
from fedbench.engine.trainer import Outcome
from fedbench.methods import METHODS
from fedbench.models.small import MLP
from fedbench.models.task import Model
from tests.methods.leaves import PLACES, documented, listed, matches, wrong_shape
from tests.methods.toys import federation, setup

SIZES = (6, 13, 8)
KNOWN = {"N": len(SIZES), "K": 4}
PRESETS = sorted(file.stem for file in (groups.conf_dir() / "method").glob("*.yaml"))
TOY = {"fedcollab": ["method.discriminator.rounds=5", "method.discriminator.hidden=5", "method.restarts=3"]}
VARIANTS: Mapping[str, dict[str, Any]] = {
    "fedavg private": {"name": "fedavg", "private": ["@head"]},
    "moon private": {"name": "moon", "private": ["@head"]},
    "pfedgraph code": {"name": "pfedgraph", "reference": "directions", "private": ["@head"]},
    "pfedgraph text": {"name": "pfedgraph", "similarity": "parameters"},
    "fedsac private": {"name": "fedsac", "private": ["@head"]},
    "fedrema private": {"name": "fedrema", "private": ["*.0.bias"], "classifier": ["@head"]},
    "sosicfl_plus all": {"name": "sosicfl_plus", "simplex": ["*"]},
    "feddyn weighted": {"name": "feddyn", "weighted": True},
    "cfl cut": {"name": "cfl", "eps1": 100.0, "eps2": 0.0},
    "oracle of ditto": {"name": "oracle", "base": {"name": "ditto"}},
    "per_kind of ditto": {"name": "per_kind", "base": {"name": "ditto"}},
    "fedcollab of ditto": {
        "name": "fedcollab",
        "base": {"name": "ditto"},
        "discriminator": {"rounds": 5, "hidden": 5},
    },
}


class Normalised(Model):
    """A small network with batch normalisation."""

    label = "normalised"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        conv = nn.Sequential(nn.Conv2d(shape[0], 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten())
        return nn.Sequential(OrderedDict(conv=conv, head=nn.Linear(8, classes)))


class Recorder(LoopedTrainer):
    """Keeps what each round sent and uploaded, one client's row of it."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.seen: list[tuple[str, Tree]] = []

    def train(self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str] = ()) -> Outcome:
        outcome = super().train(ids, message, memory, clock, score)
        for place, tree in (("Message", message), ("Upload", outcome.uploads)):
            self.seen.append((place, {name: leaf[0] for name, leaf in tree.items()}))
        return outcome


def plain(case: str) -> dict[str, Any]:
    if case in VARIANTS:
        return dict(VARIANTS[case])
    overrides = TOY.get(case.partition("_")[0], [])
    made = OmegaConf.to_container(compose.compose([f"method={case}", *overrides]).method, resolve=True)
    assert isinstance(made, dict)
    return {str(key): value for key, value in made.items()}


@functools.cache
def run(case: str, kind: str) -> tuple[type, list[tuple[str, Tree]], dict[str, Tensor]]:
    """(class, the trees of a short run by place, the network's own leaves)."""
    method = METHODS.build(plain(case))
    model = MLP(hidden=(7,)) if kind == "mlp" else Normalised()
    chosen = setup(method, federation(SIZES), model, rounds=2, epochs=1, eval_every=9)
    recorder = Recorder(chosen)
    simulation = Simulation(chosen, recorder)
    with torch.enable_grad():
        state = simulation.begin()
        recorder.seen.clear()  # whatever a preparation did is no round
        while not simulation.done(state):
            simulation.step(state)
    trees = [*recorder.seen, ("Server", state.server), ("Memory", dict(state.memory))]
    return type(method), trees, dict(chosen.task.fresh().state_dict())


# Those that differ without batch normalisation.
PLAIN = ("fednova", "scaffold", "fedap", "pfedsim", "sosicfl_all", "sosicfl_plus all")
CASES = [*((case, "batch_norm") for case in (*PRESETS, *VARIANTS)), *((case, "mlp") for case in PLAIN)]


@pytest.mark.parametrize(("case", "kind"), CASES, ids=[f"{case}-{kind}" for case, kind in CASES])
def test_every_leaf_is_documented_and_every_documented_leaf_is_there(case: str, kind: str) -> None:
    cls, trees, own = run(case, kind)
    known = documented(cls)
    assert set(known) == set(PLACES), f"{cls.__name__} documents {sorted(known)}"
    sizes = dict(KNOWN)
    for place, tree in trees:
        met = set()
        for name, leaf in tree.items():
            found = [one for one in known[place] if matches(one, name, own)]
            assert found, f"{place}: {name} {list(leaf.shape)} is not in {cls.__name__}'s docstring"
            assert not (reason := wrong_shape(found[0], name, leaf, own, sizes)), f"{place}: {reason}"
            met.add(found[0].name)
        lacking = {one.name for one in known[place] if not one.optional} - met
        assert not lacking, f"{place}: documented, and not there: {lacking}"


@pytest.mark.parametrize("cls", sorted({METHODS.get(n) for n in METHODS}, key=str), ids=lambda cls: cls.__name__)
def test_an_optional_leaf_is_there_in_some_runs_and_not_in_others(cls: type) -> None:
    for place, entries in listed(cls).items():
        for one in entries:
            there = {
                any(matches(one, leaf, own) for leaf in tree)
                for made, trees, own in (run(*case) for case in CASES)
                for where, tree in trees
                if made is cls and where == place
            }
            assert not one.optional or there == {True, False}, f"{place}: {one.name}"
