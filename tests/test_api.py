"""fedbench in Python: what the command line makes, as objects and data frames."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser

import fedbench
from fedbench import api
from fedbench.cli import program
from fedbench.cli.program import main
from fedbench.core.errors import ConfigError, Damaged, FedbenchError
from fedbench.papers import store
from fedbench.runs import execution
from fedbench.runs.run import FAMILIES, NUMBERS, TEXT
from fedbench.sample_metrics import METRICS
from fedbench.sweeps.jobs import JobOutcome
from tests.helpers.tiers import sampled

SHORT = ("protocol.rounds=2", "protocol.local.epochs=1")


def test_import_is_light() -> None:
    code = "import sys, fedbench; print(sorted({'torch', 'hydra', 'pandas', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
    assert set(fedbench.__all__) <= set(dir(fedbench))
    with pytest.raises(AttributeError, match="nothing"):
        fedbench.nothing  # noqa: B018


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def finished(runs: Path) -> fedbench.Run:
    return fedbench.run("method=oracle", *SHORT, runs_dir=runs, save_models=True)


def test_a_run_is_the_command_lines(finished: fedbench.Run, runs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["method=oracle", *SHORT, f"runs_dir={runs}"]) == 0
    assert "finished earlier" in capfd.readouterr().out
    again = fedbench.run("method=oracle", *SHORT, runs_dir=runs)
    assert capfd.readouterr() == ("", "")
    assert again.row == finished.row
    assert again.folder == finished.folder


@pytest.mark.slow
def test_a_sweep_in_a_notebook_shows_nothing_unless_asked(
    finished: fedbench.Run, runs: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There rich shows a table beside standard output."""
    shown: list[object] = []
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("rich.jupyter.display", lambda *what: shown.append(what))
    given = {"method": ["local", "oracle"], "runs_dir": runs}
    assert len(fedbench.sweep(*SHORT, **given)) == 2
    assert (shown, *capfd.readouterr()) == ([], "", "")
    fedbench.sweep(*SHORT, **given, progress="lines")
    assert "better than" in capfd.readouterr().out


def test_values_arrive_as_they_are() -> None:
    """Numbers of NumPy too, and every backslash, which Hydra reads as one but before a quote and at the end."""
    texts = ["a\\b", "c\\", "d\\\\", "e\\'f", "g\\\\'h'", "~/ä (1)", ""]
    values = {"a": np.float64(0.1), "b": np.int64(3), "c": np.bool_(True), "d": np.array([1, 2]), "e": texts}
    parsed = OverridesParser.create().parse_overrides(api._texts(values))
    assert [each.value() for each in parsed] == [0.1, 3, True, [1, 2], texts]


