"""Links that reopen, commands to copy, sorting, comparison and print, in headless Chromium."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.papers.report import browsing
from tests.papers.report.browsing import shown, table

pytestmark = browsing.needed
RUNS = ["fedcollab_t1|Local|Label shift", "fedcollab_t1|FedAvg|Label shift"]


@pytest.mark.slow
def test_a_link_reopens_the_cell_it_was_copied_in(browser: Any, results: Path) -> None:
    allowed = {"permissions": ["clipboard-read", "clipboard-write"]}
    for page in browsing.opened(browser, results, **allowed):
        table(page).locator("[data-cell='1-0-0']").click()
        page.click("#copy-link")
        page.wait_for_function("() => document.getElementById('copied').textContent === 'copied'")
        link = page.evaluate("navigator.clipboard.readText()")
        page.click("#copy-command")
        page.wait_for_function("() => navigator.clipboard.readText().then((text) => !text.includes('#'))")
        command = page.evaluate("navigator.clipboard.readText()")
        assert command == "python -m fedbench reproduce table=fedcollab_t1 rows=2 columns=1 seeds=3"
        page.keyboard.press("Escape")
        page.wait_for_function("() => !location.hash.includes('cell=')")
    for page in browsing.opened(browser, results, "#" + link.partition("#")[2]):
        page.wait_for_selector("#cell[open]")
        assert page.locator("#cell-title").inner_text() == "FedAvg: Fashion-MNIST, Label shift, Acc %"
        page.wait_for_selector("#curves svg")
        page.keyboard.press("Escape")
        page.wait_for_function("() => document.activeElement.dataset.cell === '1-0-0'")


ADDRESSES = [
    "#cell=gone%7Cx%7Cy%7Cz",
    "#cell=fedcollab_t1%7Cgone%7CLabel+shift%7CAcc+%25",
    "#run=x&view=comparison",
    "#%",
    "#constructor=x",
]


@pytest.mark.slow
@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_of_what_is_not_there_opens_the_start(browser: Any, results: Path, address: str) -> None:
    for page in browsing.opened(browser, results, address):
        page.wait_for_selector("html[data-ready]", state="attached")
        assert shown(page, "dialog") == []
        assert "#" not in page.url, "what is not there is not kept either"


@pytest.mark.slow
def test_an_ordinary_link_changes_no_choice(browser: Any, results: Path) -> None:
    for page in browsing.opened(browser, results, "#run=" + quote(RUNS[1])):
        page.wait_for_selector("#tray:visible")
        page.locator(".skip").focus()
        page.keyboard.press("Enter")
        page.wait_for_function("() => location.hash === '#papers'")
        assert page.locator("#chosen").inner_text() == "1 cell chosen"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["table-hostile", "paper-fedcollab"])
def test_the_link_of_a_part_opens_it_and_leads_there(browser: Any, results: Path, name: str) -> None:
    for page in browsing.opened(browser, results, f"#{name}", viewport={"width": 900, "height": 400}):
        page.wait_for_function(f"() => document.getElementById('{name}').getBoundingClientRect().top < innerHeight")
        assert page.url.endswith(f"#{name}")
        page.locator(f"#{name}" + (" [data-cell]" if name.startswith("table") else " .table")).first.wait_for()


@pytest.mark.slow
def test_columns_sort_best_first_then_last_first_then_as_they_were(opened: Any) -> None:
    own = table(opened)

    def order() -> list[str]:
        return [text.strip() for text in own.locator("tbody .name").all_inner_texts()]

    head = own.locator(".sort").nth(1)
    assert order() == ["Local", "FedAvg", "FedProx"]
    for state, expected in (
        ("descending", ["Local", "FedAvg", "FedProx"]),
        ("ascending", ["FedProx", "FedAvg", "Local"]),
        ("none", ["Local", "FedAvg", "FedProx"]),
    ):
        head.press("Enter")
        assert opened.evaluate("document.activeElement.closest('th').ariaSort") == state
        assert order() == expected
    own.locator(".sort").first.press("Enter")
    assert order() == ["FedAvg", "FedProx", "Local"]


@pytest.mark.slow
def test_chosen_rows_are_laid_over_each_other_and_compared_client_by_client(browser: Any, results: Path) -> None:
    for page in browsing.opened(browser, results):
        assert page.locator("#tray").is_hidden()
        for row in (0, 1):
            table(page).locator(f"[data-pick='{row}']").check()
        assert page.locator("#chosen").inner_text() == "2 cells chosen"
        page.click("#compare")
        page.wait_for_selector("#paired svg")
        assert page.locator("#overlaid .key li").all_inner_texts() == [" Local", " FedAvg"]
        assert page.locator("#overlaid title").all_text_contents() == [
            f"{name}, round {number}: {number}0.50 %" for name in ("Local", "FedAvg") for number in (1, 2)
        ]
        assert page.locator("#paired title").all_text_contents() == [
            f"FedAvg, client {client}: {gain}"
            for client, gain in ((3, "+10.00"), (0, "+5.00"), (1, "+0.00"), (2, "−2.00"))
        ]
        (words,) = shown(page, "#paired-words li")
        assert words == (
            "FedAvg: +3.25 points on average over 4 clients (by seed +3.25 to +3.25); better on 2, worse on 1, "
            "equal on 1; seeds 0, 1 on the same partitions"
        )
        page.select_option("#reference", "1")
        page.wait_for_function("() => document.querySelector('#paired title').textContent === 'Local, client 2: +2.00'")
        address = "#" + page.url.partition("#")[2]
    assert address == "#" + "&".join(f"run={quote(text, safe='').replace('%20', '+')}" for text in RUNS) + (
        "&view=comparison"
    )
    for page in browsing.opened(browser, results, address):
        page.wait_for_selector("#paired svg")
        page.get_by_role("button", name="Remove FedAvg").click()
        page.wait_for_selector("#paired p")
        assert "second cell" in page.locator("#paired").inner_text()
        page.keyboard.press("Escape")
        page.wait_for_function("() => document.activeElement.id === 'compare'")
        page.click("#clear")
        assert page.locator("#tray").is_hidden()
        assert not page.is_checked("[data-pick='0']")


@pytest.mark.slow
def test_keyboard_alone_compares(opened: Any) -> None:
    table(opened).locator("[data-cell='0-0-0']").focus()
    for key in ("ArrowLeft", "Space", "ArrowDown", "Space", "c"):
        opened.keyboard.press(key)
    opened.wait_for_selector("#paired svg")
    opened.keyboard.press("Escape")
    assert shown(opened, "dialog") == []
    opened.wait_for_function("() => document.activeElement.dataset.pick === '1'")


@pytest.mark.slow
def test_runs_on_other_partitions_are_not_paired(opened: Any) -> None:
    for row in (1, 2):
        table(opened).locator(f"[data-pick='{row}']").check()
    opened.click("#compare")
    opened.wait_for_selector("#paired-words li")
    (words,) = shown(opened, "#paired-words li")
    assert words.endswith("seeds 0 on the same partitions")  # seed 1 of FedProx has another


@pytest.mark.slow
def test_a_cell_is_chosen_in_its_dialog_too(opened: Any) -> None:
    table(opened).locator("[data-cell='0-0-0']").click()
    opened.click("#pick")
    assert opened.get_attribute("#pick", "aria-pressed") == "true"
    opened.keyboard.press("Escape")
    assert opened.locator("#chosen").inner_text() == "1 cell chosen"
    assert opened.is_checked("[data-pick='0']")


@pytest.mark.slow
def test_print_shows_what_is_open_or_the_dialog_alone(opened: Any) -> None:
    own = table(opened)
    opened.emulate_media(media="print", color_scheme="dark")
    assert opened.locator(".theme").is_hidden()
    assert own.locator("table").is_visible()
    assert opened.evaluate("getComputedStyle(document.documentElement).colorScheme") == "light"
    assert opened.pdf()[:4] == b"%PDF"
    opened.emulate_media(media="screen")
    own.locator("[data-cell='1-0-0']").click()
    opened.wait_for_selector("#curves svg")
    opened.emulate_media(media="print")
    assert opened.locator("#cell-title").is_visible()
    assert own.locator("table").is_hidden()
    assert opened.locator("#copy-link").is_hidden()
