"""Calibration of the scored models: by loops over samples, by every engine, from checkpoints."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedbench
from fedbench.config.schema import TestConfig
from fedbench.core.errors import ConfigError
from fedbench.engine import simulation as states
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation, State, tally
from fedbench.engine.stacked import StackedTrainer
from fedbench.engine.trainer import count_correct
from fedbench.engine.workers import WorkersTrainer
from fedbench.methods import METHODS
from fedbench.metrics import Tally
from tests.helpers import pair
from tests.helpers.tiers import tiered
from tests.methods.toys import federation, models, setup, simulate

SIZES = (6, 13, 8, 21)


def by_hand(scores: Tensor, labels: Tensor) -> tuple[float, float]:
    """(negative log-likelihood, expected calibration error) of samples, one after the other."""
    nll, bins = 0.0, [[0.0, 0.0, 0.0] for _ in range(15)]
    for row, label in zip(scores.tolist(), labels.tolist(), strict=True):
        weights = [math.exp(value - max(row)) for value in row]
        chances = [weight / sum(weights) for weight in weights]
        nll -= math.log(chances[label])
        confidence = max(chances)
        place = next(m for m in range(15) if confidence <= (m + 1) / 15 or m == 14)
        for k, value in enumerate((1.0, float(chances.index(confidence) == label), confidence)):
            bins[place][k] += value
    gaps = [count / len(labels) * abs(right / count - sure / count) for count, right, sure in bins if count]
    return nll / len(labels), sum(gaps)


@pytest.mark.parametrize("sharp", [0.1, 1.0, 5.0, 50.0])
def test_counts_are_those_of_a_loop_over_samples(sharp: float) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = sharp * torch.randn(400, 6, generator=generator, dtype=torch.float64)
    sure, top = scores.softmax(1).max(1)  # too little where it is less than usual, too much elsewhere
    labels = torch.where(sure < sure.median(), top, torch.randint(6, (400,), generator=generator))
    parts = [
        count_correct(*half, 6, calibration=True) for half in zip(scores.split(150), labels.split(150), strict=True)
    ]
    correct, total = (torch.stack(each).sum(0) for each in zip(*parts, strict=True))
    found = tally(correct[None], total[None], 6)
    nll, ece = by_hand(scores, labels)
    assert found.calibrations() == pytest.approx({"nll": nll, "ece": 100 * ece})
    plain = count_correct(scores, labels, 6)
    assert [each[:6].tolist() for each in (correct, total)] == [each.tolist() for each in plain]


def test_a_model_that_is_sure_and_right_has_neither() -> None:
    labels = torch.arange(4)
    counts = count_correct(200 * torch.eye(4), labels, 4, calibration=True)
    assert tally(counts[0][None], counts[1][None], 4).calibrations() == {"nll": 0.0, "ece": 0.0}
    wrong = count_correct(200 * torch.eye(4), labels.flip(0), 4, calibration=True)
    assert tally(wrong[0][None], wrong[1][None], 4).calibrations() == pytest.approx({"nll": 200.0, "ece": 100.0})


def toy(name: str = "fedper", sets: str = "both", **options: Any) -> Setup:
    test = TestConfig(sets=sets, val_fraction=0.1, calibration=True)
    method = METHODS.build({"name": name})
    return setup(method, federation(SIZES), **{"rounds": 3, "cohort": 0.75, "test": test, **options})


@pytest.mark.parametrize("name", ["fedper", "fedavg"])
def test_scores_of_a_run_are_by_hand(name: str) -> None:
    """On each client's own samples, and on the global set, which FedAvg's one model is scored on once."""
    chosen = toy(name)
    state = simulate(chosen)
    stacked, last = models(chosen, state), state.history.last.tallies
    for kind in ("local", "global", "val"):
        each = []
        for client in range(4):
            x, y = chosen.federation.gather(chosen.federation.indices(kind, client))
            model = {key: leaf[client] for key, leaf in stacked.items()}
            each.append(by_hand(chosen.task.apply(model, x), y))
        nll, ece = np.array(each).mean(0)
        assert last[kind].calibrations() == pytest.approx({"nll": nll, "ece": 100 * ece})
    assert ("common" in last) == (name == "fedavg")
    if name == "fedavg":
        assert last["common"].calibrations() == pytest.approx(last["global"].calibrations())


def alike(one: State, other: State) -> None:
    for a, b in zip(one.history.records, other.history.records, strict=True):
        assert a.tallies.keys() == b.tallies.keys()
        for name, each in a.tallies.items():
            assert each.calibration is not None
            np.testing.assert_allclose(each.calibration, b.tallies[name].calibration, atol=1e-7)
            assert each.correct.tolist() == b.tallies[name].correct.tolist()


@pytest.mark.parametrize(
    ("name", "score"),
    tiered([("fedavg", "received"), ("fedper", "trained"), ("finetune", "both")], quick=[("fedavg", "received")]),
)
def test_engines_and_interrupted_runs_agree(name: str, score: str, tmp_path: Path) -> None:
    chosen = toy(name, score=score, **({"report": "best_val"} if score == "both" else {}))
    expected = simulate(chosen)
    alike(simulate(chosen, StackedTrainer(chosen, 3)), expected)
    if name == "fedper":
        alike(simulate(chosen, WorkersTrainer(chosen, 2)), expected)
    simulation = Simulation(chosen, LoopedTrainer(chosen))
    state = simulation.begin()
    while not simulation.done(state):
        states.save_state(tmp_path / "state", state, "key")
        state = states.load_state(tmp_path / "state", "key", torch.device("cpu"))
        simulation.step(state)
    alike(state, expected)


def test_kinds_of_client_are_measured_alike() -> None:
    chosen = pair.pair(METHODS.build({"name": "fedavg"}), rounds=2, test=TestConfig(calibration=True))
    last = pair.simulate(chosen).history.last.tallies["local"]
    assert last.calibration is not None
    assert last.calibration.shape == (5, 2)
    assert bool((last.calibration > 0).all())


def test_it_changes_no_accuracy_and_is_off_by_default(tmp_path: Path) -> None:
    plain = simulate(toy(test=TestConfig(sets="both", val_fraction=0.1)))
    measured = simulate(toy())
    for a, b in zip(plain.history.records, measured.history.records, strict=True):
        for name, each in a.tallies.items():
            assert each.calibration is None
            assert each.calibrations() == {}
            assert each.correct.tolist() == b.tallies[name].correct.tolist()
    short = ("partition.num_clients=4", "protocol.rounds=2", "protocol.local.epochs=1", "model=mlp", "model.hidden=[8]")
    options = {"runs_dir": str(tmp_path / "runs"), "progress": "none"}
    without = fedbench.run("method=local", *short, "hardware.engine=looped", **options)
    run = fedbench.run("method=local", *short, "hardware.engine=looped", "protocol.test.calibration=true", **options)
    assert set(run.row) - set(without.row) == {"nll_on_local", "ece_on_local"}
    assert run.row["acc"] == without.row["acc"]
    kept, total = run.tallies["tally/local/calibration"][-1], run.tallies["tally/local/total"][-1]
    assert run.row["nll_on_local"] == pytest.approx((kept[:, 0] / total).mean())
    assert run.row["ece_on_local"] == pytest.approx(100 * (kept[:, 1] / total).mean())
    assert run.history["ece_on_local"].iloc[-1] == pytest.approx(run.row["ece_on_local"])


def test_the_mean_of_rounds_is_a_mean_of_calibrations() -> None:
    first = Tally(np.array([1.0]), np.array([4.0]), np.array([[2.0, 1.0]]))
    later = Tally(np.array([3.0]), np.array([4.0]), np.array([[4.0, 2.0]]))
    from fedbench.metrics import report

    found = report("mean_last_5", [1, 2], [first, later]).tally
    assert found.calibrations() == pytest.approx({"nll": 0.75, "ece": 37.5})
    assert report("best_test", [1, 2], [first, later]).tally.calibrations() == pytest.approx({"nll": 1.0, "ece": 50.0})


def test_weighted_samples_are_refused_in_one_line() -> None:
    message = "protocol.test.calibration=true counts every sample alike, protocol.test.weighting=label_shares does not"
    with pytest.raises(ConfigError, match=re.escape(message)):
        TestConfig(sets="global", weighting="label_shares", calibration=True)
