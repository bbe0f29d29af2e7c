"""Draw small errors at random and see how many the fast tests catch.

    python scripts/random_mutants.py --count 200 --seed 7 [--jobs 2] [--files WORD ...]

A line is drawn uniformly from the lines within functions of SCOPE that some change fits, then one of its changes:
an operator, sign, comparison, constant, mean or axis becomes another, a condition is negated, a `.detach()`,
`.square()`, ReLU, keyword argument or statement is left out. Each is made in a copy of the tree, where those tests run
that execute the line, of the same name and the quickest first, until one fails or `BUDGET` seconds of them have passed.
Which they are is recorded once for a state of the code, in the cache folder, line by line.

It writes results/reliability/mutants_SEED.csv, a line a mutant. A person fills the column `reading` for survivors; what
begins with "equivalent" is left out of the score, printed with its Wilson interval. A second run keeps the readings.

Of maintained tools, cosmic-ray knows neither calls, arguments nor statements, and has one command for all mutants;
mutmut chooses tests by function and drops arguments, but has no sample by line, `.detach()`, means or axes.
"""

from __future__ import annotations

import argparse
import ast
import csv
import hashlib
import json
import os
import random
import re
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from mutants import ROOT, Mutant, caught_by, first_failure, too_long, trees
from scipy.stats import binomtest

