"""Hash code by its definitions: functions, classes and assignments at the top of a module.

The hash starts at a few roots and follows their names to definitions, and from these to others. It covers their syntax.
It ignores files and folders, imports, names of definitions, the order within a module, comments, docstrings,
annotations, log lines and error messages. A module may therefore be moved, merged or split. A different operator,
constant, default, field or call changes the hash.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import sys
import sysconfig
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from fedbench.core.errors import FedbenchError

BEGAN = time.time()  # nothing that decides numbers was imported before
OWN = __name__.partition(".")[0]
# Where packages are installed: this environment's folders, and those of others that it sees (--system-site-packages).
INSTALLED = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")} | {
    Path(folder).resolve() for folder in sys.path if Path(folder).name in ("site-packages", "dist-packages")
}
BINDING = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class Definition(NamedTuple):
    """A name at the top of a module; "" names the module itself."""

    module: str
    name: str


Scope = dict[str, Definition | None]
"""What names stand for; None is a local variable."""


def digest(roots: Iterable[str], named: Collection[Definition] = ()) -> str:
    """Return 12 hexadecimal digits over the definitions that `roots`, each "package.module:Name", lead to.

    `named`: definitions that another hash covers; only their names count.

    Raises:
        FedbenchError: a root has no definition or no source file.
    """
    return covered(roots, named)[0]


def covered(roots: Iterable[str], named: Collection[Definition] = ()) -> tuple[str, frozenset[Definition]]:
    """Return `digest` and the definitions that it covers."""
    walk = _Walk(roots, named)
    return hashlib.sha256("\n".join(walk.texts).encode()).hexdigest()[:12], frozenset(walk.found)


def edited(definitions: Iterable[Definition]) -> bool:
    """Return whether a file of one of `definitions` changed after this process began.

    If one did, the running code may be the file's earlier text. A time of change in the future means that the clock
    was set back, and does not count.
    """
    files = {file_of(each.module) for each in definitions}
    return any(BEGAN < file.stat().st_mtime <= time.time() for file in files)


@functools.cache
def file_of(module: str) -> Path:
    """Return the source file of a module.

    Raises:
        FedbenchError: there is no such module, or it has no source.
    """
    if (file := _file(module)) is None:
        raise FedbenchError(f"module {module} has no source file, so results cannot name the code that made them")
    return file


def _file(module: str) -> Path | None:
    places = _places(module)
    return places[0] if places and places[0].suffix == ".py" else None


@functools.cache
def _places(module: str) -> list[Path]:
    """Return the source file of a module, or the folders of a package without `__init__.py`, or nothing."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):  # a parent that is no package; a module that was made by hand
        return []
    if spec is None:
        return []
    if spec.has_location and spec.origin:
        return [Path(spec.origin)] if spec.origin.endswith(".py") else []
    return [Path(folder) for folder in spec.submodule_search_locations or ()]


