"""Clients of several kinds in one federation: traffic, resuming, relabelling, partial participation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedbench.config.schema import TestConfig
from fedbench.core import trees
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.engine import simulation as states
from fedbench.engine.contract import Clock
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.method import Method
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation
from fedbench.engine.stacked import StackedTrainer
from fedbench.engine.trainer import Outcome, Trainer
from fedbench.engine.trial import check_hooks
from fedbench.engine.workers import WorkersTrainer
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fediot import FedIoT
from fedbench.methods.fedsac import MultimodalFedSaC
from fedbench.methods.local import Local
from fedbench.methods.per_kind import PerKind
from tests.helpers.pair import KIND, UNLIKE, apart, pair, personal, serving, simulate, trainer
from tests.helpers.pretended import ENGINES as PRETENDED
from tests.helpers.pretended import of_kinds, trial
from tests.helpers.tiers import sampled, tiered


@pytest.mark.parametrize("name", sampled(UNLIKE, every=3))
def test_every_method_that_says_so_serves_unlike_clients(name: str) -> None:
    chosen = pair(serving(name), rounds=2, cohort="4", score="received", eval_every=1)
    state = simulate(chosen)
    models = personal(chosen, state)
    for kind, model in zip(KIND, models, strict=True):
        other = "text." if kind == 0 else "image."
        assert not any(name.rpartition("/")[2].startswith(other) for name in model)
        assert all(bool(leaf.isfinite().all()) for leaf in model.values() if leaf.is_floating_point())


@pytest.mark.parametrize("order", [[1, 0, 3, 4, 2], [3, 0, 4, 1, 2]], ids=["within kinds", "across kinds"])
@pytest.mark.parametrize(
    "method", sampled([FedAvg(), MultimodalFedSaC(), PerKind()], every=3), ids=lambda m: type(m).__name__
)
def test_relabelled_clients_get_relabelled_models(method: Method, order: list[int]) -> None:
    here, there = pair(method), pair(method, ids=order)
    expected, found = personal(here, simulate(here)), personal(there, simulate(there))
    assert apart([expected[k] for k in order], found) < 1e-9


class Recorder(LoopedTrainer):
    """Keeps what its kind's clients were sent and uploaded."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.down: list[Tree] = []
        self.up: list[Tree] = []

    def dispatch(self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str] = ()) -> Outcome:
        outcome = super().dispatch(ids, message, memory, clock, score)
        self.down.append(trees.clone(message))
        self.up.append(trees.clone(outcome.uploads))
        return outcome


@pytest.mark.parametrize("method", [FedAvg(), MultimodalFedSaC()], ids=lambda m: type(m).__name__)
def test_private_leaves_never_cross_and_shared_ones_do(method: Method) -> None:
    chosen = pair(method)
    engine = trainer(chosen, Recorder)
    simulation = Simulation(chosen, engine)
    state = simulation.begin()
    while not simulation.done(state):
        simulation.step(state)
    image, text = engine.engines  # type: ignore[attr-defined]
    for recorder, foreign in ((image, "text."), (text, "image.")):
        for tree in (*recorder.down, *recorder.up):
            assert "head.weight" in tree
            assert not any(name.startswith(foreign) for name in tree)
            assert all(bool(leaf.isfinite().all()) for leaf in tree.values())
    counted = {
        way: sum(
            len(leaf) * leaf[0].numel() * leaf.element_size()
            for recorder in (image, text)
            for tree in getattr(recorder, way)
            for leaf in tree.values()
        )
        for way in ("up", "down")
    }
    assert (state.bytes_up, state.bytes_down) == (counted["up"], counted["down"])


def test_an_average_is_over_the_clients_that_have_the_leaf() -> None:
    chosen = pair(FedAvg(), rounds=1)
    engine = trainer(chosen, Recorder)
    simulation = Simulation(chosen, engine)
    state = simulation.begin()
    simulation.step(state)
    image, text = (recorder.up[0] for recorder in engine.engines)  # type: ignore[attr-defined]
    sizes = chosen.population.sizes
    own = sizes[:2] / sizes[:2].sum()
    expected = torch.einsum("c,c...->...", own, image["image.fc.0.weight"])
    assert torch.allclose(state.server["image.fc.0.weight"], expected, atol=1e-12)
    heads = torch.cat([image["head.weight"], text["head.weight"]])
    expected = torch.einsum("c,c...->...", sizes / sizes.sum(), heads)
    assert torch.allclose(state.server["head.weight"], expected, atol=1e-12)


