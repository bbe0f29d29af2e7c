"""Metrics of scores: by hand and against scikit-learn, by every engine, from checkpoints, in files."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.metrics
import torch
from numpy.typing import NDArray

import fedbench
from fedbench.config import schema
from fedbench.config.schema import ProtocolConfig, TestConfig
from fedbench.core.errors import ConfigError, FedbenchError
from fedbench.engine import simulation as states
from fedbench.engine.history import History, Record
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation, State
from fedbench.engine.stacked import StackedTrainer
from fedbench.engine.workers import WorkersTrainer
from fedbench.methods import METHODS
from fedbench.metrics import Measured, Tally
from fedbench.runs.run import gains_of
from fedbench.sample_metrics import METRICS, measure
from tests.helpers import pair
from tests.helpers.tiers import sampled
from tests.methods.toys import federation, models, setup, simulate

SIZES = (6, 13, 8, 21)
OF_CLASSES = tuple(name for name, metric in METRICS.items() if not metric.regression)
Array = NDArray[Any]


def calibration_by_hand(scores: Array, labels: Array) -> tuple[float, float]:
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


def auroc_by_hand(scores: Array, labels: Array) -> float:
    """Of each class that there is: the share of pairs, one of it and one of others, in which it has the higher one."""
    chances = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    areas = []
    for label in sorted({*labels.tolist()}):
        own, others = chances[labels == label, label], chances[labels != label, label]
        areas.append(np.mean([1.0 if a > b else 0.5 if a == b else 0.0 for a in own for b in others]))
    return float(np.mean(areas))


def drawn(sharp: float = 1.0, n: int = 300, classes: int = 6, seed: int = 0) -> tuple[Array, Array]:
    """Scores and labels that have something to do with each other."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, n)
    return sharp * (generator.normal(size=(n, classes)) + 1.5 * np.eye(classes)[labels]), labels


def of(name: str, scores: Array, labels: Array) -> float:
    return measure([name], [scores], [labels])[name].pooled


@pytest.mark.parametrize("sharp", [0.1, 1.0, 5.0, 50.0])
def test_calibration_is_that_of_a_loop_over_samples(sharp: float) -> None:
    scores, labels = drawn(sharp)
    assert (of("nll", scores, labels), of("ece", scores, labels)) == pytest.approx(calibration_by_hand(scores, labels))


def test_a_confidence_at_a_bound_is_in_the_bin_below() -> None:
    """A wrong sample of 9/15 and a right one of 9.5/15 are in two bins."""
    logs = np.log([[9 / 15, 6 / 15], [9.5 / 15, 5.5 / 15]])
    assert METRICS["ece"].of(logs, np.array([1, 0])) == pytest.approx((9 / 15 + 5.5 / 15) / 2)


def test_a_model_that_is_sure_and_right_has_neither() -> None:
    labels = np.arange(4)
    found = [of(name, 200 * np.eye(4), y) for y in (labels, labels[::-1]) for name in ("nll", "ece")]
    assert found == pytest.approx([0.0, 0.0, 200.0, 1.0])


@pytest.mark.parametrize("classes", [2, 6])
def test_values_are_those_of_scikit_learn_and_of_pairs_by_hand(classes: int) -> None:
    scores, labels = drawn(classes=classes)
    chances, first = np.exp(scores) / np.exp(scores).sum(1, keepdims=True), scores.argmax(1)
    assert of("auroc", scores, labels) == pytest.approx(auroc_by_hand(scores, labels), abs=1e-12)
    given = (chances[:, 1],) if classes == 2 else (chances,)
    assert of("auroc", scores, labels) == pytest.approx(
        sklearn.metrics.roc_auc_score(labels, *given, multi_class="ovr", average="macro")
    )
    precision = [sklearn.metrics.average_precision_score(labels == c, chances[:, c]) for c in range(classes)]
    assert of("auprc", scores, labels) == pytest.approx(precision[1] if classes == 2 else np.mean(precision))
    assert of("macro_f1", scores, labels) == sklearn.metrics.f1_score(labels, first, average="macro")
    assert of("balanced_acc", scores, labels) == sklearn.metrics.balanced_accuracy_score(labels, first)


