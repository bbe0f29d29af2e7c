"""What source files say, as a hash: another hash means other code, whatever the commit.

Comments, docstrings, blank lines and trailing spaces do not count, so that words may be mended; anything else does.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import io
import time
import tokenize
from collections.abc import Collection, Iterable
from pathlib import Path

from fedbench.core.errors import FedbenchError

BEGAN = time.time()  # nothing that decides numbers was imported before


def digest(modules: Iterable[str], rooms: Collection[str]) -> str:
    """12 hexadecimal digits over `modules` and all that they import, directly or not, within the packages `rooms`.

    Raises:
        FedbenchError: a module that has no source file.
    """
    found = hashlib.sha256()
    for name in sorted(closure(modules, rooms)):
        found.update(f"{name}\n{code(file_of(name))}\n".encode())
    return found.hexdigest()[:12]


def closure(modules: Iterable[str], rooms: Collection[str]) -> set[str]:
    """`modules` and the modules within `rooms` (dotted names of packages or modules) that they lead to."""
    seen: set[str] = set()
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += [other for other in imported(file_of(name), name) if _within(other, rooms)]
    return seen


def _within(name: str, rooms: Collection[str]) -> bool:
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


@functools.cache
def file_of(name: str) -> Path:
    """The source file of a module.

    Raises:
        FedbenchError: there is no such module, or it has no source.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise FedbenchError(
            f"module {name} has no source file, so results cannot name the code that made them"
        )
    return Path(spec.origin)


def edited(modules: Iterable[str], rooms: Collection[str]) -> bool:
    """Whether a file of `digest` changed after this process began, so that what runs here may be its earlier text.

    A time of change that lies in the future is a clock that was set back, and says nothing.
    """
    files = _files(tuple(modules), tuple(rooms))
    return any(BEGAN < file.stat().st_mtime <= time.time() for file in files)


@functools.cache
def _files(modules: tuple[str, ...], rooms: tuple[str, ...]) -> list[Path]:
    return [file_of(name) for name in closure(modules, rooms)]


@functools.cache
def imported(file: Path, name: str) -> frozenset[str]:
    """The modules of its own package that `name` in `file` imports, at any place but under `if TYPE_CHECKING`."""
    found: set[str] = set()
    own = name.partition(".")[0]
    waiting: list[ast.AST] = [_tree(file)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = name if file.name == "__init__.py" else name.rpartition(".")[0]
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            if base.partition(".")[0] == own:  # looking into others' packages would import them
                found |= {_module_of(base, alias.name) for alias in node.names}
        waiting += ast.iter_child_nodes(node)
    return frozenset(each for each in found if each.partition(".")[0] == own)


def _module_of(base: str, name: str) -> str:
    """`from base import name`: the module that holds `name`, which may be one itself."""
    spec = importlib.util.find_spec(base)
    folders = (spec.submodule_search_locations or ()) if spec is not None else ()
    inside = any(
        (Path(folder) / f"{name}.py").is_file() or (Path(folder) / name).is_dir() for folder in folders
    )
    return f"{base}.{name}" if inside else base


@functools.cache
def code(file: Path) -> str:
    """The text of `file` without comments, docstrings, blank lines and trailing spaces."""
    text = file.read_text(encoding="utf-8")
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and _has_doc(
            node
        ):
            doc = node.body[0]
            for number in range(doc.lineno - 1, doc.end_lineno or doc.lineno):
                lines[number] = ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and lines[token.start[0] - 1]:
            lines[token.start[0] - 1] = lines[token.start[0] - 1][: token.start[1]]
    return "\n".join(stripped for line in lines if (stripped := line.rstrip()))


def _has_doc(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    first = node.body[0] if node.body else None
    return (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    )


def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))
