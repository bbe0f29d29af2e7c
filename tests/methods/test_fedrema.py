"""FedReMa: limits, who receives what, and the critical period."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedbench.engine.contract import Clock
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedrema import FedReMa
from fedbench.methods.local import Local
from tests.methods.toys import FOUR, close, federation, final, gap, initial, models, setup, simulate

HEAD = ("@head",)
CODE: dict[str, Any] = {
    "probe_scale": 0.5,
    "probe_per_client": True,
    "temper_all": False,
    "last_gap": False,
    "keep_below": False,
    "uniform": True,
}


# ---- limits


def test_with_everyone_relevant_it_is_fedavg() -> None:
    """Two clients have only the gap to oneself: without it, both are kept."""
    sizes = (6, 13)
    assert close(final(FedReMa(last_gap=False, classifier=HEAD), sizes), final(FedAvg(), sizes))
    plain = final(FedReMa(last_gap=False, classifier=HEAD, uniform=True), sizes)
    assert gap(plain, final(FedAvg(), sizes)) > 1e-4


def test_the_extractor_is_fedavgs_and_a_lone_client_is_local() -> None:
    once, fedavg = final(FedReMa(classifier=HEAD), rounds=1), final(FedAvg(), rounds=1)
    extractor = [name for name in once if not name.startswith("head")]
    assert close({k: once[k] for k in extractor}, {k: fedavg[k] for k in extractor})
    assert gap(once, fedavg) > 1e-4
    assert close(final(FedReMa(), (9,)), final(Local(), (9,)))


def test_all_receive_the_extractor_and_absent_clients_keep_their_classifier() -> None:
    chosen = setup(FedReMa(classifier=HEAD), federation(FOUR), rounds=1, cohort=0.5)
    received, start = models(chosen, simulate(chosen)), initial(chosen)
    present = chosen.draw_cohort(Clock(0, 1)).tolist()
    for client in range(4):
        assert close(received["fc.0.weight"][client], received["fc.0.weight"][0])
        assert torch.equal(received["head.weight"][client], start["head.weight"]) is (client not in present)
    assert not close(received["fc.0.weight"][0], start["fc.0.weight"])


# ---- the critical period


def test_outside_the_period_classifiers_are_mixed_by_the_record() -> None:
    chosen = setup(FedReMa(delta=1.0, classifier=HEAD), federation(FOUR), rounds=1)
    state = simulate(chosen)
    assert not bool(state.server["period/on"])  # the first round's gap is its own maximum, not above it
    counts = state.server["chosen"]
    assert bool((counts.diagonal() == 1).all())
    assert 4 < float(counts.sum()) < 16
    W = chosen.method.collaboration(state.server, chosen.population)
    assert W is not None
    sized = counts * torch.tensor(FOUR)
    assert close(W, sized / sized.sum(1, keepdim=True))
    later = setup(FedReMa(delta=1.0, classifier=HEAD), federation(FOUR), rounds=2)
    state = simulate(later)
    assert torch.equal(state.server["chosen"], counts)
    W = later.method.collaboration(state.server, later.population)
    assert close(W, counts / counts.sum(1, keepdim=True))  # type: ignore[arg-type]


def test_the_record_counts_the_rounds_of_the_period() -> None:
    always = setup(FedReMa(ccp=False, classifier=HEAD), federation(FOUR), rounds=3)
    assert FedReMa().record(simulate(always).server)["ccp_rounds"].tolist() == [3] * len(FOUR)
    once = setup(FedReMa(delta=1.0, classifier=HEAD), federation(FOUR), rounds=3)
    assert FedReMa().record(simulate(once).server)["ccp_rounds"].tolist() == [1] * len(FOUR)


def test_the_period_ends_for_good_when_gaps_fall_to_delta_of_the_largest() -> None:
    method, chosen = FedReMa(delta=0.5), setup(FedReMa(), federation(FOUR))
    cohort = chosen.cohort(torch.arange(4), Clock(0, 5))
    server, _ = method.init(chosen.task, chosen.population, torch.Generator().manual_seed(0))
    everyone = torch.ones(4, 4, dtype=torch.bool)
    expected = [(0.0, True), (0.4, True), (0.8, True), (0.41, True), (0.4, False)]
    for mean, on in expected:
        gaps = torch.tensor([mean, mean + 0.1, mean - 0.1, mean], dtype=torch.float64)
        server.update(method._period(server, everyone, gaps, cohort))
        assert bool(server["period/on"]) is on
    assert float(server["period/largest"]) == pytest.approx(0.8)
    assert bool((server["chosen"] == 5).all())
    always = FedReMa(delta=0.5, ccp=False)
    assert bool(always._period(server, everyone, torch.full((4,), 0.1), cohort)["period/on"])


def test_a_client_without_a_record_keeps_its_classifier() -> None:
    method, chosen = FedReMa(), setup(FedReMa(), federation(FOUR))
    server, _ = method.init(chosen.task, chosen.population, torch.Generator().manual_seed(0))
    server["period/on"] = torch.tensor(False)
    server["chosen"][1] = torch.tensor([2.0, 1.0, 1.0, 0.0])
    cohort = chosen.cohort(torch.tensor([1, 2]), Clock(3, 5))
    found = method._classifier_weights(server, torch.ones(2, 2, dtype=torch.bool), cohort)
    assert found.tolist() == [[0.5, 0.5], [0.0, 1.0]]


def test_planted_groups_find_each_other() -> None:
    labels = [[0, 1], [2, 3], [0, 1], [2, 3], [0, 1]]
    data = federation((40,) * 5, labels=labels)
    for extra in ({"keep_below": False}, CODE):
        method = FedReMa(classifier=HEAD, ccp=False, **extra)
        state = simulate(setup(method, data, rounds=3, epochs=10))
        found = state.server["W"] > 0
        for i in range(5):
            assert bool(found[i, i])
            assert not any(bool(found[i, j]) for j in range(5) if i % 2 != j % 2)
        assert int(found.sum()) > 5


def test_the_codes_bug_gives_the_weights_to_others() -> None:
    straight, shuffled = (FedReMa(**CODE, shuffle=bug, classifier=HEAD) for bug in (False, True))
    assert gap(final(straight, rounds=1), final(shuffled, rounds=1)) > 1e-4
