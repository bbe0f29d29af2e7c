"""Cases in which a slip in an equation would show."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch.nn import functional

from fedbench.core import trees
from fedbench.core.batch import Batch
from fedbench.engine.contract import Clock
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.simulation import Simulation
from fedbench.methods.cfl import CFL
from fedbench.methods.fedcac import FedCAC
from fedbench.methods.fedrema import FedReMa
from fedbench.methods.fedsac import FedSaC
from fedbench.methods.pfedsim import PFedSim
from fedbench.methods.sosicfl import SosicFL
from fedbench.models.small import LeNet5
from tests.methods.toys import (
    close,
    federation,
    initial,
    samples,
    setup,
)

# ---- pFedSim


@pytest.mark.parametrize("log_of_mean", [False, True])
def test_pfedsims_negative_cosines_count_as_zero(log_of_mean: bool) -> None:
    """Eq. 3 with classes at cosines .8, -1, .5 and -.6, whose mean is negative."""
    cosines = torch.tensor([0.8, -1.0, 0.5, -0.6], dtype=torch.float64)
    heads = torch.zeros(2, 4, 7, dtype=torch.float64)
    heads[0, :, 0] = 1
    heads[1, :, 0], heads[1, :, 1] = cosines, (1 - cosines.square()).sqrt()
    method = PFedSim(log_of_mean=log_of_mean)
    found = method.similarity({"head.weight": heads}, setup(method).task)
    expected = 0.0 if log_of_mean else -np.log([0.2, 1.0, 0.5, 1.0]).mean()
    assert float(found[0, 1]) == pytest.approx(expected, abs=1e-6)


# ---- SosicFL


def test_a_subregions_radius_is_rho_mean_distances() -> None:
    """rho times the mean L1 distance between centres and points of the simplex, by drawing such points."""
    data = federation((30, 30, 30), labels=[[0], [1], [2, 3]])
    chosen = setup(SosicFL(rho=0.4, clusters=3), data)
    state = Simulation(chosen, LoopedTrainer(chosen)).begin()
    centres = np.unique(state.server["region/center"].numpy(), axis=0)
    points = np.random.default_rng(0).dirichlet(np.ones(3), 20_000)
    mean = np.abs(points[:, None] - centres).sum(2).mean()
    assert abs(mean - 1) > 0.05
    assert float(state.server["region/radius"]) == pytest.approx(0.4 * mean, rel=0.02)


# ---- FedReMa


def test_fedremas_features_are_the_convolutions() -> None:
    """LeNet5's classifier are its linear layers: what is aligned, and what probes imitate, is what they are given."""
    method = FedReMa(align=2.0)
    chosen = setup(method, federation((6, 9), (1, 16, 16)), LeNet5(), rounds=1, epochs=1)
    w = initial(chosen)
    x, y = samples(chosen, 0)

    def convolved(w: Mapping[str, torch.Tensor]) -> torch.Tensor:
        first = functional.max_pool2d(functional.conv2d(x, w["conv.0.weight"], w["conv.0.bias"]), 2).relu()
        deep = functional.conv2d(first, w["conv.3.weight"], w["conv.3.bias"])
        return functional.max_pool2d(deep, 2).relu().flatten(1)

    z = convolved(w)
    server, _ = method.init(chosen.task, chosen.population, torch.Generator())
    means = {name: leaf for name, leaf in server.items() if name.endswith("/means")}
    assert [tuple(leaf.shape) for leaf in means.values()] == [(4, z.shape[1])]
    drawn = torch.randn(4, z.shape[1], dtype=z.dtype, generator=torch.Generator().manual_seed(0))
    cohort = chosen.cohort(torch.tensor([0]), Clock(0, 1))
    message = trees.row(method.send(chosen.federation.placed(server), cohort), 0)
    known = {k: torch.ones_like(v) for k, v in message.items() if k.endswith("/seen")}
    view = chosen.client(0, {**message, **dict.fromkeys(means, drawn), **known}, {}, Clock(0, 1))
    apart = (z - drawn[y]).square()
    apart = apart.mean(1) if method.align_mean else apart.sum(1)
    expected = chosen.task.loss(w, Batch(x, y)) + 2.0 * apart.mean()
    assert close(method.loss(w, view, Batch(x, y)), expected, 1e-9)


