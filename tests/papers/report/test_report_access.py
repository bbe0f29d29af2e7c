"""Nothing on the page shuts anybody out: axe-core finds nothing, in any view, at either width, in either colours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedbench.papers import standings
from fedbench.papers.report import build_page
from tests.helpers.tiers import tiered
from tests.papers.report import browsing

axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is missing")
pytestmark = browsing.needed
FIRST = "#table-fedcollab_t1 "


def start(page: Any) -> None:
    assert page.locator("#start").is_visible()


def filtered(page: Any) -> None:
    page.select_option("[name=verdict]", "equivalent")
    page.locator(f"{FIRST} summary").click()


def cell(page: Any) -> None:
    page.click(f"{FIRST} [data-cell='1-0-0']")
    page.wait_for_selector("#matrix .heatmaplayer image")
    page.wait_for_selector("#map .scatterlayer")


def card(page: Any) -> None:
    page.locator(f"{FIRST} [data-cell='0-0-0']").focus()
    page.keyboard.press("ArrowDown")
    assert page.locator("#tip").is_visible()


def comparison(page: Any) -> None:
    page.check(f"{FIRST} [data-pick='0']")
    page.check(f"{FIRST} [data-pick='1']")
    page.click("#compare")
    page.wait_for_selector("#paired .barlayer")


VIEWS = (start, filtered, card, cell, comparison)
LOOKS = ((390, "light"), (1440, "dark"), (390, "dark"), (1440, "light"))


CASES = [(*look, view) for view in VIEWS for look in LOOKS]


@pytest.mark.parametrize(
    ("width", "scheme", "view"), tiered(CASES, CASES[:1]), ids=lambda each: getattr(each, "__name__", str(each))
)
def test_axe_finds_nothing(browser: Any, results: Path, width: int, scheme: str, view: Callable[[Any], None]) -> None:
    size = {"width": width, "height": 900}
    for page in browsing.opened(browser, results, viewport=size, color_scheme=scheme, reduced_motion="reduce"):
        view(page)
        found = axe.Axe().run(page).response
        assert found["passes"], "the check ran"
        assert [
            (each["id"], each["impact"], [node["html"][:120] for node in each["nodes"]][:3])
            for each in found["violations"]
        ] == []


@pytest.mark.slow
def test_the_committed_results_are_judged_in_one_screen(browser: Any, tmp_path: Path) -> None:
    build_page(Path(__file__).parents[3] / "results", tmp_path / "index.html")
    assert (tmp_path / "index.html").stat().st_size < 6e6
    for scheme in ("light", "dark"):
        size = {"width": 1440, "height": 900}
        for page in browsing.opened(browser, tmp_path, viewport=size, color_scheme=scheme):
            lines = page.locator("#start tbody tr", has=page.locator(".bar"))
            boxes = [lines.nth(place).bounding_box() for place in range(lines.count())]
            assert boxes
            assert max(box["y"] + box["height"] for box in boxes) < 900, "every line with a verdict"
            assert axe.Axe().run(page).response["violations"] == []


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_the_committed_leaderboard_is_reached_and_stays_in_its_box(
    browser: Any, tmp_path: Path, width: int, scheme: str
) -> None:
    root = Path(__file__).parents[3] / "results"
    build_page(root, tmp_path / "index.html")
    board = standings.read_standings(root / "leaderboard" / "mini")
    size = {"width": width, "height": 900}
    for page in browsing.opened(browser, tmp_path, viewport=size, color_scheme=scheme, reduced_motion="reduce"):
        page.click("nav[aria-label=Leaderboards] a[href='#board-mini']")
        section = page.locator("#board-mini")
        assert section.bounding_box()["y"] < 100, "it is what the page scrolled to"
        rows = section.locator("tbody tr")
        assert rows.count() == sum(len(each.lines) for each in board.federations)
        assert rows.first.locator("th").inner_text() == board.federations[0].lines[0].row
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert axe.Axe().run(page).response["violations"] == []
