"""Draw small errors at random and see how many the fast tests catch.

    python scripts/random_mutants.py --count 200 --seed 7 [--jobs 2] [--files WORD ...]

A line is drawn uniformly from the lines within functions of SCOPE that some change fits, then one of its changes:
an operator, sign, comparison, constant, mean or axis becomes another, a condition is negated, a `.detach()`,
`.square()`, ReLU, keyword argument or statement is left out. Each is made in a copy of the tree, where those tests run
that execute the line, of the same name and the quickest first, until one fails or `BUDGET` seconds of them have passed.
Which they are is recorded once for a state of the code, in the cache folder, line by line.

It writes results/reliability/mutants_SEED.csv, a line a mutant. A person fills the column `reading` for survivors; what
begins with "equivalent" is left out of the score, which is printed with its Wilson interval. A second run keeps readings.
"""

from __future__ import annotations

import argparse
import ast
import csv
import hashlib
import json
import random
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from mutants import ROOT, Mutant, caught_by, first_failure, trees

from fedbench.core.cache import cache_dir

SCOPE = (
    *("methods", "metrics.py", "engine", "models", "data/partitions"),
    *(f"tables/{name}.py" for name in ("measures", "verdict", "equivalence", "studies", "estimate")),
)
TESTS = (
    *("methods", "engine", "models", "metrics", "tables", "data/test_partitions.py"),
    *(f"properties/test_any_{name}.py" for name in ("metrics", "grouping", "partition")),
)
BUDGET, MOST = 60.0, 80  # seconds, as recorded, of the tests of one mutant, and how many
COLUMNS = ("file", "line", "what", "caught_by", "reading")

# ---- which tests execute a line