def test_fedremas_record_counts_how_often_a_peer_was_chosen() -> None:
    """Eq. 10 after the period: a classifier is the mean over peers, each as often as it was chosen."""
    chosen = setup(FedReMa(classifier=("@head",)), federation((6, 9, 8)), rounds=1, epochs=1, batch=50)
    record = torch.tensor([[4.0, 1.0, 0.0], [1.0, 4.0, 3.0], [0.0, 2.0, 2.0]], dtype=torch.float64)
    simulation = Simulation(chosen, LoopedTrainer(chosen))
    state = simulation.begin()
    state.server |= {"chosen": record, "period/on": torch.tensor(False)}
    simulation.step(state)
    W = chosen.method.collaboration(state.server, chosen.population)
    assert close(W, record / record.sum(1, keepdim=True))


# ---- CFL


def test_cfls_separation_is_the_root_of_half_of_one_minus_the_similarity() -> None:
    """Clients at a similarity of .5 are apart by sqrt((1 - .5) / 2) = .5."""
    similarity = np.array([[1.0, 0.5], [0.5, 1.0]])
    assert CFL(gamma_max=0.51)._leaving(similarity, np.array([3, 4])) is None
    assert CFL(gamma_max=0.49)._leaving(similarity, np.array([3, 4])).tolist() == [True, False]
    assert CFL(gamma_max=0.5)._leaving(similarity, np.array([3, 4])) is None, "farther apart, not as far"
    assert CFL(gamma_max=0.0)._leaving(similarity, np.array([4, 4])).tolist() == [False, True], (
        "of two halves the later"
    )


@pytest.mark.parametrize(("drift", "longest", "cut"), [(0.4, 2.1, True), (0.5, 2.1, False), (0.4, 2.0, False)])
@pytest.mark.parametrize("relative", [False, True])
def test_cfl_cuts_below_one_threshold_and_above_the_other(
    drift: float, longest: float, cut: bool, relative: bool
) -> None:
    """Thresholds .5 and 2, as they are or of the largest mean update so far, which is 2."""
    method = CFL(eps1=0.5, eps2=2.0, relative=relative, gamma_max=0.1)
    chosen = setup(method, federation((6, 9)))
    server, _ = method.init(chosen.task, chosen.population, torch.Generator())
    updates, unit = torch.tensor([[1.0, 0.0], [-1.0, 0.5]], dtype=torch.float64), 2.0 if relative else 1.0
    cohort = chosen.cohort(torch.arange(2), Clock(0, 1))
    found = method._split(server, updates, cohort, 0, unit * drift, unit * longest, 2.0)
    assert found["coalition"].tolist() == ([1, 0] if cut else [0, 0])
    assert ("distances" in found) is cut


# ---- on a threshold


def test_partners_whose_overlap_is_just_the_threshold_and_cosines_that_are_just_snap() -> None:
    """Two clients' only overlap is the mean and the highest at once; orthogonal updates do not exceed 0."""
    method = FedCAC(beta=1.0)
    chosen = setup(method, federation((6, 9)))
    marks = {f"critical/{n}": torch.ones(2, *leaf.shape, dtype=torch.bool) for n, leaf in initial(chosen).items()}
    marks["critical/head.bias"] = torch.tensor([[True, True, False, False], [False, True, True, False]])
    for done in (0, 5):
        W = method.graph({}, marks, chosen.cohort(torch.arange(2), Clock(done, 9)))["*"]
        assert W.tolist() == [[0.5, 0.5], [0.5, 0.5]]
    apart = {n: torch.zeros(2, *leaf.shape, dtype=leaf.dtype) for n, leaf in initial(chosen).items()}
    apart["head.bias"] = torch.tensor([[3.0, 0, 0, 0], [0, 4.0, 0, 0]], dtype=torch.float64)
    for snap, S in ((0.0, 0.0), (-0.1, 1.0)):
        sac = FedSaC(similarity="parameters", snap=snap)
        found = sac.similarities({}, apart, setup(sac, federation((6, 9))).cohort(torch.arange(2), Clock(0, 1)))
        assert found.tolist() == [[1, S], [S, 1]]
