"""What the page says of a table: cells, counts, headings, what lies behind the cells, the start."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbench.methods import finetune
from fedbench.papers import report, spec, standings
from fedbench.papers.published import published_values
from fedbench.papers.report import CLIENTS, KINDS, LEVELS, behind, claim, packed, paper_views, table_view
from fedbench.papers.store import Cell, Provenance, TableResult
from tests.papers.report.toys import judged_table


def unpacked(text: str) -> Any:
    return json.loads(gzip.decompress(base64.b64decode(text)))


def seen(table: TableResult) -> dict[str, Any]:
    return table_view(table, "folder", [], {}, [])


def test_every_cell_has_its_verdict_as_colour_sign_and_word() -> None:
    cells = seen(judged_table())["content"]["cells"]
    assert [(cells[f"{row}-0-0"]["kind"], cells[f"{row}-0-0"]["said"]) for row in range(3)] == [
        ("equivalent", "+0.00, equivalent"),
        ("above", "+5.00, different"),
        ("below", "-5.00, different"),
    ]
    assert {KINDS[cells[f"{row}-0-0"]["kind"]][0] for row in range(3)} == {"≈", "▲", "▼"}
    assert cells["0-0-0"]["paper"] == "86.05 ± 0.28"
    assert cells["1-0-0"]["difference"].startswith("+5.00 [4.")
    assert (cells["0-0-1"]["kind"], cells["0-0-1"]["paper"]) == ("alone", "")
    assert cells["1-0-2"]["kind"] == "open"
    missing = cells["1-1-0"]
    assert (missing["kind"], missing["ours"], missing["said"]) == ("missing", "", "not run: data missing")
    assert missing["name"] == "FedAvg, CIFAR-100 (coarse), Concept shift, Acc %"
    assert cells["0-1-1"]["kind"] == "alone", "nothing is published there, so nothing is missing"


def test_what_has_no_value_is_a_dash_or_is_not_told() -> None:
    cells = seen(judged_table())["content"]["cells"]
    assert [value for _, value, _ in cells["1-0-2"]["seeds"]][1] == "-"
    assert cells["0-0-1"]["ours"]
    assert cells["0-0-1"]["difference"] == "", "nothing is published there"


def test_a_column_s_own_measure_and_place_are_told() -> None:
    table = spec.load_spec("fedsac_t2").only(rows=["Local"], columns=["1", "2"])
    cells = tuple(Cell("Local", column.label, "acc", (50.0,), (0,), ("k",)) for column in table.columns)
    runs = [{"key": "k", "column": column.label, "partition": "homo"} for column in table.columns]
    result = TableResult(table, cells, Provenance(scale="quick", substitute="captioned"))
    content = table_view(result, "folder", runs, {}, [])["content"]
    images, captions = content["columns"]
    assert images["label"] == "captioned, homo, in place of homo images"
    assert captions["label"] == "captioned, homo, in place of homo text"
    words = [f"accuracy of the clients of modality {kind}, percent" for kind in ("image", "text")]
    assert [content["cells"][f"0-{j}-0"]["says"] for j in range(2)] == words
    assert [each["says"] for each in content["metrics"]] == ["; ".join(words)]
    assert not any(each["curve"] for each in content["cells"].values()), "curves are of all clients"
    assert seen(judged_table())["content"]["cells"]["0-0-0"]["curve"]


def test_an_exploratory_cell_is_of_a_kind_of_its_own() -> None:
    table = judged_table()
    rows = tuple(dataclasses.replace(row, exploratory="seen before") for row in table.spec.rows)
    shown = seen(dataclasses.replace(table, spec=dataclasses.replace(table.spec, rows=rows)))
    cell = shown["content"]["cells"]["1-0-0"]
    assert (cell["kind"], cell["said"], cell["apart"]) == ("exploratory", "+5.00, different", "seen before")
    assert {kind for kind, _ in shown["counts"].items()} == {"exploratory", "open", "missing"}


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("not run: data missing (get it)", "not run: data missing"),
        ("not run: the paper gives no way to do this", "not run"),
        ("not run yet", "not run yet"),
        ("Diverged: loss is nan", "failed"),
        ("seed 0: Diverged; seed 1: not run yet", "failed"),
    ],
)
def test_a_cell_without_a_value_says_why(reason: str, word: str) -> None:
    table = judged_table()
    cells = tuple(dataclasses.replace(cell, values=(), seeds=(), keys=(), reason=reason) for cell in table.cells)
    shown = seen(dataclasses.replace(table, cells=cells))["content"]["cells"]["0-0-0"]
    assert (shown["kind"], shown["said"]) == ("missing", word)


def test_counts_and_groups() -> None:
    table = seen(judged_table())
    counts = table["counts"]
    assert counts == {"equivalent": 1, "above": 1, "below": 1, "undecidable": 2, "open": 2, "missing": 7}
    assert sum(counts.values()) == sum(cell.published is not None for cell in judged_table().cells)
    assert table["groups"] == (("Fashion-MNIST", 1), ("CIFAR-100 (coarse)", 1))
    assert table["name"] == "FedCollab T1"


def test_a_cell_knows_its_seeds_runs_and_overrides() -> None:
    run = {"key": "Fed0", "rounds": "2", "seconds_total": "1.46", "bytes_up": "1e6", "bytes_down": "2e6"}
    run |= {"partition_hash": "abc", "local_key": "Loc0"}
    table = judged_table()
    first, last = table.spec.columns
    columns = (first, dataclasses.replace(last, rows={"FedProx": ["method.mu=1"]}))
    table = dataclasses.replace(table, spec=dataclasses.replace(table.spec, columns=columns))
    shown = table_view(table, "folder", [{**run, "test_set": "common", "average": "pooled"}], {}, [])
    content = shown["content"]
    assert content["cells"]["1-0-0"]["seeds"] == [
        [0, "51.54", "FedAvg0"],
        [1, "51.64", "FedAvg1"],
        [2, "51.74", "FedAvg2"],
    ]
    assert content["runs"] == {
        "Fed0": {
            "rounds": "2",
            "seconds": "1.46",
            "megabytes": "3",
            "prepared": "-",
            "trained": "-",
            "curve": "acc_on_common_pooled",
            "partition": "abc",
            "local": "Loc0",
        }
    }
    split = {"bytes_up_prepare": "500000", "bytes_down_prepare": "250000"}
    facts = table_view(table, "folder", [{**run, **split}], {}, [])["content"]["runs"]["Fed0"]
    assert [facts[name] for name in ("megabytes", "prepared", "trained")] == ["3", "0.75", "2.25"]
    prepared = [
        table_view(table, "folder", [{**run, **dict.fromkeys(split, text)}], {}, [])["content"]["runs"]["Fed0"][
            "prepared"
        ]
        for text in ("", "0")
    ]
    assert prepared == ["-", "0"], "not known in a row of earlier versions beside newer ones; none at all"
    assert content["rows"][2]["overrides"] == ("method=fedprox", "method.mu=0.1")
    own = content["columns"][1]["own"]
    assert own == [(), (), ("method.mu=1",)]


def test_the_page_names_every_override_of_the_command_line() -> None:
    table = judged_table()
    made = dataclasses.replace(table.provenance, changed=("model=mlp",), varied=("partition_seed=0",))
    content = table_view(dataclasses.replace(table, provenance=made), "folder", [], {}, [])["content"]
    assert (content["changed"], content["varied"]) == (("model=mlp",), ("partition_seed=0",))


def test_a_table_at_other_settings_goes_by_its_own_name() -> None:
    table = judged_table()
    other = dataclasses.replace(table.spec, varies=table.spec.name, name="other")
    assert seen(dataclasses.replace(table, spec=other))["name"] == "other"


def test_curves_and_matrices_are_found_by_the_cell_they_lie_behind() -> None:
    table = judged_table()
    label = table.spec.columns[1].label
    curves = [
        {"row": "FedAvg", "column": label, "seed": "3", "round": "1", "acc_on_local": "12.345678"},
        {"row": "FedAvg", "column": label, "seed": "3", "round": "12345", "acc_on_local": ""},
        {"row": "gone", "column": label, "seed": "3", "round": "2", "acc_on_local": "1"},
    ]
    scores = {f"FedAvg|{label}|3": np.array([50.0, 33.333333, np.nan]), f"gone|{label}|0": np.ones(2)}
    big = np.full((CLIENTS + 10, CLIENTS + 10), 1 / 3)
    big[0, 1], big[0, 2] = np.nan, 0.1
    found = behind(table, curves, {f"FedAvg|{label}|3": big, f"gone|{label}|3": big}, scores)
    assert found["sets"] == ["acc_on_local"]
    assert found["curves"] == {"1|1": {"3": {"round": [1, 12345], "acc_on_local": [12.35, None]}}}
    assert found["clients"] == {"1|1": {"3": [50, 33.33, None]}}
    (matrix,) = found["matrices"].values()
    assert (matrix["seed"], matrix["clients"], len(matrix["W"]), len(matrix["W"][0])) == ("3", 160, 150, 150)
    assert matrix["W"][0][0] * matrix["unit"] == pytest.approx(1 / 3)
    assert matrix["W"][0][1] is None
    assert matrix["W"][0][2] * matrix["unit"] == pytest.approx(0.1, abs=0.5 / 3 / LEVELS)
    assert unpacked(packed(found)) == found


def test_coalitions_stand_together() -> None:
    table = judged_table()
    W = np.kron(np.eye(2), np.full((2, 2), 0.5))[:, [0, 2, 1, 3]][[0, 2, 1, 3]]
    (matrix,) = behind(table, [], {f"FedAvg|{table.spec.columns[0].label}|0": W}, {})["matrices"].values()
    assert matrix["order"] == [0, 2, 1, 3]


def test_a_table_on_other_data_claims_none_of_the_paper_s() -> None:
    table = judged_table()
    made = dataclasses.replace(table.provenance, substitute="digits", scale="quick")
    runs = [{"key": "k", "column": "Label shift", "partition": "label_shift"}]
    shown = table_view(dataclasses.replace(table, provenance=made), "folder", runs, {}, [])
    assert shown["name"] == "fedcollab_t1 on digits"
    assert shown["title"].startswith("fedcollab_t1 on digits, in the place of FedCollab")
    assert shown["title"].endswith("(quick scale)")
    assert shown["groups"] == ()
    (column,) = shown["content"]["columns"]  # the other one did not run
    assert (column["name"], column["note"]) == (
        "digits, label_shift",
        "in place of Fashion-MNIST, Label shift",
    )
    assert shown["content"]["cells"]["1-0-0"]["name"] == "FedAvg, digits, label_shift, Acc %"


def test_the_command_of_a_cell_makes_its_seeds() -> None:
    table = judged_table()
    made = dataclasses.replace(table.provenance, substitute="digits", changed=("method.note='a b'",))
    commands = table_view(dataclasses.replace(table, provenance=made), "folder", [], {}, [])["content"]["commands"]
    assert commands["1-0"] == (
        "python -m fedbench reproduce table=fedcollab_t1 substitute=digits 'method.note='\"'\"'a b'\"'\"'' "
        "rows=2 columns=1 seeds=3"
    )


PLACED = {"ditto": 80.0, "fedavg": 70.0, "local": 60.0}


def federation(out: Path, methods: str = "") -> dict[str, Any]:
    """Three rows with two seeds, and one above all of them that lost a seed."""
    seen = standings.Standing("finetune_head", scores={0: 90.0}, half=math.nan)
    lines = [standings.Standing(row, scores={0: mean - 1, 1: mean + 1}, half=2.0) for row, mean in PLACED.items()]
    table = standings.Table("skew", "", (0, 1), (seen, *lines), 2)
    return report._federation_view(table, out, methods)


def test_a_board_shows_rows_that_lost_seeds_last_and_one_number_a_cell(tmp_path: Path) -> None:
    view = federation(tmp_path / "index.html")
    assert [line["name"] for line in view["lines"]] == ["ditto", "fedavg", "local", "finetune_head"]
    assert [line["lost"] for line in view["lines"]] == [False, False, False, True]
    assert [line["cells"][-1] for line in view["lines"]] == [2, 2, 2, 1], "seeds"
    assert len(report.BOARD_HEADINGS) == 3 + len(view["lines"][0]["cells"]) <= 10


@pytest.mark.parametrize("mean", [0.0, -7.5])  # R2 may be negative
def test_bars_of_means_at_the_end_of_the_axis_are_drawn(mean: float, tmp_path: Path) -> None:
    line = standings.Standing("fedavg", scores={0: mean, 1: mean}, half=0.0)
    view = report._federation_view(standings.Table("skew", "", (0, 1), (line,), 2), tmp_path, "")
    assert (view["low"], view["high"]) == (0, 1)
    assert view["lines"][0]["bar"] == (0.0, 1.0)


def test_a_cost_over_fewer_seeds_says_so(tmp_path: Path) -> None:
    scores, hurt = {seed: 80.0 + seed for seed in range(3)}, {"finetune_all": 9.0, "local": 7.0}
    lines = [
        standings.Standing("ditto", scores=scores, reached=n, megabytes=2.0, seconds=1.5, hurt=hurt) for n in (3, 1)
    ]
    lines.append(standings.Standing("fedavg", scores=scores))
    view = report._federation_view(standings.Table("skew", "", (0, 1, 2), tuple(lines), 3), tmp_path, "")
    costs = [line["cells"][4:6] for line in view["lines"]]
    assert view["lines"][0]["cells"][2] == "7.0", "hurt is against Local, whichever reference comes first"
    assert costs == [("2.0", "1.5"), ("2.0 (1 of 3)", "1.5 (1 of 3)"), ("-", "-")]


def test_local_and_fedavg_are_lines_across_bars_on_one_axis(tmp_path: Path) -> None:
    view = federation(tmp_path / "index.html")
    assert (view["low"], view["high"]) == (65, 92), "five points below the lower quartile; half of the leader above it"
    assert dict(view["marks"]) == {"fedavg": pytest.approx(100 * 5 / 27, abs=0.1), "local": 0}
    assert view["lines"][0]["bar"] == (pytest.approx(100 * 13 / 27, abs=0.1), pytest.approx(100 * 4 / 27, abs=0.1))
    assert view["lines"][2]["bar"] == (0, 1), "cut at the edge, and still seen"


def test_a_method_leads_to_its_page_or_else_to_its_source(tmp_path: Path) -> None:
    out = tmp_path / "results" / "index.html"
    out.parent.mkdir()
    source = federation(out, "../methods")["lines"][3]["page"]
    assert (out.parent / source).resolve() == Path(finetune.__file__).resolve(), "its preset's method"
    (tmp_path / "methods").mkdir()
    (tmp_path / "methods" / "finetune.html").touch()
    assert federation(out, "../methods")["lines"][3]["page"] == "../methods/finetune.html"
    assert report.method_page("a name of no method", out, "") == ""


def test_each_paper_is_a_line_with_its_counts_and_whether_its_method_is_best() -> None:
    table = judged_table()
    made = dataclasses.replace(table.provenance, scale="quick")
    tables = {"fedcollab_t1": table, "fedcollab_t1/quick": dataclasses.replace(table, provenance=made)}
    first, *others = paper_views(tables, {name: seen(each) for name, each in tables.items()})
    values = {"agree": 1, "differ": 2, "undecided": 2}
    published = sum(each.paper == "fedcollab" for each in published_values())
    assert first["counts"] == {**values, "no verdict": published - 5}
    assert [each["name"] for each in first["tables"]] == ["FedCollab T1", "FedCollab T1"]
    assert [each["label"] for each in others] == ["FedSaC", "pFedSim", "SosicFL", "FedReMa", "FLUX"]
    assert all(not each["tables"] and not each["claim"] for each in others)


def test_a_claim_is_read_off_runs_as_published_if_there_are_any() -> None:
    table = spec.load_spec("fedcollab_t2").only(columns=["1"])
    (column,) = table.columns
    best = max(table.rows, key=lambda row: table.published(row, column, table.metrics[0]).mean).label  # type: ignore[union-attr]
    table = dataclasses.replace(table, headline=best)

    def filled(shift: float, scale: str) -> TableResult:
        cells = tuple(
            Cell(row.label, column.label, "acc", (value.mean + shift * (row.label == best),), (0,), ("k",), value)
            for row in table.rows
            if (value := table.published(row, column, table.metrics[0]))
        )
        every = {(cell.row, cell.metric): cell for cell in cells}
        whole = [
            every.get((row.label, metric.name), Cell(row.label, column.label, metric.name))
            for row in table.rows
            for metric in table.metrics
        ]
        return TableResult(table, tuple(whole), Provenance(scale=scale))

    assert (
        claim([filled(0, "paper"), filled(-50, "quick")]) == f"{best} is best: holds in 1 of 1 column run as published"
    )
    elsewhere = f"Not wholly run as published. {best} is best: holds in 0 of 1 column elsewhere"
    assert claim([filled(-50, "quick")]) == elsewhere
    assert claim([]) == ""

    def partly(table: TableResult) -> TableResult:
        lost = next(row.label for row in table.spec.rows if row.label != best)
        cells = (dataclasses.replace(cell, values=() if cell.row == lost else cell.values) for cell in table.cells)
        return dataclasses.replace(table, cells=tuple(cells))

    assert claim([partly(filled(0, "paper"))]) == "", "the row that was not run could be better"
    assert claim([partly(filled(0, "paper")), filled(-50, "quick")]) == elsewhere
    assert claim([partly(filled(-50, "paper"))]) == f"{best} is best: holds in 0 of 1 column run as published"
