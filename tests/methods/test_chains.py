"""How methods are built on each other: short chains of bases, and parts that know no method.

`python -m tests.methods.test_chains` prints each method's chain.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from fedbench.engine.method import Method
from fedbench.methods import METHODS

MOST = 2  # classes between a method and `Method`, besides the method that it is a variant of
PARTS = Path(__file__).parents[2] / "fedbench" / "methods" / "parts"


def chain(name: str) -> list[type]:
    """The classes between the method called `name` and `Method`."""
    bases = [base for base in METHODS.get(name).__mro__[1:] if issubclass(base, Method)]
    return bases[: bases.index(Method)]


@pytest.mark.parametrize("name", sorted(METHODS))
def test_few_classes_lie_between_a_method_and_the_interface(name: str) -> None:
    methods = {METHODS.get(each) for each in METHODS}
    assert len([base for base in chain(name) if base not in methods]) <= MOST, chain(name)


@pytest.mark.parametrize("file", sorted(PARTS.glob("*.py")), ids=lambda file: file.stem)
def test_parts_import_no_method(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    named = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    named += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    above = [name for name in named if name.startswith("fedbench.methods")]
    assert [name for name in above if not name.startswith("fedbench.methods.parts")] == []


if __name__ == "__main__":
    for method in METHODS:
        names = [METHODS.get(method).__name__, *(base.__name__ for base in chain(method)), "Method"]
        print(f"{method:14} {' -> '.join(names)}")