def test_what_is_loaded_is_where_runs_are_put(
    finished: fedbench.Run, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDBENCH_RUNS", str(runs))
    assert str(finished.folder) in set(fedbench.load(config=False)["path"])


def test_several_methods_are_a_sweep(runs: Path) -> None:
    with pytest.raises(FedbenchError, match=r"would mix them into one run.*\(in Python fedbench.sweep\)"):
        fedbench.run(*SHORT, method=["local", "fedavg"], runs_dir=runs)


@pytest.mark.slow
def test_the_callers_torch_is_left_as_it_was(runs: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for make in (fedbench.run, fedbench.sweep):
            torch.backends.cudnn.allow_tf32 = True
            make("method=local", *SHORT, runs_dir=runs, force=True)
            assert (torch.get_num_threads(), torch.backends.cudnn.allow_tf32) == (3, True)
        if hasattr(torch.backends.cudnn, "conv"):  # not in old releases of torch
            torch.backends.cudnn.conv.fp32_precision = "ieee"  # then torch tells no answer by the older name
        fedbench.run("method=local", *SHORT, runs_dir=runs)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
        torch.backends.cudnn.allow_tf32 = True


def test_a_run_holds_its_parts(finished: fedbench.Run) -> None:
    row, clients = finished.row, finished.clients
    assert finished.config["protocol"]["rounds"] == 2
    assert finished.history["round"].iloc[-1] == 2
    assert finished.history["acc_on_local"].iloc[-1] == pytest.approx(row["acc"])
    assert clients["acc"].mean() == pytest.approx(row["acc"])
    assert (clients["gain"] > 0).mean() * 100 == pytest.approx(row["ipr"])
    assert finished.W is not None
    assert finished.W.shape == (len(clients), len(clients))
    np.testing.assert_allclose(finished.W.sum(1), 1)
    assert any(name.startswith("server/") for name in finished.models)


@pytest.mark.slow
def test_traffic_before_the_first_round_is_told_apart(runs: Path) -> None:
    collab = fedbench.run("method=fedcollab", *SHORT, runs_dir=runs).row
    plain = fedbench.run("method=fedavg", *SHORT, runs_dir=runs).row
    assert plain["bytes_up_prepare"] == plain["bytes_down_prepare"] == 0
    assert collab["bytes_up"] - collab["bytes_up_prepare"] == plain["bytes_up"]
    assert collab["bytes_up_prepare"] > plain["bytes_up"]


def test_a_run_shows_itself(finished: fedbench.Run) -> None:
    shown = finished._repr_html_()
    for text in (f"{finished.row['acc']:.2f}", "oracle", str(finished.folder)):
        assert text in repr(finished)
        assert text in shown


def test_what_a_run_lacks(runs: Path, caplog: pytest.LogCaptureFixture) -> None:
    local = fedbench.run("method=local", *SHORT, runs_dir=runs)
    assert local.W is None
    assert local.arrays == {}
    with pytest.raises(FedbenchError, match="save_models=true"):
        _ = local.models
    fedbench.run("method=local", *SHORT, runs_dir=runs, save_models=True)
    assert "made without save_models=true; force=true makes it again" in caplog.text


def test_a_damaged_run_is_refused(tmp_path: Path) -> None:
    run = fedbench.run("method=local", *SHORT, runs_dir=tmp_path)
    (run.folder / "clients.csv").write_text("client,acc\n0,100\n")
    with pytest.raises(Damaged):
        _ = run.clients


@pytest.mark.slow
def test_a_sweep_is_every_combination(runs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    frame = fedbench.sweep("method=local,fedavg", *SHORT, seed=[0, 1], runs_dir=runs)
    assert capfd.readouterr() == ("", "")
    assert list(zip(frame["method"], frame["seed"], strict=True)) == [
        ("local", 0),
        ("local", 1),
        ("fedavg", 0),
        ("fedavg", 1),
    ]
    one = fedbench.run("method=fedavg", *SHORT, seed=1, runs_dir=runs)
    assert frame["acc"].iloc[3] == one.row["acc"]
    assert Path(frame["path"].iloc[3]) == one.folder
    for several in (range(2), np.arange(2), pd.Series([1, 0, 1])):
        again = fedbench.sweep("method=local", *SHORT, seed=several, runs_dir=runs)
        assert sorted(again["seed"]) == [0, 1], "each run once"
    with pytest.raises(ConfigError, match="seed: there is no value to combine"):
        fedbench.sweep("method=local", *SHORT, seed=[], runs_dir=runs)


def test_swept_values_are_columns_of_numbers_where_all_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a frame can be filtered and drawn; those of `partition_seed`, which tables average over, too."""
    rates, augments = ("0.5", "1e-3"), ("[]", "[flip]")
    keys = ("protocol.optimizer.lr", "protocol.augment", "partition_seed")
    outcomes = [
        JobOutcome(dict(zip(keys, each, strict=True)), {"key": "".join(each), "data": "d", "acc": 1.0})
        for each in itertools.product(rates, augments, "12")
    ]
    monkeypatch.setattr(program, "outcomes_of", lambda _: outcomes)
    frame = fedbench.sweep("method=fedavg")
    assert sorted(set(frame["protocol.optimizer.lr"])) == [0.001, 0.5]
    assert sorted(set(frame["protocol.augment"])) == [*augments]
    assert sorted(set(frame["partition_seed"])) == [1, 2]


@pytest.mark.slow
def test_a_sweep_tells_of_its_failures(runs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    frame = fedbench.sweep("method=fedprox", *SHORT, runs_dir=runs, **{"method.mu": [0.5, -1]})
    assert list(frame["method.mu"]) == [0.5], "a number, as in `load`"
    assert "method.mu must be at least 0" in capfd.readouterr().err
    with pytest.raises(FedbenchError, match=r"^method=fedprox .*method.mu must be at least 0"):
        fedbench.sweep("method=fedprox", *SHORT, runs_dir=runs, **{"method.mu": [-2, -1]})


def test_load_is_every_run(finished: fedbench.Run, runs: Path) -> None:
    frame = fedbench.load(runs)
    mine = frame[frame["path"] == str(finished.folder.resolve())]
    assert mine["acc"].item() == finished.row["acc"]
    assert mine["protocol.rounds"].item() == 2
    with pytest.raises(FedbenchError, match="no such folder"):
        fedbench.load(runs / "nowhere")
    with pytest.raises(FedbenchError, match="no such folder"):
        fedbench.load(finished.folder / "rounds.csv")
    with pytest.raises(ConfigError, match="is no folder: give each by itself"):
        fedbench.load([runs])  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_table_is_the_stored_one() -> None:
    table = fedbench.table("fedcollab_t1")
    text = (table.folder / "table.md").read_text()
    assert repr(table) == text == table._repr_markdown_()
    chosen = (table.cells[["row", "column", "metric"]] == ["Local", "Label shift", "acc"]).all(axis=1)
    local = table.cells[chosen]
    values = table.rows.loc[table.rows["row"] == "Local", "acc"]
    assert local["mean"].item() == pytest.approx(values.mean())
    assert pd.api.types.is_integer_dtype(table.curves["round"])
    stored = store.read_rows(table.folder)
    for name in (name for name in TEXT if name in stored[0]):
        assert table.rows[name].fillna("").tolist() == [line[name] for line in stored], "hashes of digits too"
    assert table.matrices["FedAvg+FedCollab|Label shift|0"].shape == (20, 20)
    with pytest.raises(FedbenchError, match=r"no filled table .fedcolab_t1.*fedcollab_t1"):
        fedbench.table("fedcolab_t1")


def test_the_text_of_a_row_is_named(finished: fedbench.Run) -> None:
    """So that what is read back from a CSV file is what a row has, whatever it looks like."""
    assert {name for name, value in finished.row.items() if isinstance(value, str)} <= {*TEXT}
    assert {*TEXT} - {"precision", "task", "unseen_note"} <= finished.row.keys()
    numbers = {name for name, value in finished.row.items() if not isinstance(value, (str, bool))}
    assert {name for name in numbers if not name.startswith(FAMILIES)} <= {*NUMBERS}
    measured = {name for name in NUMBERS for metric in METRICS if metric in name}
    assert {*NUMBERS} - measured - {"unseen", "epsilon", "acc_best_val", "acc_best_val_pooled"} <= finished.row.keys()


@pytest.mark.parametrize("bad", sampled(["method=nope", "dataset", "protocol.rounds=-1", "method.mu=1"], every=2))
def test_errors_are_the_command_lines(bad: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FedbenchError) as caught:
        fedbench.run(bad, runs_dir=tmp_path)
    assert main([bad, f"runs_dir={tmp_path}"]) == 2
    assert capsys.readouterr().err.strip() == f"error: {caught.value}"


@pytest.mark.parametrize("given", ["experiment=fedcollab_c", "sweep.name=fedcollab_c"])
def test_what_is_of_sweeps_is_refused_of_a_run(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A single run would have none of the experiment's values, and keep nothing under the name."""
    monkeypatch.setattr(execution, "execute", lambda _: pytest.fail("it is made"))
    with pytest.raises(ConfigError, match=r"sweep\.name=fedcollab_c needs a sweep; call fedbench\.sweep"):
        fedbench.run(given, runs_dir=tmp_path)


@pytest.mark.parametrize("call", [fedbench.run, fedbench.sweep])
def test_a_dictionary_is_told_where_it_goes(call: Any) -> None:
    with pytest.raises(ConfigError, match=r"\{'seed': 0\} is not an override: .* run\(\*\*values\)"):
        call({"seed": 0})


@pytest.mark.parametrize("call", [fedbench.run, fedbench.sweep])
def test_options_of_the_command_line_and_a_second_data_set_are_refused(call: Any) -> None:
    with pytest.raises(ConfigError, match="--dry-run is an option of the command line; in Python give overrides"):
        call("method=local", "--dry-run")
    data = np.zeros((4, 2)), np.arange(4) % 2
    with pytest.raises(ConfigError, match="dataset names a data set beside data="):
        call("dataset=digits", data=data)
    with pytest.raises(ConfigError, match="dataset names a data set beside data="):
        call(data=data, dataset="digits")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (1e-5, "1e-05"),
        ("a b'c", r"'a b\'c'"),
        ([1, None, "x"], "[1,null,x]"),
        (Path("a/b"), "a/b"),
    ],
)
def test_values_are_written_as_hydra_reads_them(value: object, text: str) -> None:
    assert api._text(value) == text
    with pytest.raises(ConfigError, match="cannot be a value of a key"):
        api._text({1})


@pytest.mark.slow
def test_the_docs_use_a_trained_model_as_it_was_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEDBENCH_RUNS", str(tmp_path))
    page = (Path(__file__).parents[1] / "docs" / "python.md").read_text(encoding="utf-8")
    _, code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    options = ", ".join(f'"{each}"' for each in SHORT)
    exec(code.replace("save_models=True", f"{options}, save_models=True"), {})
    by_hand, reported = re.findall(r"\d+\.\d+", capsys.readouterr().out)
    assert float(by_hand) == pytest.approx(float(reported), abs=1e-3)
    assert float(reported) > 20
