"""What is scored, when, on which samples, by which model. Counts recomputed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from fedbench.config.schema import OptimizerConfig, TestConfig
from fedbench.core import trees
from fedbench.data.federation import Federation, Ragged
from fedbench.engine.contract import Clock
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation
from fedbench.methods.ditto import Ditto
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.local import Local
from tests.engine.toys import trainers
from tests.methods.toys import federation, gap, setup, simulate


def per_class(chosen: Setup, model: trees.Tree, indices: torch.Tensor) -> tuple[list[int], list[int]]:
    """(correct, total) of each class, one sample after another."""
    correct, total = [0] * chosen.task.classes, [0] * chosen.task.classes
    for index in indices:
        x, y = chosen.federation.gather(index.view(1))
        total[int(y)] += 1
        correct[int(y)] += int(chosen.task.apply(model, x).argmax() == y)
    return correct, total


def test_every_set_is_scored_by_the_model_it_is_about() -> None:
    chosen = setup(Local(), test=TestConfig(sets="both", val_fraction=0.1))
    for trainer in trainers(chosen):
        state = simulate(chosen, trainer)
        tallies = state.history.last.tallies
        assert set(tallies) == {"local", "global", "val"}, "Local has no common model"
        for name in tallies:
            for client in range(5):
                own = trees.row(state.memory, client)
                correct, total = per_class(chosen, own, chosen.federation.indices(name, client))
                assert tallies[name].correct[client] == sum(correct)
                assert tallies[name].total[client] == sum(total) > 0


def test_the_common_model_is_scored_once_on_the_global_set() -> None:
    for method in (FedAvg(), Ditto()):
        chosen = setup(method, test=TestConfig(sets="global"))
        state = simulate(chosen)
        correct, total = per_class(chosen, state.server, chosen.federation.global_test)
        common = state.history.last.tallies["common"]
        assert (common.correct.tolist(), common.total.tolist()) == ([sum(correct)], [sum(total)])
    chosen = setup(FedAvg(private=("@head",)), test=TestConfig(sets="global"))
    assert "common" not in simulate(chosen).history.last.tallies, "a body alone is no model"


def test_the_global_set_is_weighted_by_the_client_s_own_labels() -> None:
    labels = [[0], [0, 1], [1, 2, 3], [0, 1, 2, 3], [3]]
    test = TestConfig(sets="global", weighting="label_shares")
    for score in ("received", "trained"):
        chosen = setup(
            Local(),
            federation(labels=labels),
            test=test,
            score=score,
            cohort=3 if score == "trained" else 1.0,
        )
        for trainer in trainers(chosen):
            state = simulate(chosen, trainer)
            scored = state.history.last.tallies["global"]
            seen = {k for t in range(2) for k in chosen.draw_cohort(Clock(t, 2)).tolist()}
            for client in seen:
                own = trees.row(state.memory, client)
                correct, total = per_class(chosen, own, chosen.federation.global_test)
                _, y = chosen.federation.gather(chosen.federation.indices("train", client))
                shares = [float((y == c).sum()) / len(y) for c in range(4)]
                expected = np.dot(shares, correct) / np.dot(shares, total)
                assert scored.accuracy()[client] == pytest.approx(expected, abs=1e-12)
            assert np.isnan(scored.accuracy()[[k for k in range(5) if k not in seen]]).all()


def test_as_received_is_before_training_and_as_trained_is_after() -> None:
    """FedAvg: what a client receives is the average, what it has after training is its own."""
    fast = OptimizerConfig(lr=1.0)
    received = simulate(setup(FedAvg(), rounds=1, optimizer=fast)).history
    assert [record.round for record in received.records] == [0, 1]
    chosen = setup(FedAvg(), rounds=1, optimizer=fast, score="trained")
    trained = simulate(chosen).history
    assert [record.round for record in trained.records] == [1]
    alone = simulate(setup(Local(), rounds=1, optimizer=fast)).memory
    for client in range(5):
        own = chosen.federation.indices("local", client)
        correct, _ = per_class(chosen, trees.row(alone, client), own)
        assert trained.last.tallies["local"].correct[client] == sum(correct)
        correct, _ = per_class(chosen, simulate(setup(FedAvg(), rounds=1, optimizer=fast)).server, own)
        assert received.last.tallies["local"].correct[client] == sum(correct)
    assert trained.last.tallies["local"].correct.tolist() != received.last.tallies["local"].correct.tolist()


def test_absent_clients_keep_the_score_of_their_latest_training() -> None:
    chosen = setup(Local(), rounds=4, cohort=2, score="trained", optimizer=OptimizerConfig(lr=0.5))
    simulation = Simulation(chosen, LoopedTrainer(chosen))
    state = simulation.begin()
    latest: dict[int, tuple[float, float]] = {}
    for t in range(4):
        simulation.step(state)
        tally = state.history.last.tallies["local"]
        for client in chosen.draw_cohort(Clock(t, 4)).tolist():
            own = trees.row(state.memory, client)
            correct, total = per_class(chosen, own, chosen.federation.indices("local", client))
            latest[client] = (sum(correct), sum(total))
        expected = [latest.get(client, (0.0, 0.0)) for client in range(5)]
        assert list(zip(tally.correct.tolist(), tally.total.tolist(), strict=True)) == expected


@pytest.mark.parametrize(
    ("options", "scored"),
    [
        ({"rounds": 5, "eval_every": 1}, [0, 1, 2, 3, 4, 5]),
        ({"rounds": 5, "eval_every": 2}, [0, 2, 4, 5]),
        ({"rounds": 8, "eval_every": 3, "report": "mean_last_5"}, [0, 3, 4, 5, 6, 7, 8]),
        ({"rounds": 3, "eval_every": 9}, [0, 3]),
        ({"rounds": 3, "eval_every": 2, "score": "trained"}, [2, 3]),
    ],
)
def test_rounds_that_are_scored(options: dict[str, Any], scored: list[int]) -> None:
    state = simulate(setup(FedAvg(), **options))
    assert [record.round for record in state.history.records] == scored
    assert state.history.last.round == state.round


def test_scoring_less_often_changes_nothing_else() -> None:
    often, seldom = (simulate(setup(FedAvg(), rounds=4, cohort=0.6, eval_every=n)) for n in (1, 4))
    assert gap(often.server, seldom.server) == 0
    assert often.history.last.tallies["local"].correct.tolist() == seldom.history.last.tallies["local"].correct.tolist()
    assert (often.bytes_up, often.bytes_down) == (seldom.bytes_up, seldom.bytes_down), "scoring is no traffic"


def without_tests(empty: Sequence[int]) -> Federation:
    """The toy federation whose clients `empty` have no test sample."""
    data = federation()
    lists = [np.array([], dtype=np.int64) if k in empty else data.indices("local", k).numpy() for k in range(5)]
    data.sets["local"] = Ragged.of(lists, data.device)
    return data


@pytest.mark.parametrize("empty", [[0, 3], [0, 1, 2, 3, 4]])
def test_clients_without_test_samples_train_but_do_not_count(empty: list[int]) -> None:
    chosen = setup(Ditto(), without_tests(empty))
    full = simulate(setup(Ditto()))
    for trainer in trainers(chosen):
        state = simulate(chosen, trainer)
        tally = state.history.last.tallies["local"]
        assert [k for k in range(5) if tally.total[k] == 0] == empty
        kept = [k for k in range(5) if k not in empty]
        assert tally.correct[kept].tolist() == full.history.last.tallies["local"].correct[kept].tolist()
        assert np.isnan(tally.mean()) == (not kept)
        assert gap(state.memory, full.memory) < 1e-9
