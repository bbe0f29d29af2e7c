"""IFCA, CFL, FeSEM, KMeans: one cluster is FedAvg, planted groups are found."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedbench.config.schema import OptimizerConfig
from fedbench.core import trees
from fedbench.core.errors import ConfigError, UnknownName
from fedbench.data.federation import Federation
from fedbench.engine.method import Method
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import State
from fedbench.methods import METHODS
from fedbench.methods.cfl import CFL
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fesem import FeSEM
from fedbench.methods.ifca import IFCA
from fedbench.methods.kmeans import KMeans
from fedbench.methods.oracle import Oracle
from tests.methods.toys import close, federation, initial, models, run, same_groups

PLANTED = [0, 1, 0, 1, 1, 0]


# ---- limits


@pytest.mark.parametrize("method", [IFCA(k=1), KMeans(k=1, pretrain_rounds=2), FeSEM(k=1), CFL(eps1=0.0), Oracle()])
def test_one_cluster_is_fedavg(method: Method) -> None:
    options = {"cohort": 0.75}
    chosen, state = run(method, **options)
    fedavg = run(FedAvg(), **options)[1].server
    assert close(models(chosen, state), trees.expand(fedavg, 4))
    common = method.common(state.server, chosen.task)
    assert common is not None
    assert close(common, fedavg)


@pytest.mark.parametrize("method", [KMeans(k=4, pretrain_rounds=3), Oracle(coalition=(7, 2, 5, 0))])
def test_a_group_for_each_client_is_local(method: Method) -> None:
    from fedbench.methods.local import Local

    found, local = run(method), run(Local())
    assert sorted(found[1].server["coalition"].tolist()) == [0, 1, 2, 3]
    assert close(models(*found), models(*local))
    assert found[0].method.common(found[1].server, found[0].task) is None


def test_fedcluster_is_another_name_of_cfl() -> None:
    assert METHODS.get("fedcluster") is METHODS.get("cfl")


# ---- planted groups


def disjoint() -> Federation:
    return federation([30] * 6, labels=[[0, 1] if g == 0 else [2, 3] for g in PLANTED])


def permuted() -> Federation:
    """The second group's labels are those of the first in reverse."""
    data = federation([30] * 6)
    for k, group in enumerate(PLANTED):
        if group:
            own = torch.cat([data.indices(name, k) for name in ("train", "val", "local")])
            data.y[own] = 3 - data.y[own]
    return data


def groups(chosen: Setup, state: State) -> list[int]:
    """Which clients are given one model."""
    given = trees.flatten(models(chosen, state))
    return [int(x) for x in torch.unique(given, dim=0, return_inverse=True)[1]]


@pytest.mark.parametrize("data", [disjoint, permuted])
@pytest.mark.parametrize(
    "method", [IFCA(k=2), KMeans(k=2), FeSEM(k=2, pretrain_rounds=3), CFL(eps1=0.3, eps2=0.3, gamma_max=0.6)]
)
def test_planted_groups_are_found(method: Method, data: Any) -> None:
    chosen, state = run(method, data(), rounds=10, epochs=2, optimizer=OptimizerConfig(lr=0.1))
    assert same_groups(groups(chosen, state), PLANTED)
    if data is permuted:  # one model for all cannot know whose labels are meant
        tally = state.history.last.tallies["local"]
        fedavg = run(FedAvg(), data(), rounds=10, epochs=2)[1].history.last.tallies["local"]
        assert tally.correct.sum() > fedavg.correct.sum() + 5


def test_cfl_splits_again_and_again() -> None:
    labels = [[0], [1], [2], [0], [1], [2]]
    chosen, state = run(CFL(eps1=0.5, eps2=0.2, gamma_max=0.6), federation([30] * 6, labels=labels), rounds=12)
    assert same_groups(groups(chosen, state), [0, 1, 2, 0, 1, 2])
    share = chosen.method.collaboration(state.server, chosen.population)
    assert share is not None
    assert share[0].tolist() == [0.5, 0, 0, 0.5, 0, 0]


def test_preparation_is_charged() -> None:
    for rounds in (1, 5):
        _, state = run(KMeans(k=2, pretrain_rounds=rounds), rounds=1)
        model = 8 * sum(v[0].numel() for v in trees.part(state.server, "base").values())
        assert (state.bytes_up, state.bytes_down) == (2 * 4 * model, 2 * 4 * model)


def test_random_centres_are_a_random_first_assignment_that_costs_nothing() -> None:
    drawn = set()
    for seed in range(6):
        chosen, state = run(FeSEM(k=2, pretrain_rounds=0), seed=seed, rounds=1, optimizer=OptimizerConfig(lr=1e-9))
        first = torch.from_numpy(state.arrays["coalition"])
        drawn.add(tuple(first.tolist()))
        assert set(first.tolist()) <= {0, 1}
        assert close(models(chosen, state), trees.expand(initial(chosen), 4), 1e-6), "no training before round 0"
    assert len(drawn) > 2
    totals = [run(FeSEM(k=2, pretrain_rounds=0), rounds=rounds)[1].bytes_up for rounds in (1, 4)]
    assert totals[1] == 4 * totals[0]


def test_centres_drawn_apart_keep_their_first_clients() -> None:
    """The models that IFCA starts from, and nobody ever leaves; centres that start alike do lose clients."""
    options: dict[str, Any] = {"rounds": 8, "optimizer": OptimizerConfig(lr=0.05)}
    kept, first = [], []
    for drawn in (True, False):
        _, state = run(FeSEM(k=3, pretrain_rounds=0, drawn=drawn), federation((9,) * 12), **options)
        first.append(state.arrays["coalition"].tolist())
        kept.append(state.server["coalition"].tolist())
    assert first[0] == first[1], "the same random assignment"
    assert kept[0] == first[0]
    assert kept[1] != first[1]

    still = OptimizerConfig(lr=1e-12)
    _, state = run(FeSEM(k=3, pretrain_rounds=0, drawn=True), federation((9,) * 12), optimizer=still)
    ifca = run(IFCA(k=3), federation((9,) * 12), optimizer=still)[1].server
    assert close(trees.part(state.server, "base"), ifca, 1e-9)
    first, second = trees.flatten(ifca)[state.arrays["coalition"][[0, -1]]]
    assert state.arrays["distances"][0, -1] == pytest.approx(float((first - second).norm()))


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="k"):
        IFCA(k=0)
    with pytest.raises(ConfigError, match="pretrain_rounds"):
        FeSEM(pretrain_rounds=-1)
    with pytest.raises(ConfigError, match="drawn needs"):
        FeSEM(drawn=True)
    with pytest.raises(ConfigError, match="pretrain_rounds must be at least 1"):
        KMeans(pretrain_rounds=0)
    with pytest.raises(UnknownName, match="single"):
        CFL(linkage="singel")
    with pytest.raises(ConfigError, match="eps1"):
        CFL(eps1=-1.0)
    with pytest.raises(ConfigError, match="each of 4 clients, it has 2 numbers"):
        run(Oracle(coalition=(0, 1)))
