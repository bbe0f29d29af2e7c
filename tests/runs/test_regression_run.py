"""Runs of regression on own data: from a table to predictions, what is refused, and what the score is called."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.metrics

import fedbench
from fedbench.cli.runs import comparison_figures
from fedbench.config.compose import compose
from fedbench.core.errors import DataCorrupt, FedbenchError, warn_once
from fedbench.data.datasets.own import Npz
from fedbench.runs.config import resolve
from fedbench.runs.progress import COLUMNS, headings, over_fewer

SHORT = ("dataset.task=regression", "protocol.rounds=2", "protocol.local.epochs=1", "hardware=cpu", "reference=none")
RNG = np.random.default_rng(0)
SIZES = {"lake": 12, "mill": 30, "north": 1, "oaks": 8}
SITE = np.repeat(list(SIZES), list(SIZES.values()))
X = RNG.normal(size=(len(SITE), 3)).astype(np.float32)
PRICE = 2e5 + 5e4 * (X @ [1.0, -1.0, 0.5]) + RNG.normal(0, 1e3, len(X))
PRICE[SITE == "oaks"] = 1.5e5


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FEDBENCH_RUNS", str(tmp_path / "runs"))
    warn_once.cache_clear()


def saved(path: Path, **arrays: Any) -> str:
    np.savez(path, **arrays)
    return str(path)


def test_a_table_with_a_client_of_one_row_and_one_of_one_price() -> None:
    """What is predicted, and its errors, are in the table's units; the score is in variances of all training rows."""
    frame = pd.DataFrame({**{f"x{i}": X[:, i] for i in range(3)}, "site": SITE, "price": PRICE})
    given = ("method=ditto", "model=mlp", "model.hidden=[8]", "protocol.metrics=[r2,mse,mae]", *SHORT)
    run = fedbench.run(*given, data=(frame, "price", "site"), save_models=True)
    assert (run.row["task"], run.row["of_clients"], run.row["clients"]) == ("regression", 4, 3)
    assert run.row["clients_r2"] == 2, "neither one row nor one price has a deviation"
    assert run.clients["name"].tolist() == [*SIZES]
    federation = run._scored_models.setup.federation
    seen = federation.in_units(federation.answers[federation.sets["train"].values].numpy())
    assert (federation.zero, federation.one) == pytest.approx((seen.mean(), seen.std()))
    for client, name in enumerate(SIZES):
        row, found = run.clients.loc[client], run.predict(name)
        assert found.y is not None
        assert np.isin(found.y.round(), PRICE[name == SITE].round()).all()
        if not len(found.y):
            assert np.isnan(row["acc"])
            continue
        mse = sklearn.metrics.mean_squared_error(found.y, found.values)
        assert row["acc"] == pytest.approx(100 * (1 - mse / seen.var()), abs=1e-4)
        assert row["mse"] == pytest.approx(mse, rel=1e-5)
        assert row["mae"] == pytest.approx(sklearn.metrics.mean_absolute_error(found.y, found.values), rel=1e-5)
        expected = np.nan if name == "oaks" else sklearn.metrics.r2_score(found.y, found.values)
        assert row["r2"] == pytest.approx(expected, rel=1e-4, nan_ok=True)
    np.testing.assert_allclose(run.predict(0, frame[:5]).values, run.predict(0, X[:5]).values)
    for of_classes in ("classes", "probabilities"):
        with pytest.raises(FedbenchError, match="this run predicts a quantity: read `values`"):
            getattr(run.predict(0), of_classes)
    assert re.search(r"explained variance %: [-\d]", repr(run))
    assert "Acc" not in repr(run)
    figures = comparison_figures([run.folder])
    assert figures["curves"].axes[0].get_ylabel() == "explained variance (local), %"
    assert {"curves-r2", "curves-mse", "curves-mae"} <= set(figures)
    alike = fedbench.run(*given, data=(X, PRICE, SITE), save_models=True)
    np.testing.assert_array_equal(alike.clients["acc"], run.clients["acc"])


