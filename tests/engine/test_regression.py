"""Regression: a step by hand, engines alike, scores against scikit-learn, and which methods predict a quantity."""

from __future__ import annotations

import ast
import functools
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import sklearn.metrics
import torch
from torch import nn

from fedbench.config.schema import OptimizerConfig, TestConfig
from fedbench.core import source
from fedbench.core.errors import ConfigError, DataCorrupt
from fedbench.data.dataset import Dataset
from fedbench.data.datasets.table import fitted
from fedbench.data.federation import Federation
from fedbench.data.partition import Partition
from fedbench.engine.simulation import initial
from fedbench.engine.stacked import StackedTrainer
from fedbench.engine.trainer import explained
from fedbench.methods import METHODS
from fedbench.methods.fedavg import FedAvg
from fedbench.models.small import LeNet5
from fedbench.models.task import Model
from fedbench.sample_metrics import METRICS, check_measures, measure
from tests.helpers.tiers import sampled
from tests.methods.toys import FOUR, gap, models, setup, simulate

QUANTITATIVE = tuple(name for name, metric in METRICS.items() if metric.regression)
SLOPES = np.array([3.0, -2.0, 0.5])


@dataclass(frozen=True)
class Line(Model):
    """One linear layer."""

    label = "line"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        return nn.Sequential(OrderedDict(flatten=nn.Flatten(), head=nn.Linear(int(np.prod(shape)), classes)))


def federation(sizes: Sequence[int] = FOUR, shape: tuple[int, int, int] = (1, 1, 3), tests: int = 6) -> Federation:
    """Client k's target is 500 + 40 SLOPES x of its features, up to a deviation of 2; float64."""
    rng = np.random.default_rng(0)
    ends = np.cumsum([*sizes, *[tests] * len(sizes), *[3] * len(sizes)])
    x = rng.normal(size=(ends[-1], *shape)).astype(np.float32)
    target = 500 + 40 * x.reshape(ends[-1], -1)[:, :3].astype(np.float64) @ SLOPES + rng.normal(0, 2, ends[-1])
    y, channels = np.zeros(ends[-1], np.int64), shape[0]
    whole = Dataset("toy", x, y, sum(sizes), 1, (0.0,) * channels, (1.0,) * channels, 1.0, target=target)
    parts = np.split(np.arange(ends[-1]), ends[:-1])
    train, test, val = (parts[i * len(sizes) : (i + 1) * len(sizes)] for i in range(3))
    data = fitted(whole, np.concatenate(train))
    return Federation(data, Partition("toy", 0, "toy", 1, train, val, test), dtype=torch.float64)


def own_units(data: Federation, indices: torch.Tensor) -> np.ndarray:
    return data.in_units(data.answers[indices].numpy())


# ---- training


def test_a_round_of_fedavg_is_a_step_on_the_mean_squared_error_of_standardised_targets() -> None:
    data = federation()
    once: dict[str, Any] = {"rounds": 1, "epochs": 1, "batch": 50, "optimizer": OptimizerConfig(lr=0.1)}
    chosen = setup(FedAvg(), data, Line(), **once)
    state = simulate(chosen)
    seen = np.concatenate([own_units(data, data.indices("train", k)) for k in range(4)])
    begun = initial(chosen)[0]
    w, b = begun["head.weight"].numpy()[0], float(begun["head.bias"])
    moved = []
    for client in range(4):
        x = data.gather(data.indices("train", client))[0].flatten(1).numpy()
        target = (own_units(data, data.indices("train", client)) - seen.mean()) / seen.std()
        error = x @ w + b - target
        moved.append([*(w - 0.1 * 2 * error @ x / len(x)), b - 0.1 * 2 * error.mean()])
    expected = np.average(moved, axis=0, weights=FOUR)
    found = [*state.server["head.weight"].numpy()[0], float(state.server["head.bias"])]
    np.testing.assert_allclose(found, expected, atol=1e-9)


@pytest.mark.parametrize("name", ["fedavg", "ditto"])
def test_stacked_clients_are_as_looped_ones(name: str) -> None:
    options: dict[str, Any] = {"test": TestConfig(sets="both", val_fraction=0.1), "metrics": QUANTITATIVE, "rounds": 2}
    chosen = setup(METHODS.build({"name": name}), federation(), **options)
    looped, stacked = simulate(chosen), simulate(chosen, StackedTrainer(chosen, 3))
    assert gap(looped.server, stacked.server) < 1e-9
    for one, other in zip(looped.history.records, stacked.history.records, strict=True):
        assert one.tallies.keys() == other.tallies.keys() >= {"local", "global", "val"}
        for kind, tally in one.tallies.items():
            np.testing.assert_allclose(tally.correct, other.tallies[kind].correct, atol=1e-8)
            np.testing.assert_array_equal(tally.total, other.tallies[kind].total)
            for metric in QUANTITATIVE:
                values = one.measures[kind][metric].clients, other.measures[kind][metric].clients
                np.testing.assert_allclose(*values, rtol=1e-7)


