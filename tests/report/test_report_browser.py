"""The page in headless Chromium: filters, keyboard, a cell's figures, phones, colours, and labels that stay text."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedbench.cli import reproduce
from fedbench.report.build import build
from tests.report.toys import CLOSE, TAG, stored


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """The toy tables on disk."""
    return stored(tmp_path)


sync_api = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium is installed (Debian: apt install chromium)"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[sync_api.Browser]:
    root = hasattr(os, "getuid") and os.getuid() == 0
    with sync_api.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"] if root else [])
        yield started
        started.close()


@pytest.fixture
def opened(browser: sync_api.Browser, results: Path) -> Iterator[sync_api.Page]:
    """The page of the toy tables; a test fails if anything was logged or asked for."""
    yield from _opened(browser, results)


def _opened(browser: sync_api.Browser, results: Path, **options: object) -> Iterator[sync_api.Page]:
    out = results / "index.html"
    build(results, out)
    context = browser.new_context(**options)
    page, wrong = context.new_page(), []
    page.on("console", lambda message: wrong.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: wrong.append(request.url) if request.url.startswith("http") else None)
    page.goto(out.as_uri())
    yield page
    context.close()
    assert wrong == []


def _shown(page: sync_api.Page, selector: str) -> list[str]:
    return [each.inner_text() for each in page.locator(selector).all() if each.is_visible()]


def test_filters_narrow_tables_columns_and_rows(opened: sync_api.Page) -> None:
    assert opened.locator("#shown").inner_text() == "2 of 2 tables, 19 cells"
    opened.select_option("[name=paper]", "fedcollab")
    assert len(_shown(opened, "section h2")) == 1
    opened.select_option("[name=dataset]", "fashion_mnist")
    assert _shown(opened, "#t0 thead tr:first-child th") == ["Method", "Fashion-MNIST"]
    opened.select_option("[name=method]", "FedAvg")
    assert _shown(opened, "#t0 tbody th") == ["FedAvg"]
    assert opened.locator("#shown").inner_text() == "1 of 2 tables, 3 cells"
    opened.select_option("[name=verdict]", "equivalent")
    assert opened.locator("#none").is_visible()
    opened.reload()
    assert opened.locator("#none").is_visible()  # the address keeps the filters
    opened.click("#show-all")
    assert opened.locator("#shown").inner_text() == "2 of 2 tables, 19 cells"
    assert "paper=" not in opened.url


def test_filter_by_verdict(opened: sync_api.Page) -> None:
    opened.select_option("[name=verdict]", "below")
    assert _shown(opened, "#t0 tbody th .name") == ["FedProx"]
    assert opened.locator("#shown").inner_text() == "1 of 2 tables, 1 cells"


def test_hover_tells_seeds_and_runs(opened: sync_api.Page) -> None:
    opened.hover("#t0 [data-cell='1-0-0']")
    told = opened.locator("#tip").inner_text()
    assert "FedAvg: Fashion-MNIST, Label shift, Acc %" in told
    assert "seed 0: 51.54, seed 1: 51.64, seed 2: 51.74" in told
    assert "Fed0 Fed1 Fed2" in told
    assert "difference +5.00 [4." in told
    assert "method=fedavg" in told


def test_keyboard_alone_reaches_opens_and_leaves_a_cell(opened: sync_api.Page) -> None:
    opened.locator("#show-all").focus()
    current = "document.activeElement.dataset.cell"
    for _ in range(10):
        opened.keyboard.press("Tab")
        if opened.evaluate(current):
            break
    assert opened.evaluate(current) == "0-0-0"
    for key in ("ArrowDown", "ArrowRight", "ArrowLeft", "End", "ArrowRight", "Home"):
        opened.keyboard.press(key)
    assert opened.evaluate(current) == "1-0-0"
    assert opened.locator("#tip").is_visible()
    opened.keyboard.press("Escape")
    assert opened.locator("#tip").is_hidden()
    opened.keyboard.press("Enter")
    assert opened.locator("dialog").is_visible()
    opened.keyboard.press("Escape")
    assert opened.locator("dialog").is_hidden()
    assert opened.evaluate(current) == "1-0-0"
    opened.keyboard.press("Tab")
    opened.keyboard.press("Tab")
    assert opened.evaluate(current) is None  # one stop a table: its details come next


def test_a_cell_shows_curves_matrix_and_configuration(opened: sync_api.Page) -> None:
    opened.click("#t0 [data-cell='1-0-0']")
    opened.wait_for_selector("#matrix .heatmaplayer image")
    assert opened.locator("#curves .scatterlayer .trace").count() == 3  # two seeds and their mean
    lines = opened.evaluate("document.getElementById('curves').data.map((line) => [line.name, line.y])")
    assert lines == [["seed 0", [10, 20]], ["seed 1", [11, 21]], ["mean", [10.5, 20.5]]]
    assert opened.evaluate("document.getElementById('matrix').data[0].z") == [[0.25] * 4] * 4
    assert "1.5" in opened.locator("#facts").inner_text()
    assert "partition=label_shift" in opened.locator("#config").inner_text()
    opened.select_option("#lines", "rows")
    opened.wait_for_function("document.getElementById('curves').data.length === 2")
    assert opened.evaluate("document.getElementById('curves').data[0].name") == "Local"
    opened.click("#close")
    opened.click("#t0 [data-cell='2-0-0']")
    opened.wait_for_selector("#curves p")
    assert "No learning curve" in opened.locator("#curves").inner_text()
    assert "no collaboration matrix" in opened.locator("#matrix").inner_text()


def test_labels_stay_text_in_the_browser(opened: sync_api.Page) -> None:
    opened.hover("#t1 [data-cell]")
    assert TAG in opened.locator("#tip").inner_text()
    opened.click("#t1 [data-cell]")
    opened.wait_for_selector("#matrix .heatmaplayer image")
    opened.select_option("#lines", "rows")
    opened.wait_for_function("document.getElementById('curves').data.length === 1")
    assert TAG in (opened.locator("#curves .legendtext").text_content() or "")
    assert CLOSE in opened.locator("#config").inner_text()
    assert opened.locator("img[src=x]").count() == 0
    assert opened.title() == "fedbench: published tables and ours"


@pytest.mark.parametrize("width", [390, 320])
def test_a_phone_scrolls_tables_in_their_boxes(browser: sync_api.Browser, results: Path, width: int) -> None:
    size = {"width": width, "height": 800}
    for page in _opened(browser, results, viewport=size, has_touch=True, is_mobile=True):
        wide = "document.documentElement.scrollWidth"
        assert page.evaluate(wide) == width
        assert page.evaluate("document.querySelector('#t0 .scroll').scrollWidth") > width
        page.tap("#t0 [data-cell='1-0-0']")
        page.wait_for_selector("#matrix .heatmaplayer image")
        dialog = page.evaluate("[document.getElementById('cell').scrollWidth, innerWidth]")
        assert dialog == [width, width]


def test_colours_follow_the_system_and_the_switch(browser: sync_api.Browser, results: Path) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    for page in _opened(browser, results, color_scheme="dark"):
        dark = page.evaluate(paper)
        page.select_option("#theme", "light")
        light = page.evaluate(paper)
        assert dark != light
        page.emulate_media(color_scheme="light")
        page.select_option("#theme", "dark")
        assert page.evaluate(paper) == dark
        page.reload()
        assert page.evaluate(paper) == dark
        page.select_option("#theme", "")
        assert page.evaluate(paper) == light


@pytest.mark.slow
def test_real_results(browser: sync_api.Browser, tmp_path: Path) -> None:
    asked = [
        "table=fedcollab_t1",
        "columns=1",
        "rows=Local,FedAvg,FedAvg+FedCollab",
        "seeds=2",
        "scale=smoke",
    ]
    where = ["substitute=digits", f"results={tmp_path}", f"runs_dir={tmp_path / 'runs'}", "jobs=1"]
    assert reproduce.main([*asked, *where]) == 0
    for page in _opened(browser, tmp_path):
        assert "on digits instead of the paper's data" in page.locator("section h2").inner_text()
        kinds = {cell.get_attribute("data-kind") for cell in page.locator("td").all()}
        assert kinds == {"open", "alone", "missing"}  # never a verdict on substitute data
        page.select_option("[name=dataset]", "digits")
        assert page.locator("#shown").inner_text().startswith("1 of 1 tables")
        page.click("[data-cell='2-0-0']")
        page.wait_for_selector("#curves .scatterlayer")
        scores = page.evaluate("document.getElementById('curves').data.map((line) => line.y.at(-1))")
        assert len(scores) == 3
        assert all(0 <= score <= 100 for score in scores)
        page.wait_for_selector("#matrix .heatmaplayer image, #matrix p")