class Module:
    """The definitions of a source file, and the meaning of its names."""

    def __init__(self, name: str) -> None:
        """Read the source of the module `name`."""
        self.name = name
        self.definitions: dict[str, list[ast.stmt]] = {}  # several for one name: a table that is added to
        self.scope: Scope = {}
        if _file(name) or not _places(name):  # else a package without a file of its own
            self._read(ast.parse(file_of(name).read_text(encoding="utf-8")).body)

    def _read(self, body: list[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self._import(node)
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                self._define([node.name], node)
            elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                self._define(
                    [each.id for part in targets for each in ast.walk(part) if isinstance(each, ast.Name)],
                    node,
                )
            elif isinstance(node, (ast.If, ast.Try)):
                handlers = node.handlers if isinstance(node, ast.Try) else []
                final = node.finalbody if isinstance(node, ast.Try) else []
                for part in (node.body, node.orelse, *(handler.body for handler in handlers), final):
                    self._read(part)
            elif self.name.partition(".")[0] != OWN:  # a statement of another project may set anything
                self.definitions.setdefault("", []).append(node)
                for each in _region(node):
                    if isinstance(each, (ast.Import, ast.ImportFrom)):
                        self._import(each)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        for name, target in _imported(node, self.name).items():
            if name == "*":
                self._add("", Definition(target.module, ""))
            else:
                self._bind(name, target)

    def _define(self, names: list[str], node: ast.stmt) -> None:
        for name in names:
            self.definitions.setdefault(name, []).append(node)
            self._bind(name, Definition(self.name, name))

    def _bind(self, name: str, target: Definition) -> None:
        """Let `name` mean `target`; where one import is tried before another, it means all their targets."""
        own, old = Definition(self.name, name), self.scope.get(name)
        if old is not None and old != target:
            for each in (old, target):
                if each != own:
                    self._add(name, each)
            target = own
        self.scope[name] = target

    def _add(self, name: str, target: Definition) -> None:
        """Let the definition of `name` hold `target` as well."""
        alias = f"{name} {len(self.scope)}"
        self.scope[alias] = target
        self.definitions.setdefault(name, []).append(ast.Expr(ast.Name(alias, ast.Load())))


@functools.cache
def _module(name: str) -> Module:
    return Module(name)


def _imported(node: ast.Import | ast.ImportFrom, module: str) -> dict[str, Definition]:
    """Return the meaning of the names that an import binds in `module`."""
    if isinstance(node, ast.Import):
        whole = {alias.asname or alias.name.partition(".")[0]: alias for alias in node.names}
        return {name: Definition(each.name if each.asname else name, "") for name, each in whole.items()}
    base = _absolute("." * node.level + (node.module or ""), module)
    return {alias.asname or alias.name: Definition(base, alias.name) for alias in node.names}


def _absolute(name: str, module: str) -> str:
    """Return the name of a module that is called `name`, perhaps with leading dots, in `module`."""
    package = module if file_of(module).name == "__init__.py" else module.rpartition(".")[0]
    return importlib.util.resolve_name(name, package)


class _Walk:
    """The definitions reached from the roots, in order, and the syntax of each."""

    def __init__(self, roots: Iterable[str], named: Collection[Definition]) -> None:
        parsed = dict.fromkeys(Definition(*root.split(":")) for root in roots)
        self.named = frozenset(named) - parsed.keys()
        self.own = {OWN, *(each.module.partition(".")[0] for each in parsed)}
        self.found: dict[Definition, int] = {}
        self.waiting: list[Definition] = []
        self.whole: set[str] = set()  # modules of other projects of which all counts
        self.texts: list[str] = []
        for root in parsed:
            if root.name not in _module(root.module).definitions:
                raise FedbenchError(f"{root.module} does not define {root.name}, so results cannot name its code")
            self._refer(root)
        while self.waiting:
            self._read(self.waiting.pop(0))

    def _read(self, each: Definition) -> None:
        source, self.module = _module(each.module), each.module
        for node in source.definitions[each.name]:
            if isinstance(node, ast.ClassDef):
                self.texts.append(self._class(node, source.scope))
            elif isinstance(node, FUNCTIONS):
                self.texts.append(self._function(node, source.scope))
            else:
                self.texts.append(self._text(node, self._inside(node, source.scope, local=False)))
        if "" in source.definitions:
            self._refer(Definition(each.module, ""))

    def _refer(self, target: Definition) -> str:
        if target in self.named:
            return f"@{target.name}"
        if target not in self.found:
            self.found[target] = len(self.found)
            self.waiting.append(target)
        return f"#{self.found[target]}"

    def _text(self, node: object, scope: Scope) -> str:
        """Return the syntax of `node`, the same in every version of Python."""
        if isinstance(node, list):
            return ",".join(text for each in node if (text := self._text(each, scope)))
        if not isinstance(node, ast.AST):
            return repr(node)
        if _is_silent(node):
            self._note(node)
            return ""
        if isinstance(node, ast.Raise):
            return "Raise"
        if isinstance(node, (ast.Name, ast.Attribute, ast.Call)) and (known := self._known(node, scope)):
            return known
        if isinstance(node, FUNCTIONS):
            return getattr(node, "name", "") + self._function(node, scope)
        if isinstance(node, ast.ClassDef):
            return node.name + self._class(node, scope)
        fields = (
            f"{name}={text}"
            for name, value in ast.iter_fields(node)
            if name not in ("ctx", "kind", "type_comment", "type_params", "annotation") and value is not None
            if (text := self._text(value, scope))
        )
        return f"{type(node).__name__}({' '.join(fields)})"

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, scope: Scope) -> str:
        outer = [*node.args.defaults, *node.args.kw_defaults, *getattr(node, "decorator_list", ())]
        inner = self._inside(node, scope)
        names = [each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)]
        body = node.body if isinstance(node.body, list) else [node.body]
        return f"({' '.join(names)}; {self._text(outer, scope)}): {self._text(body, inner)}"

    def _class(self, node: ast.ClassDef, scope: Scope) -> str:
        outer = [*node.bases, *node.keywords, *node.decorator_list]
        fields = self._inside(node, scope, local=False)  # which methods do not see
        body = (self._text(each, scope if isinstance(each, FUNCTIONS) else fields) for each in node.body)
        return f"({self._text(outer, scope)}): {','.join(each for each in body if each)}"

    def _inside(self, node: ast.AST, scope: Scope, *, local: bool = True) -> Scope:
        """Return the scope inside `node`; unless `local`, a name that it assigns may also mean the module's."""
        found = dict(scope)
        for each in _region(node):
            if isinstance(each, (ast.Import, ast.ImportFrom)):
                found |= _imported(each, self.module)
            elif isinstance(each, ast.arg):
                found[each.arg] = None
            elif isinstance(each, ast.Name):
                if isinstance(each.ctx, ast.Store) and (local or each.id not in scope):
                    found[each.id] = None
            elif isinstance(each, BINDING) and each.name:
                found[each.name] = None
        return found

    def _note(self, node: ast.AST) -> None:
        """Count the target of an import in a function of another project: it may be one of several for the name."""
        if isinstance(node, ast.ImportFrom) and self.module.partition(".")[0] != OWN:
            for each in _imported(node, self.module).values():
                if (found := self._resolved(each)) is not None and found.name:
                    self._followed(found)

    def _known(self, node: ast.Name | ast.Attribute | ast.Call, scope: Scope) -> str:
        """Return the text for a name or for an attribute of a module; "" for names outside the covered code."""
        if isinstance(node, ast.Call):
            return self._loaded(node)
        if isinstance(node, ast.Name):
            return self._followed(scope.get(node.id))
        inner = self._target(node.value, scope)
        if inner is None or inner.name:
            return ""
        found = self._resolved(target := Definition(inner.module, node.attr))
        return self._followed(target) if found is None or found.name or not self._is_own(found.module) else ""

    def _followed(self, target: Definition | None) -> str:
        """Return the text for `target`; a module that is passed on, or that hides it, counts as a whole."""
        if target is None or not self._is_own(target.module):
            return ".".join(filter(None, target or ()))
        found = self._resolved(target)
        if found is not None and (found.name or not self._is_own(found.module)):
            return self._followed(found) if found != target else self._refer(found)
        if found is None and target.module.partition(".")[0] == OWN:
            return ""
        return self._whole((found or target).module)

    def _whole(self, module: str) -> str:
        """Return the text for all that `module` defines and, outside fedbench, for all that it imports."""
        source = _module(module)
        found = [self._refer(Definition(module, name)) for name in source.definitions]
        if module.partition(".")[0] != OWN and module not in self.whole:
            self.whole.add(module)
            found += [self._followed(each) for each in source.scope.values() if each and each.module != module]
        return ",".join(filter(None, found))

    def _loaded(self, node: ast.Call) -> str:
        """Return the text for `importlib.import_module("a.module")`, which counts as a whole if covered; else ""."""
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        first = node.args[0] if node.args else None
        if called not in ("import_module", "__import__") or not isinstance(first, ast.Constant):
            return ""
        name = _absolute(str(first.value), self.module)
        return self._whole(name) if self._is_own(name) and _file(name) else ""

    def _target(self, node: ast.expr, scope: Scope) -> Definition | None:
        if isinstance(node, ast.Name):
            return self._resolved(scope.get(node.id))
        if isinstance(node, ast.Attribute) and (inner := self._target(node.value, scope)) and not inner.name:
            return self._resolved(Definition(inner.module, node.attr))
        return None

    def _resolved(self, target: Definition | None) -> Definition | None:
        """Return where what an import names is defined; a module is a definition without a name."""
        if target is None or not target.name or not self._is_own(target.module):
            return target
        if target.name in _module(target.module).definitions:
            return target
        if _file(inner := f"{target.module}.{target.name}"):
            return Definition(inner, "")
        return self._resolved(_module(target.module).scope.get(target.name))

    def _is_own(self, module: str) -> bool:
        """Return whether `module` counts: it is fedbench's, in a root's package, or not an installed one."""
        top = module.partition(".")[0]
        return top in self.own or _lies_outside(top)


@functools.cache
def _lies_outside(top: str) -> bool:
    """Return whether the package or module `top` has files outside of the folders of installed packages."""
    places = _places(top)
    return bool(places) and not any(INSTALLED & set(place.resolve().parents) for place in places)


def _region(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below `node`, without what is inside functions and classes below it."""
    waiting = list(ast.iter_child_nodes(node))
    while waiting:
        each = waiting.pop()
        yield each
        if not isinstance(each, (*FUNCTIONS, ast.ClassDef)):
            waiting += ast.iter_child_nodes(each)


def _is_silent(node: ast.AST) -> bool:
    """Return whether `node` affects no result: an import, a docstring, a log line, a declaration."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return True
    if not isinstance(node, ast.Expr):
        return False
    value = node.value
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        return isinstance(value.func.value, ast.Name) and value.func.value.id == "log"
    return isinstance(value, ast.Constant)
