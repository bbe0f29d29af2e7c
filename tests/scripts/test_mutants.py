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
    assert len({(each.file, each.old, each.new) for each in listed}) == len(listed)
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


@pytest.mark.slow
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


SOURCE = '''
LIMIT = 3


def f(x: int = 5, *, y: float = 0.5) -> float:
    """Add 1."""
    z = [each.detach() for each in x if each > 0]
    z = norm(z, dim=1)
    if not z:
        raise ValueError(f"none of {len(x) - 1}")
    torch.relu(z).mean(0)
    z += y
    return -z
'''


def test_changes_of_a_function(load: Callable[[str], Any]) -> None:
    """Words, annotations, defaults and what lies outside functions stay as they are."""
    assert [f"{line} {what}" for line, what, _, _ in load("random_mutants").Changes(SOURCE).found] == [
        "7 z = [ [each.detach() -> each]",
        "7 ach.detach() for each in x if [each > 0 -> (not (each > 0))]",
        "7 etach() for each in x if each [> -> >=]",
        "7 ach() for each in x if each > [0 -> 1]",
        "8 [z = norm(z, dim=1) -> pass]",
        "8 z = norm(z [, dim=1 -> left out]",
        "8 z = norm(z, dim= [1 -> 2]",
        "9 if [not z -> (not (not z))]",
        "9 if [not z -> z]",
        '10 [raise ValueError(f"none of {len(x) - 1}") -> pass]',
        "11 [torch.relu(z).mean(0) -> pass]",
        "11 torch.relu(z). [mean -> sum]",
        "11 torch.relu(z).mean( [0 -> -1]",
        "11 [torch.relu(z) -> z]",
        "11 torch.relu(z).mean( [0 -> 1]",
        "12 z [+ -> -]",
        "12 [z += y -> pass]",
        "13 return [-z -> z]",
    ]


@pytest.mark.slow
def test_every_change_is_python_and_differs(load: Callable[[str], Any]) -> None:
    script = load("random_mutants")
    for file in script.files("fedbench", ["metrics.py", "methods/fedgen.py", "models/small.py"]):
        text = file.read_text(encoding="utf-8")
        found = script.Changes(text).found
        assert len(found) > 50
        for line, what, changed, lines in found:
            compile(changed, what, "exec")
            assert line in lines
            assert changed != text


def test_what_is_sampled_and_what_tests_it_is_there(load: Callable[[str], Any]) -> None:
    script = load("random_mutants")
    for room, names in (("fedbench", script.SCOPE), ("tests", script.TESTS)):
        assert script.files(room, names)
    with pytest.raises(SystemExit, match="no such file or folder in fedbench/: gone;"):
        script.files("fedbench", ["metrics.py", "gone"])


@pytest.mark.slow
def test_a_sample_is_of_its_seed_and_a_change_a_line(load: Callable[[str], Any]) -> None:
    script = load("random_mutants")
    one, same, other = (script.drawn(30, seed, ["metrics.py", "engine/"]) for seed in (1, 1, 2))
    assert one == same != other
    assert len({(file, change[0]) for file, change in one}) == 30


def test_the_score_leaves_equivalent_errors_out(load: Callable[[str], Any]) -> None:
    script = load("random_mutants")
    rows = [
        {"file": "fedbench/methods/a.py", "caught_by": "t", "reading": ""},
        {"file": "fedbench/metrics.py", "caught_by": "", "reading": "equivalent: rounding"},
        {"file": "fedbench/metrics.py", "caught_by": "", "reading": "no test has two clients"},
    ]
    assert script.score(rows).splitlines()[2:] == [
        "| methods | 1 | 1 | 100.0% | 20.7% to 100.0% |",
        "| metrics | 0 | 1 | 0.0% | 0.0% to 79.3% |",
        "| all | 1 | 2 | 50.0% | 9.5% to 90.5% |",
    ]
    assert script.nearest(
        "fedbench/engine/x.py",
        ["tests/a", "tests/engine/b", "tests/x"],
        dict.fromkeys(["tests/a", "tests/engine/b", "tests/x"], 120.0),
    ) == ("tests/x", "tests/engine/b")
