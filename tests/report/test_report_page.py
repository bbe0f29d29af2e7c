"""The page as a file: what it says of every cell, that it is whole in itself, and that labels stay text."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedbench.report.curves import CLIENTS, LEVELS, packed, runs_behind

from fedbench.core.errors import FedbenchError
from fedbench.report.__main__ import main
from fedbench.report.build import build
from fedbench.report.view import KINDS, TableView, view
from fedbench.tables.result import TableResult
from tests.report.toys import CLOSE, TAG, judged_table, stored


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """The toy tables on disk."""
    return stored(tmp_path)


class Page(HTMLParser):
    """Elements with their attributes, and the text inside script elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self._script: dict[str, str | None] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self._script = dict(attrs)
            self.scripts.append((self._script, ""))

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._script = None

    def handle_data(self, data: str) -> None:
        if self._script is not None:
            self.scripts[-1] = (self._script, self.scripts[-1][1] + data)


@pytest.fixture
def page(results: Path) -> Page:
    assert build(results, results / "index.html") == 2
    return Page((results / "index.html").read_text(encoding="utf-8"))


def unpacked(text: str) -> Any:
    return json.loads(gzip.decompress(base64.b64decode(text)))


def seen(table: TableResult) -> TableView:
    return view(table, "t0", "folder", [], {}, [])


def test_every_cell_has_its_verdict_as_colour_sign_and_word() -> None:
    cells = seen(judged_table()).content["cells"]
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


def test_an_exploratory_cell_is_of_a_kind_of_its_own() -> None:
    table = judged_table()
    rows = tuple(dataclasses.replace(row, exploratory="seen before") for row in table.spec.rows)
    shown = seen(dataclasses.replace(table, spec=dataclasses.replace(table.spec, rows=rows)))
    cell = shown.content["cells"]["1-0-0"]
    assert (cell["kind"], cell["said"], cell["apart"]) == ("exploratory", "+5.00, different", "seen before")
    assert {kind for kind, _ in shown.counts} == {"exploratory", "open", "missing"}


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
    cells = tuple(
        dataclasses.replace(cell, values=(), seeds=(), keys=(), reason=reason) for cell in table.cells
    )
    shown = seen(dataclasses.replace(table, cells=cells)).content["cells"]["0-0-0"]
    assert (shown["kind"], shown["said"]) == ("missing", word)


def test_counts_groups_and_data_sets() -> None:
    table = seen(judged_table())
    counts = dict(table.counts)
    assert counts == {"equivalent": 1, "above": 1, "below": 1, "inconclusive": 2, "open": 2, "missing": 7}
    assert sum(counts.values()) == sum(cell.published is not None for cell in judged_table().cells)
    assert table.groups == (("Fashion-MNIST", (0,)), ("CIFAR-100 (coarse)", (1,)))
    assert [column["datasets"] for column in table.content["columns"]] == [("fashion_mnist",), ("cifar100",)]
    assert table.name == "FedCollab T1"


def test_a_cell_knows_its_seeds_runs_and_overrides() -> None:
    run = {"key": "Fed0", "rounds": "2", "seconds_total": "1.46", "bytes_up": "1e6", "bytes_down": "2e6"}
    table = judged_table()
    first, last = table.spec.columns
    columns = (first, dataclasses.replace(last, rows={"FedProx": ["method.mu=1"]}))
    table = dataclasses.replace(table, spec=dataclasses.replace(table.spec, columns=columns))
    shown = view(table, "t0", "folder", [{**run, "test_set": "common", "average": "pooled"}], {}, [])
    content = shown.content
    assert content["cells"]["1-0-0"]["seeds"] == [
        [0, "51.54", "Fed0"],
        [1, "51.64", "Fed1"],
        [2, "51.74", "Fed2"],
    ]
    assert content["runs"] == {"Fed0": ["2", "1.5", "3.0", "acc_on_common_pooled"]}
    assert content["rows"][2]["overrides"] == ("method=fedprox", "method.mu=0.1")
    own = content["columns"][1]["own"]
    assert own == [(), (), ("method.mu=1",)]


def test_the_page_names_every_override_of_the_command_line() -> None:
    table = judged_table()
    made = dataclasses.replace(table.circumstances, changed=("model=mlp",), varied=("partition_seed=0",))
    content = view(dataclasses.replace(table, circumstances=made), "t0", "folder", [], {}, []).content
    assert (content["changed"], content["varied"]) == (("model=mlp",), ("partition_seed=0",))