def test_toys_with_values_that_a_person_can_check() -> None:
    """Class 1's scores are .9 .8 .4 .3, labels 1 0 1 0: of four pairs three are in order, precisions are 1 and 2/3."""
    scores, labels = np.log([[0.1, 0.9], [0.2, 0.8], [0.6, 0.4], [0.7, 0.3]]), np.array([1, 0, 1, 0])
    assert of("auroc", scores, labels) == pytest.approx(3 / 4)
    assert of("auprc", scores, labels) == pytest.approx((1 + 2 / 3) / 2)
    assert of("balanced_acc", scores, labels) == pytest.approx(1 / 2)
    assert of("macro_f1", scores, labels) == pytest.approx(1 / 2)
    only = np.array([0, 0, 0, 1])  # recalls 1/3 and 0; F1 of class 0: 2 * 1/2 * 1/3 / (1/2 + 1/3), of class 1: 0
    assert of("balanced_acc", scores, only) == pytest.approx(1 / 6)
    assert of("macro_f1", scores, only) == pytest.approx(0.4 / 2)


def test_clients_for_whom_a_metric_is_undefined_are_left_out_and_counted() -> None:
    """One of a single class has no ROC curve, one without samples nothing at all."""
    scores, labels = drawn(n=30, classes=3)
    alone = measure(["auroc", "macro_f1"], [scores, scores[:4], scores[:0]], [labels, np.full(4, 2), labels[:0]])
    known = [np.isfinite(each.clients).tolist() for each in alone.values()]
    assert known == [[True, False, False], [True, True, False]]
    assert (alone["auroc"].defined, alone["macro_f1"].defined) == (1, 2)
    assert alone["auroc"].mean() == alone["auroc"].clients[0]
    both = np.concatenate([labels, np.full(4, 2)])
    assert alone["auroc"].pooled == pytest.approx(auroc_by_hand(np.concatenate([scores, scores[:4]]), both))


def test_every_metric_has_a_name_in_the_config_and_a_better_end() -> None:
    assert (schema.ACCURACY, *METRICS) == schema.METRICS
    better, worse = drawn(), (drawn()[0] * 0.2, drawn()[1])
    values = {name: [of(name, *each) for each in (better, (worse[0][:, ::-1], worse[1]))] for name in OF_CLASSES}
    assert {name for name, (good, bad) in values.items() if good < bad} == {
        name for name in OF_CLASSES if METRICS[name].lower_is_better
    }


def test_gains_are_positive_where_a_client_is_better_than_alone() -> None:
    ours = {name: Measured(np.array([0.5, 0.3, np.nan, 0.2]), 0.0) for name in ("auroc", "nll")}
    alone = {name: np.array([0.4, 0.5, 0.1, 0.2]) for name in ("auroc", "nll", "acc")}
    gains = gains_of(ours, alone)
    np.testing.assert_allclose(gains["auroc"].gains, [10, -20, np.nan, 0], atol=1e-12)
    np.testing.assert_allclose(gains["nll"].gains, [-0.1, 0.2, np.nan, 0], atol=1e-12)
    assert (gains["auroc"].ipr, gains["nll"].ipr) == pytest.approx((100 / 3, 100 / 3))
    assert gains["nll"].rsd == pytest.approx(np.std([-0.1, 0.2, 0]))


def toy(name: str = "fedper", sets: str = "both", **options: Any) -> Setup:
    given = {"rounds": 3, "cohort": 0.75, "test": TestConfig(sets=sets, val_fraction=0.1), "metrics": OF_CLASSES}
    return setup(METHODS.build({"name": name}), federation(SIZES), **{**given, **options})