# ---- scores


def test_scores_are_those_of_predictions_in_the_data_s_own_units() -> None:
    chosen = setup(FedAvg(), federation(), test=TestConfig(val_fraction=0.1), metrics=QUANTITATIVE)
    state, data = simulate(chosen), chosen.federation
    stacked, last = models(chosen, state), state.history.last
    seen = own_units(data, data.sets["train"].values)
    wanted = {
        "r2": sklearn.metrics.r2_score,
        "mse": sklearn.metrics.mean_squared_error,
        "mae": sklearn.metrics.mean_absolute_error,
    }
    for client in range(4):
        indices = data.indices("local", client)
        model = {key: leaf[client] for key, leaf in stacked.items()}
        predicted = seen.mean() + seen.std() * chosen.task.apply(model, data.gather(indices)[0]).numpy()[:, 0]
        y = own_units(data, indices)
        share = 1 - sklearn.metrics.mean_squared_error(y, predicted) / seen.var()
        assert last.tallies["local"].accuracy()[client] == pytest.approx(share, abs=1e-9)
        for name, metric in wanted.items():
            assert last.measures["local"][name].clients[client] == pytest.approx(metric(y, predicted), rel=1e-9)


def test_the_mean_explains_nothing_and_a_line_explains_a_line() -> None:
    data = federation((60, 60), tests=40)
    target = data.answers[data.sets["train"].values]
    points, total = explained(torch.zeros(len(target), 1), target)
    assert float(points.sum()) == pytest.approx(0.0, abs=1e-9)
    assert float(total.sum()) == len(target)
    state = simulate(setup(FedAvg(), data, Line(), rounds=8, epochs=5, metrics=QUANTITATIVE))
    assert state.history.records[0].tallies["local"].mean() < 0.5
    assert state.history.last.measures["local"]["r2"].mean() > 0.99


def test_r2_is_undefined_without_deviation_and_such_clients_are_left_out() -> None:
    scores = [np.array([[1.0], [2.0], [4.0]]), np.array([[1.0]]), np.array([[1.0], [2.0]]), np.zeros((0, 1))]
    found = measure(["r2", "mae"], scores, [np.array([1.0, 2.0, 3.0]), np.array([3.0]), np.full(2, 5.0), np.zeros(0)])
    np.testing.assert_allclose(found["r2"].clients, [0.5, np.nan, np.nan, np.nan])
    np.testing.assert_allclose(found["mae"].clients, [1 / 3, 2, 3.5, np.nan])
    assert (found["r2"].defined, found["r2"].mean()) == (1, 0.5)
    assert found["mae"].pooled == pytest.approx((1 + 2 + 7) / 6)


def test_predictions_that_are_not_finite_count_as_nan() -> None:
    points, total = explained(torch.tensor([[1.0], [torch.inf], [1e30]]), torch.tensor([1.0, 0.0, 0.0]))
    assert points[0] == 1
    assert points.isnan().tolist() == total.isnan().tolist() == [False, True, False]


def test_metrics_fit_what_is_predicted() -> None:
    check_measures(["auroc"], regression=False)
    with pytest.raises(ConfigError, match=r"^protocol.metrics: auroc is no metric of a quantity; choose of r2, mse, m"):
        check_measures(["r2", "auroc"], regression=True)
    with pytest.raises(ConfigError, match=r"^protocol.metrics: mse is no metric of classes; choose of balanced_acc, "):
        check_measures(["mse"], regression=False)


# ---- data


def test_impossible_targets_are_refused() -> None:
    x, y, line = np.zeros((4, 1, 1, 2), np.float32), np.zeros(4, np.int64), np.arange(4.0)
    for target, reason in (
        (None, "there is one class"),
        (line[:3], r"targets must be float64 \[4\] and of one class, got float64 \(3,\)"),
        (np.array([0, 1, 2, np.inf]), "targets hold values that are not finite"),
    ):
        with pytest.raises(DataCorrupt, match=reason):
            Dataset("toy", x, y, 4, 1, (0.0,), (1.0,), target=target)
    data = Dataset("toy", x, y, 4, 1, (0.0,), (1.0,), target=np.array([1.0, 1, 1, 2]))
    assert fitted(data, np.array([2, 3])).target_unit == (1.5, 0.5)
    with pytest.raises(ConfigError, match=r"^toy: the label of all 3 training samples is 1, so there is nothing to le"):
        fitted(data, np.arange(3))
    other = Dataset("toy", x, y, 4, 1, (0.0,), (1.0,), target=line)
    assert (data.content != other.content, data.fingerprint != other.fingerprint) == (True, True)


# ---- methods

