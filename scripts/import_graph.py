"""Who imports whom in fedbench: rooms, arrows between them, circles, and arrows that run up.

    python scripts/import_graph.py [FOLDER]

A room is a folder or a file at the top of the package. Every import counts, also one inside a function or behind
`if TYPE_CHECKING`. Exit code 1 if there is a circle of modules or an arrow that runs up.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "fedbench"
ORDER = (  # a room imports itself and rooms before it; those of one line do not import each other
    ("core",),
    ("config",),
    ("metrics", "plots"),
    ("data", "results"),
    ("models",),
    ("engine",),
    ("methods",),
    ("recorders",),
    ("runs",),
    ("sweeps",),
    ("tables",),
    ("figures",),
    ("report",),
    ("cli",),
    ("testing",),  # and, beside it, the files at the top
)
Graph = Mapping[str, frozenset[str]]


def module_graph(root: Path = ROOT) -> Graph:
    """Every module of the package below `root`, and the modules that it imports."""
    files = {module_name(file.relative_to(root)): file for file in (root / PACKAGE).rglob("*.py")}
    return {name: frozenset(imports(name, file, set(files))) for name, file in files.items()}


def module_name(file: Path) -> str:
    """`fedbench/core/trees.py` is fedbench.core.trees, a package's __init__.py the package."""
    parts = file.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(name: str, file: Path, known: set[str]) -> Iterator[str]:
    """Modules that `file` imports; `from package import module` is an arrow to the module alone."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known - {name})
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                found = f"{node.module}.{alias.name}"
                yield from {found if found in known else node.module} & (known - {name})


def room(module: str) -> str:
    """The folder or file at the top of the package that `module` lies in; empty for the package itself."""
    return ".".join(module.split(".")[1:2])


def room_graph(modules: Graph) -> Graph:
    """Rooms, and the other rooms that they import."""
    arrows: dict[str, set[str]] = {room(module): set() for module in modules if room(module)}
    for module, targets in modules.items():
        if room(module):
            arrows[room(module)] |= {room(target) for target in targets} - {room(module), ""}
    return {name: frozenset(targets) for name, targets in arrows.items()}


def circles(graph: Graph) -> list[tuple[str, ...]]:
    """Groups of nodes that reach each other, sorted."""
    reach = {node: reachable(graph, node) for node in graph}
    groups = {tuple(sorted({m for m in reach[n] if n in reach[m]} | {n})) for n in graph if n in reach[n]}
    return sorted(groups)


def reachable(graph: Graph, start: str) -> set[str]:
    """Nodes at the end of a way from `start` of at least one arrow."""
    seen: set[str] = set()
    ahead = set(graph[start])
    while ahead:
        node = ahead.pop()
        seen.add(node)
        ahead |= graph[node] - seen
    return seen


def upward(modules: Graph) -> list[str]:
    """Imports of a room that stands beside or above, "module -> module"; folders without a place in ORDER too."""
    level = {name: place for place, names in enumerate(ORDER) for name in names}
    level |= {room(module): len(ORDER) - 1 for module in modules if is_file(module, modules)}
    unplaced = [f"{name}: no place in ORDER" for name in sorted(room_graph(modules)) if name not in level]
    return unplaced + [
        f"{module} -> {target}"
        for module, targets in sorted(modules.items())
        for target in sorted(targets)
        if "" not in (room(module), room(target))
        and room(module) != room(target)
        and level.get(room(target), 0) >= level.get(room(module), len(ORDER))
    ]


def is_file(module: str, modules: Graph) -> bool:
    """Whether `module` is a file at the top of the package."""
    return module.count(".") == 1 and not any(name.startswith(module + ".") for name in modules)


def main(root: Path = ROOT) -> int:
    """Print the figures; 1 if something runs in a circle or up."""
    modules = module_graph(root)
    rooms = room_graph(modules)
    found, up = circles(modules), upward(modules)
    print(
        f"{len(modules)} modules, {len(rooms)} rooms, {sum(map(len, rooms.values()))} arrows between rooms,"
    )
    print(f"{len(found)} circles of modules, {len(circles(rooms))} of rooms, {len(up)} arrows that run up")
    for circle in found:
        print("circle:", " <-> ".join(circle))
    for arrow in up:
        print("up:", arrow)
    return int(bool(found or up))


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:2])))
