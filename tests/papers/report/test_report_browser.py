"""The page in headless Chromium: filters, keyboard, a cell's figures, phones, colours, and labels that stay text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedbench.cli import program
from fedbench.papers.report import build_page
from tests.papers.report import browsing
from tests.papers.report.browsing import shown
from tests.papers.report.toys import CLOSE, TAG

pytestmark = browsing.needed
T, OTHER = "#table-fedcollab_t1", "#table-hostile"


def test_filters_narrow_tables_columns_and_rows(opened: Any) -> None:
    assert opened.locator("#shown").inner_text() == "2 of 2 tables, 19 cells"
    opened.select_option("[name=paper]", "fedcollab")
    assert len(shown(opened, "#tables h2")) == 1
    opened.select_option("[name=dataset]", "fashion_mnist")
    assert shown(opened, f"{T} thead tr:first-child th") == ["Method", "Fashion-MNIST"]
    opened.select_option("[name=method]", "FedAvg")
    assert shown(opened, f"{T} tbody th") == ["FedAvg"]
    assert opened.locator("#shown").inner_text() == "1 of 2 tables, 3 cells"
    opened.select_option("[name=verdict]", "equivalent")
    assert opened.locator("#none").is_visible()
    opened.reload()
    assert opened.locator("#none").is_visible()  # the address keeps the filters
    opened.click("#show-all")
    assert opened.locator("#shown").inner_text() == "2 of 2 tables, 19 cells"
    assert "paper=" not in opened.url


def test_filter_by_verdict(opened: Any) -> None:
    opened.select_option("[name=verdict]", "below")
    assert shown(opened, f"{T} tbody th .name") == ["FedProx"]
    assert opened.locator("#shown").inner_text() == "1 of 2 tables, 1 cells"


@pytest.mark.slow
def test_hover_tells_seeds_and_runs(opened: Any) -> None:
    opened.hover(f"{T} [data-cell='1-0-0']")
    told = opened.locator("#tip").inner_text()
    assert "FedAvg: Fashion-MNIST, Label shift, Acc %" in told
    assert "seed 0: 51.54, seed 1: 51.64, seed 2: 51.74" in told
    assert "FedAvg0 FedAvg1 FedAvg2" in told
    assert "difference +5.00 [4." in told
    assert "method=fedavg" in told


@pytest.mark.slow
def test_keyboard_alone_reaches_opens_and_leaves_a_cell(opened: Any) -> None:
    opened.locator("#show-all").focus()
    current = "document.activeElement.dataset.cell"
    for _ in range(10):
        opened.keyboard.press("Tab")
        if opened.evaluate(current):
            break
    assert opened.evaluate(current) == "0-0-0"
    for key in ("ArrowDown", "ArrowRight", "ArrowLeft", "End", "ArrowRight", "Home"):
        opened.keyboard.press(key)
    assert opened.evaluate("document.activeElement.dataset.pick") == "1"
    opened.keyboard.press("ArrowRight")
    assert opened.evaluate(current) == "1-0-0"
    assert opened.locator("#tip").is_visible()
    opened.keyboard.press("Escape")
    assert opened.locator("#tip").is_hidden()
    opened.keyboard.press("Enter")
    assert opened.locator("#cell").is_visible()
    opened.keyboard.press("Escape")
    assert opened.locator("#cell").is_hidden()
    assert opened.evaluate(current) == "1-0-0"
    opened.keyboard.press("Tab")
    opened.keyboard.press("Tab")
    assert opened.evaluate(current) is None  # one stop a table: its details come next


def test_a_cell_shows_curves_matrix_and_configuration(opened: Any) -> None:
    opened.click(f"{T} [data-cell='1-0-0']")
    opened.wait_for_selector("#matrix .heatmaplayer image")
    assert opened.locator("#curves .scatterlayer .trace").count() == 3  # two seeds and their mean
    lines = opened.evaluate("document.getElementById('curves').data.map((line) => [line.name, line.y])")
    assert lines == [["seed 0", [10, 20]], ["seed 1", [11, 21]], ["mean", [10.5, 20.5]]]
    assert opened.evaluate("document.getElementById('matrix').data[0].y") == ["0", "2", "1", "3"]
    whole, nothing = [0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]
    assert opened.evaluate("document.getElementById('matrix').data[0].z") == [whole, whole, nothing, nothing]
    opened.select_option("#order", "number")
    opened.wait_for_function("() => document.getElementById('matrix').data[0].y[1] === '1'")
    opened.wait_for_selector("#map .scatterlayer")
    assert opened.evaluate("document.getElementById('map').data[0].text") == ["0, 2", "1, 3"]
    assert opened.evaluate("document.getElementById('gain').data[0].x") == ["3", "0", "1", "2"]
    assert opened.evaluate("document.getElementById('gain').data[0].y") == [10, 5, 0, -2]
    assert "1.5" in opened.locator("#facts").inner_text()
    assert "partition=fedcollab_label_shift_seed0" in opened.locator("#config").inner_text()
    opened.select_option("#lines", "rows")
    opened.wait_for_function("() => document.getElementById('curves').data.length === 2")
    assert opened.evaluate("document.getElementById('curves').data[0].name") == "Local"
    opened.click("#cell .close")
    opened.click(f"{T} [data-cell='0-0-0']")
    opened.wait_for_selector("#gain p")
    assert opened.locator("#gain").inner_text() == "This is Local, which the others are compared with."
    opened.click("#cell .close")
    opened.click(f"{T} [data-cell='2-0-0']")
    opened.wait_for_selector("#curves p")
    assert "No learning curve" in opened.locator("#curves").inner_text()
    assert "no collaboration matrix" in opened.locator("#matrix").inner_text()


def test_no_two_of_many_lines_or_marks_look_alike(opened: Any) -> None:
    for pattern in ("dash", "symbol"):
        looks = f"Array.from({{ length: 64 }}, (_, i) => `${{Plots.colour(i)}} ${{Plots.{pattern}(i)}}`)"
        assert len(set(opened.evaluate(looks))) == 64, pattern


def test_runs_that_were_not_scored_on_a_set_leave_words_and_no_empty_axes(opened: Any) -> None:
    data = "{ curves: { '0|0': { 0: { round: [1, 2], acc_on_x: [null, null] } } } }"
    run = f"{{ name: 'a', table: tables.get('fedcollab_t1'), data: {data}, cell: [0, 0] }}"
    opened.evaluate(f"Curves.overlaid($('overlaid'), [{run}], {{ set: 'acc_on_x', across: 'round' }})")
    assert "No learning curve of these runs" in (opened.locator("#overlaid").text_content() or "")


@pytest.mark.slow
def test_labels_stay_text_in_the_browser(opened: Any) -> None:
    opened.hover(f"{OTHER} [data-cell]")
    assert TAG in opened.locator("#tip").inner_text()
    opened.click(f"{OTHER} [data-cell]")
    opened.wait_for_selector("#matrix .heatmaplayer image")
    opened.select_option("#lines", "rows")
    opened.wait_for_function("() => document.getElementById('curves').data.length === 1")
    assert TAG in (opened.locator("#curves .legendtext").text_content() or "")
    assert CLOSE in opened.locator("#config").inner_text()
    assert opened.locator("img[src=x]").count() == 0
    assert opened.title() == "fedbench: published tables and ours"


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 320])
def test_a_phone_scrolls_tables_in_their_boxes(browser: Any, results: Path, width: int) -> None:
    size = {"width": width, "height": 800}
    for page in browsing.opened(browser, results, viewport=size, has_touch=True, is_mobile=True):
        wide = "document.documentElement.scrollWidth"
        assert page.evaluate(wide) == width
        assert page.evaluate("document.querySelector('#table-fedcollab_t1 .scroll').scrollWidth") > width
        name = page.locator(".overview small").first  # of settings, which are as long as the command line made them
        name.evaluate("each => each.textContent = 'partition.num_clients=10-'.repeat(9)")
        assert name.evaluate("each => [each.scrollWidth, each.scrollHeight]") == name.evaluate(
            "each => [each.clientWidth, each.clientHeight]"
        )
        assert page.evaluate(wide) == width
        page.tap(f"{T} [data-cell='1-0-0']")
        page.wait_for_selector("#matrix .heatmaplayer image")
        dialog = page.evaluate("[document.getElementById('cell').scrollWidth, innerWidth]")
        assert dialog == [width, width]


@pytest.mark.slow
def test_colours_follow_the_system_and_the_switch(browser: Any, results: Path) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    for page in browsing.opened(browser, results, color_scheme="dark"):
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
def test_real_results(browser: Any, tmp_path: Path) -> None:
    asked = [
        "table=fedcollab_t1",
        "columns=1",
        "rows=Local,FedAvg,FedAvg+FedCollab",
        "seeds=2",
        "scale=smoke",
    ]
    where = ["substitute=digits", f"results={tmp_path}", f"runs_dir={tmp_path / 'runs'}", "jobs=1"]
    assert program.main(["reproduce", *asked, *where]) == 0
    build_page(tmp_path, tmp_path / "index.html")
    for page in browsing.opened(browser, tmp_path):
        assert "fedcollab_t1 on digits, in the place of" in page.locator("#tables h2").inner_text()
        heading = page.locator("thead th[data-column]").first.inner_text().split("\n")
        assert heading == ["digits, label_shift", "in place of Fashion-MNIST, Label shift"]
        kinds = {cell.get_attribute("data-kind") for cell in page.locator("td[data-kind]").all()}
        assert kinds == {
            "open",
            "alone",
        }  # never a verdict on substitute data, and no row that was not asked for
        page.select_option("[name=dataset]", "digits")
        assert page.locator("#shown").inner_text().startswith("1 of 1 tables")
        page.click("[data-cell='2-0-0']")
        page.wait_for_selector("#curves .scatterlayer")
        scores = page.evaluate("document.getElementById('curves').data.map((line) => line.y.at(-1))")
        assert len(scores) == 3
        assert all(0 <= score <= 100 for score in scores)
        page.wait_for_selector("#matrix .heatmaplayer image, #matrix p")
