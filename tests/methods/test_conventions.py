"""Conventions of methods: short chains of bases, documented leaves, words on statistics, settings that are read.

`python -m tests.methods.test_conventions` prints each method's chain.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from fedbench.config import compose, groups
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.method import Method
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation
from fedbench.engine.trainer import Outcome
from fedbench.methods import METHODS
from fedbench.methods.fedrep import FedRep
from fedbench.models.small import MLP
from fedbench.models.task import Model
from tests.helpers.tiers import sampled
from tests.methods.leaves import PLACES, documented, listed, matches, wrong_shape
from tests.methods.toys import FOUR, federation, setup, simulate

MOST = 2  # classes between a method and `Method`, besides the method that it is a variant of
PARTS = Path(__file__).parents[2] / "fedbench" / "methods" / "parts"


def chain(name: str) -> list[type]:
    """The classes between the method called `name` and `Method`."""
    bases = [base for base in METHODS.get(name).__mro__[1:] if issubclass(base, Method)]
    return bases[: bases.index(Method)]


@pytest.mark.parametrize("name", sorted(METHODS))
def test_few_classes_lie_between_a_method_and_the_interface(name: str) -> None:
    methods = {METHODS.get(each) for each in METHODS}
    assert len([base for base in chain(name) if base not in methods]) <= MOST, chain(name)


@pytest.mark.parametrize("file", sorted(PARTS.glob("*.py")), ids=lambda file: file.stem)
def test_parts_import_no_method(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    named = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    named += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    above = [name for name in named if name.startswith("fedbench.methods")]
    assert [name for name in above if not name.startswith("fedbench.methods.parts")] == []


if __name__ == "__main__":
    for method in METHODS:
        names = [METHODS.get(method).__name__, *(base.__name__ for base in chain(method)), "Method"]
        print(f"{method:14} {' -> '.join(names)}")


# How many files of methods/ one opens to read a method whole: its own, and those that it imports.

FOLDER = Path(__file__).parents[2] / "fedbench" / "methods"
MOST_FILES = {"fedsac": 3, "fedrema": 3, "fedcollab/fedcollab": 5, "sosicfl": 2, "pfedsim": 2}


def imported(file: Path) -> set[Path]:
    """The files of methods/ that `file` imports."""
    names = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    inside = [name.split(".")[2:] for name in names if name.startswith("fedbench.methods.")]
    files = (FOLDER.joinpath(*parts).with_suffix(".py") for parts in inside)
    return {file for file in files if file.exists()}


def opened(file: Path) -> set[Path]:
    """`file` and all that it imports, directly or not."""
    found: set[Path] = set()
    new = {file}
    while new:
        found |= new
        new = set().union(*map(imported, new)) - found
    return found


@pytest.mark.parametrize("name", MOST_FILES)
def test_a_method_is_read_in_few_files(name: str) -> None:
    files = opened(FOLDER / f"{name}.py")
    assert len(files) <= MOST_FILES[name], sorted(file.name for file in files)


# Every method's file says what it does with batch normalisation, whose statistics no paper's formulas hold.

LEFT = {
    "fedcollab": "what the method inside does",
    "oracle": "what the method inside does",
    "per_kind": "what the method inside does",
    "local": "nothing crosses",
    "fedsac": "described in `cosine`, to which its file points",
    "fedsac_multimodal": "as FedSaC",
}


@pytest.mark.parametrize("name", list(METHODS))
def test_a_method_says_what_becomes_of_statistics(name: str) -> None:
    told = sys.modules[METHODS.get(name).__module__].__doc__ or ""
    assert ("batch normalisation" in told.lower() or "statistics" in told) is (name not in LEFT)


# The leaves that a method's docstring lists are those that exist: on the server, on clients, and in between.
#
# The notation is that of `Method`'s docstring. Every preset is run, and variants for what no preset shows.

SIZES = (6, 13, 8)
KNOWN = {"N": len(SIZES), "K": 4}
PRESETS = sorted(file.stem for file in (groups.conf_dir() / "method").glob("*.yaml"))
TOY = {"fedcollab": ["method.discriminator.rounds=5", "method.discriminator.hidden=5", "method.restarts=3"]}
VARIANTS: Mapping[str, dict[str, Any]] = {
    "fedavg private": {"name": "fedavg", "private": ["@head"]},
    "moon private": {"name": "moon", "private": ["@head"]},
    "pfedgraph code": {"name": "pfedgraph", "reference": "directions", "private": ["@head"]},
    "pfedgraph text": {"name": "pfedgraph", "similarity": "parameters"},
    "fedfomo trained": {"name": "fedfomo", "baseline": "trained"},
    "fedsac private": {"name": "fedsac", "private": ["@head"]},
    "fedrema private": {"name": "fedrema", "private": ["*.0.bias"], "classifier": ["@head"]},
    "sosicfl_plus all": {"name": "sosicfl_plus", "simplex": ["*"]},
    "feddbe private": {"name": "feddbe", "private": ["@head"]},
    "feddyn weighted": {"name": "feddyn", "weighted": True},
    "feddyn private": {"name": "feddyn", "private": ["@stats", "@head"]},
    "fedgen private": {"name": "fedgen", "private": ["@stats"]},
    "fedrod stays": {"name": "fedrod", "generic_stays": True},
    "cfl cut": {"name": "cfl", "eps1": 100.0, "eps2": 0.0},
    "dp_fedavg fedper": {"name": "dp_fedavg", "base": {"name": "fedper"}},
    "robust labels": {"name": "robust", "attack": "labels"},
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
PLAIN = (
    "apple",
    "fedala",
    "fedcac",
    "fedselect",
    "fednova",
    "scaffold",
    "fedap",
    "pfedsim",
    "sosicfl_all",
    "sosicfl_plus all",
)
CASES = [*((case, "batch_norm") for case in (*PRESETS, *VARIANTS)), *((case, "mlp") for case in PLAIN)]


@pytest.mark.parametrize(("case", "kind"), sampled(CASES, every=3), ids=[f"{case}-{kind}" for case, kind in CASES])
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


@pytest.mark.slow
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


# Settings that a method does not read beside others are refused: they would name another run of the same numbers.

UNREAD: list[tuple[str, dict[str, Any], str]] = [
    (
        "finetune",
        {"epochs": 3},
        "method.epochs=3 has no effect with steps=2; use steps=null",
    ),
    (
        "fedrep",
        {"head_epochs": 10, "head_iterations": 80},
        "method.head_epochs=10 has no effect with head_iterations",
    ),
    (
        "fedamp",
        {"attention": "distance", "self_weight": 0.5},
        "method.self_weight=0.5 needs attention=cosine",
    ),
    (
        "fedamp",
        {"attention": "distance", "similarity": "updates"},
        "method.similarity=updates needs attention=cosine",
    ),
    ("knnper", {"votes": "softmax", "scale": 2.0}, "method.scale=2.0 needs votes=shares"),
    ("robust", {"attackers": 0.2}, "method.attackers=0.2 has no effect with attack=none; choose an attack"),
    ("robust", {"attack": "labels", "scale": 3.0}, "method.scale=3.0 needs attack=sign or noise"),
    ("fedcollab", {"join_round": 3}, "method.join_round=3 is for newcomers; name them in method.newcomers"),
]


@pytest.mark.parametrize(("name", "fields", "reason"), UNREAD)
def test_beside_another_setting(name: str, fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        METHODS.build({"name": name, **fields})
    assert "\n" not in str(caught.value)


def test_what_takes_their_place_is_read() -> None:
    for name, fields in (
        ("finetune", {"steps": None, "epochs": 3}),
        ("fedrep", {"head_epochs": 10}),
        ("fedamp", {"self_weight": 0.5, "similarity": "updates"}),
    ):
        METHODS.build({"name": name, **fields})


@pytest.mark.parametrize("fields", [{"head_epochs": 10}, {"body_epochs": 2}])
def test_epochs_where_the_protocol_counts_iterations(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"not iterations=5; use method\.head_iterations"):
        simulate(setup(FedRep(**fields), iterations=5))


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"fedbn"}))  # it needs a network with normalisation
def test_the_common_model_has_all_of_the_networks_leaves(name: str) -> None:
    method = METHODS.build({"name": name})
    chosen = setup(method, federation(FOUR))
    server, _ = method.init(chosen.task, chosen.population, torch.Generator().manual_seed(0))
    common = method.common(server, chosen.task)
    for leaf, drawn in chosen.task.init(torch.Generator()).items():
        assert common is None or common[leaf].shape == drawn.shape
