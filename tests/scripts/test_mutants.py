"""The list of deliberate errors fits the tree; a text that is gone or there twice is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def script(load: Callable[[str], Any]) -> Any:
    return load("mutants")


def test_every_error_can_be_made(script: Any) -> None:
    listed = script.listed()
    assert len(listed) >= 40
    assert len({(each.file, each.old) for each in listed}) == len(listed)
    assert script.faults(listed) == []


def test_a_text_must_be_there_once(script: Any) -> None:
    def mutant(file: str, old: str, test: str = "tests/scripts/test_mutants.py") -> Any:
        return script.Mutant(file, (test,), "something", old, "new")

    assert mutant("x", "b").made_in("abc") == "anewc"
    wrong = [
        mutant("fedbench/nowhere.py", "x"),
        mutant("fedbench/core/trees.py", "no such text"),
        mutant("fedbench/core/trees.py", "def "),
        mutant("fedbench/core/trees.py", "def stack(", "tests/nowhere.py"),
    ]
    found = script.faults(wrong)
    assert "No such file" in found[0]
    assert "0 times instead of once: no such text" in found[1]
    assert "times instead of once: def " in found[2]
    assert found[3] == "tests/nowhere.py: no such file"


def test_an_error_is_caught_or_not(script: Any, tmp_path: Path) -> None:
    (tmp_path / "doubled.py").write_text("def double(x):\n    return 2 * x\n")
    (tmp_path / "test_it.py").write_text(
        "from doubled import double\n\n\ndef test_double():\n    assert double(2) == 4\n"
    )
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\nmarkers = ['slow: slow']\n")
    caught = script.Mutant("doubled.py", ("test_it.py",), "", "2 * x", "3 * x")
    missed = script.Mutant("doubled.py", ("test_it.py",), "", "2 * x", "x + 2")
    found = [script.in_a_process(script.caught_by, each, tmp_path) for each in (caught, missed)]
    assert found == ["test_it.py::test_double", ""]
    assert "2 * x" in (tmp_path / "doubled.py").read_text()