def test_a_kind_without_a_client_in_the_cohort_keeps_what_it_had() -> None:
    chosen = pair(FedAvg(), rounds=12, cohort="1")
    simulation = Simulation(chosen, trainer(chosen))
    state = simulation.begin()
    moved = set()
    while not simulation.done(state):
        kind = KIND[int(chosen.draw_cohort(Clock(state.round, 12))[0])]
        before = trees.clone(state.server)
        simulation.step(state)
        changed = {n.split(".")[0] for n in before if not torch.equal(before[n], state.server[n])}
        assert changed == {("image", "text")[kind], "head"}
        moved.add(kind)
    assert moved == {0, 1}


@pytest.mark.parametrize(
    "method", sampled([Local(), MultimodalFedSaC(), FedIoT(steps=5)], every=3), ids=lambda m: type(m).__name__
)
def test_a_resumed_run_ends_as_an_uninterrupted_one(method: Method, tmp_path: Path) -> None:
    chosen = pair(method)
    expected = simulate(chosen)
    simulation = Simulation(chosen, trainer(chosen))
    state = simulation.begin()
    simulation.step(state)
    file = tmp_path / "state.safetensors"
    states.save_state(file, state, "key")
    state = states.load_state(file, "key", torch.device("cpu"))
    while not simulation.done(state):
        simulation.step(state)
    assert apart(personal(chosen, expected), personal(chosen, state)) == 0
    assert (state.bytes_up, state.bytes_down) == (expected.bytes_up, expected.bytes_down)


def test_the_global_model_is_scored_in_every_kind_s_view() -> None:
    chosen = pair(FedAvg(), rounds=1, test=TestConfig(sets="both"))
    state = simulate(chosen)
    common = state.history.last.tallies["common"]
    assert common.total.sum() == 2 * 24
    assert {"local", "global"} <= set(state.history.last.tallies)


ENGINES: dict[str, Callable[[Setup], Trainer]] = {
    "workers": partial(WorkersTrainer, workers=2),
    "stacked": partial(StackedTrainer, chunk=2),
}
INSIDE = {
    "per_kind(ditto)": serving("per_kind", base={"name": "ditto"}),
    "per_kind(pfedgraph)": serving("per_kind", base={"name": "pfedgraph", "reference": "directions"}),
}
ALL: dict[str, Method] = {**{name: serving(name) for name in UNLIKE}, **INSIDE}
FEW = (
    "fedavg",
    "local",
    "fediot",
    "fedsac_multimodal",
    *INSIDE,
)  # each server; the others differ on the client
MOST = 8  # waits a round, as with clients of one kind


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", tiered(ALL, quick=["fedavg", "fediot"]))
def test_engines_agree_for_every_kind(name: str, engine: str) -> None:
    chosen = pair(ALL[name])
    expected = personal(chosen, simulate(chosen))
    assert apart(expected, personal(chosen, simulate(chosen, ENGINES[engine]))) < 1e-9


# One client after another, FedSaC's server hooks apart, each client's decomposition is a wait of its own.
PAIRS = [(name, engine) for name in FEW for engine in PRETENDED if (name, engine) != ("fedsac_multimodal", "looped")]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "engine"), PAIRS)
def test_a_gpu_takes_every_kind_and_hardly_waits(name: str, engine: str) -> None:
    """However large the cohort."""
    for cohort in (4, 12):
        found = trial(of_kinds(ALL[name], cohort), lambda chosen: trainer(chosen, PRETENDED[engine]))
        assert found.apart < 1e-6
        assert found.step == 0, found.kinds
        assert found.round <= MOST, found.kinds


def test_a_method_inside_each_kind_need_not_serve_several() -> None:
    """The trial before a run takes it as the run does; its own refusals count."""
    check_hooks(pair(PerKind(base={"name": "pfedgraph"})))
    with pytest.raises(ConfigError, match="head"):
        check_hooks(pair(PerKind(base={"name": "fedper", "private": ["head.nothing"]})))
