"""The page as a file: what it says of every cell, that it is whole in itself, and that labels stay text."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markupsafe import escape

from fedbench.cli import program
from fedbench.core.errors import FedbenchError
from fedbench.papers import standings, store
from fedbench.papers.report import build_page, clients_of
from tests.papers.report.toys import CLOSE, TAG, drawn, judged_table, stored
from tests.papers.tables.toys import recorded

ROOT = Path(__file__).parents[3]


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


def test_every_column_is_explained_on_hover_and_in_a_list(results: Path, page: Page) -> None:
    """Each metric by what it is, each column by its settings."""
    for folder in ("fedcollab_t1", "hostile"):
        html, content = drawn(results / "index.html", folder)
        heads = [attributes for tag, attributes in Page(html).elements if tag == "th" and "scope" in attributes]
        assert sum("title" in each for each in heads) >= len(content["columns"])
        for each in [*content["metrics"], *content["columns"]]:
            assert f"</b>: {escape(each['says'])}</li>" in html


def test_only_the_page_s_own_scripts_may_run(page: Page) -> None:
    (policy,) = (a["content"] or "" for tag, a in page.elements if tag == "meta" and "http-equiv" in a)
    assert "default-src 'none'" in policy
    assert "unsafe-inline" not in policy.split("script-src")[1]
    (running,) = (text for attributes, text in page.scripts if not attributes.get("type"))
    allowed = re.findall(r"sha256-([^']+)'", policy)
    assert allowed == [base64.b64encode(hashlib.sha256(running.encode()).digest()).decode()]


def test_labels_stay_text(results: Path, page: Page) -> None:
    for elements in (page.elements, Page(drawn(results / "index.html", "hostile")[0]).elements):
        assert not [tag for tag, _ in elements if tag == "img"], "the label's is text"
        assert not [name for _, attributes in elements for name in attributes if name.startswith("on")]
    assert not [text for _, text in page.scripts if text.startswith("document.title")]
    content = drawn(results / "index.html", "hostile")[1]
    assert content["rows"] == [{"label": TAG, "overrides": [f"method={CLOSE}"]}]
    assert content["cells"]["0-0-0"]["name"] == f"{TAG}, {TAG}, {CLOSE}, {TAG}"


def test_files_that_were_drawn_are_linked_from_where_the_page_lies(results: Path) -> None:
    elsewhere = results / "site" / "a.html"
    build_page(results, elsewhere)
    text = elsewhere.read_text(encoding="utf-8")
    assert 'href="../tables/fedcollab_t1/table.md"' in text
    assert "What was run, and what came out" not in text, "there is no such page"


@pytest.mark.slow
def test_a_paper_and_its_tables_lead_to_their_pages_of_the_site_where_these_are(tmp_path: Path) -> None:
    stored(tmp_path)
    (tmp_path / "fedcollab.md").touch()
    build_page(tmp_path, tmp_path / "index.html")
    assert 'href="fedcollab.md"' in (tmp_path / "index.html").read_text(encoding="utf-8")
    for page in ("fedcollab.html", "tables/fedcollab_t1/table.html"):
        (tmp_path / page).touch()
    build_page(tmp_path, tmp_path / "index.html")
    text = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert 'href="fedcollab.html"' in text
    assert 'href="tables/fedcollab_t1/table.html"' in text


@pytest.mark.slow
def test_the_same_results_give_the_same_page(results: Path) -> None:
    for name in ("a.html", "b.html"):
        build_page(results, results / name)
    assert (results / "a.html").read_bytes() == (results / "b.html").read_bytes()


def test_a_leaderboard_is_a_part_of_the_page(results: Path, tmp_path: Path) -> None:
    shutil.copytree(results, tmp_path / "results")
    board = recorded(tmp_path / "results", {"local": (70.0, 71.0, 72.0), "fedavg": (80.0, 81.0, 82.1)})
    build_page(tmp_path / "results", tmp_path / "index.html")
    assert 'id="board-' not in (tmp_path / "index.html").read_text(encoding="utf-8"), "its runs go on"
    (board / standings.PAGE).touch()
    build_page(tmp_path / "results", tmp_path / "index.html")
    text = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert text.index('id="board-made"') < text.index('id="papers"'), "it is the first thing"
    assert "<h2>Made by &lt;hand&gt;</h2>" in text
    row = " ".join(text[text.index(">fedavg</a></th>") :].partition("</tr>")[0].split())
    assert row.startswith('>fedavg</a></th> <td class="number">81.0</td>')
    assert 'aria-label="81.03 ± 2.61"' in row
    assert '</td> <td class="number">●</td>' in row
    assert 'href="results/leaderboard/made/board.zip"' in text
    source = Path(text[: text.index(">fedavg</a>")].rpartition('href="')[2].rstrip('"'))
    assert (tmp_path / source).resolve() == ROOT / "fedbench" / "methods" / "fedavg.py"
    assert "board-" not in (results / "index.html").read_text(encoding="utf-8").partition("<body>")[2]


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
    html, _ = drawn(tmp_path / "index.html", "on_digits")
    assert "<small>in place of Fashion-MNIST, Label shift</small>" in html
    assert re.findall(r"<h3>([^,]+), in the place of FedCollab", html) == ["fedcollab_t1 on digits"]
