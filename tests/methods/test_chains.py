"""How methods are built on each other: short chains of bases, and parts that know no method.

`python -m tests.methods.test_chains` prints each method's chain.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from fedbench.engine.method import Method
from fedbench.methods import METHODS

MOST = 3  # parts below a method, one on another, down to `Method`
PARTS = Path(__file__).parents[2] / "fedbench" / "methods" / "parts"


def depth(cls: type) -> int:
    """The longest way from `cls` to `Method` over classes of methods/parts."""
    if cls is Method or not issubclass(cls, Method):
        return 0
    return (cls.__module__.startswith("fedbench.methods.parts.")) + max(map(depth, cls.__bases__), default=0)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_few_classes_lie_between_a_method_and_the_interface(name: str) -> None:
    assert depth(METHODS.get(name)) <= MOST


@pytest.mark.parametrize("file", sorted(PARTS.glob("*.py")), ids=lambda file: file.stem)
def test_parts_import_no_method(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    named = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    named += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    above = [name for name in named if name.startswith("fedbench.methods")]
    assert [name for name in above if not name.startswith("fedbench.methods.parts")] == []
