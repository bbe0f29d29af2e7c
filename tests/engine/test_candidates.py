"""protocol.score=both: models as received and after training compete for a client's best round, as in FedSaC's code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fedbench.config.schema import OptimizerConfig, ProtocolConfig, TestConfig
from fedbench.core.errors import ConfigError
from fedbench.engine.history import History, Record
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.simulation import Simulation, pack, unpack
from fedbench.methods.fedavg import FedAvg
from fedbench.metrics import Tally
from tests.methods.toys import setup, simulate

VALIDATED = TestConfig(sets="both", val_fraction=0.2)


def tally(*correct: float, total: float = 10) -> Tally:
    return Tally(np.array(correct, dtype=float), np.full(len(correct), total))


def record(done: int, **tallies: Tally) -> Record:
    return Record(done, tallies, 0, 0, {})


# Two clients over two rounds; (test, validation) of each candidate.
COMPETING = History(
    [
        record(0, local=tally(1, 1), val=tally(1, 2)),
        record(
            1,
            local=tally(2, 6),
            val=tally(3, 7),
            trained_local=tally(5, 3),
            trained_val=tally(9, 6),
        ),
        record(
            2,
            local=tally(8, 2),
            val=tally(9, 5),
            trained_local=tally(7, 9),
            trained_val=tally(8, 4),
        ),
    ]
)


def read(rule: str, **options: Any) -> list[float]:
    return COMPETING.report("local", rule, **options).tally.correct.tolist()


def test_each_client_is_read_at_its_best_validation_of_either_moment() -> None:
    # Client 0: 9 of 10 after the first training, and no more later: the first counts. Client 1: 7, as received.
    assert read("best_val", per_client=True) == [5, 6]
    assert COMPETING.report("local", "best_val", per_client=True).rounds.tolist() == [[1, 1]]


def test_one_round_for_all_is_one_moment_for_all() -> None:
    # Mean validation accuracy: received 1.5, 5, 7; trained 7.5, 6.
    assert read("best_val") == [5, 3]
    # Mean test accuracy: received 1, 4, 5; trained 4, 8.
    assert read("best_test") == [7, 9]


def test_rules_that_choose_nothing_read_models_as_received() -> None:
    assert read("last") == [8, 2]
    assert read("mean_last_5") == [10, 8]  # summed over two trained rounds
    with pytest.raises(ConfigError, match="use best_val or best_test"):
        ProtocolConfig(score="both", report="last")


def scores(score: str, **options: Any) -> list[Record]:
    fast = OptimizerConfig(lr=0.5)
    chosen = setup(FedAvg(), test=VALIDATED, optimizer=fast, score=score, report="best_val", rounds=3, **options)
    return list(simulate(chosen).history.records)


def same(one: Tally, other: Tally, clients: Sequence[int]) -> bool:
    return all(
        np.array_equal(getattr(one, part)[list(clients)], getattr(other, part)[list(clients)])
        for part in ("correct", "total")
    )


@pytest.mark.parametrize("cohort", [1.0, 2])
def test_both_are_what_each_alone_would_be(cohort: float) -> None:
    both, received, trained = (scores(each, cohort=cohort) for each in ("both", "received", "trained"))
    assert [r.round for r in both] == [0, 1, 2, 3]
    assert set(both[-1].tallies) == {
        *("local", "global", "common", "val"),
        *("trained_local", "trained_global", "trained_val"),
    }
    for mine, theirs in zip(both, received, strict=True):
        assert all(same(mine.tallies[name], each, range(len(each))) for name, each in theirs.tallies.items())
    differ = 0
    for mine, theirs in zip(both[1:], trained, strict=True):
        for name, each in theirs.tallies.items():
            seen = np.flatnonzero(each.total)
            waiting = np.flatnonzero(each.total == 0)
            assert same(mine.tallies[f"trained_{name}"], each, seen)
            assert same(mine.tallies[f"trained_{name}"], mine.tallies[name], waiting), "has not trained yet"
            differ += not same(each, mine.tallies[name], seen)
    assert differ, "training must change some score, or this test cannot fail"


def test_an_interrupted_run_reads_the_same() -> None:
    chosen = setup(FedAvg(), test=VALIDATED, score="both", report="best_val", cohort=2, rounds=4, per_client=True)
    whole = simulate(chosen).history
    simulation = Simulation(chosen, LoopedTrainer(chosen))
    state = simulation.begin()
    for _ in range(2):
        simulation.step(state)
    again = unpack(*pack(state), chosen.federation.device)
    while not simulation.done(again):
        simulation.step(again)
    for name in ("local", "global", "common"):
        one, other = (each.report(name, "best_val", per_client=True) for each in (whole, again.history))
        assert np.array_equal(one.tally.correct, other.tally.correct)
        assert np.array_equal(one.rounds, other.rounds)