def test_a_table_at_other_settings_goes_by_its_own_name() -> None:
    table = judged_table()
    other = dataclasses.replace(table.spec, varies=table.spec.name, name="other")
    assert seen(dataclasses.replace(table, spec=other)).name == "other"


def test_curves_and_matrices_are_found_by_the_cell_they_lie_behind() -> None:
    table = judged_table()
    label = table.spec.columns[1].label
    curves = [
        {"row": "FedAvg", "column": label, "seed": "3", "round": "1", "acc_on_local": "12.345678"},
        {"row": "FedAvg", "column": label, "seed": "3", "round": "2", "acc_on_local": ""},
        {"row": "gone", "column": label, "seed": "3", "round": "2", "acc_on_local": "1"},
    ]
    big = np.full((CLIENTS + 10, CLIENTS + 10), 1 / 3)
    big[0, 1], big[0, 2] = np.nan, 0.1
    found = runs_behind(table, curves, {f"FedAvg|{label}|3": big, f"gone|{label}|3": big})
    assert found["sets"] == ["acc_on_local"]
    assert found["curves"] == {"1|1": {"3": {"round": [1, 2], "acc_on_local": [12.35, None]}}}
    (matrix,) = found["matrices"].values()
    assert (matrix["seed"], matrix["clients"], len(matrix["W"]), len(matrix["W"][0])) == ("3", 160, 150, 150)
    assert matrix["W"][0][0] * matrix["unit"] == pytest.approx(1 / 3)
    assert matrix["W"][0][1] is None
    assert matrix["W"][0][2] * matrix["unit"] == pytest.approx(0.1, abs=0.5 / 3 / LEVELS)
    assert unpacked(packed(found)) == found


def test_the_page_loads_nothing_from_elsewhere(page: Page, results: Path) -> None:
    for tag, attributes in page.elements:
        assert tag not in {"link", "iframe", "object", "embed", "base"}
        assert "src" not in attributes, (tag, attributes)
        address = attributes.get("href", "#") or ""
        assert address.startswith("#") or (results / address).is_file()


def test_only_the_page_s_own_scripts_may_run(page: Page) -> None:
    (policy,) = (a["content"] or "" for tag, a in page.elements if tag == "meta" and "http-equiv" in a)
    assert "default-src 'none'" in policy
    assert "unsafe-inline" not in policy.split("script-src")[1]
    allowed = set(re.findall(r"sha256-([^']+)'", policy))
    running = [text for attributes, text in page.scripts if not attributes.get("type")]
    (library,) = (text for attributes, text in page.scripts if attributes.get("id") == "plotly")
    running.append(gzip.decompress(base64.b64decode(library)).decode())
    assert allowed == {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in running}
    assert len(running) == 3


def test_labels_stay_text(page: Page) -> None:
    assert "img" not in {tag for tag, _ in page.elements}
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert not [text for _, text in page.scripts if text.startswith("document.title")]
    (content,) = (json.loads(text) for attributes, text in page.scripts if attributes.get("id") == "content")
    assert content[1]["rows"] == [{"label": TAG, "overrides": [f"method={CLOSE}"]}]
    assert content[1]["cells"]["0-0-0"]["name"] == f"{TAG}, {TAG}, {CLOSE}, {TAG}"


def test_files_that_were_drawn_are_linked_from_where_the_page_lies(results: Path) -> None:
    elsewhere = results / "site" / "a.html"
    build(results, elsewhere)
    assert 'href="../tables/fedcollab_t1/table.md"' in elsewhere.read_text(encoding="utf-8")


def test_the_same_results_give_the_same_page(results: Path) -> None:
    for name in ("a.html", "b.html"):
        build(results, results / name)
    assert (results / "a.html").read_bytes() == (results / "b.html").read_bytes()


def test_no_table_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FedbenchError, match="no filled table"):
        build(tmp_path, tmp_path / "index.html")
    assert main([str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_command_line(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(results), "--out", str(results / "x.html")]) == 0
    assert "2 tables" in capsys.readouterr().out
    assert (results / "x.html").is_file()
    assert main([str(results), "--out", str(results / "tables" / "hostile" / "table.json" / "x.html")]) == 2
    assert "--out" in capsys.readouterr().err
