"""A hash of code: of what it says, not of how it is commented, and of all that it relies on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fedbench.core import source
from fedbench.core.errors import FedbenchError

PLAIN = '''"""Doc."""

from toypack.base import rate


class A:
    """Doc."""

    def f(self, x):
        """Doc."""
        text = "# no comment"
        return rate * x, text
'''
CHECKED = """from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import toypack.base
else:
    import toypack
"""
ROOM = ("toypack",)


@pytest.fixture
def toypack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of three modules; caches are cleared, as files change under one name."""
    folder = tmp_path / "toypack"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "base.py").write_text("rate = 2\n")
    (folder / "a.py").write_text(PLAIN)
    (folder / "unused.py").write_text("rate = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "toypack"]:
        monkeypatch.delitem(sys.modules, name)
    forget()
    return folder


def forget() -> None:
    for cached in (source.file_of, source.imported, source.code):
        cached.cache_clear()


def digest(folder: Path, name: str = "", old: str = "", new: str = "") -> str:
    """The digest of toypack.a after `old` in the file `name` became `new`."""
    if name:
        file = folder / f"{name}.py"
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new, 1))
    forget()
    return source.digest(["toypack.a"], ROOM)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""Doc."""', '"""Another doc,\nof two lines."""'),
        ("        return rate", "        # because\n\n        return rate"),
        ("return rate * x, text", "return rate * x, text  # twice"),
        ("class A:\n", "class A:   \n"),
    ],
)
def test_words_do_not_count(toypack: Path, old: str, new: str) -> None:
    before = digest(toypack)
    assert digest(toypack, "a", old, new) == before


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("a", "rate * x", "rate + x"),
        ("a", '"# no comment"', '"# no comments"'),
        ("a", "def f", "def g"),
        ("base", "rate = 2", "rate = 2.5"),
    ],
)
def test_code_counts_here_and_in_what_it_imports(toypack: Path, name: str, old: str, new: str) -> None:
    before = digest(toypack)
    assert digest(toypack, name, old, new) != before


def test_what_is_not_imported_does_not_count(toypack: Path) -> None:
    before = digest(toypack)
    assert digest(toypack, "unused", "3", "4") == before


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import toypack.base", {"toypack.base"}),
        ("from toypack import base", {"toypack.base"}),
        ("from . import base", {"toypack.base"}),
        ("from .base import rate", {"toypack.base"}),
        ("def f():\n    from toypack import base", {"toypack.base"}),
        (CHECKED, {"toypack"}),
        ("import json", set()),
    ],
)
def test_imports_of_every_kind_are_followed(toypack: Path, text: str, found: set[str]) -> None:
    (toypack / "a.py").write_text(text + "\n")
    forget()
    assert source.imported(toypack / "a.py", "toypack.a") == found


def test_a_module_without_source_is_refused() -> None:
    with pytest.raises(FedbenchError, match="has no source file"):
        source.digest(["sys"], ("sys",))
