"""Clients of several kinds by every engine, and under a GPU's rules of placement."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from fedbench.engine.method import Method
from fedbench.engine.setup import Setup
from fedbench.engine.stacked import StackedTrainer
from fedbench.engine.trainer import Trainer
from fedbench.engine.workers import WorkersTrainer
from tests.helpers.pair import UNLIKE, apart, pair, personal, serving, simulate, trainer
from tests.helpers.pretended import ENGINES as PRETENDED
from tests.helpers.pretended import of_kinds, trial

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
@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in FEW else pytest.mark.slow) for name in ALL])
def test_engines_agree_for_every_kind(name: str, engine: str) -> None:
    chosen = pair(ALL[name])
    expected = personal(chosen, simulate(chosen))
    assert apart(expected, personal(chosen, simulate(chosen, ENGINES[engine]))) < 1e-9


PAIRS = [(name, engine) for name in FEW for engine in PRETENDED]
QUICK = ("fedsac_multimodal", "stacked")


@pytest.mark.parametrize(
    ("name", "engine"), [pytest.param(*p, marks=[] if p == QUICK else pytest.mark.slow) for p in PAIRS]
)
def test_a_gpu_takes_every_kind_and_hardly_waits(name: str, engine: str) -> None:
    """However large the cohort."""
    for cohort in (4, 12):
        found = trial(of_kinds(ALL[name], cohort), lambda chosen: trainer(chosen, PRETENDED[engine]))
        assert found.apart < 1e-6
        assert found.step == 0, found.kinds
        assert found.round <= MOST, found.kinds
