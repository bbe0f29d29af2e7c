"""`python -m fedbench collect` and `tta`: run folders to one tidy file, and to times to an accuracy."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedbench
from fedbench.cli import program
from fedbench.cli.program import main
from fedbench.cli.runs import comparison_figures, distinct_names, find_folders, times_to_accuracy
from fedbench.core.errors import FedbenchError
from fedbench.core.files import write_csv
from fedbench.papers.measures import Speedup
from fedbench.runs.run import SAME, Run, add_client_measures, collect


def run(folder: Path, row: dict[str, Any], config: str | None) -> None:
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(row))
    if config is not None:
        (folder / "config.yaml").write_text(config)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    run(
        tmp_path / "runs" / "a",
        {"method": "fedprox", "seed": 0, "acc": 50.0, "ipr": None},
        "seed: 0\nmethod: {name: fedprox, mu: 0.5, k: 3, private: []}\n"
        "protocol: {optimizer: {lr: 0.1}, augment: [flip]}\n",
    )
    run(
        tmp_path / "runs" / "b",
        {"method": "other", "seed": 1, "acc": 60.0, "ipr": 10.0},
        "seed: 1\nreference_seed: 7\npartition_seed: null\n"
        "method: {name: other, k: auto, inner: {name: x}}\nprotocol: {optimizer: {lr: 1}, augment: []}\n",
    )
    return tmp_path / "runs"


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_one_row_a_run_with_its_config_flattened(
    runs: Path, tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if suffix == "parquet":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    out = tmp_path / f"all.{suffix}"
    assert main(["collect", str(runs), "--out", str(out)]) == 0
    assert "2 runs" in capsys.readouterr().out
    table = pd.read_parquet(out) if suffix == "parquet" else pd.read_csv(out)
    assert list(table["acc"]) == [50, 60]
    assert list(table["protocol.optimizer.lr"]) == [0.1, 1]
    assert table["method.mu"][0] == 0.5
    assert table["method.mu"].isna()[1]
    assert table["method.inner.name"][1] == "x"
    assert list(table["method.k"].astype(str)) == ["3", "auto"], "of two types: text"
    assert list(table["protocol.augment"]) == ['["flip"]', "[]"]
    assert list(table["reference_seed"].fillna(-1)) == [-1, 7]
    assert "partition_seed" not in table, "no run has one"
    assert list(table["path"]) == [str(runs / "a"), str(runs / "b")]


def test_without_a_file_the_main_columns_are_printed(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collect", str(runs / "a"), "--no-config"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[1].strip("┃│ ").split() == ["method", "┃", "seed", "┃", "acc", "┃", "ipr"]
    assert said[3].strip("│ ").split() == ["fedprox", "│", "0", "│", "50.00", "│", "-"]
    assert said[-1] == "1 run; --out runs.csv writes all 6 columns"
    own = run_tta(runs / "c", "fedavg", [50], dataset="table-data[v2]")  # of a file of this name
    for command in (["collect", str(own)], ["tta", str(own), "--reference", "40"]):
        assert main(command) == 0
        assert "table-data[v2]" in capsys.readouterr().out


def test_unreadable_parts_are_told_and_left_out(runs: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(runs / "c", {"method": "third", "seed": 2}, None)
    write_csv(runs / "c" / "rounds.csv", [{"round": 0}])
    (runs / "b" / "result.json").write_text("{")
    assert main(["collect", str(runs), "--out", str(runs / "x.csv")]) == 0
    assert list(pd.read_csv(runs / "x.csv")["method"]) == ["fedprox", "third"]
    assert "result.json is damaged" in caplog.text
    assert "no readable config.yaml" in caplog.text


def test_a_study_is_no_run(runs: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What a table's study found lies below the same folder, and has neither a config nor rounds."""
    run(runs / "studies" / "model_cost" / "d" / "p" / "m" / "seed0", {"macs": 5.0, "seed": 0}, None)
    assert list(collect([runs], config=True)["method"]) == ["fedprox", "other"]
    assert caplog.records == []
    assert find_folders([str(runs)]) == ([runs / "a", runs / "b"], [])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nowhere"], "no runs at nowhere"),
        (["."], "no finished run in ."),
        ([".", "--out", "x.json"], "must end in .csv or .parquet"),
    ],
)
def test_errors_are_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    reason: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["collect", *arguments]) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1


