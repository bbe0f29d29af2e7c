"""Hash code by its definitions: functions, classes and assignments at the top of a module, wherever they stand.

From a few roots, names are followed to the definitions that they stand for, and from these to others. What counts is
their syntax. What does not count: files and folders, imports, the names of definitions, the order within a module,
comments, docstrings, annotations, log lines, and what an error says. So a module may be moved, merged or split without
another hash. Another operator, constant, default, field or call gives another hash.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import sysconfig
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from fedbench.core.errors import FedbenchError

BEGAN = time.time()  # nothing that decides numbers was imported before
OWN = __name__.partition(".")[0]
INSTALLED = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")}
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

    `named`: definitions that another hash covers. They count by their names alone.

    Raises:
        FedbenchError: a root has no definition or no source file.
    """
    return hashlib.sha256("\n".join(_Walk(roots, named).texts).encode()).hexdigest()[:12]


def closure(roots: Iterable[str], named: Collection[Definition] = ()) -> frozenset[Definition]:
    """Return the definitions that `digest` covers."""
    return frozenset(_Walk(roots, named).found)


def edited(definitions: Iterable[Definition]) -> bool:
    """Return whether a file of one of `definitions` changed after this process began.

    What runs here may then be the file's earlier text. A time of change that lies in the future is a clock that was
    set back, and says nothing.
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


@functools.cache
def _file(module: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):  # a parent that is no package; a module that was made by hand
        return None
    return Path(spec.origin) if spec is not None and spec.origin and spec.origin.endswith(".py") else None


class Module:
    """What a source file defines, and what its names stand for."""

    def __init__(self, name: str) -> None:
        """Read the source of the module `name`."""
        self.name = name
        self.definitions: dict[str, list[ast.stmt]] = {}  # several for one name: a table that is added to
        self.scope: Scope = {}
        self._read(ast.parse(file_of(name).read_text(encoding="utf-8")).body)

    def _read(self, body: list[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self.scope.update(_imported(node, self.name))
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
                for part in (node.body, node.orelse, *(handler.body for handler in handlers)):
                    self._read(part)
            elif self.name.partition(".")[0] != OWN:  # a statement of another project may set anything
                self.definitions.setdefault("", []).append(node)

    def _define(self, names: list[str], node: ast.stmt) -> None:
        for name in names:
            self.definitions.setdefault(name, []).append(node)
            self.scope[name] = Definition(self.name, name)


@functools.cache
def _module(name: str) -> Module:
    return Module(name)


def _imported(node: ast.Import | ast.ImportFrom, module: str) -> Scope:
    """Return what the names stand for that an import binds in `module`."""
    if isinstance(node, ast.Import):
        whole = {alias.asname or alias.name.partition(".")[0]: alias for alias in node.names}
        return {name: Definition(each.name if each.asname else name, "") for name, each in whole.items()}
    package = module if file_of(module).name == "__init__.py" else module.rpartition(".")[0]
    base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
    return {alias.asname or alias.name: Definition(base, alias.name) for alias in node.names}


class _Walk:
    """The definitions that roots lead to, in the order in which they are met, and the syntax of each."""

    def __init__(self, roots: Iterable[str], named: Collection[Definition]) -> None:
        parsed = dict.fromkeys(Definition(*root.split(":")) for root in roots)
        self.named = frozenset(named) - parsed.keys()
        self.own = {OWN, *(each.module.partition(".")[0] for each in parsed)}
        self.found: dict[Definition, int] = {}
        self.waiting: list[Definition] = []
        self.texts: list[str] = []
        for root in parsed:
            if root.name not in _module(root.module).definitions:
                raise FedbenchError(f"{root.module} defines no {root.name}, so results cannot name its code")
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
            return ""
        if isinstance(node, ast.Raise):
            return "Raise"
        if isinstance(node, (ast.Name, ast.Attribute)) and (known := self._known(node, scope)):
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
        """Return the scope inside `node`; if not `local`, a name that it assigns may stand for the module's as well."""
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

    def _known(self, node: ast.Name | ast.Attribute, scope: Scope) -> str:
        """Return what stands for a name, or for an attribute of a module; "" for a name that is none of ours."""
        if isinstance(node, ast.Name):
            target = self._resolved(scope.get(node.id))
        else:
            inner = self._target(node.value, scope)
            target = self._resolved(Definition(inner.module, node.attr)) if inner and not inner.name else None
        if target is None:
            return ""
        if target.name or not self._is_own(target.module):
            return self._refer(target) if self._is_own(target.module) else ".".join(filter(None, target))
        if isinstance(node, ast.Name):  # a module that is passed on: all of it counts
            return ",".join(self._refer(Definition(target.module, name)) for name in _module(target.module).definitions)
        return ""

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
        """Return whether `module` counts: it is ours, in a root's package, or nothing that was installed."""
        top = module.partition(".")[0]
        if top in self.own:
            return True
        file = _file(top)
        return file is not None and not INSTALLED & set(file.resolve().parents)


def _region(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below `node`, without what is inside functions and classes below it."""
    waiting = list(ast.iter_child_nodes(node))
    while waiting:
        each = waiting.pop()
        yield each
        if not isinstance(each, (*FUNCTIONS, ast.ClassDef)):
            waiting += ast.iter_child_nodes(each)


def _is_silent(node: ast.AST) -> bool:
    """Return whether `node` decides nothing: an import, a docstring, a log line, a declaration."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return True
    if not isinstance(node, ast.Expr):
        return False
    value = node.value
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        return isinstance(value.func.value, ast.Name) and value.func.value.id == "log"
    return isinstance(value, ast.Constant)
