"""The page as a file: what it says of every cell, that it is whole in itself, and that labels stay text."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import hashlib
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markupsafe import escape

from fedbench.cli import program
from fedbench.core.errors import FedbenchError
from fedbench.papers import store
from fedbench.papers.report import build_page, clients_of
from tests.papers.report.toys import CLOSE, TAG, judged_table, stored
from tests.papers.tables.toys import recorded


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
    return Page((results / "index.html").read_text(encoding="utf-8"))


def test_accuracies_by_client_are_those_of_the_run_whichever_table_kept_them(tmp_path: Path) -> None:
    folders = {name: stored(tmp_path) / "tables" / name for name in ("again", "fedcollab_t1")}
    runs = store.read_rows(folders["fedcollab_t1"])
    store.save_table(folders["again"], judged_table(), runs)
    here, kept = clients_of(folders, {"again": [*runs, {**runs[0], "key": "alone"}], "fedcollab_t1": runs}).values()
    assert store.read_arrays(folders["again"], store.CLIENTS) == {}
    assert here.keys() == kept.keys() == store.read_arrays(folders["fedcollab_t1"], store.CLIENTS).keys()
    assert all((here[name] == kept[name]).all() for name in kept)
    assert clients_of({"again": folders["again"]}, {"again": runs}) == {"again": {}}


def test_the_page_loads_nothing_from_elsewhere(page: Page, results: Path) -> None:
    for tag, attributes in page.elements:
        assert tag not in {"link", "iframe", "object", "embed", "base"}
        assert (attributes.get("src") or "data:").startswith("data:"), (tag, attributes)
        address = attributes.get("href", "#") or ""
        assert address.startswith("#") or (results / address).is_file()


def test_every_column_is_explained_on_hover_and_in_a_legend(page: Page, results: Path) -> None:
    """Each metric by what it is, each column by its settings."""
    heads = [attributes for tag, attributes in page.elements if tag == "th" and "data-column" in attributes]
    assert heads
    assert all(attributes.get("title") for attributes in heads)
    text = (results / "index.html").read_text(encoding="utf-8")
    for table in json.loads(next(content for a, content in page.scripts if a.get("id") == "content")):
        for each in [*table["metrics"], *table["columns"]]:
            assert f"</b>: {escape(each['says'])}</li>" in text


def test_what_runs_took_is_time_and_no_work_of_cores(results: Path) -> None:
    text = (results / "index.html").read_text(encoding="utf-8")
    assert "</b> hours of run time." in text
    assert ">Hours</button>" in text


def test_only_the_page_s_own_scripts_may_run(page: Page) -> None:
    (policy,) = (a["content"] or "" for tag, a in page.elements if tag == "meta" and "http-equiv" in a)
    assert "default-src 'none'" in policy
    assert "unsafe-inline" not in policy.split("script-src")[1]
    allowed = set(re.findall(r"sha256-([^']+)'", policy))
    running = [text for attributes, text in page.scripts if not attributes.get("type")]
    (library,) = (text for attributes, text in page.scripts if attributes.get("id") == "plotly")
    running.append(gzip.decompress(base64.b64decode(library)).decode())
    assert allowed == {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in running}
    assert len(running) == 2


def test_labels_stay_text(page: Page) -> None:
    assert not [tag for tag, _ in page.elements if tag == "img"], "the label's is text"
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert not [text for _, text in page.scripts if text.startswith("document.title")]
    (content,) = (json.loads(text) for attributes, text in page.scripts if attributes.get("id") == "content")
    assert content[1]["rows"] == [{"label": TAG, "overrides": [f"method={CLOSE}"]}]
    assert content[1]["cells"]["0-0-0"]["name"] == f"{TAG}, {TAG}, {CLOSE}, {TAG}"


def test_files_that_were_drawn_are_linked_from_where_the_page_lies(results: Path) -> None:
    elsewhere = results / "site" / "a.html"
    build_page(results, elsewhere)
    assert 'href="../tables/fedcollab_t1/table.md"' in elsewhere.read_text(encoding="utf-8")


def test_the_same_results_give_the_same_page(results: Path) -> None:
    for name in ("a.html", "b.html"):
        build_page(results, results / name)
    assert (results / "a.html").read_bytes() == (results / "b.html").read_bytes()


def test_a_leaderboard_is_a_part_of_the_page(results: Path, tmp_path: Path) -> None:
    shutil.copytree(results, tmp_path / "results")
    recorded(tmp_path / "results", {"local": (70.0, 71.0, 72.0), "fedavg": (80.0, 81.0, 82.1)})
    build_page(tmp_path / "results", tmp_path / "index.html")
    text = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert '<a href="#board-made">Leaderboard made</a>' in text
    assert '<h2 id="board-made-title">Made by &lt;hand&gt;</h2>' in text
    row = " ".join(text[text.index('<th scope="row">fedavg</th>') :].partition("</tr>")[0].split())
    assert row.startswith('<th scope="row">fedavg</th> <td class="number">81.0</td>')
    assert 'aria-label="81.03 ± 2.61"' in row
    assert '</td> <td class="number">●</td>' in row
    assert 'href="results/leaderboard/made/board.zip"' in text
    assert "#board-" not in (results / "index.html").read_text(encoding="utf-8")


def test_no_table_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FedbenchError, match="no filled table"):
        build_page(tmp_path, tmp_path / "index.html")
    assert program.main(["report", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_command_line(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["report", str(results), "--out", str(results / "x.html")]) == 0
    assert "2 tables" in capsys.readouterr().out
    assert (results / "x.html").is_file()
    assert (
        program.main(["report", str(results), "--out", str(results / "tables" / "hostile" / "table.zip" / "x.html")])
        == 2
    )
    assert "--out" in capsys.readouterr().err


def test_other_data_is_named_where_the_paper_s_stood(tmp_path: Path) -> None:
    table = judged_table()
    made = dataclasses.replace(table.provenance, substitute="digits")
    folder = tmp_path / "tables" / "on_digits"
    store.save_table(folder, dataclasses.replace(table, provenance=made), [])
    build_page(tmp_path, tmp_path / "index.html")
    text = (tmp_path / "index.html").read_text(encoding="utf-8").partition("<script")[0]
    assert "<small>in place of Fashion-MNIST, Label shift</small>" in text
    assert re.findall(r"<h2 id[^>]*>([^,]+), in the place of FedCollab", text) == ["fedcollab_t1 on digits"]
    assert '<option value="digits">' in text
    assert '<option value="fashion_mnist">' not in text
