"""A hash of code is of what definitions say and rely on, not of where they stand or how they are commented."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedbench.core import source
from fedbench.core.errors import FedbenchError
from fedbench.core.source import Definition

PLAIN = '''"""Doc."""

import logging

import numpy as np

from toypack import base
from toypack.base import rate, unused

log = logging.getLogger("toy")
LIMIT = 3
LIMITS = {"a": LIMIT}
LIMITS["b"] = 4


class A(base.Above):
    """Doc."""

    kept: int = LIMIT

    def f(self, x: int, most: float = base.largest()) -> tuple[float, str]:
        """Doc."""
        text = "# no comment"
        if x > LIMITS["b"]:
            log.warning("too large")
            raise ValueError(f"{x} is more than {LIMIT}")
        return rate * np.sqrt(x) * g(), text


def g():
    from toypack.base import deep

    scale = 2  # a local variable with the name of a function
    return [deep(each) for each in range(scale)]


def scale():
    return 7


def other():
    return unused
'''
BASE = """
rate = 2
unused = 5


class Above:
    def h(self):
        return 1


def largest():
    return 9


def deep(x):
    return x + 1
"""


@pytest.fixture
def toypack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of two modules; caches are cleared, as files change under one name."""
    folder = tmp_path / "toypack"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "base.py").write_text(BASE)
    (folder / "a.py").write_text(PLAIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    forget()
    return folder


def forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "toypack"]:
        del sys.modules[name]
    for cached in (source.file_of, source._places, source._module, source._lies_outside):
        cached.cache_clear()


def digest(folder: Path, *edits: tuple[str, str, str], root: str = "toypack.a:A") -> str:
    """The digest of `root` after each edit: in a file, one text became another."""
    for name, old, new in edits:
        file = folder / f"{name}.py"
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))
    forget()
    return source.digest([root])


@pytest.mark.parametrize(
    "edit",
    [
        ("a", '"""Doc."""', '"""Another doc,\nof two lines."""'),
        ("a", "        return rate", "        # because\n\n        return rate"),
        ("a", "x: int, most: float", "x, most: complex"),
        ("a", 'f"{x} is more', 'f"{x} is a lot more'),
        ("a", "too large", "much too large"),
        ("a", "import numpy as np", "import numpy"),
        ("a", "return 7", "return 8"),
        ("a", "return unused", "return unused + 1"),
        ("base", "unused = 5", "unused = 6"),
        ("a", "from toypack import base\n", "import toypack.base as base\n"),
    ],
    ids=lambda edit: edit[1].strip()[:20],
)
def test_words_and_what_is_not_reached_do_not_count(toypack: Path, edit: tuple[str, str, str]) -> None:
    before = digest(toypack)
    edits = [edit] + ([("a", "np.sqrt", "numpy.sqrt")] if "numpy" in edit[1] else [])
    assert digest(toypack, *edits) == before


@pytest.mark.parametrize(
    "edit",
    [
        ("a", "x > LIMITS", "x >= LIMITS"),
        ("a", "np.sqrt", "np.exp"),
        ("a", '"# no comment"', '"# no comments"'),
        ("a", "def f", "def k"),
        ("a", "kept: int = LIMIT", "kept: int = 2"),
        ("a", "LIMIT = 3", "LIMIT = 4"),
        ("a", '"b"] = 4', '"b"] = 5'),
        ("a", "scale = 2", "scale = 3"),
        ("a", "            raise ValueError", "            print"),
        ("base", "rate = 2", "rate = 2.5"),
        ("base", "x + 1", "x - 1"),
        ("base", "return 9", "return 8"),
        ("base", "return 1", "return 2"),
    ],
    ids=lambda edit: edit[1].strip()[:20],
)
def test_code_counts_here_and_in_what_it_leads_to(toypack: Path, edit: tuple[str, str, str]) -> None:
    before = digest(toypack)
    assert digest(toypack, edit) != before


