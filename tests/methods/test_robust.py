"""Robust averages against definitions by loops, attacks by hand, and what either does to FedAvg."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import trim_mean

from fedbench.core import trees
from fedbench.core.batch import Population
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.engine.newcomers import Newcomers
from fedbench.engine.setup import Setup
from fedbench.methods.ditto import Ditto
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.robust import Robust
from tests.helpers.tiers import sampled
from tests.methods.test_histories import flat, loss_on
from tests.methods.toys import ONE_STEP, close, descend, federation, initial, models, samples, setup, simulate, steps

SIZES = (9, 13, 8, 21, 5, 7)


def averaged(rule: str, points: np.ndarray, **fields: Any) -> np.ndarray:
    """What `rule` makes of `points` [6, 3, 2], leaves of the clients of SIZES."""
    method = Robust(rule=rule, **fields)
    cohort = setup(method, federation(SIZES)).cohort(torch.arange(6), Clock(0, 1))
    uploads = {"a": torch.from_numpy(points[:, :1]), "b": torch.from_numpy(points[:, 1:])}
    found = method.average(uploads, cohort)
    return torch.cat([found["a"], found["b"]]).numpy()


@pytest.mark.parametrize("seed", range(3))
def test_averages_are_their_definitions(seed: int) -> None:
    points = np.random.default_rng(seed).normal(size=(6, 3, 2))
    np.testing.assert_allclose(averaged("median", points), np.median(points, axis=0))
    for trim in (0.0, 0.2, 0.34):
        np.testing.assert_allclose(averaged("trimmed", points, trim=trim), trim_mean(points, trim))
    shares = np.array(SIZES) / sum(SIZES)
    np.testing.assert_allclose(averaged("mean", points), np.tensordot(shares, points, 1))

    def total(z: np.ndarray) -> float:
        return sum(s * float(np.linalg.norm(p.ravel() - z)) for s, p in zip(shares, points, strict=True))

    best = minimize(total, points.mean(0).ravel(), method="Nelder-Mead", options={"xatol": 1e-9, "maxfev": 9999}).x
    np.testing.assert_allclose(averaged("geometric", points).ravel(), best, atol=1e-5)
    for trim, nearest in ((0.2, 3), (0.5, 1)):
        apart = [sorted(((p - q) ** 2).sum() for q in points)[1 : 1 + nearest] for p in points]
        np.testing.assert_allclose(averaged("krum", points, trim=trim), points[int(np.argmin([sum(a) for a in apart]))])


def test_of_one_upload_every_rule_makes_that() -> None:
    chosen = setup(Robust(), federation((9,)))
    cohort, upload = chosen.cohort(torch.arange(1), Clock(0, 1)), {"a": torch.tensor([[1.0, -2.0]])}
    for rule in ("median", "trimmed", "krum", "geometric", "mean"):
        assert close(Robust(rule=rule, trim=0.9).average(upload, cohort), {"a": torch.tensor([1.0, -2.0])})


@pytest.mark.parametrize("attack", ["none", "labels"])
@pytest.mark.parametrize("base", [FedAvg(), FedAvg(private=("@head",)), Ditto()])
def test_the_mean_without_attackers_is_the_method_inside(base: FedAvg, attack: str) -> None:
    options: dict[str, Any] = {"cohort": 0.5, "rounds": 2}
    whole, alone = (setup(m, federation(SIZES), **options) for m in (Robust(base, "mean", attack=attack), base))
    state, expected = simulate(whole), simulate(alone)
    assert close(trees.part(state.server, "base"), expected.server, 0)
    assert close(models(whole, state), models(alone, expected), 0)


def one_round(attack: str, **fields: Any) -> tuple[Setup, Tree, list[int], dict[int, Tree]]:
    """A round of the mean: the setup, the new model, who attacks, and what each would upload by hand."""
    method = Robust(rule="mean", attack=attack, attackers=0.4, **fields)
    chosen = setup(method, federation(SIZES), **ONE_STEP)
    state = steps(chosen, 1)[1]
    attackers = state.server["attacker"].nonzero().flatten().tolist()
    assert len(attackers) == 2
    honest = {k: descend(loss_on(samples(chosen, k)), initial(chosen), 0.2) for k in range(6)}
    return chosen, trees.part(state.server, "base"), attackers, honest


def mean(uploads: dict[int, Tree]) -> Tree:
    return {n: sum(SIZES[k] / sum(SIZES) * uploads[k][n] for k in uploads) for n in uploads[0]}  # type: ignore[misc]


def test_changes_of_sign() -> None:
    chosen, model, attackers, uploads = one_round("sign", scale=3.0)
    m = initial(chosen)
    sent = {k: {n: m[n] - 3 * (u[n] - m[n]) if k in attackers else u[n] for n in u} for k, u in uploads.items()}
    assert close(model, mean(sent))


def test_labels_turned_around() -> None:
    chosen, model, attackers, uploads = one_round("labels")
    for k in attackers:
        x, y = samples(chosen, k)
        uploads[k] = descend(loss_on((x, 3 - y)), initial(chosen), 0.2)
    assert close(model, mean(uploads))


def test_noise() -> None:
    _, model, attackers, uploads = one_round("noise", scale=2.0)
    share = np.sqrt(sum((SIZES[k] / sum(SIZES)) ** 2 for k in attackers))
    noise = (flat(model) - flat(mean(uploads))) / (2 * share)
    assert abs(noise.mean()) < 0.3
    assert 0.85 < noise.std() < 1.15


@pytest.mark.parametrize("attack", sampled(["sign", "noise"], every=2))
def test_few_attackers_spoil_the_mean_and_no_other_average(attack: str) -> None:
    right = {}
    for rule in ("mean", "median", "trimmed", "krum", "geometric"):
        method = Robust(rule=rule, trim=0.3, attack=attack, attackers=0.3, scale=5.0)
        chosen = setup(method, federation((40,) * 7), rounds=6, epochs=2)
        right[rule] = int(simulate(chosen).history.last.tallies["local"].correct.sum())
    assert min(right[rule] for rule in right if rule != "mean") > right["mean"] + 5, right


def test_a_server_that_does_more_than_average_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^method.base: the server of Scaffold does more than average; Robust takes"):
        Robust(base={"name": "scaffold"})


def test_a_method_whose_clients_upload_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^method.base: clients of Local upload nothing; choose another one"):
        simulate(setup(Robust(base={"name": "local"}), federation(SIZES)))


def test_shares_of_clients_are_rounded_down_from_their_decimals() -> None:
    """0.29 * 100 is 28.999999999999996 in floats; a share of nobody is refused."""
    task, points = setup(FedAvg(), federation((9,))).task, np.random.default_rng(0).normal(size=(100, 2))
    generator = torch.Generator().manual_seed(0)

    def attacking(share: float, clients: int) -> int:
        population = Population(torch.ones(clients), torch.ones(clients, 4))
        server, _ = Robust(attack="sign", attackers=share).init(task, population, generator)
        return int(server["attacker"].sum())

    assert [attacking(share, 100) for share in (0.0, 0.29, 0.299, 0.3, 1.0)] == [0, 29, 29, 30, 100]
    assert attacking(0.25, 4) == 1
    with pytest.raises(ConfigError, match=r"^method.attackers=0.2 of 4 clients is nobody; give at least 0.25, or"):
        attacking(0.2, 4)
    cohort = setup(Robust(), federation((5,) * 100)).cohort(torch.arange(100), Clock(0, 1))
    found = Robust(rule="trimmed", trim=0.29).average({"a": torch.from_numpy(points)}, cohort)["a"]
    np.testing.assert_allclose(found, np.sort(points, axis=0)[29:71].mean(0))


def test_clients_that_no_round_met_have_honest_labels() -> None:
    """They are fitted to their own labels, also where everybody who trains turns them around."""
    whole = setup(Robust(attack="labels", attackers=1.0), federation(SIZES), rounds=2, epochs=3, unseen=1)
    newcomers = Newcomers(whole, whole.seen)
    state = simulate(whole.seen)
    assert state.server["attacker"].tolist() == [1.0] * 5
    alone = setup(FedAvg(), federation(SIZES), rounds=2, epochs=3, unseen=1)
    plain = Newcomers(alone, alone.seen)
    received = replace(state, server=trees.part(state.server, "base"), memory=simulate(alone.seen).memory)
    for moment in ("received", "1", "5"):
        found, expected = (each.tallies[moment]["local"] for each in (newcomers.score(state), plain.score(received)))
        assert found.correct.tolist() == expected.correct.tolist()