SCOPE = (
    *("methods", "metrics.py", "engine", "models", "data/partitions"),
    *(f"papers/{name}.py" for name in ("measures", "verdict", "equivalence", "studies", "estimate")),
)
TESTS = (
    *("methods", "engine", "models", "metrics", "papers", "runs", "data/test_partitions.py"),
    *(f"properties/test_any_{name}.py" for name in ("metrics", "grouping", "partition")),
)
# The package is not imported here: the copies of it are.
CACHE = Path(os.environ.get("FEDBENCH_CACHE", "~/.cache/fedbench")).expanduser()
BUDGET, AT_ONCE = 300.0, 40  # seconds, as recorded, of the tests of one mutant, and how many run in one go
WAITING = 240  # seconds of one go until an error that makes processes wait for each other counts as caught
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

    def _traced(self, test: str) -> Generator[None, Any, Any]:
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
    def pytest_runtest_setup(self, item: pytest.Item) -> Any:
        """Around the fixtures of a test."""
        return (yield from self._traced(item.nodeid.partition("::")[0]))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Any:
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
    code = _hash(b"".join(file.read_bytes() for file in files("fedbench", SCOPE)))
    kept = {
        file.relative_to(ROOT).as_posix(): CACHE / "executed" / f"{code}-{_hash(file.read_bytes())}.json"
        for file in files("tests", TESTS)
        if file.name.startswith("test_")
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
            for line, tests in lines.items():
                by_line[source, int(line)].update(tests)
    return seconds, by_line


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def files(room: str, names: Sequence[str]) -> list[Path]:
    """The Python files that `names` are or hold."""
    found = {name: sorted((ROOT / room / name).rglob("*.py")) or [ROOT / room / name] for name in names}
    if absent := [name for name, places in found.items() if not all(map(Path.is_file, places))]:
        sys.exit(f"no such file or folder in {room}/: {', '.join(absent)}; SCOPE and TESTS name it")
    return [file for places in found.values() for file in places]


def nearest(file: str, tests: Iterable[str], seconds: dict[str, float]) -> tuple[str, ...]:
    """Those of `tests` to run for an error in `file`: of the same name first, then of the same room, the quickest."""
    parts = Path(file).with_suffix("").parts[1:]
    ordered = sorted(tests, key=lambda test: (parts[-1] not in test, f"tests/{parts[0]}" not in test, seconds[test]))
    chosen, spent = [], 0.0
    for test in ordered:
        spent += seconds[test]
        if chosen and spent > BUDGET:
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
DROPPED = re.compile("detach|square|relu_?|abs|sqrt|exp|log|clamp|clip|(log_)?softmax|sigmoid")
PAIRS = ("mean sum", "min max", "amin amax", "argmin argmax", "minimum maximum", "any all", "floor ceil")
OTHERS = {one: other for pair in PAIRS for one, other in (pair.split(), reversed(pair.split()))}
BUILTIN, MODULES = {"min", "max", "any", "all"}, {"torch", "np", "functional", "math"}
AXES = re.compile("mean|sum|cat|stack|softmax|arg(max|min)|cumsum|(un)?squeeze|flatten|std|var|transpose")


class Changes(ast.NodeVisitor):
    """All changes that fit a file: `found` has (line, what, text of the file with it, first and last line)."""

    def __init__(self, text: str) -> None:
        self.text, self.lines = text.encode(), [0]
        for line in self.text.splitlines(keepends=True):
            self.lines.append(self.lines[-1] + len(line))
        self.found: list[tuple[int, str, str, range]] = []
        self.statement: Any = None  # within a function
        self.visit(ast.parse(text))

    def start(self, node: Any) -> int:
        """Where it begins, in bytes."""
        return int(self.lines[node.lineno - 1] + node.col_offset)

    def end(self, node: Any) -> int:
        """Where it ends."""
        return int(self.lines[node.end_lineno - 1] + node.end_col_offset)

    def source(self, node: ast.AST) -> str:
        """What it says."""
        return self.text[self.start(node) : self.end(node)].decode()

    def replace(self, node: ast.AST, new: str) -> None:
        """Keep the change of a node."""
        self.change(self.start(node), self.end(node), new, node)

    def change(self, start: int, end: int, new: str, node: Any) -> None:
        """Keep the change of the bytes from `start` to `end`, at `node`."""
        text = (self.text[:start] + new.encode() + self.text[end:]).decode()
        made = new.encode()  # of a long text the part that both begin with goes without saying
        kept = len(made) if len(made) > 40 and self.text[start:end].startswith(made) else 0
        around = self.text[max(start + kept - 30, self.lines[node.lineno - 1]) : start + kept].decode(errors="ignore")
        parts = self.text[start + kept : end].decode(errors="ignore"), made[kept:].decode(errors="ignore"), around
        old, new, around = (" ".join(each.split())[:60] for each in parts)
        whole = node if hasattr(self.statement, "body") else self.statement  # of `if` and `for`, the line alone
        lines = range(whole.lineno, whole.end_lineno + 1)
        self.found.append((node.lineno, f"{around} [{old} -> {new or 'left out'}]".strip(), text, lines))

    def generic_visit(self, node: ast.AST) -> None:
        """Go through functions' bodies; what only words or checks consist of is left as it is."""
        outer = self.statement
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            body: list[Any] = node.body if isinstance(node, ast.FunctionDef) else [node.body]
            for each in body[isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None :]:
                self.statement = each if isinstance(each, ast.stmt) else outer
                self.visit(each)
        elif isinstance(node, ast.Raise) and outer:
            self.replace(node, "pass")
        elif not isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert):
            self.statement = node if isinstance(node, ast.stmt) and outer else outer
            if self.statement:
                for kind in (self.operator, self.value, self.condition, self.omission):
                    kind(node)
            for each in [node.value] if isinstance(node, ast.AnnAssign) else ast.iter_child_nodes(node):
                if each:
                    self.visit(each)
        self.statement = outer

    def operator(self, node: Any) -> None:
        """Keep another operator."""
        pairs: list[tuple[Any, Any, Any]] = []
        if isinstance(node, ast.BinOp) and not any(map(_is_text, (node.left, node.right))):
            pairs = [(node.left, node.op, node.right)]
        elif isinstance(node, ast.AugAssign):
            pairs = [(node.target, node.op, node.value)]
        elif isinstance(node, ast.BoolOp):
            pairs = [(node.values[0], node.op, node.values[1])]
        elif isinstance(node, ast.Compare):
            pairs = list(zip([node.left, *node.comparators], node.ops, node.comparators, strict=False))
        for left, kind, right in pairs:
            old, new = OPERATORS.get(type(kind), ("", ""))
            start = self.end(left)
            at = self.text[start : self.start(right)].find(old.encode())
            if old and at >= 0:
                self.change(start + at, start + at + len(old), new, left)

    def value(self, node: Any) -> None:
        """Keep another sign, constant, function or axis."""
        if isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.UAdd):
            self.replace(node, self.source(node.operand))
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            self.replace(node, repr(not node.value))
        elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            self.replace(node, repr(node.value + 1 if isinstance(node.value, int) else 2 * node.value or 1.0))
        elif isinstance(node, ast.Call):
            self.call(node)

    def call(self, node: ast.Call) -> None:
        """Keep a function left out or another, and another axis."""
        whose = node.func.value if isinstance(node.func, ast.Attribute) else None
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        inner = node.args[0] if isinstance(whose, ast.Name) and whose.id in MODULES and node.args else whose
        if DROPPED.fullmatch(name) and inner:
            self.replace(node, self.source(inner))
        if name == "ReLU" and whose:
            self.replace(node, f"{self.source(whose)}.Identity()")
        if name in OTHERS and (whose or name in BUILTIN):
            self.change(self.end(node.func) - len(name), self.end(node.func), OTHERS[name], node)
        axes = [*node.args, *(each.value for each in node.keywords if each.arg in ("dim", "axis"))]
        for axis in axes if AXES.fullmatch(name) else []:
            if re.fullmatch(r"-?\d", self.source(axis)):
                self.replace(axis, "0" if self.source(axis) != "0" else "-1")

    def condition(self, node: Any) -> None:
        """Keep a condition negated."""
        tests = [node.test] if isinstance(node, ast.If | ast.IfExp | ast.While) else getattr(node, "ifs", [])
        for test in tests:
            self.replace(test, f"(not ({self.source(test)}))")

    def omission(self, node: Any) -> None:
        """Keep a keyword argument left out, or a statement that no later one lacks."""
        for each in node.keywords if isinstance(node, ast.Call) else []:
            if each.arg not in (None, "device", "strict"):  # a CPU shows no difference; lengths are equal
                start, end = self.start(each), self.end(each)
                before, after = self.text[:start].rstrip(), self.text[end:].lstrip()
                if before.endswith(b","):
                    self.change(len(before) - 1, end, "", each)
                else:
                    self.change(start, len(self.text) - len(after) + after.startswith(b","), "", each)
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(target, ast.Name):
            again = any(isinstance(each, ast.Name) and each.id == target.id for each in ast.walk(node.value))
        else:
            again = target is not None and not isinstance(target, ast.Tuple)
        called = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        if again or called or isinstance(node, ast.AugAssign | ast.Continue | ast.Break):
            self.replace(node, "pass")


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def drawn(count: int, seed: int, words: Sequence[str]) -> list[tuple[str, tuple[int, str, str, range]]]:
    """`count` changes, one a line, lines uniform over SCOPE: file, and line, what, text, lines of the statement."""
    places: dict[tuple[str, int], list[tuple[int, str, str, range]]] = defaultdict(list)
    for file in files("fedbench", SCOPE):
        name = file.relative_to(ROOT).as_posix()
        if any(word in name for word in words):
            for change in Changes(file.read_text(encoding="utf-8")).found:
                places[name, change[0]].append(change)
    chosen = random.Random(seed)
    lines = chosen.sample(sorted(places), min(count, len(places)))
    return [(line[0], chosen.choice(places[line])) for line in lines]


def caught(mutant: Mutant, tree: Path) -> str:
    """The test that fails; an error that keeps the code from being loaded is caught by whatever loads it."""
    signal.signal(signal.SIGALRM, too_long)
    for start in range(0, len(mutant.tests), AT_ONCE):
        signal.alarm(WAITING)
        try:
            compile(mutant.new, mutant.file, "exec")
            if test := caught_by(replace(mutant, tests=mutant.tests[start : start + AT_ONCE]), tree):
                return test
        except (RuntimeError, SyntaxError) as error:
            return f"loading: {type(error).__name__}"
    return ""


# ---- the score


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
        low, high = binomtest(hits, count).proportion_ci(method="wilson")  # of 95 %
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
        tests = set().union(*(by_line.get((file, line), set()) for line in lines))
        # Where only processes that tests start execute the line, those that execute any of the file.
        tests = tests or set().union(*(found for (other, _), found in by_line.items() if other == file))
        before = (ROOT / file).read_text(encoding="utf-8")
        mutants.append(Mutant(file, nearest(file, tests, seconds), what, before, text))
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
