"""What keeps the package small enough to hold in mind: no circle, no file cut for its length, a budget of lines."""

from __future__ import annotations

import ast
import dataclasses
import functools
import graphlib
import re
from collections import Counter
from pathlib import Path

import grimp
import pytest

from fedbench.cli.program import COMMANDS
from fedbench.config import groups
from fedbench.config.schema import SettingsConfig
from fedbench.engine.method import Method
from fedbench.runs.run import flat

ROOT = Path(__file__).parents[1]
# The budget is raised only by who says what comes. Methods are a catalogue: each is a file, and they may be long only
# on average as the papers need.
HOUSE_LINES, HOUSE_FILES, METHOD_LINES, SCRIPTS_LINES = 31_550, 139, 140, 4_101
PAGES, PAGE_LINES = 12, 1_189  # of docs/, written by hand
# What a reader remembers: classes outside methods/, options of all runs, types that docs/architecture.md passes.
CLASSES, OPTIONS, CONCEPTS = 284, 77, 8

# Modules that one other module alone imports, and why each is a file: api, behind `import fedbench`; ideas of their own
# that the API, the loop, the execution of runs and the commands use.
ONE_IMPORTER = """
api data.memory engine.client_state engine.preparation engine.trial papers.estimate
papers.execute papers.figure_arrays papers.fill papers.studies runs.trackers testing.checks testing.dead
"""


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    """Each module and those that it imports, also within functions and for types."""
    graph = grimp.build_graph("fedbench", cache_dir=None)
    return {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}


def registered() -> dict[str, set[str]]:
    """Modules and classes that a config or the table of commands names, so that nobody need import them."""
    registries = map(groups.registry, groups.REGISTRIES)
    classes = [registry.get(name) for registry in registries for name in registry]
    modules = {each.__module__ for each in classes} | {each.partition(":")[0] for each in COMMANDS.values()}
    return {"modules": modules, "classes": {each.__name__ for each in classes}}


def test_no_circle_of_modules(imports: dict[str, set[str]]) -> None:
    graphlib.TopologicalSorter(imports).prepare()


def test_modules_with_one_importer_are_known(imports: dict[str, set[str]]) -> None:
    """A module that serves one other is a part of it, unless a config names it."""
    importers = Counter(target for targets in imports.values() for target in targets)
    packages = {name.rpartition(".")[0] for name in imports}
    found = {name for name, count in importers.items() if count == 1} - packages - registered()["modules"]
    new = {each.removeprefix("fedbench.") for each in found} - {*ONE_IMPORTER.split()}
    assert not new


@functools.cache
def nodes_of(file: Path) -> list[ast.AST]:
    return [*ast.walk(ast.parse(file.read_text(encoding="utf-8")))]


def test_classes_with_one_subclass_are_known() -> None:
    """A class that is one other's base, and nothing else, is a part of it."""
    nodes = [node for file in sorted((ROOT / "fedbench").rglob("*.py")) for node in nodes_of(file)]
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    uses = Counter(node.id for node in nodes if isinstance(node, ast.Name))
    uses += Counter(node.attr for node in nodes if isinstance(node, ast.Attribute))
    bases = Counter(ast.unparse(base).partition("[")[0] for each in classes for base in each.bases)
    found = {each.name for each in classes if uses[each.name] == bases[each.name] == 1}
    assert not found - registered()["classes"]


def test_the_interface_of_a_method_is_no_larger() -> None:
    """What serves one method goes into that method."""
    members = [name for name in vars(Method) if not name.startswith("_")]
    assert len(members) <= 24, sorted(members)


def classes(within: str = "**/*.py") -> list[tuple[str, str]]:
    """(file below fedbench/, class) of every class."""
    place = ROOT / "fedbench"
    return [
        (file.relative_to(place).as_posix(), node.name)
        for file in sorted(place.glob(within))
        for node in nodes_of(file)
        if isinstance(node, ast.ClassDef)
    ]


def test_no_two_classes_share_a_name() -> None:
    public = Counter(name for _, name in classes() if not name.startswith("_"))
    assert [name for name, count in public.items() if count > 1] == []


def test_what_a_head_must_hold_is_no_more() -> None:
    assert len([file for file, _ in classes() if not file.startswith("methods/")]) <= CLASSES
    schemas = (*groups.SCHEMAS.values(), SettingsConfig)
    assert sum(len(flat(dataclasses.asdict(schema()))) for schema in schemas) <= OPTIONS
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    passed = text.partition("## What passes between them")[2].partition("\n## ")[0]
    assert sum(line.startswith("| `") for line in passed.splitlines()) <= CONCEPTS


def test_the_budget_is_kept() -> None:
    package, scripts = ((ROOT / name).rglob("*.py") for name in ("fedbench", "scripts"))
    sizes = {file: len(file.read_text(encoding="utf-8").splitlines()) for file in package}
    methods = {file: lines for file, lines in sizes.items() if ROOT / "fedbench" / "methods" in file.parents}
    assert sum(sizes.values()) - sum(methods.values()) <= HOUSE_LINES
    assert len(sizes) - len(methods) <= HOUSE_FILES
    assert sum(methods.values()) <= METHOD_LINES * len(methods)
    assert sum(len(file.read_text(encoding="utf-8").splitlines()) for file in scripts) <= SCRIPTS_LINES


def test_the_pages_are_few_and_short() -> None:
    """A reader's time is a budget too. Generated parts, and the pages of docs/reference, do not count."""
    pages = [file.read_text(encoding="utf-8") for file in (ROOT / "docs").glob("*.md")]
    written = [re.sub(r"<!-- (\w+) -->.*?<!-- /\1 -->\n?", "", text, flags=re.DOTALL) for text in pages]
    assert len(pages) <= PAGES
    assert sum(len(text.splitlines()) for text in written) <= PAGE_LINES