OF_CLASSES = {"class_sums", "classes", "cross_entropy", "kl_div", "label_counts", "log_softmax", "logsumexp", "one_hot"}
OF_CLASSES |= {"argmax", "softmax", "y"}  # y: of a batch, but for its length and device
INNOCENT = {  # definition, what it uses of these -> why it is about no classes
    ("clustered:_farthest_first", "argmax"): "of distances",
    ("features:_greedy", "one_hot"): "of places in a matrix",
    ("features:blocks", "y"): "cuts a batch",
    ("features:directions", "argmax"): "the sign of a direction",
    ("features:mean_loss", "y"): "given to Task.losses",
    ("fedamp:FedAMP", "softmax"): "of the similarities of models",
    ("fedcp:FedCP", "softmax"): "of two gates a feature",
    ("fedmrl:FedMRL", "classes"): "the outputs of a header",
    ("pacfl:directions", "argmax"): "the sign of a direction",
    ("perfedavg:halves", "y"): "cuts a batch",
    ("robust:Misled", "classes"): "the attack `labels` alone, with which the method refuses",
    ("robust:Misled", "y"): "the attack `labels` alone",
    ("robust:nearest_to_others", "one_hot"): "of a client's place",
    ("simplex:_farthest_first", "argmax"): "of distances",
    ("simplex:enclosing_centre", "argmax"): "of distances",
    ("simplex:spread_scores", "argmax"): "the sign of a direction",
}


@functools.cache
def tops(module: str) -> dict[str, ast.AST]:
    body = ast.parse(source.file_of(module).read_text(encoding="utf-8")).body
    return {node.name: node for node in body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}


def uses(node: ast.AST) -> Iterator[str]:
    """Which of `OF_CLASSES` a definition names."""
    lengths = [
        each.args[0] for each in ast.walk(node) if isinstance(each, ast.Call) and ast.unparse(each.func) == "len"
    ]
    devices = [each.value for each in ast.walk(node) if isinstance(each, ast.Attribute) and each.attr == "device"]
    for each in ast.walk(node):
        name = each.attr if isinstance(each, ast.Attribute) else each.id if isinstance(each, ast.Name) else ""
        plain = name == "y" and (isinstance(each, ast.Name) or each in (*lengths, *devices))
        if name in OF_CLASSES and not plain:
            yield name


def of_classes(name: str) -> set[tuple[str, str]]:
    """What the code of a method, and the parts that it uses, name of classes."""
    cls = METHODS.get(name)
    found = set()
    for each in source.covered((f"{cls.__module__}:{cls.__qualname__}",))[1]:
        if each.module.startswith("fedbench.methods.") and each.name in tops(each.module):
            place = f"{each.module.rpartition('.')[2]}:{each.name}"
            found |= {(place, word) for word in uses(tops(each.module)[each.name])}
    return found - INNOCENT.keys()


UNFIT = {name for name in METHODS if "regression" in METHODS.build({"name": name}).unfit}
MISLED = METHODS.build({"name": "robust", "attack": "labels"})
SETTINGS: dict[str, dict[str, Any]] = {"fedphp": {"transfer": "mmd"}}
SETTINGS |= {name: {"positions": "trained"} for name in ("floco", "floco_plus", "sosicfl", "sosicfl_plus")}
ABLE = sorted({*METHODS} - UNFIT | {*SETTINGS})


@pytest.mark.slow
def test_exactly_the_methods_whose_code_is_about_classes_refuse_a_quantity() -> None:
    found = {name: of_classes(name) for name in METHODS}
    assert {name for name, words in found.items() if words} == UNFIT
    assert len(UNFIT) == 28
    assert "regression" in MISLED.unfit


@pytest.mark.parametrize("name", sampled(ABLE, every=4))
def test_the_others_learn_one(name: str) -> None:
    normed = name in ("fedap", "fedbn")
    data = federation(shape=(1, 16, 16)) if normed else federation()
    method = METHODS.build({"name": name, **SETTINGS.get(name, {})})
    state = simulate(setup(method, data, LeNet5(batch_norm=True) if normed else None))
    assert np.isfinite(state.history.last.tallies["local"].accuracy()).all()


@pytest.mark.parametrize("name", sorted(UNFIT))
def test_they_refuse_it_in_a_line(name: str) -> None:
    method = METHODS.build({"name": name})
    with pytest.raises(ConfigError, match=rf"^{type(method).__name__} .* has no classes; choose one of apfl, .*, scaf"):
        setup(method, federation())


@pytest.mark.parametrize("outer", ["fedadam", "oracle", "per_kind"])
def test_so_does_a_method_around_one(outer: str) -> None:
    with pytest.raises(ConfigError, match=r"compares \w+ of classes, and dataset.task=regression has no classes"):
        setup(
            METHODS.build({"name": outer, "base": {"name": "fedproto" if outer != "fedadam" else "fedntd"}}),
            federation(),
        )
