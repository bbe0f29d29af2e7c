"""results/ holds what a reader or a test needs: few files, short names, and no picture that no page shows."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES, BYTES, NAME = 160, 3_000_000, 60


@pytest.fixture(scope="module")
def committed() -> list[Path]:
    """The files below results/ that git knows, from the root of the repository."""
    listed = subprocess.run(["git", "ls-files", "-z", "results"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode or not listed.stdout:
        pytest.skip("this is no checkout of the repository")
    return [
        file for name in filter(None, listed.stdout.split("\0")) if (file := Path(name)) and (ROOT / file).is_file()
    ]


def test_results_are_few_small_and_shortly_named(committed: list[Path]) -> None:
    assert len(committed) <= FILES
    assert sum((ROOT / file).stat().st_size for file in committed) <= BYTES
    assert [file for file in committed if max(map(len, file.parts)) > NAME] == []


def test_a_table_is_stored_once_for_machines_and_once_for_people(committed: list[Path]) -> None:
    kept: dict[Path, set[str]] = {}
    for file in committed:
        if file.parts[1] == "tables":
            kept.setdefault(file.parent, set()).add(file.name)
    assert kept
    assert [folder for folder, names in kept.items() if names != {"table.md", "table.zip"}] == []


def test_every_committed_picture_is_shown_by_a_page(committed: list[Path]) -> None:
    pages = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("results/*.md")]
    shown = {
        (page.parent / link).resolve()
        for page in pages
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
    }
    pictures = [ROOT / file for file in committed if file.suffix in (".svg", ".png")]
    assert [file for file in pictures if file.resolve() not in shown] == []
