"""Metrics of each sample's scores (AUROC, F1, calibration), by the names of `protocol.metrics`.

Values are fractions, as accuracies in fedbench.metrics, nats for the negative log-likelihood, and the data's own
units for errors of regression. Files hold a value times its `unit`. An undefined metric is nan, and the mean over
clients leaves it out.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbench.core.errors import ConfigError
from fedbench.metrics import Floats, Measured

Ints = NDArray[np.int64]

BINS = 15  # of the expected calibration error


@dataclass(frozen=True)
class SampleMetric:
    """A function of n > 0 samples: the log-softmax of their scores [n, K], and their labels [n].

    Of regression: of what is predicted [n, 1], and of what is so [n].
    """

    of: Callable[[Floats, NDArray[Any]], float]
    heading: str  # of a column
    words: str  # for a reader
    unit: float = 100.0  # what 1 is written as
    lower_is_better: bool = False
    regression: bool = False


def balanced_accuracy(logs: Floats, y: Ints) -> float:
    """Mean recall over the classes in the test samples, percent."""
    right, true, _ = _by_class(logs, y)
    return float(np.mean(right[true > 0] / true[true > 0]))


def macro_f1(logs: Floats, y: Ints) -> float:
    """Mean F1 over the classes in the test samples or predicted, percent; a class never predicted right has 0."""
    right, true, predicted = _by_class(logs, y)
    either = true + predicted
    return float(np.mean(2 * right[either > 0] / either[either > 0]))


def _by_class(logs: Floats, y: Ints) -> tuple[Ints, Ints, Ints]:
    """Return for each class the samples predicted right, those that have it, and those predicted as it, each [K].

    scikit-learn's own counts are equal. Its checks of labels take most of the time for a client with 100 samples.
    """
    first, classes = logs.argmax(1), logs.shape[1]
    right, true, predicted = (np.bincount(each, minlength=classes) for each in (y[first == y], y, first))
    return right, true, predicted


def auroc(logs: Floats, y: Ints) -> float:
    """Area under the ROC curve, percent: mean over the classes in the test samples, each against the rest."""
    from sklearn.metrics import roc_auc_score

    return _one_against_rest(roc_auc_score, logs, y)


def auprc(logs: Floats, y: Ints) -> float:
    """Average precision, percent: mean as for `auroc`; with two classes that of class 1."""
    from sklearn.metrics import average_precision_score

    return _one_against_rest(average_precision_score, logs, y, binary=True)


def _one_against_rest(
    area: Callable[[NDArray[np.bool_], Floats], Any], logs: Floats, y: Ints, *, binary: bool = False
) -> float:
    classes = np.unique(y)
    if len(classes) < 2:
        return float("nan")
    chosen = [1] if binary and logs.shape[1] == 2 else classes
    return float(np.mean([area(y == label, np.exp(logs[:, label])) for label in chosen]))


def nll(logs: Floats, y: Ints) -> float:
    """Negative log-likelihood, natural logarithm, mean over samples."""
    return float(-np.take_along_axis(logs, y[:, None], axis=1).mean())


def ece(logs: Floats, y: Ints) -> float:
    """Expected calibration error, percent, over 15 bins of the highest probability (Guo et al., ICML 2017).

    sum_m |B_m| / n |acc(B_m) - conf(B_m)| over BINS bins of equal width, ((m - 1) / BINS, m / BINS], of the first
    class's probability.
    """
    first = logs.argmax(1)
    confidence = np.exp(np.take_along_axis(logs, first[:, None], axis=1)[:, 0])
    place = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)
    gaps = np.bincount(place, weights=(first == y) - confidence, minlength=BINS)
    return float(np.abs(gaps).sum() / len(y))


def r2(predicted: Floats, y: Floats) -> float:
    """Regression: 1 - squared errors over squared deviations of the labels; undefined where these do not differ."""
    from sklearn.metrics import r2_score

    return float("nan") if y.min() == y.max() else float(r2_score(y, predicted[:, 0]))


def mse(predicted: Floats, y: Floats) -> float:
    """Regression: mean squared error, in squares of the labels' own units."""
    from sklearn.metrics import mean_squared_error

    return float(mean_squared_error(y, predicted[:, 0]))


def mae(predicted: Floats, y: Floats) -> float:
    """Regression: mean absolute error, in the labels' own units."""
    from sklearn.metrics import mean_absolute_error

    return float(mean_absolute_error(y, predicted[:, 0]))


METRICS = {  # as fedbench.config.schema names them
    "balanced_acc": SampleMetric(balanced_accuracy, "bal. acc %", "balanced accuracy, percent"),
    "macro_f1": SampleMetric(macro_f1, "macro F1 %", "macro-averaged F1, percent"),
    "auroc": SampleMetric(auroc, "AUROC %", "area under the ROC curve, percent"),
    "auprc": SampleMetric(auprc, "AUPRC %", "average precision, percent"),
    "nll": SampleMetric(nll, "NLL", "negative log-likelihood", unit=1.0, lower_is_better=True),
    "ece": SampleMetric(ece, "ECE %", "expected calibration error, percent", lower_is_better=True),
    "r2": SampleMetric(r2, "R²", "coefficient of determination", unit=1.0, regression=True),
    "mse": SampleMetric(mse, "MSE", "mean squared error", unit=1.0, lower_is_better=True, regression=True),
    "mae": SampleMetric(mae, "MAE", "mean absolute error", unit=1.0, lower_is_better=True, regression=True),
}


def check_measures(names: Sequence[str], *, regression: bool) -> None:
    """Refuse metrics of classes for a quantity, and the reverse.

    Raises:
        ConfigError: with those that fit.
    """
    fitting = [name for name, metric in METRICS.items() if metric.regression == regression]
    if lost := [name for name in names if name not in fitting]:
        predicted = "a quantity" if regression else "classes"
        raise ConfigError(f"protocol.metrics: {lost[0]} is no metric of {predicted}; choose of {', '.join(fitting)}")


def measure(
    names: Sequence[str], scores: Sequence[NDArray[Any]], labels: Sequence[NDArray[Any]]
) -> dict[str, Measured]:
    """Each metric of `names` by client, and of all their samples together.

    Args:
        names: of METRICS.
        scores: [n_i, K] of each client's samples; a client may have none.
        labels: [n_i] of the same.

    All are of classes, or all of regression: see `check_measures`.
    """
    from scipy.special import log_softmax

    logs = [each.astype(np.float64) for each in scores]
    if not any(METRICS[name].regression for name in names):
        logs = [np.asarray(log_softmax(each, axis=1)) for each in logs]
    pool, every = np.concatenate(logs), np.concatenate(labels)

    def value(metric: SampleMetric, logs: Floats, y: NDArray[Any]) -> float:
        return metric.of(logs, y) if len(y) else float("nan")

    return {
        name: Measured(
            np.array([value(METRICS[name], *each) for each in zip(logs, labels, strict=True)]),
            value(METRICS[name], pool, every),
        )
        for name in names
    }


def known(columns: Container[str]) -> list[str]:
    """The metrics among the columns of a table or row."""
    return [name for name in METRICS if name in columns]