def test_a_missing_folder_for_the_output(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collect", str(runs), "--out", str(runs / "no" / "x.csv")]) == 2
    assert "does not exist" in capsys.readouterr().err


def run_tta(folder: Path, method: str, accuracies: list[float], dataset: str = "d") -> Path:
    """A run scored at rounds 0, 10, 20, ...: a second and 500 kB each way a round."""
    folder.mkdir()
    row = {"method": method, "dataset": dataset, "partition": "p", "seed": 0}
    (folder / "result.json").write_text(json.dumps(row), encoding="utf-8")
    (folder / "config.yaml").write_text(f"method: {{name: {method}}}\n", encoding="utf-8")
    rounds = [
        {
            "round": 10 * i,
            "acc_on_local": acc,
            "seconds_total": 10.0 * i,
            "bytes_up": 5_000_000 * i,
            "bytes_down": 5_000_000 * i,
        }
        for i, acc in enumerate(accuracies)
    ]
    write_csv(folder / "rounds.csv", rounds)
    return folder


def test_rounds_seconds_bytes_and_ratio(tmp_path: Path) -> None:
    base = run_tta(tmp_path / "a", "fedavg", [10, 50, 60, 70, 70])
    fast = run_tta(tmp_path / "b", "sosicfl", [10, 72, 60])
    slow = run_tta(tmp_path / "c", "local", [10, 20, 69.9])
    title, rows, _ = times_to_accuracy([fast, slow], None, base, "local")
    assert "70.00 %" in title
    assert rows == [
        ("fedavg, d, p, seed 0", "30", "30.0", "30.0", "1.0"),
        ("sosicfl, d, p, seed 0", "10", "10.0", "10.0", "3.0"),
        ("local, d, p, seed 0", "> 20", "-", "-", "-"),
    ]
    once = run_tta(tmp_path / "d", "fedavg", [math.nan, math.nan, 60])  # protocol.test.once=true
    assert times_to_accuracy([fast], None, once, "local")[1][0][1:] == ("20", "20.0", "20.0", "1.0")
    _, (row,), _ = times_to_accuracy([base], 55.0, None, "local")
    assert row[1:] == ("20", "20.0", "20.0", "-")


@pytest.mark.parametrize(
    ("precision", "partition_seed", "names"),
    [
        (["float32", "bf16"], ["null", "null"], ["hardware.precision=float32", "hardware.precision=bf16"]),
        (["float32"] * 3, ["null", "7", "8"], ["partition_seed=None", "partition_seed=7", "partition_seed=8"]),
        (["float32"] * 3, ["null", "3", "3"], [""] * 3),  # of seed 3, whose partition the others have
    ],
)
def test_runs_of_other_settings_have_other_names(
    precision: list[str], partition_seed: list[str], names: list[str], tmp_path: Path
) -> None:
    """In `tta` and in legends; also where they differ in their seeds, as of several partitions drawn."""
    folders = [run_tta(tmp_path / str(number), "fedavg", [10, 50]) for number in range(len(names))]
    for number, folder in enumerate(folders):
        row = json.loads((folder / "result.json").read_text())
        row |= {"seed": number + 3, "key": f"{number}" * 8, "precision": precision[number]}
        (folder / "result.json").write_text(json.dumps(row))
        (folder / "config.yaml").write_text(f"partition_seed: {partition_seed[number]}\nmethod: {{name: fedavg}}\n")
    runs = [Run(folder) for folder in folders]
    found = distinct_names([each.row for each in runs], runs)
    assert found == [", ".join(filter(None, ("fedavg", name))) for name in names]
    _, lines, _ = times_to_accuracy(folders, 40.0, None, "local")
    told = [", ".join(filter(None, ("fedavg, d, p", name, f"seed {i + 3}"))) for i, name in enumerate(names)]
    assert [line[0] for line in lines] == told


def test_a_baseline_that_is_among_the_runs_keeps_its_name(tmp_path: Path) -> None:
    folder = run_tta(tmp_path / "a", "fedavg", [10, 50])
    assert {line[0] for line in times_to_accuracy([folder], None, folder, "local")[1]} == {"fedavg, d, p, seed 0"}


def test_the_measure_of_tables_agrees(tmp_path: Path) -> None:
    base = Run(run_tta(tmp_path / "a", "fedavg", [10, 50, 60, 70, 70]))
    fast = Run(run_tta(tmp_path / "b", "sosicfl", [10, 72, 60]))
    slow = Run(run_tta(tmp_path / "c", "local", [10, 20, 69.9]))
    assert Speedup().value(fast, base) == 3.0
    assert math.isnan(Speedup().value(slow, base))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run_tta(tmp_path / "a", "fedavg", [10, 50])
    assert program.main(["tta", str(folder), "--reference", "40"]) == 0
    assert "fedavg" in capsys.readouterr().out
    assert program.main(["tta", str(tmp_path), "--reference", "40"]) == 2
    assert "no finished run" in capsys.readouterr().err
    assert program.main(["tta", str(folder), "--reference", "40", "--set", "global"]) == 2
    assert f"{folder} has no scores on the test set 'global', only on local" in capsys.readouterr().err
    for reference in ("101", "nan"):
        assert program.main(["tta", str(folder), "--reference", reference]) == 2
        assert "give an accuracy in percent, at most 100" in capsys.readouterr().err


TINY = (
    "partition.num_clients=7",
    "protocol.rounds=2",
    "protocol.local.epochs=1",
    "protocol.test.sets=both",
    "protocol.test.pool=false",
    "model=mlp",
    "model.hidden=[8]",
    "hardware.engine=looped",
    "progress=none",
)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compared")
    for method, seed in (("fedavg", 0), ("finetune", 0), ("fedavg", 1)):
        fedbench.run(f"method={method}", *TINY, seed=seed, runs_dir=str(folder))
    return folder


@pytest.mark.slow
def test_measures_over_clients_are_columns_on_request(
    compared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Paired by seed and client; a seed without the reference has none."""
    plain, out = tmp_path / "plain.csv", tmp_path / "all.csv"
    asked = ["--clients", "--against", "local", "finetune", "--margin", "3"]
    assert main(["collect", str(compared), "--out", str(plain)]) == 0
    assert main(["collect", str(compared), "--out", str(out), *asked]) == 0
    table = pd.read_csv(out)
    new = ["acc_worst_tenth", "acc_small", "acc_middle", "acc_large", "hurt_local", "hurt_finetune"]
    new += ["clients_hurt_local", "clients_hurt_finetune"]
    assert sorted(set(table) - set(pd.read_csv(plain))) == sorted(new)
    assert len(table) == 5, "and Local of both seeds"
    clients = {(row.method, row.seed): Run(Path(row.path)).clients for row in table.itertuples()}
    for _, row in table.iterrows():
        mine = clients[row["method"], row["seed"]]
        assert row["acc_worst_tenth"] == pytest.approx(mine["acc"].min())
        largest = mine.sort_values("size_train", kind="stable")["acc"].iloc[5:]
        assert row["acc_large"] == pytest.approx(largest.mean())
        losses = clients["local", row["seed"]]["acc"] - mine["acc"]
        assert row["hurt_local"] == pytest.approx(100 * (losses > 3).mean())
        if row["seed"] == 0:
            losses = clients["finetune", 0]["acc"] - mine["acc"]
            assert row["hurt_finetune"] == pytest.approx(100 * (losses > 3).mean())
        else:
            assert math.isnan(row["hurt_finetune"])
    assert list(table.loc[table["method"] == "local", "hurt_local"]) == [0, 0]
    assert table["hurt_local"].max() > 0


def test_a_run_is_compared_with_one_that_differs_in_its_method_and_rate_alone(tmp_path: Path) -> None:
    """Thirds of the clients by samples, and who is hurt, by hand."""
    same: dict[str, Any] = dict.fromkeys(SAME, "one")
    others = {"unseen": 1, **dict.fromkeys({"dataset", "data", "partition_hash", "model", "test_set"}, "other")}
    others |= {"rounds": 9, "seed": 1}
    assert set(others) == set(SAME)
    rows = {"reference": {"method": "fedavg"}, "mine": {"method": "ditto", "protocol": "of another rate"}}
    rows |= {name: {"method": "ditto", name: value} for name, value in others.items()}
    for name, row in rows.items():
        run(tmp_path / name, {**same, **row}, None)
        accuracies = [10, 25, 30.5, 40, 90] if name == "reference" else [10, 20, 30, 40, 60]
        clients = zip((50, 10, 30, 20, 40), accuracies, strict=True)
        lines = [{"client": i, "size_train": size, "acc": acc} for i, (size, acc) in enumerate(clients)]
        write_csv(tmp_path / name / "clients.csv", lines[: 4 if name == "unseen" else 5])
    table = pd.DataFrame({"path": [str(tmp_path / name) for name in rows]}, index=list(rows))
    add_client_measures(table, ["fedavg"])
    found = table.loc["mine"].drop("path").to_dict()
    thirds = {"acc_small": 30, "acc_middle": 45, "acc_large": 10}  # of 20 and 40, of 30 and 60, and the largest
    assert found == pytest.approx({"acc_worst_tenth": 10, **thirds, "hurt_fedavg": 40, "clients_hurt_fedavg": 5})
    assert table["hurt_fedavg"]["reference"] == 0
    assert table["hurt_fedavg"][list(others)].isna().all()
    assert not table["clients_hurt_fedavg"][list(others)].any()


def test_of_two_runs_of_local_the_one_behind_the_row_s_ipr_counts(tmp_path: Path) -> None:
    """As where two rates of Local lie in one folder; and clients whom one of the two runs did not score are counted."""
    same: dict[str, Any] = dict.fromkeys(SAME, "one")
    rows = {name: {"method": "local", "key": name, "local_key": ""} for name in ("slow", "fast")}
    rows |= {f"of {name}": {"method": "ditto", "key": f"of {name}", "local_key": name} for name in rows}
    accuracies: dict[str, list[Any]] = {"slow": [10, 20, 30], "fast": [50, 60, ""]}
    for name, row in rows.items():
        run(tmp_path / name, {**same, **row}, None)
        lines = [{"client": i, "size_train": 9, "acc": acc} for i, acc in enumerate(accuracies.get(name, [15, 70, 9]))]
        write_csv(tmp_path / name / "clients.csv", lines)
    table = pd.DataFrame({"path": [str(tmp_path / name) for name in rows]}, index=list(rows))
    add_client_measures(table, ["local"])
    assert table["hurt_local"].to_dict() == pytest.approx({"slow": 0, "fast": 0, "of slow": 100 / 3, "of fast": 50})
    assert table["clients_hurt_local"].to_dict() == {"slow": 3, "fast": 2, "of slow": 3, "of fast": 2}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--against", "local"], "--against compares client by client; add --clients"),
        (["--clients", "--margin", "-1"], "--margin -1: it must be in 0 to 100 points"),
        (["--clients", "--margin", "5"], "--margin counts only in a comparison; add --clients --against METHOD"),
        (["--clients", "--against", "ditto"], "no run of ditto among the collected runs"),
    ],
)
def test_comparisons_that_say_nothing_are_refused(
    compared: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["collect", str(compared), *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_two_references_of_a_run_are_refused(
    compared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fedbench.run("method=finetune", *TINY, "protocol.optimizer.lr=0.05", runs_dir=str(tmp_path))
    arguments = ["collect", str(compared), str(tmp_path), "--clients", "--against", "finetune"]
    assert main(arguments) == 2
    assert "are both runs of finetune: collect folders that hold one of them" in capsys.readouterr().err


@pytest.mark.slow
def test_local_and_common_accuracy_share_a_plane(compared: Path) -> None:
    """A dot a run and one a method, which stands at their mean."""
    folders = sorted(file.parent for file in compared.rglob("result.json") if "local" not in str(file))
    figure = comparison_figures(folders)["plane"]
    rows = [Run(folder).row for folder in folders if Run(folder).row["method"] == "fedavg"]
    lines = {line.get_label(): line for line in figure.axes[0].get_lines()}
    place = [float(np.mean([row[f"acc_on_{name}"] for row in rows])) for name in ("global", "local")]
    assert lines["fedavg"].get_xydata()[0].tolist() == pytest.approx(place)
    assert {"fedavg", "finetune"} <= set(lines)


def test_curves_on_different_test_sets_share_no_figure(tmp_path: Path) -> None:
    folders = [run_tta(tmp_path / name, name, [10, 50]) for name in "ab"]
    for folder in folders:
        row = json.loads((folder / "result.json").read_text())
        (folder / "result.json").write_text(json.dumps({**row, "test_set": "local"}))
    rounds = (folders[1] / "rounds.csv").read_text()
    (folders[1] / "rounds.csv").write_text(rounds.replace("acc_on_local", "acc_on_global"))
    with pytest.raises(FedbenchError, match="not scored on one test set; acc_on_local is not in all of them"):
        comparison_figures(folders)


def test_one_folder_is_drawn_again_not_the_first_of_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["redraw", "a", "b"]) == 2
    assert capsys.readouterr().err == "error: redraw takes one folder of results, got a b\n"
