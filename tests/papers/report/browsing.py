"""A page of tables in headless Chromium; whoever uses it fails if anything was logged or asked for."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright import sync_api

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needed = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (Debian: apt install chromium)")


def started() -> Iterator[sync_api.Browser]:
    """The browser."""
    playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
    root = hasattr(os, "getuid") and os.getuid() == 0
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"] if root else [])
        yield browser
        browser.close()


def opened(browser: sync_api.Browser, folder: Path, address: str = "", **options: Any) -> Iterator[sync_api.Page]:
    """`folder`/index.html at `address` (a hash), or another file of `folder` that `address` begins with."""
    context = browser.new_context(**options)
    page, wrong = context.new_page(), []
    page.on("console", lambda message: wrong.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: wrong.append(request.url) if request.url.startswith("http") else None)
    page.goto(f"{folder.as_uri()}/{'' if address[:1].isalpha() else 'index.html'}{address}")
    yield page
    context.close()
    assert wrong == []


def shown(page: sync_api.Page, selector: str) -> list[str]:
    """The texts of those that can be seen."""
    return [each.inner_text() for each in page.locator(selector).all() if each.is_visible()]


def table(page: sync_api.Page, folder: str = "fedcollab_t1") -> sync_api.Locator:
    """A table of the page, which is opened if it is not yet, with its paper."""
    own = page.locator(f"[id='table-{folder}']")
    for each in (page.locator(".paper", has=own), own):
        if each.get_attribute("open") is None:
            each.locator("> summary").click()
    own.locator("[data-cell]").first.wait_for()
    return own