class Recorder:
    """A plugin of pytest that keeps which lines of SCOPE a test executes, and its seconds.

    What fixtures execute counts for the whole file, as a later test may be the one that looks at it.
    """

    def __init__(self, tree: Path) -> None:
        self.prefix = f"{tree}/"
        self.inside = tuple(f"{tree}/fedbench/{name}" for name in SCOPE)
        self.seconds: dict[str, float] = {}
        self.lines: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        self.seen: set[tuple[str, int]] = set()

    def _called(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._line if frame.f_code.co_filename.startswith(self.inside) else None

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        self.seen.add((frame.f_code.co_filename, frame.f_lineno))
        return self._line

    def _traced(self, test: str) -> Iterator[None]:
        self.seen.clear()
        began = time.process_time()
        sys.settrace(self._called)
        threading.settrace(self._called)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
            self.seconds[test] = round(self.seconds.get(test, 0.0) + time.process_time() - began, 3)
            for file, line in self.seen:
                self.lines[file.removeprefix(self.prefix)][line].add(test)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        """Around the fixtures of a test."""
        return (yield from self._traced(item.nodeid.partition("::")[0]))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Around a test."""
        return (yield from self._traced(item.nodeid))


def recorded(test_file: str, tree: Path) -> str:
    """What a file of tests executes, as JSON: seconds of each test, and tests of each line."""
    recorder = Recorder(tree)
    first_failure([test_file], tree, stop=False, seconds=0.0, plugins=[recorder])
    lines = {file: {n: sorted(tests) for n, tests in found.items()} for file, found in recorder.lines.items()}
    return json.dumps({"seconds": recorder.seconds, "lines": lines})


def contexts(jobs: int) -> tuple[dict[str, float], dict[tuple[str, int], set[str]]]:
    """Seconds of each test, and the tests that execute a line; records what the cache lacks."""
    code = hashlib.sha256(b"".join(file.read_bytes() for file in scope())).hexdigest()[:16]
    tests = [
        file
        for name in TESTS
        for file in sorted(p for p in python_files(ROOT / "tests" / name) if p.name.startswith("test_"))
    ]
    kept = {
        file.relative_to(ROOT).as_posix(): cache_dir()
        / "executed"
        / f"{code}-{hashlib.sha256(file.read_bytes()).hexdigest()[:16]}.json"
        for file in tests
    }
    if lacking := [name for name, file in kept.items() if not file.is_file()]:
        print(f"recording which lines {len(lacking)} files of tests execute", file=sys.stderr, flush=True)
        with trees(jobs) as each_in_a_tree:
            for name, text in zip(lacking, each_in_a_tree(recorded, lacking), strict=True):
                kept[name].parent.mkdir(parents=True, exist_ok=True)
                kept[name].write_text(text, encoding="utf-8")
    seconds: dict[str, float] = {}
    by_line: dict[tuple[str, int], set[str]] = defaultdict(set)
    for name, file in kept.items():
        found = json.loads(file.read_text(encoding="utf-8"))
        seconds |= found["seconds"] | {name: sum(found["seconds"].values())}
        for source, lines in found["lines"].items():
            for line, tests_of in lines.items():
                by_line[source, int(line)].update(tests_of)
    return seconds, by_line


def python_files(place: Path) -> list[Path]:
    """The file, or those in the folder."""
    return [place] if place.is_file() else sorted(place.rglob("*.py"))


def scope() -> list[Path]:
    """The files that errors are drawn from."""
    return [file for name in SCOPE for file in python_files(ROOT / "fedbench" / name)]


def nearest(file: str, tests: Iterable[str], seconds: dict[str, float]) -> tuple[str, ...]:
    """Those of `tests` to run for an error in `file`: of the same name first, then of the same room, the quickest."""
    parts = Path(file).with_suffix("").parts[1:]
    ordered = sorted(tests, key=lambda test: (parts[-1] not in test, f"tests/{parts[0]}" not in test, seconds[test]))
    chosen, spent = [], 0.0
    for test in ordered:
        spent += seconds[test]
        if chosen and (spent > BUDGET or len(chosen) == MOST):
            break
        chosen.append(test)
    return tuple(chosen)


# ---- what can be wrong

OPERATORS = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"), ast.Pow: ("**", "*"), ast.BitAnd: ("&", "|"), ast.MatMult: ("@", "*"),
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"), ast.And: ("and", "or"), ast.Or: ("or", "and"),
}  # fmt: skip
DROPPED = "detach square relu relu_ abs sqrt exp log clamp clip softmax log_softmax sigmoid flatten T".split()
PAIRS = ("mean sum", "min max", "amin amax", "argmin argmax", "minimum maximum", "any all", "floor ceil")
OTHERS = {one: other for pair in PAIRS for one, other in (pair.split(), reversed(pair.split()))}
AXES = "mean sum cat stack softmax log_softmax argmax argmin cumsum unsqueeze squeeze norm flatten std var".split()


class Changes(ast.NodeVisitor):
    """All changes that fit a file: `found` has (line, what, text of the file with it, first and last line)."""

    def __init__(self, text: str) -> None:
        self.text, self.lines = text.encode(), [0]
        for line in self.text.splitlines(keepends=True):
            self.lines.append(self.lines[-1] + len(line))
        self.found: list[tuple[int, str, str, range]] = []
        self.statement: ast.stmt | None = None  # within a function
        self.visit(ast.parse(text))

    def source(self, node: ast.AST) -> str:
        return self.text[self._start(node) : self._end(node)].decode()

    def _start(self, node: Any) -> int:
        return int(self.lines[node.lineno - 1] + node.col_offset)

    def _end(self, node: Any) -> int:
        return int(self.lines[node.end_lineno - 1] + node.end_col_offset)

    def change(self, start: int, end: int, new: str, node: Any) -> None:
        """Keep the change of the bytes from `start` to `end`, at `node`."""
        text = (self.text[:start] + new.encode() + self.text[end:]).decode()
        old, new = (" ".join(each.split())[:60] for each in (self.text[start:end].decode(), new))
        around = " ".join(
            self.text[max(start - 30, self.lines[node.lineno - 1]) : start].decode(errors="ignore").split()
        )
        statement = self.statement
        assert statement is not None
        simple = not hasattr(statement, "body")
        lines = (
            range(statement.lineno, (statement.end_lineno or 0) + 1)
            if simple
            else range(node.lineno, node.end_lineno + 1)
        )
        what = f"{around} [{old} -> {new}]" if new else f"{around} [{old} left out]"
        self.found.append((node.lineno, what.strip(), text, lines))

    def replace(self, node: ast.AST, new: str) -> None:
        self.change(self._start(node), self._end(node), new, node)

    def between(self, left: ast.AST, right: ast.AST, kind: ast.AST, node: ast.AST) -> None:
        """Change the operator between two operands."""
        old, new = OPERATORS.get(type(kind), ("", ""))
        start, end = self._end(left), self._start(right)
        at = self.text[start:end].find(old.encode())
        if old and at >= 0:
            self.change(start + at, start + at + len(old), new, left)

    # ---- where

    def generic_visit(self, node: ast.AST) -> None:
        if isinstance(node, (ast.JoinedStr, ast.Raise, ast.Assert, ast.Import, ast.ImportFrom)):
            if isinstance(node, ast.Raise) and self.statement:
                self.statement = node
                self.replace(node, "pass")
            return
        outer = self.statement
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            body = node.body if isinstance(node.body, list) else [node.body]
            for each in body[1:] if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) else body:
                self.statement = each if isinstance(each, ast.stmt) else outer
                self.visit(each)
            self.statement = outer
            return
        if isinstance(node, ast.stmt) and outer is not None:
            self.statement = node
        if self.statement is not None:
            self.changes(node)
        if isinstance(node, ast.AnnAssign):
            if node.value:
                self.visit(node.value)
        else:
            super().generic_visit(node)
        self.statement = outer

    # ---- what

    def changes(self, node: Any) -> None:
        """Keep the changes of one node within a function."""
        if isinstance(node, ast.BinOp) and not any(
            isinstance(each, ast.JoinedStr)
            or isinstance(getattr(each, "value", None), str)
            and isinstance(each, ast.Constant)
            for each in (node.left, node.right)
        ):
            self.between(node.left, node.right, node.op, node)
        elif isinstance(node, ast.AugAssign):
            self.between(node.target, node.value, node.op, node)
        elif isinstance(node, ast.Compare):
            for left, kind, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
                self.between(left, right, kind, node)
        elif isinstance(node, ast.BoolOp):
            self.between(node.values[0], node.values[1], node.op, node)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not, ast.Invert)):
            self.replace(node, self.source(node.operand))
        elif isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
            value = node.value
            new = not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else 2 * value or 1.0
            self.replace(node, repr(new))
        elif isinstance(node, ast.Call):
            self.calls(node)
        elif isinstance(node, ast.Attribute) and node.attr == "T":
            self.replace(node, self.source(node.value))
        if isinstance(node, (ast.If, ast.IfExp, ast.While)):
            self.replace(node.test, f"(not ({self.source(node.test)}))")
        elif isinstance(node, ast.comprehension):
            for test in node.ifs:
                self.replace(test, f"not ({self.source(test)})")
        kept = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        renewed = kept and any(isinstance(n, ast.Name) and n.id == node.targets[0].id for n in ast.walk(node.value))
        called = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        if (
            called
            or renewed
            or isinstance(node, (ast.AugAssign, ast.Continue, ast.Break))
            or (isinstance(node, ast.Assign) and not kept and not isinstance(node.targets[0], ast.Tuple))
        ):
            self.replace(node, "pass")

    def calls(self, node: ast.Call) -> None:
        """Keep the changes of a call."""
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if isinstance(node.func, ast.Attribute):
            module = isinstance(node.func.value, ast.Name) and node.func.value.id in (
                "torch",
                "np",
                "functional",
                "math",
            )
            if name in DROPPED and (node.args or not module):
                self.replace(node, self.source(node.args[0] if module else node.func.value))
            if name == "ReLU":
                self.replace(node, "torch.nn.Identity()")
        if name in OTHERS and (isinstance(node.func, ast.Attribute) or name in ("min", "max", "any", "all")):
            end = self._end(node.func)
            self.change(end - len(name), end, OTHERS[name], node)
        axes = [*node.args, *(each.value for each in node.keywords if each.arg in ("dim", "axis"))]
        for axis in axes if name in (*AXES, "transpose") else []:
            if isinstance(axis, ast.Constant) and isinstance(axis.value, int) or isinstance(axis, ast.UnaryOp):
                self.replace(axis, "0" if self.source(axis) != "0" else "-1")
        for each in node.keywords:
            if each.arg not in (None, "device", "strict"):  # a CPU shows no difference; lengths are equal
                start = self._start(each)
                before = self.text[:start].rstrip()
                first = not node.args and each is node.keywords[0]
                self.change(start if first else len(before) - before.endswith(b","), self._end(each), "", each)
                if first and self.text[self._end(each) :].lstrip().startswith(b",") and len(node.keywords) > 1:
                    self.found.pop()
                    self.change(start, self._start(node.keywords[1]), "", each)


def drawn(count: int, seed: int, words: Sequence[str]) -> list[tuple[str, tuple[int, str, str, range]]]:
    """`count` changes, one a line, lines uniform over SCOPE: file, and line, what, text, lines of the statement."""
    places: dict[tuple[str, int], list[tuple[int, str, str, range]]] = defaultdict(list)
    for file in scope():
        name = file.relative_to(ROOT).as_posix()
        if any(word in name for word in words):
            for change in Changes(file.read_text(encoding="utf-8")).found:
                places[name, change[0]].append(change)
    chosen = random.Random(seed)
    lines = chosen.sample(sorted(places), min(count, len(places)))
    return [(line[0], chosen.choice(places[line])) for line in lines]


def caught(mutant: Mutant, tree: Path) -> str:
    """The test that fails; an error that keeps the code from being loaded is caught by whatever loads it."""
    try:
        compile(mutant.new, mutant.file, "exec")
        return caught_by(mutant, tree) if mutant.tests else ""
    except (RuntimeError, SyntaxError) as error:
        return f"loading: {type(error).__name__}"


# ---- the score


def interval(caught: int, count: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    share, scale = caught / count, 1 + z * z / count
    half = z * (share * (1 - share) / count + z * z / (4 * count * count)) ** 0.5
    middle = share + z * z / (2 * count)
    return (middle - half) / scale, (middle + half) / scale


def score(rows: Sequence[dict[str, str]]) -> str:
    """The share caught by folder, as a table; equivalent mutants do not count."""
    counted: dict[str, list[bool]] = defaultdict(list)
    for row in rows:
        if not row["reading"].startswith("equivalent"):
            for place in (row["file"].removesuffix(".py").split("/")[1], "all"):
                counted[place].append(bool(row["caught_by"]))
    said = ["| folder | caught | of | share | 95 % interval |", "|---|---|---|---|---|"]
    for place in sorted(counted, key=lambda name: (name == "all", name)):
        hits, count = sum(counted[place]), len(counted[place])
        low, high = interval(hits, count)
        said.append(f"| {place} | {hits} | {count} | {hits / count:.1%} | {low:.1%} to {high:.1%} |")
    return "\n".join(said)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 once the sample has run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--files", nargs="*", default=[""])
    given = parser.parse_args(arguments)
    seconds, by_line = contexts(given.jobs)
    sample = drawn(given.count, given.seed, given.files)
    mutants = []
    for file, (_, what, text, lines) in sample:
        tests = nearest(file, set().union(*(by_line.get((file, line), set()) for line in lines)), seconds)
        mutants.append(Mutant(file, tests, what, (ROOT / file).read_text(encoding="utf-8"), text))
    target = ROOT / "results" / "reliability" / f"mutants_{given.seed}.csv"
    old = list(csv.DictReader(target.open(encoding="utf-8"))) if target.is_file() else []
    readings = {(row["file"], row["what"]): row["reading"] for row in old}
    rows, began = [], time.monotonic()
    with trees(given.jobs) as each_in_a_tree:
        for (file, (line, what, _, _)), test in zip(sample, each_in_a_tree(caught, mutants), strict=True):
            rows.append(dict(zip(COLUMNS, (file, str(line), what, test, readings.get((file, what), "")), strict=True)))
            print(f"{file}:{line}: {what}: {test or 'SURVIVED'}", flush=True)
        catchers = sorted({row["caught_by"] for row in rows if "::" in row["caught_by"]})
        again = [[f"tests/{name}" for name in catchers[k : k + 10]] for k in range(0, len(catchers), 10)]
        if failing := [name for name in each_in_a_tree(first_failure, again) if name]:
            raise RuntimeError(f"these fail without any error: {' '.join(failing)}")
    with target.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{score(rows)}\n{(time.monotonic() - began) / 60:.0f} minutes, seed {given.seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
