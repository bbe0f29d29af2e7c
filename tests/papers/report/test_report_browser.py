"""The page in headless Chromium: tables that open, keyboard, figures, phones, colours, labels that stay text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedbench.cli import program
from fedbench.papers.report import build_page
from tests.papers.report import browsing
from tests.papers.report.browsing import shown, table
from tests.papers.report.toys import CLOSE, TAG

pytestmark = browsing.needed


def marks(page: Any, figure: str) -> list[str]:
    """What the marks of a figure say when they are hovered."""
    said: list[str] = page.locator(f"#{figure} title").all_text_contents()
    return said


@pytest.mark.slow
def test_a_paper_opens_to_tables_and_a_table_is_drawn_when_it_is_opened(opened: Any) -> None:
    assert shown(opened, ".paper > summary b") == [
        "FedCollab",
        "FedSaC",
        "pFedSim",
        "SosicFL",
        "FedReMa",
        "FLUX",
        "Our own tables",
    ]
    assert shown(opened, ".table") == []
    assert opened.locator("[data-cell]").count() == 0
    own = table(opened)
    assert own.locator("tbody .name").all_inner_texts() == ["Local", "FedAvg", "FedProx"]
    assert own.locator("thead tr:first-child th").all_inner_texts()[1:] == ["Fashion-MNIST", "CIFAR-100 (coarse)"]
    assert opened.locator("[data-table=hostile]").count() == 0


@pytest.mark.slow
def test_keyboard_alone_reaches_opens_and_leaves_a_cell(opened: Any) -> None:
    table(opened)
    opened.locator("[id='table-fedcollab_t1'] > summary").focus()
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
    opened.keyboard.press("Enter")
    assert opened.locator("#cell").is_visible()
    opened.keyboard.press("Escape")
    assert opened.locator("#cell").is_hidden()
    assert opened.evaluate(current) == "1-0-0"
    opened.keyboard.press("Tab")
    assert opened.evaluate(current) is None  # one stop a table: its details come next


@pytest.mark.slow
def test_a_cell_shows_curves_clients_matrix_and_configuration(opened: Any) -> None:
    table(opened).locator("[data-cell='1-0-0']").click()
    opened.wait_for_selector("#matrix image")
    assert opened.locator("#curves .key li").all_inner_texts() == [" seed 0", " seed 1", " mean"]
    assert marks(opened, "curves") == [
        "seed 0, round 1: 10.00 %",
        "seed 0, round 2: 20.00 %",
        "seed 1, round 1: 11.00 %",
        "seed 1, round 2: 21.00 %",
        "mean, round 1: 10.50 %",
        "mean, round 2: 20.50 %",
    ]
    assert marks(opened, "gain") == [
        f"gain over Local, client {client}: {gain}"
        for client, gain in ((3, "+10.00"), (0, "+5.00"), (1, "+0.00"), (2, "−2.00"))
    ]
    assert "1.5" in opened.locator("#facts").inner_text()
    assert "partition=fedcollab_label_shift_seed0" in opened.locator("#config").inner_text()

    def taken() -> str:  # what the second row says of the second column: 2 and 2 by coalition, 1 and 1 by number
        box = opened.locator("#matrix image").bounding_box()
        opened.mouse.move(box["x"] + 0.375 * box["width"], box["y"] + 0.375 * box["height"])
        said: str = opened.locator("#matrix p").inner_text()
        return said

    opened.locator("#matrix").scroll_into_view_if_needed()
    assert taken() == "Client 2 takes 0.500 of client 2."
    opened.select_option("#order", "number")
    assert taken() == "Client 1 takes 0.500 of client 1."
    opened.select_option("#lines", "rows")
    opened.wait_for_function("() => document.querySelectorAll('#curves .key li').length === 2")
    assert opened.locator("#curves .key li").first.inner_text() == " Local"
    opened.select_option("#cell-across", "megabytes")
    opened.wait_for_function("() => document.querySelector('#curves title').textContent.includes('megabytes 1.5:')")
    opened.click("#cell .close")
    opened.click("[data-cell='0-0-0']")
    opened.wait_for_selector("#gain p")
    assert opened.locator("#gain").inner_text() == "This is Local, which the others are compared with."
    opened.click("#cell .close")
    opened.click("[data-cell='2-0-0']")
    opened.wait_for_selector("#curves p")
    assert "No learning curve" in opened.locator("#curves").inner_text()
    assert "no collaboration matrix" in opened.locator("#matrix").inner_text()


@pytest.mark.slow
def test_the_lines_of_a_figure_are_where_its_axes_say(opened: Any) -> None:
    """The published value, dotted, is in the frame, and first values below the axis are cut."""
    assert opened.evaluate("Plots.ticks(0, 200)") == [[0, "0"], [50, "50"], [100, "100"], [150, "150"], [200, "200"]]
    assert opened.evaluate("Plots.ticks(87.7, 92.8).map(([, text]) => text)") == ["88", "90", "92"]
    assert opened.evaluate("Plots.ticks(-0.12, 0.31).map(([, text]) => text)") == ["-0.1", "0", "0.1", "0.2", "0.3"]
    table(opened).locator("[data-cell='1-0-0']").click()
    opened.wait_for_selector("#curves svg svg path")
    frame = opened.evaluate("document.querySelector('#curves svg svg').height.baseVal.value")
    low, high = 10 - 0.05 * 36.64, 46.64 + 0.05 * 36.64  # the lowest value, the published one, and room
    heights = [float(each.get_attribute("cy")) for each in opened.locator("#curves svg svg circle").all()[:2]]
    assert heights == pytest.approx([frame * (high - value) / (high - low) for value in (10, 20)])


@pytest.mark.slow
def test_no_two_of_many_lines_or_marks_look_alike(opened: Any) -> None:
    for pattern in ("dash", "symbol"):
        looks = f"Array.from({{ length: 64 }}, (_, i) => `${{Plots.colour(i)}} ${{Plots.{pattern}(i)}}`)"
        assert len(set(opened.evaluate(looks))) == 64, pattern


@pytest.mark.slow
def test_runs_that_were_not_scored_on_a_set_leave_words_and_no_empty_axes(opened: Any) -> None:
    data = "{ curves: { '0|0': { 0: { round: [1, 2], acc_on_x: [null, null] } } } }"
    run = f"{{ name: 'a', table: {{}}, data: {data}, cell: [0, 0] }}"
    opened.evaluate(f"Curves.overlaid($('overlaid'), [{run}], {{ set: 'acc_on_x', across: 'round' }})")
    assert "No learning curve of these runs" in (opened.locator("#overlaid").text_content() or "")


@pytest.mark.slow
def test_labels_stay_text_in_the_browser(opened: Any) -> None:
    table(opened, "hostile").locator("[data-cell]").click()
    opened.wait_for_selector("#matrix image")
    opened.select_option("#lines", "rows")
    opened.wait_for_function("() => document.querySelectorAll('#curves .key li').length === 1")
    assert TAG in (opened.locator("#curves .key").text_content() or "")
    assert CLOSE in opened.locator("#config").inner_text()
    assert opened.locator("img[src=x]").count() == 0
    assert opened.title() == "fedbench: leaderboards and papers"


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 320])
def test_a_phone_scrolls_tables_in_their_boxes(browser: Any, results: Path, width: int) -> None:
    size = {"width": width, "height": 800}
    for page in browsing.opened(browser, results, viewport=size, has_touch=True, is_mobile=True):
        own = table(page)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert own.locator(".scroll").evaluate("each => each.scrollWidth") > width
        own.locator("[data-cell='1-0-0']").tap()
        page.wait_for_selector("#matrix image")
        assert page.evaluate("[document.getElementById('cell').scrollWidth, innerWidth]") == [width, width]


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
        (folder,) = (each.get_attribute("data-folder") for each in page.locator(".table").all())
        own = table(page, folder)
        assert "fedcollab_t1 on digits, in the place of" in own.locator("h3").inner_text()
        heading = own.locator("thead th").nth(1).inner_text().split("\n")
        assert heading == ["digits, label_shift", "in place of Fashion-MNIST, Label shift"]
        kinds = {cell.get_attribute("class") for cell in own.locator("td[role=gridcell]").all()}
        assert kinds == {"is-open", "is-alone"}  # never a verdict on substitute data, and no row that was not asked for
        own.locator("[data-cell='2-0-0']").click()
        page.wait_for_selector("#curves svg")
        said = marks(page, "curves")
        assert {each.partition(",")[0] for each in said} == {"seed 0", "seed 1", "mean"}
        assert all(0 <= float(each.rpartition(": ")[2].removesuffix(" %")) <= 100 for each in said)
        page.wait_for_selector("#matrix image, #matrix p")