def test_the_score_is_no_accuracy() -> None:
    quantity: dict[str, Any] = {"task": "regression", "clients": 3, "of_clients": 4}
    assert headings([{}], COLUMNS)["acc"] == "Acc %"
    assert headings([quantity], COLUMNS) == {**COLUMNS, "acc": "explained variance %"}
    assert headings([quantity, {}], COLUMNS)["acc"] == "accuracy or explained variance %"
    assert over_fewer([quantity]) == {"explained variance": "3 of 4 clients"}


def test_a_run_on_a_quantity_is_another_than_one_on_classes(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", x=X.reshape(-1, 1, 1, 3), y=PRICE)
    chosen = ("dataset=npz", f"dataset.path={path}", "partition=homo", "dataset.kind=image")
    quantity = resolve(compose([*chosen, "method=fedavg", *SHORT]))
    assert quantity.key != resolve(compose([*chosen, "method=fedavg", *SHORT[1:]])).key


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"y": np.where(X[:, 0] > 1, np.nan, PRICE)}, r"\d+ of 51 training labels, the first nan at \d+, are no quant"),
        ({"y": SITE}, "training labels are words; dataset.task=regression needs numbers"),
        ({"y": X[:, 0] > 0}, "training labels are booleans; dataset.task=regression needs numbers"),
        ({"y": np.full(51, 2.5)}, "all labels are 2.5, so any model is right; give another number"),
        ({"y": PRICE[:, None]}, r"as long as the samples, .* of a column take y\.ravel\(\)"),
        ({"x": X[:1], "y": PRICE[:1]}, "all labels are .*; give another number"),
        ({"y": PRICE, "x_test": X[:2], "y_test": np.array(["a", "b"])}, "test labels are words"),
    ],
)
def test_labels_that_are_no_quantity(arrays: dict[str, np.ndarray], reason: str, tmp_path: Path) -> None:
    with pytest.raises(DataCorrupt, match=reason):
        Npz(path=saved(tmp_path / "bad.npz", **{"x": X, **arrays}), task="regression").load()


def test_numbers_that_are_taken_for_classes_say_how_they_are_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = saved(tmp_path / "a.npz", x=X, y=np.arange(51.0))
    Npz(path=path).load()
    assert "51 different labels, each taken for a class; dataset.task=regression: for a quantity" in caplog.text
    assert "taken for 51 classes; dataset.task=regression: for a quantity" in caplog.text
    caplog.clear()
    read = Npz(path=path, task="regression").load()
    assert "class" not in caplog.text
    assert read.target is not None
    assert sorted(read.target.tolist()) == list(range(51))
    order = read.target.astype(int)
    np.testing.assert_array_equal(read.x.reshape(51, 3), X[order])
    with pytest.raises(DataCorrupt, match=r"a whole number or a word; dataset.task=regression: for a quantity"):
        Npz(path=saved(tmp_path / "b.npz", x=X, y=PRICE)).load()
    few = Npz(path=path, task="regression", limit=10).load()
    assert few.target is not None
    np.testing.assert_array_equal(few.x.reshape(-1, 3), X[few.target.astype(int)])


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["method=fedproto"], "FedProto compares means of classes, and dataset.task=regression has no classes; choose"),
        (["method=fedavg", "protocol.metrics=[auroc]"], "auroc is no metric of a quantity; choose of r2, mse, mae"),
        (["method=fedavg", "partition=dir0.3"], "partition dir0.3 divides classes, and dataset.task=regression has no"),
        (["method=fedavg", "dataset.task=quantity"], "unknown dataset.task 'quantity'"),
    ],
)
def test_what_needs_classes_is_refused_in_a_line(overrides: list[str], reason: str, tmp_path: Path) -> None:
    with pytest.raises(FedbenchError, match=re.escape(reason)) as error:
        fedbench.run(*SHORT, *overrides, data=(X, PRICE, SITE))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "runs").exists()
