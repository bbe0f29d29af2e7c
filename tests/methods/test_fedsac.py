"""FedSaC and pFedGraph beside their rounds: solvers, who is drawn, directions that fail or diverge."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from fedbench.config.schema import OptimizerConfig
from fedbench.core import rng, trees
from fedbench.core.errors import Diverged, FedbenchError
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock, Cohort
from fedbench.engine.setup import Setup
from fedbench.methods.fedsac import FedSaC
from fedbench.methods.parts.features import directions
from fedbench.methods.pfedgraph import PFedGraph
from fedbench.models.task import Task
from tests.methods.toys import (
    FOUR,
    bases,
    close,
    federation,
    final,
    initial,
    setup,
    simulate,
)


def test_without_complementarity_it_is_pfedgraph() -> None:
    same: dict[str, Any] = {"lam": 0.3, "similarity": "updates", "snap": 0.9}
    assert close(final(FedSaC(alpha=0.0, beta=1 / 0.8, **same)), final(PFedGraph(alpha=0.8, **same)))


LR = 0.1
FULL: dict[str, Any] = {"epochs": 2, "batch": 50, "optimizer": OptimizerConfig(lr=LR)}


@pytest.mark.parametrize("reference", ["mixed", "directions"])
def test_a_model_of_zeros_pulls_nobody(reference: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cosine to it is 0, and so is its gradient at a model that is zeros itself."""
    nought = Task.init
    monkeypatch.setattr(Task, "init", lambda *given: {k: torch.zeros_like(v) for k, v in nought(*given).items()})
    pulled, plain = (final(FedSaC(lam=lam, reference=reference), (6, 9), rounds=1, **FULL) for lam in (3.0, 0.0))
    assert close(pulled, plain)
    assert any(leaf.any() for leaf in plain.values())


@pytest.mark.parametrize(
    "wrong",
    [
        {"angles": "acute"},
        {"reference": "none"},
        {"similarity": "x"},
        {"solver": "x"},
        {"k": 0},
        {"lam": -1.0},
    ],
)
def test_impossible_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(FedbenchError):
        FedSaC(**wrong)
    with pytest.raises(FedbenchError):
        PFedGraph(alpha=0.0)


def uploaded(chosen: Setup, seed: int = 0) -> Tree:
    """Random models and bases of all clients."""
    generator = rng.torch_rng(seed, "test")
    start = initial(chosen)
    drawn = {k: v + 0.3 * torch.randn(4, *v.shape, generator=generator).double() for k, v in start.items()}
    return {**drawn, "subspace/U": bases(4, 7, 3, seed)}


def started(chosen: Setup) -> Tree:
    """What the server holds for S."""
    return trees.join(initial=initial(chosen))


def cohort(chosen: Setup, at: int = 0) -> Cohort:
    return chosen.cohort(torch.arange(4), Clock(at, 10))


@pytest.mark.parametrize("method", [FedSaC(), FedSaC(collaborators=2), PFedGraph()], ids=repr)
def test_the_printed_programme_gives_the_closed_forms_w(method: FedSaC | PFedGraph) -> None:
    chosen = setup(method, federation(FOUR))
    uploads, server = uploaded(chosen), started(chosen)
    closed, solved = (
        dataclasses.replace(method, solver=solver).graph(server, uploads, cohort(chosen))["*"]
        for solver in ("closed", "cvxpy")
    )
    assert close(solved, closed, 1e-6)
    assert not torch.equal(solved, closed), "it was solved otherwise"


def test_clients_mix_with_the_drawn_and_themselves() -> None:
    chosen = setup(FedSaC(collaborators=2, beta=0.0, alpha=0.0), federation(FOUR))
    weights = chosen.method.graph(started(chosen), uploaded(chosen), cohort(chosen))["*"]  # type: ignore[attr-defined]
    drawn = [j for j in range(4) if bool((weights[:, j] > 0).all())]
    assert len(drawn) == 2
    for i in range(4):
        allowed = sorted({*drawn, i})
        total = sum(FOUR[j] for j in allowed)
        assert weights[i].tolist() == pytest.approx([FOUR[j] / total * (j in allowed) for j in range(4)])
    again = chosen.method.graph(started(chosen), uploaded(chosen), cohort(chosen))["*"]  # type: ignore[attr-defined]
    assert torch.equal(weights, again)


@pytest.mark.parametrize("raises", [False, True])
def test_directions_where_the_decomposition_fails_are_those_of_double_precision(
    raises: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LAPACK fails for some Gram matrices of a few samples; those of other clients keep every bit, alone or stacked."""
    X = torch.randn(3, 5, 40, generator=torch.Generator().manual_seed(0))
    grams, least = X.mT @ X, torch.zeros(3)
    before = [directions({"gram": gram, "least": least[0]}, 3) for gram in grams]
    eigh, bad = torch.linalg.eigh, grams[1]

    def failing(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, vectors = eigh(matrix)
        hit = (matrix == bad.to(matrix.dtype)).all(-1).all(-1) & (matrix.dtype == torch.float32)
        if raises and hit.any():
            raise torch.linalg.LinAlgError("failed to converge")
        return values.masked_fill(hit[..., None], torch.nan), vectors.masked_fill(hit[..., None, None], torch.nan)

    monkeypatch.setattr(torch.linalg, "eigh", failing)
    alone = torch.stack([directions({"gram": gram, "least": least[0]}, 3) for gram in grams])
    stacked = torch.vmap(lambda gram, least: directions({"gram": gram, "least": least}, 3))(grams, least)
    for found in (alone, stacked):
        assert torch.equal(found[0], before[0])
        assert torch.equal(found[2], before[2])
        torch.testing.assert_close(found[1], before[1], rtol=0, atol=1e-5)


def test_features_that_diverged_are_told_before_anything_is_decomposed() -> None:
    chosen = setup(FedSaC(), federation(FOUR), optimizer=OptimizerConfig(lr=1e200), epochs=5)
    with pytest.raises(Diverged, match=r"round 1 on client \d"):
        simulate(chosen)
