"""Nothing on the page shuts anybody out: axe-core finds nothing, in any view, at either width, in either colours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedbench.papers import standings
from fedbench.papers.report import build_page
from tests.papers.report import browsing
from tests.papers.report.browsing import table

axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is missing")
pytestmark = browsing.needed
ROOT = Path(__file__).parents[3]


def start(page: Any) -> None:
    assert page.locator("#papers").is_visible()


def opened(page: Any) -> None:
    table(page).locator("summary").last.click()


def cell(page: Any) -> None:
    table(page).locator("[data-cell='1-0-0']").click()
    page.wait_for_selector("#matrix image")


def comparison(page: Any) -> None:
    for row in (0, 1):
        table(page).locator(f"[data-pick='{row}']").check()
    page.click("#compare")
    page.wait_for_selector("#paired svg")


VIEWS = (start, opened, cell, comparison)
LOOKS = ((390, "light"), (1440, "dark"), (390, "dark"), (1440, "light"))


CASES = [(*look, view) for view in VIEWS for look in LOOKS]


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme", "view"), CASES, ids=lambda each: getattr(each, "__name__", str(each)))
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


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the committed results, beside nothing else."""
    folder = tmp_path_factory.mktemp("committed")
    build_page(ROOT / "results", folder / "index.html")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_the_committed_page_begins_with_a_board_then_papers_and_is_small(
    browser: Any, committed: Path, width: int, scheme: str
) -> None:
    assert (committed / "index.html").stat().st_size < 1.5e6
    size = {"width": width, "height": 900}
    board = standings.read_standings(ROOT / "results" / "leaderboard" / "v2")
    folded = standings.read_standings(ROOT / "results" / "leaderboard" / "v1")
    for page in browsing.opened(browser, committed, viewport=size, color_scheme=scheme, reduced_motion="reduce"):
        assert page.evaluate("document.documentElement.scrollHeight") < (2 if width == 1440 else 6) * 900
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("document.querySelectorAll('*').length") < 7000
        rows = page.locator("#board-v2 tbody tr")
        assert rows.count() == sum(len(each.lines) for each in board.federations)
        assert rows.first.locator("td").nth(1).locator("path").count() == 3, "Local, FedAvg, and the bar"
        assert (rows.nth(10).bounding_box() or {})["y"] < 900, "the first screen is the board"
        heads = page.locator("#board-v2 .panel").first.locator("thead th")
        assert heads.count() == 10
        if width == 1440:
            last = heads.last.bounding_box() or {}
            assert last["x"] + last["width"] <= width
        assert page.locator("#papers > .paper").count() == 7, "six papers, and our own tables"
        assert axe.Axe().run(page).response["violations"] == []
        page.locator("details:has(> #board-v1) > summary").click()
        page.locator("label[for=tab-v1-2]").click()
        assert page.locator("#board-v1 .panel:visible tbody th").count() == len(folded.federations[1].lines)
