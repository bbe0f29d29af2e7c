"""Projections onto the simplex against a solver; mixtures of models in the limits where they are other methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import cvxpy
import numpy as np
import pytest
import torch
from torch import Tensor

from fedbench.core import trees
from fedbench.core.errors import FedbenchError
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock, Cohort
from fedbench.engine.method import HookError
from fedbench.methods.fedap import FedAP
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedcollab.fedcollab import FedCollab
from fedbench.methods.fedper import FedPer
from fedbench.methods.local import Local
from fedbench.methods.parts import mixing
from fedbench.methods.parts.mixing import Mixing, ModelStore, cosines
from tests.methods.toys import FOUR, close, federation, final, gap, initial, models, setup, simulate


@pytest.mark.parametrize("count", [1, 2, 5, 30])
def test_the_closed_form_is_the_solvers(count: int) -> None:
    """FedSaC's and pFedGraph's row problem for random p, S and C, with and without a choice of collaborators."""
    generator = torch.Generator().manual_seed(count)
    p = torch.rand(count, generator=generator, dtype=torch.float64).softmax(0)
    S, C = (torch.rand(2, count, count, generator=generator, dtype=torch.float64) * 2 - 1).clamp(-1, 1)
    allowed = torch.eye(count, dtype=torch.bool) | (torch.rand(count, generator=generator) < 0.5)
    for cost in (0.9 * C - 1.4 * S, -S / 0.8, 1.2 * C, torch.zeros_like(C)):
        for mask in (None, allowed):
            closed, solved = (mixing.closest(p, cost, mask, solver) for solver in mixing.SOLVERS)
            assert close(solved, closed, 1e-6)
            assert mask is None or not solved[~mask].any()
            assert float(solved.sum(1).sub(1).abs().max()) < 1e-12


def test_no_solution_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cvxpy.Problem, "status", "infeasible")
    with pytest.raises(FedbenchError, match=r"infeasible.*; try method\.solver=closed"):
        mixing.closest(torch.ones(2) / 2, torch.zeros(1, 2), solver="cvxpy")


def test_projection_by_hand_and_its_symmetries() -> None:
    assert mixing.project(torch.tensor([[0.5, 0.3, -1.0]]))[0].tolist() == pytest.approx([0.6, 0.4, 0.0])
    rows = torch.from_numpy(np.random.default_rng(0).normal(0, 1, (20, 7)))
    found, order = mixing.project(rows), torch.tensor([3, 1, 6, 0, 2, 5, 4])
    assert close(mixing.project(rows + 17.5), found)
    assert close(mixing.project(found), found)
    assert close(mixing.project(rows[:, order]), found[:, order])
    assert close(mixing.project(1e6 * rows), torch.nn.functional.one_hot(rows.argmax(1), 7).double())
    assert float((found > 0).sum(1).double().std()) > 0


def test_cosines() -> None:
    found = cosines(torch.tensor([[3.0, 4.0], [-6.0, -8.0], [4.0, -3.0], [0.0, 0.0]]))
    expected = [[1.0, -1.0, 0.0, 0.0], [-1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
    assert close(found, torch.tensor(expected, dtype=torch.float64))


@dataclass(frozen=True)
class Fixed(Mixing):
    """W = I for the leaves in `own`, 1 p^T for the others, multiplied by `factor`."""

    own: tuple[str, ...] = ()
    factor: float = 1.0

    def graph(self, server: Tree, uploads: Tree, cohort: Cohort) -> Mapping[str, Tensor]:
        count = len(cohort.ids)
        identity = torch.eye(count, dtype=torch.float64)
        average = self.factor * cohort.weights.expand(count, -1)
        graph = dict.fromkeys(self.own, identity)
        graph.setdefault("*", average)
        return graph


@dataclass(frozen=True)
class Stored(ModelStore):
    """FedAvg for `rounds`, then W = I or 1 p^T over everybody."""

    rounds: int = 0
    own: bool = True

    def warm(self, clock: Clock) -> bool:
        return clock.round < self.rounds

    def rows(self, server: Tree, cohort: Cohort) -> Mapping[str, Tensor]:
        sizes = cohort.population.sizes
        average = (sizes / sizes.sum()).expand(len(sizes), -1)
        chosen = torch.eye(len(sizes), dtype=torch.float64) if self.own else average
        return {"*": chosen[cohort.ids]}


@pytest.mark.parametrize("cohort", [1.0, 0.5])
def test_identity_is_local(cohort: float) -> None:
    local = final(Local(), cohort=cohort)
    assert close(final(Fixed(own=("*",)), cohort=cohort), local)
    assert close(final(Stored(), cohort=cohort), local)


def test_sizes_are_fedavg_and_a_private_head_is_fedper() -> None:
    fedavg = final(FedAvg())
    assert close(final(Fixed()), fedavg)
    assert close(final(Stored(own=False)), fedavg)
    assert close(final(Fixed(own=("@head",))), final(FedPer()))
    assert close(final(Fixed(private=("@head",))), final(FedPer()))


def test_a_warm_up_is_fedavg_for_partial_cohorts_too() -> None:
    assert close(final(Stored(rounds=3), cohort=0.5), final(FedAvg(), cohort=0.5))
    assert gap(final(Stored(rounds=2), cohort=0.5), final(FedAvg(), cohort=0.5)) > 1e-4


def test_absent_clients_keep_what_they_had() -> None:
    chosen = setup(Fixed(), federation(FOUR), rounds=1, cohort=0.5)
    state = simulate(chosen)
    present = chosen.draw_cohort(Clock(0, 1)).tolist()
    received, start = models(chosen, state), initial(chosen)
    for client in range(4):
        assert close(trees.row(received, client), start) is (client not in present)
    weights = chosen.method.collaboration(state.server, chosen.population)
    assert weights is not None
    total = sum(FOUR[j] for j in present)
    for i in range(4):
        expected = [FOUR[j] / total if j in present else 0.0 for j in range(4)]
        assert weights[i].tolist() == pytest.approx(expected if i in present else np.eye(4)[i].tolist())


def test_a_matrix_that_is_not_row_stochastic_is_refused() -> None:
    with pytest.raises(HookError, match="not row-stochastic"):
        final(Fixed(factor=1.1))


@dataclass(frozen=True)
class Groups(FedCollab):
    """FedCollab with two coalitions given."""

    def prepare(self, preparation: Any, server: Tree, memory: Tree) -> tuple[Tree, Tree]:
        base = {k: v.expand(2, *v.shape[1:]) for k, v in server.items() if k != "coalition"}
        return {"coalition": torch.tensor([0, 1, 0, 1]), **trees.clone(base)}, memory


@pytest.mark.parametrize(
    "base",
    [
        {"name": "pfedgraph"},
        {"name": "fedsac"},
        {"name": "pfedsim", "rho": 0.3},
        {"name": "fedap", "warmup": 0.4},
        {"name": "fedamp"},
        {"name": "fedfomo", "epsilon": 0.0},
        {"name": "knnper"},
    ],
    ids=lambda base: str(base["name"]),
)
def test_inside_a_coalition_mixes_its_members_alone(base: dict[str, Any]) -> None:
    chosen = setup(Groups(base=base), federation(FOUR), rounds=4)
    everyone = models(chosen, simulate(chosen))
    for members in ([0, 2], [1, 3]):
        alone = setup(chosen.method.inner, federation(FOUR, ids=members), rounds=4)  # type: ignore[attr-defined]
        expected = models(alone, simulate(alone))
        for name, leaf in expected.items():  # memorised samples are padded to the largest client of the run
            found = everyone[name][members]
            cut = found[:, : leaf.shape[1]] if name.startswith("store/") else found
            assert close(cut, leaf), name


def test_fedap_is_there_for_networks_without_batch_normalisation() -> None:
    assert gap(final(FedAP(warmup=0.4)), final(FedAvg())) > 1e-4