@pytest.mark.parametrize("name", sampled(["fedper", "fedavg"], every=2))
def test_scores_of_a_run_are_those_of_its_models(name: str) -> None:
    """On each client's own samples, and on the global set, which FedAvg's one model is scored on once."""
    chosen = toy(name)
    state = simulate(chosen)
    stacked, last = models(chosen, state), state.history.last.measures
    for kind in ("local", "global", "val"):
        scores, labels = [], []
        for client in range(4):
            x, y = chosen.federation.gather(chosen.federation.indices(kind, client))
            model = {key: leaf[client] for key, leaf in stacked.items()}
            scores.append(chosen.task.apply(model, x).numpy())
            labels.append(y.numpy())
        expected = measure([*OF_CLASSES], scores, labels)
        for metric, found in last[kind].items():
            np.testing.assert_allclose(found.clients, expected[metric].clients, atol=1e-9, err_msg=metric)
            assert found.pooled == pytest.approx(expected[metric].pooled)
    assert ("common" in last) == (name == "fedavg")
    if name == "fedavg":
        assert last["common"]["auroc"].pooled == pytest.approx(last["global"]["auroc"].clients[0])


def alike(one: State, other: State) -> None:
    for a, b in zip(one.history.records, other.history.records, strict=True):
        assert a.measures.keys() == b.measures.keys() == a.tallies.keys()
        for name, each in a.measures.items():
            assert each.keys() == {*OF_CLASSES}
            for metric, found in each.items():
                np.testing.assert_allclose(found.clients, b.measures[name][metric].clients, atol=1e-7)
                np.testing.assert_allclose(found.pooled, b.measures[name][metric].pooled, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "score"),
    [("fedavg", "received"), ("fedper", "trained"), ("finetune", "both")],
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
    chosen = pair.pair(METHODS.build({"name": "fedavg"}), rounds=2, metrics=("nll", "auroc"))
    state = pair.simulate(chosen)
    last, own = state.history.last.measures["local"], pair.personal(chosen, state)
    scores, labels = [], []
    for client, model in enumerate(own):
        kind = chosen.modality_of(client)
        x, y = kind.federation.gather(kind.federation.indices("local", client))
        scores.append(kind.task.apply(model, x).numpy())
        labels.append(y.numpy())
    expected = measure(["nll", "auroc"], scores, labels)
    for metric, found in last.items():
        np.testing.assert_allclose(found.clients, expected[metric].clients, atol=1e-9, err_msg=metric)


def test_a_report_is_a_mean_over_its_rounds_and_pooled_where_all_clients_have_the_same() -> None:
    history = History()
    tested = [(1.0, 4.0, 0.2, 0.9), (3.0, 2.0, 0.6, 0.5)]  # right answers and a metric of two clients, round by round
    for done, (first, second, one, other) in enumerate(tested):
        tally = Tally(np.array([first, second]), np.array([4.0, 4.0]))
        measures = {"local": {"auroc": Measured(np.array([one, other]), 0.1 + done)}}
        history.add(Record(done + 1, {"local": tally, "val": tally}, 0, 0, {}, 0.0, measures))
    found = history.report("local", "mean_last_5").measures["auroc"]
    assert (found.clients.tolist(), found.pooled) == (pytest.approx([0.4, 0.7]), pytest.approx(0.6))
    apart = history.report("local", "best_val", per_client=True).measures["auroc"]
    assert apart.clients.tolist() == [0.6, 0.9]
    assert math.isnan(apart.pooled)
    assert history.report("local", "best_test").measures["auroc"].pooled == pytest.approx(0.1)


SHORT = ("partition.num_clients=4", "protocol.rounds=2", "protocol.local.epochs=1", "model=mlp", "model.hidden=[8]")


@pytest.mark.slow
def test_it_changes_no_accuracy_and_is_off_by_default(tmp_path: Path) -> None:
    plain = simulate(toy(metrics=("acc",)))
    measured = simulate(toy())
    for a, b in zip(plain.history.records, measured.history.records, strict=True):
        assert not any(a.measures.values())
        for name, each in a.tallies.items():
            assert each.outputs is None
            assert each.correct.tolist() == b.tallies[name].correct.tolist()
    options = {"runs_dir": tmp_path / "runs", "progress": "none"}
    without = fedbench.run("method=local", *SHORT, "hardware.engine=looped", **options)
    run = fedbench.run("method=local", *SHORT, "hardware.engine=looped", "protocol.metrics=[ece]", **options)
    on = {"ece_on_local", "ece_on_local_pooled"}
    assert set(run.row) - set(without.row) == {"ece", "ece_pooled", "clients_ece", "ipr_ece", "rsd_ece", *on}
    assert run.row["acc"] == without.row["acc"]
    kept = run.tallies["metric/local/ece/clients"][-1]
    assert run.row["ece"] == run.row["ece_on_local"] == pytest.approx(100 * np.nanmean(kept))
    assert run.history["ece_on_local"].iloc[-1] == pytest.approx(run.row["ece_on_local"])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ditto", "finetune"])