def test_moves_merges_and_renamings_of_definitions_do_not_count(toypack: Path) -> None:
    before = digest(toypack)
    text = PLAIN.replace("from toypack.base import rate, unused", "unused = 0").replace(
        "from toypack import base\n", ""
    )
    merged = text.replace("base.", "").replace("    from toypack.base import deep\n", "").replace("deep(", "deeper(")
    head, tail = merged.split("log = ")
    moved = BASE.replace("def deep", "def deeper").replace("unused = 5\n", "")
    (toypack / "base.py").unlink()
    (toypack / "a.py").rename(toypack / "merged.py")
    (toypack / "merged.py").write_text(f"{head}\n{moved}\nlog = {tail}")
    assert digest(toypack, root="toypack.merged:A") == before


def test_a_definition_of_another_hash_counts_by_its_name(toypack: Path) -> None:
    def named(*edits: tuple[str, str, str], helper: str = "deep") -> str:
        digest(toypack, *edits)
        return source.digest(["toypack.a:A"], source.covered([f"toypack.base:{helper}"])[1])

    before = named()
    assert named(("base", "x + 1", "x - 1")) == before
    assert named(("base", "def deep", "def deeper"), ("a", "deep", "deeper"), helper="deeper") != before


def test_a_module_that_is_passed_on_counts_whole(toypack: Path) -> None:
    digest(toypack, ("a", "return 7", "return vars(base)"))
    found = source.covered(["toypack.a:scale"])[1]
    assert {each.name for each in found if each.module == "toypack.base"} >= {"rate", "unused", "Above"}


def test_a_helper_of_a_root_outside_a_package_counts(toypack: Path) -> None:
    """A method in a single file with a module beside it."""
    (toypack.parent / "lonely.py").write_text("from lonely_helper import help\n\ndef f():\n    return help()\n")
    (toypack.parent / "lonely_helper.py").write_text("RATE = 1\n\ndef help():\n    return RATE\n")
    forget()
    assert Definition("lonely_helper", "RATE") in source.covered(["lonely:f"])[1]


def test_statements_of_another_project_count_and_installed_packages_do_not(toypack: Path) -> None:
    before = digest(toypack)
    assert digest(toypack, ("base", "rate = 2\n", "rate = 2\nprint(rate)\n")) != before
    assert {each.module.partition(".")[0] for each in source.covered(["toypack.a:A"])[1]} == {"toypack"}


def test_every_version_of_python_finds_the_same_hash() -> None:
    """The syntax is written out by what versions have in common: 3.12 has type parameters, 3.13 drops empty lists."""
    tree = source.ast.parse("def f(x, *a, k=1, **o):\n    return [y for y in x if y]").body[0]
    walk = source._Walk([], ())
    walk.module = "toypack"
    assert walk._text(tree, {}) == (
        "f(x a k o; Constant(value=1)): Return(value=ListComp(elt=Name(id='y') generators=comprehension("
        "target=Name(id='y') iter=Name(id='x') ifs=Name(id='y') is_async=0)))"
    )


def test_two_processes_find_the_same_hash() -> None:
    text = "from fedbench.core import source; print(source.digest(['fedbench.core.rng:derive']))"
    found = {
        subprocess.run([sys.executable, "-c", text], capture_output=True, check=True, text=True).stdout for _ in "ab"
    }
    assert len(found) == 1


@pytest.mark.parametrize(
    ("root", "reason"), [("sys:path", "has no source file"), ("fedbench.core.rng:no", "does not define")]
)
def test_a_root_without_source_is_refused(root: str, reason: str) -> None:
    with pytest.raises(FedbenchError, match=reason):
        source.digest([root])


def test_a_field_may_have_the_name_of_what_its_default_is_made_of(toypack: Path) -> None:
    before = digest(toypack, ("a", "kept: int = LIMIT", "LIMIT: int = LIMIT"))
    assert digest(toypack, ("a", "LIMIT = 3", "LIMIT = 4")) != before


def test_packages_of_another_environment_that_this_one_sees_are_installed_ones(tmp_path: Path) -> None:
    """As with `python -m venv --system-site-packages`."""
    folder = tmp_path / "lib" / "site-packages"
    folder.mkdir(parents=True)
    show = f"import sys; sys.path.append({str(folder)!r}); from fedbench.core import source; print(*source.INSTALLED)"
    said = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True).stdout
    assert str(folder.resolve()) in said.split()
