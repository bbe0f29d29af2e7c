"""Links that reopen, commands to copy, sorting, comparison, axes and print, in headless Chromium."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.helpers.tiers import tiered
from tests.papers.report import browsing
from tests.papers.report.browsing import shown

pytestmark = browsing.needed
T = "#table-fedcollab_t1"
RUNS = ["fedcollab_t1|Local|Label shift", "fedcollab_t1|FedAvg|Label shift"]


@pytest.mark.slow
def test_a_link_reopens_the_cell_it_was_copied_in(browser: Any, results: Path) -> None:
    allowed = {"permissions": ["clipboard-read", "clipboard-write"]}
    for page in browsing.opened(browser, results, **allowed):
        page.select_option("[name=paper]", "fedcollab")
        page.click(f"{T} [data-cell='1-0-0']")
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
        assert page.locator("#cell-title").inner_text() == "FedAvg: Fashion-MNIST, Label shift, Acc %"
        page.wait_for_selector("#curves .scatterlayer")
        assert page.evaluate("document.querySelector('[name=paper]').value") == ""
        page.keyboard.press("Escape")
        page.wait_for_function("() => document.activeElement.dataset.cell === '1-0-0'")


ADDRESSES = [
    "#cell=gone%7Cx%7Cy%7Cz",
    "#cell=fedcollab_t1%7Cgone%7CLabel+shift%7CAcc+%25",
    "#run=x&view=comparison",
    "#%",
    "#paper=nobody&constructor=x",
]


@pytest.mark.parametrize("address", tiered(ADDRESSES, quick=[*ADDRESSES[1:3], ADDRESSES[4]]))
def test_an_address_of_what_is_not_there_opens_the_start(browser: Any, results: Path, address: str) -> None:
    for page in browsing.opened(browser, results, address):
        assert shown(page, "dialog") == []
        assert page.locator("#shown").inner_text() == "2 of 2 tables, 19 cells"
        assert "#" not in page.url, "what is not there is not kept either"


def test_ordinary_links_change_no_filter_and_no_choice(browser: Any, results: Path) -> None:
    for page in browsing.opened(browser, results, "#paper=nobody&method=FedAvg&run=" + quote(RUNS[1])):
        kept = page.url.partition("#")[2]
        assert kept.startswith("method=FedAvg&run=fedcollab_t1")
        for link in (".skip", f".overview [href='{T}']"):
            page.locator(link).focus()
            page.keyboard.press("Enter")
            page.wait_for_function(f"() => location.hash === '#{kept}'")
            assert page.locator("#shown").inner_text() == "1 of 2 tables, 6 cells"
            assert page.locator("#chosen").inner_text() == "1 cell chosen"
        page.click("#clear")
        page.click("#show-all")
        page.locator(f".overview [href='{T}']").click()
        page.wait_for_function(f"() => location.hash === '{T}'")  # nothing is kept, and it can be copied


def test_a_table_s_own_link_leads_to_it(browser: Any, results: Path) -> None:
    for page in browsing.opened(browser, results, "#table-hostile", viewport={"width": 900, "height": 400}):
        assert page.url.endswith("#table-hostile")
        assert page.evaluate("document.getElementById('table-hostile').getBoundingClientRect().top < innerHeight")


def test_columns_sort_best_first_then_last_first_then_as_they_were(opened: Any) -> None:
    def order() -> list[str]:
        return [text.strip() for text in opened.locator(f"{T} tbody .name").all_inner_texts()]

    head = opened.locator(f"{T} .sort").nth(1)
    assert order() == ["Local", "FedAvg", "FedProx"]
    for state, expected in (
        ("descending", ["Local", "FedAvg", "FedProx"]),
        ("ascending", ["FedProx", "FedAvg", "Local"]),
        ("none", ["Local", "FedAvg", "FedProx"]),
    ):
        head.press("Enter")
        assert opened.evaluate("document.activeElement.closest('th').ariaSort") == state
        assert order() == expected
    opened.locator(f"{T} .sort").first.press("Enter")
    assert order() == ["FedAvg", "FedProx", "Local"]
    opened.locator("#start .sort").nth(6).click()  # runs
    counts = [int(text) for text in opened.locator("#start tbody td:nth-child(7)").all_inner_texts()]
    assert counts == sorted(counts, reverse=True)


@pytest.mark.slow
def test_chosen_rows_are_laid_over_each_other_and_compared_client_by_client(browser: Any, results: Path) -> None:
    for page in browsing.opened(browser, results):
        assert page.locator("#tray").is_hidden()
        page.check(f"{T} [data-pick='0']")
        page.check(f"{T} [data-pick='1']")
        assert page.locator("#chosen").inner_text() == "2 cells chosen"
        page.click("#compare")
        page.wait_for_selector("#paired .barlayer")
        named = "document.getElementById('overlaid').data.filter((line) => line.name)"
        assert page.evaluate(f"{named}.map((line) => [line.name, line.y])") == [
            ["Local", [10.5, 20.5]],
            ["FedAvg", [10.5, 20.5]],
        ]
        bars = page.evaluate("document.getElementById('paired').data.map((bar) => [bar.x, bar.y])")
        assert bars == [[["3", "0", "1", "2"], [10, 5, 0, -2]]]
        (words,) = shown(page, "#paired-words li")
        assert words == (
            "FedAvg: +3.25 points on average over 4 clients (by seed +3.25 to +3.25); better on 2, worse on 1, "
            "equal on 1; seeds 0, 1 on the same partitions"
        )
        page.select_option("#reference", "1")
        page.wait_for_function("() => document.getElementById('paired').data[0].y[0] === 2")
        address = "#" + page.url.partition("#")[2]
    assert address == "#" + "&".join(f"run={quote(text, safe='').replace('%20', '+')}" for text in RUNS) + (
        "&view=comparison"
    )
    for page in browsing.opened(browser, results, address):
        page.wait_for_selector("#paired .barlayer")
        page.get_by_role("button", name="Remove FedAvg").click()
        page.wait_for_selector("#paired p")
        assert "second cell" in page.locator("#paired").inner_text()
        page.keyboard.press("Escape")
        page.wait_for_function("() => document.activeElement.id === 'compare'")
        page.click("#clear")
        assert page.locator("#tray").is_hidden()
        assert not page.is_checked(f"{T} [data-pick='0']")


@pytest.mark.slow
def test_keyboard_alone_compares(opened: Any) -> None:
    opened.locator(f"{T} [data-cell='0-0-0']").focus()
    for key in ("ArrowLeft", "Space", "ArrowDown", "Space", "c"):
        opened.keyboard.press(key)
    opened.wait_for_selector("#paired .barlayer")
    opened.keyboard.press("Escape")
    assert shown(opened, "dialog") == []
    opened.wait_for_function("() => document.activeElement.dataset.pick === '1'")


@pytest.mark.slow
def test_runs_on_other_partitions_are_not_paired(opened: Any) -> None:
    for row in (1, 2):
        opened.check(f"{T} [data-pick='{row}']")
    opened.click("#compare")
    opened.wait_for_selector("#paired-words li")
    (words,) = shown(opened, "#paired-words li")
    assert words.endswith("seeds 0 on the same partitions")  # seed 1 of FedProx has another


@pytest.mark.slow
def test_a_cell_is_chosen_in_its_dialog_too(opened: Any) -> None:
    opened.click(f"{T} [data-cell='0-0-0']")
    opened.click("#pick")
    assert opened.get_attribute("#pick", "aria-pressed") == "true"
    opened.keyboard.press("Escape")
    assert opened.locator("#chosen").inner_text() == "1 cell chosen"
    assert opened.is_checked(f"{T} [data-pick='0']")


@pytest.mark.slow
def test_axes_fit_the_data_or_begin_at_zero_and_go_across_rounds_bytes_or_seconds(opened: Any) -> None:
    opened.click(f"{T} [data-cell='1-0-0']")
    opened.wait_for_selector("#curves .scatterlayer")
    axes = "document.getElementById('curves')._fullLayout"
    low, high = opened.evaluate(f"{axes}.yaxis.range")
    assert (low, high) == pytest.approx((10 - 2.077, 51.54 + 2.077), abs=6)  # the published value is in it
    assert low > 5
    opened.select_option("#cell-axis", "zero")
    opened.wait_for_function(f"() => {axes}.yaxis.range[0] <= 0")
    opened.select_option("#cell-across", "megabytes")
    opened.wait_for_function("() => document.getElementById('curves').data[0].x.at(-1) === 3")
    opened.select_option("#cell-across", "seconds")
    opened.wait_for_function("() => document.getElementById('curves').data[0].x.at(-1) === 1.5")


@pytest.mark.slow
def test_print_shows_the_tables_or_the_opened_dialog_alone(opened: Any) -> None:
    opened.emulate_media(media="print", color_scheme="dark")
    assert opened.locator("#filters").is_hidden()
    assert opened.locator(f"{T} table").is_visible()
    assert opened.evaluate("getComputedStyle(document.documentElement).colorScheme") == "light"
    assert opened.pdf()[:4] == b"%PDF"
    opened.emulate_media(media="screen")
    opened.click(f"{T} [data-cell='1-0-0']")
    opened.wait_for_selector("#curves .scatterlayer")
    opened.emulate_media(media="print")
    assert opened.locator("#cell-title").is_visible()
    assert opened.locator(f"{T} table").is_hidden()
    assert opened.locator("#copy-link").is_hidden()
