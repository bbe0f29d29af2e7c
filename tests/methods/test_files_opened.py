"""How many files of methods/ one opens to read a method whole: its own, and those that it imports."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

METHODS = Path(__file__).parents[2] / "fedbench" / "methods"
MOST = {"fedsac": 3, "fedrema": 3, "fedcollab/fedcollab": 5, "sosicfl": 2, "pfedsim": 2}


def imported(file: Path) -> set[Path]:
    """The files of methods/ that `file` imports."""
    names = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    inside = [name.split(".")[2:] for name in names if name.startswith("fedbench.methods.")]
    files = (METHODS.joinpath(*parts).with_suffix(".py") for parts in inside)
    return {file for file in files if file.exists()}


def opened(file: Path) -> set[Path]:
    """`file` and all that it imports, directly or not."""
    found: set[Path] = set()
    new = {file}
    while new:
        found |= new
        new = set().union(*map(imported, new)) - found
    return found


@pytest.mark.parametrize("name", MOST)
def test_a_method_is_read_in_few_files(name: str) -> None:
    files = opened(METHODS / f"{name}.py")
    assert len(files) <= MOST[name], sorted(file.name for file in files)