def test_files_hold_what_scikit_learn_finds_in_the_predictions(method: str, tmp_path: Path) -> None:
    given = (f"method={method}", *SHORT, "hardware.engine=looped", "protocol.unseen=1")
    given = (*given, "protocol.metrics=[auroc,macro_f1]")
    run = fedbench.run(*given, runs_dir=tmp_path, save_models=True)
    clients, row, every = run.clients, run.row, [run.predict(k) for k in range(3)]
    f1 = [100 * sklearn.metrics.f1_score(each.y, each.classes, average="macro") for each in every]
    assert clients["macro_f1"].tolist() == pytest.approx(f1)
    assert row["macro_f1"] == pytest.approx(np.mean(f1))
    labels = np.concatenate([each.y for each in every if each.y is not None])
    chances = np.concatenate([each.probabilities for each in every])
    areas = [sklearn.metrics.roc_auc_score(labels == each, chances[:, each]) for each in np.unique(labels)]
    assert row["auroc_pooled"] == pytest.approx(100 * np.mean(areas))
    gain = clients["auroc"] - clients["auroc_local"]
    assert clients["auroc_gain"].tolist() == pytest.approx(gain.tolist(), abs=1e-9)
    assert row["ipr_auroc"] == pytest.approx(100 * (gain > 1e-7).mean())
    assert row["rsd_auroc"] == pytest.approx(gain.std(ddof=0))
    moments = {name.removeprefix("acc_unseen_") for name in row if name.startswith("acc_unseen_")}
    assert {"1", "5"} <= moments == {name.removeprefix("auroc_unseen_") for name in row if "auroc_unseen" in name}
    later = fedbench.run(*given, "reference=none", "seed=1", runs_dir=tmp_path)
    assert later.clients["auroc_gain"].isna().all()
    whole = fedbench.run(*given, "seed=1", runs_dir=tmp_path)  # compared with Local now
    fresh = fedbench.run(*given, "seed=1", runs_dir=tmp_path / "fresh")
    own = [name for name in fresh.clients if not name.startswith("seconds")]
    pd.testing.assert_frame_equal(whole.clients[own], fresh.clients[own])
    same = [name for name in fresh.row if "auroc" in name or "f1" in name]
    assert {name: whole.row[name] for name in same} == pytest.approx({name: fresh.row[name] for name in same})


@pytest.mark.slow
def test_a_sweep_has_a_column_for_each_metric(tmp_path: Path) -> None:
    given = {"runs_dir": tmp_path / "runs", "progress": "lines", "sweep.name": "s", "sweep.folder": tmp_path / "sweeps"}
    fedbench.sweep("method=local,fedavg", *SHORT, "protocol.metrics=[auroc,nll]", **given)
    table = pd.read_csv(tmp_path / "sweeps" / "s" / "table.csv")
    assert {"auroc", "auroc_pooled", "ipr_auroc", "rsd_auroc", "nll"} <= {*table}
    assert table["nll"].notna().all()


def test_what_cannot_be_measured_is_refused_in_one_line() -> None:
    message = (
        "protocol.metrics=['acc', 'nll'] weighs every sample equally, protocol.test.weighting=label_shares does not"
    )
    with pytest.raises(ConfigError, match=re.escape(message)):
        ProtocolConfig(test=TestConfig(sets="global", weighting="label_shares"), metrics=("nll",))
    with pytest.raises(FedbenchError, match=r"unknown protocol.metrics 'auc'; nearest: auroc"):
        ProtocolConfig(metrics=("auc",))
    orders = [("nll", "auroc"), ("auroc", "acc", "nll")]
    assert {ProtocolConfig(metrics=each).metrics for each in orders} == {("acc", "auroc", "nll")}
