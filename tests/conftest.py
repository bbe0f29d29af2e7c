"""Fixtures shared by the test files."""

from __future__ import annotations

import importlib
import math
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedbench.config import groups
from fedbench.config.fields import Registry
from fedbench.core import source
from tests.helpers import codes, examples, toys
from tests.helpers.runner import FakeRunner
from tests.papers.report import browsing

examples.register()

# Seconds of computing by tests that are not slow, on a loaded machine: twice what a quiet one takes.
MOST = 15.0  # by one of them, with what it imports
ALL = 600.0  # by all of them
SPENT = pytest.StashKey[float]()


def computed() -> float:
    """By this process and those that it has waited for."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    before = computed()
    yield
    item.stash[SPENT] = computed() - before


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A test that computes for too long fails, unless it is marked slow."""
    before = computed()
    yield
    spent = item.stash[SPENT] + computed() - before
    if not item.get_closest_marker("slow"):
        item.user_properties.append(("computed", spent))
        assert spent < MOST, f"{spent:.1f} s of computing, more than {MOST:g}: shorten it, or mark it slow"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say when `make test` grows too long, and which tests take most of it."""
    ended = [report for reports in terminalreporter.stats.values() for report in reports]
    spent = {
        report.nodeid: dict(report.user_properties).get("computed", 0.0)
        for report in ended
        if hasattr(report, "user_properties")
    }
    if (total := sum(spent.values())) > ALL:
        terminalreporter.section("make test grows too long")
        terminalreporter.line(
            f"{total:.0f} s of computing, more than {ALL:g}: shorten tests, or mark some slow. Most take:"
        )
        for name in sorted(spent, key=spent.__getitem__, reverse=True)[:20]:
            terminalreporter.line(f"{spent[name]:6.1f} s {name}")


@pytest.fixture(scope="session", autouse=True)
def heard_signals() -> None:
    """A job in a shell's background ignores Ctrl-C, and so would what it starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test depends on what the user's cache holds, or leaves anything there; workers share one."""
    base = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
        patch.setenv("FEDBENCH_CACHE", str(shared / "cache"))
        yield


@pytest.fixture(scope="session", autouse=True)
def nothing_is_edited() -> Iterator[None]:
    """Whoever writes code while the tests run does not make results of theirs those of other code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "BEGAN", math.inf)
        yield


@pytest.fixture
def fresh_codes() -> Iterator[None]:
    """Hashes of code are looked up once a process; for tests in which code changes within one."""
    codes.forget()
    yield
    codes.forget()


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A conf/ folder whose four component groups are the toys above; the rest of it is the real one."""
    folder = tmp_path / "conf"
    real = groups.conf_dir()
    texts = {file.relative_to(real).with_suffix("").as_posix(): file.read_text() for file in real.rglob("*.yaml")}
    kept = {
        name: text for name, text in texts.items() if name.split("/")[0] not in toys.COMPONENTS or name == "model/auto"
    }
    for name, text in {**kept, **toys.YAMLS}.items():
        file = folder / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    registries: dict[str, Registry[Any]] = {
        group: Registry(group, {name: f"{cls.__module__}:{cls.__name__}" for name, cls in entries.items()})
        for group, entries in toys.COMPONENTS.items()
    }
    for name in ("engine.setup", "methods.parts.clustered", "models.modalities"):  # else they take the toys' for good
        importlib.import_module(f"fedbench.{name}")
    monkeypatch.setattr(groups, "registry", registries.__getitem__)
    monkeypatch.setattr(groups, "conf_dir", lambda: folder)
    return folder


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> FakeRunner:
    """Replaces the runner behind the command line."""
    runner = FakeRunner()
    monkeypatch.setattr("fedbench.runs.execution.execute", runner.execute)
    return runner


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One browser for all tests of pages: a process has one at a time."""
    yield from browsing.started()
