"""Make each deliberate error of mutants.yaml in a copy of the tree and run the tests that must notice.

    python scripts/mutants.py [WORD ...] [--jobs 2]

WORDs choose errors whose file or description contains one. Prints a line for each error, and ends with exit code 1 if
one was caught by no test.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Queue

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("fedbench", "conf", "docs", "hydra_plugins", "results", "scripts", "tests", "pyproject.toml")
HEAVY = "torch", "torchvision", "numpy", "pandas", "scipy.stats", "sklearn", "cvxpy"  # imported once, before
SECONDS = 120.0  # of computing for one error; its tests take less than 30
FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Mutant:
    """One error: `old` in `file` becomes `new`, and one of `tests` fails."""

    file: str
    tests: tuple[str, ...]
    what: str
    old: str
    new: str

    def made_in(self, text: str) -> str:
        """`text` with the error.

        Raises:
            ValueError: what it replaces is not there exactly once.
        """
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"{self.file}: {count} times instead of once: {self.old}")
        return text.replace(self.old, self.new)


def listed() -> list[Mutant]:
    """All of mutants.yaml."""
    groups = yaml.safe_load((ROOT / "scripts" / "mutants.yaml").read_text(encoding="utf-8"))
    return [Mutant(each["file"], tuple(each["tests"]), *error) for each in groups for error in each["errors"]]


def faults(mutants: Sequence[Mutant]) -> list[str]:
    """What of the list does not fit the tree."""
    found = []
    for mutant in mutants:
        try:
            mutant.made_in((ROOT / mutant.file).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            found.append(str(error))
        lost = [name for name in mutant.tests if not (ROOT / name.partition("::")[0]).is_file()]
        found += [f"{name}: no such file" for name in lost]
    return found


def copied(folder: Path) -> Path:
    """A copy of the tree in `folder`."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


class FirstFailure:
    """A plugin of pytest that keeps the name of the first test, or file, that fails."""

    name = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        """After each phase of a test, and after a file is read."""
        if report.failed:
            self.name = self.name or report.nodeid

    pytest_collectreport = pytest_runtest_logreport


def caught_by(mutant: Mutant, tree: Path) -> str:
    """The first test that fails with the error made in `tree`; empty if none does. Leaves this process unfit."""
    file = tree / mutant.file
    before = file.read_text(encoding="utf-8")
    file.write_text(mutant.made_in(before), encoding="utf-8")
    try:
        return first_failure(mutant.tests, tree)
    finally:
        file.write_text(before, encoding="utf-8")


def first_failure(
    tests: Sequence[str], tree: Path, stop: bool = True, seconds: float = SECONDS, plugins: Sequence[object] = ()
) -> str:
    """The first of `tests` that fails in `tree`, or computes without end; empty if none does."""
    os.chdir(tree)
    sys.path.insert(0, str(tree))
    sys.dont_write_bytecode = True
    first = FirstFailure()
    signal.signal(signal.SIGVTALRM, too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    options = [*(["-x"] if stop else []), "-q", "--tb=no", "-p", "no:cacheprovider", "-m", "not slow"]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = pytest.main([*options, *tests], plugins=[first, *plugins])
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    all_slow = code == pytest.ExitCode.NO_TESTS_COLLECTED and not stop  # a file of which nothing is to run
    if bool(first.name) != (code != pytest.ExitCode.OK and not all_slow):
        raise RuntimeError(f"pytest did not run {' '.join(tests)}:\n{said.getvalue()}")
    return first.name.removeprefix("tests/")


def too_long(*_: object) -> None:
    """End a test that does not end; for signals of timers."""
    raise TimeoutError(f"{SECONDS} seconds of computing, or an endless wait")


def in_a_process(function: Callable[..., str], *arguments: object) -> str:
    """What `function` returns in a process of its own, which leaves this one as it is."""
    receiving, sending = FORK.Pipe(duplex=False)
    process = FORK.Process(target=lambda: sending.send(function(*arguments)))
    process.start()
    sending.close()
    try:
        return str(receiving.recv())
    except EOFError as error:
        raise RuntimeError(f"no answer from {function.__name__}{arguments}") from error
    finally:
        process.join()


@contextlib.contextmanager
def trees(jobs: int) -> Iterator[Callable[..., Iterator[str]]]:
    """A parallel map. Each call of the function gets an element and a copy of the repository, in its own process."""
    for name in HEAVY:
        importlib.import_module(name)
    free: Queue[Path] = Queue()

    def in_a_free_tree(function: Callable[..., str], what: object) -> str:
        tree = free.get()
        try:
            return in_a_process(function, what, tree)
        finally:
            free.put(tree)

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        for _ in range(jobs):
            free.put(copied(Path(tempfile.mkdtemp(dir=folder))))
        yield lambda function, over: pool.map(partial(in_a_free_tree, function), over)


def run(mutants: Sequence[Mutant], jobs: int) -> list[Mutant]:
    """Those that no test catches; prints a line for each.

    Raises:
        RuntimeError: a test fails without any error.
    """
    missed = []
    with trees(jobs) as each_in_a_tree:
        needed = sorted({mutant.tests for mutant in mutants})
        if failing := [name for name in each_in_a_tree(first_failure, needed) if name]:
            raise RuntimeError(f"these fail without any error: {' '.join(failing)}")
        found = each_in_a_tree(caught_by, mutants)
        for mutant, test in zip(mutants, found, strict=True):
            error = f"{mutant.file.removeprefix('fedbench/')}: {mutant.what}"
            print(f"| {error} | {test or 'NOT CAUGHT'} |", flush=True)
            missed += [] if test else [mutant]
    return missed


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if every error is caught."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("words", nargs="*", default=[""])
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args(arguments)
    chosen = [each for each in listed() if any(word in f"{each.file} {each.what}" for word in given.words)]
    if wrong := faults(chosen):
        print(*wrong, sep="\n", file=sys.stderr)
        return 2
    print("| error | caught by |\n|---|---|", flush=True)
    missed = run(chosen, given.jobs)
    print(f"{len(chosen) - len(missed)} of {len(chosen)} errors caught")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
