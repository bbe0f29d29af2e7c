"""The hashes of code cover what decides a run's numbers: every function that a run executes is in one, or is named."""

from __future__ import annotations

import ast
import functools
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

import pytest

from fedbench.core import source
from fedbench.core.source import Definition
from fedbench.engine.setup import Setup
from fedbench.engine.workers import serve
from fedbench.runs import execution, fingerprint
from fedbench.runs.config import RunConfig
from tests.helpers.runs import config

SILENT = (  # packages and modules that a run executes and that decide none of its numbers
    "fedbench.config",  # settings, which the run key holds
    *(
        "fedbench.data.dataset",
        "fedbench.data.datasets",
        "fedbench.data.formats",
    ),  # their outcome is hashed itself
    *(f"fedbench.core.{name}" for name in ("cache", "errors", "files", "signals", "source")),
    *("fedbench.plots", "fedbench.recorders", "fedbench.runs", "fedbench.engine.history"),
    *("fedbench.engine.hardware", "fedbench.engine.contract"),  # which engine; all give the same numbers
    *("fedbench.engine.recording", "fedbench.data.files", "fedbench.testing"),
)
CHOOSING = {  # how an engine is chosen; all give the same numbers
    Definition("fedbench.engine.schedule", "all_steps"),
    Definition("fedbench.engine.setup", "first_round_inputs"),
    Definition("fedbench.engine.workers", "available_workers"),
    Definition("fedbench", "__getattr__"),
}


@functools.cache
def spans(file: str) -> list[tuple[int, int, str]]:
    """(first line, last line, name) of the definitions at the top of a file."""
    body = ast.parse(Path(file).read_text()).body
    named = [node for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    return [
        (min(each.lineno for each in (node, *node.decorator_list)), node.end_lineno or 0, node.name) for node in named
    ]


@contextmanager
def traced() -> Iterator[set[Definition]]:
    """Fills the set that it yields with the definitions of ours that are executed, in this process's threads."""
    seen: set[CodeType] = set()
    found: set[Definition] = set()

    def look(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or code in seen:
            return
        seen.add(code)
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] == "fedbench" and code.co_filename != "<string>":  # not a dataclass's own
            for first, last, name in spans(code.co_filename):
                if first <= code.co_firstlineno <= last:
                    found.add(Definition(module, name))

    threading.setprofile(look)
    sys.setprofile(look)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def covered(run: RunConfig) -> set[Definition]:
    """All definitions in the hashes of a run's code."""
    own = {each for part, roots in fingerprint.roots_of(run).items() for each in fingerprint._closure(part, roots)}
    return own if run.local is None else own | covered(run.local)


RUNS = {
    "looped": [
        "method=fedcollab",
        "method/base=ditto",
        "method.discriminator.rounds=2",
        "protocol.augment=[flip]",
    ],
    "workers": ["method=fedsac", "hardware.workers=2", "protocol.optimizer.clip=5"],
    "stacked": [
        "method=fedavg",
        "dataset=synthetic",
        "dataset.size=32",
        "model=lenet5_bn",
        "protocol.optimizer.momentum=0.9",
    ],
}


@pytest.mark.parametrize("engine", RUNS)
def test_every_function_that_a_run_executes_is_in_a_hash(tmp_path: Path, engine: str) -> None:
    run = config(tmp_path, *RUNS[engine], f"hardware.engine={engine}")
    assert executed_uncovered(run) == set()


def test_with_several_kinds_of_client_as_well(tmp_path: Path) -> None:
    run = config(tmp_path, "dataset=captioned", "model=small_pair", "method=fedsac_multimodal", "partition=homo")
    assert executed_uncovered(run) == set()


def executed_uncovered(run: RunConfig) -> set[Definition]:
    """What a run executes, in no hash, beside what is known to be silent."""
    with traced() as executed:
        execution.execute(run)
    loop = {Definition(*name.split(":")) for name in ("fedbench.engine.simulation:Simulation",)}
    assert loop <= executed, "the trace sees something"
    return {
        each
        for each in executed - covered(run) - fingerprint.SILENT - CHOOSING
        if not any(f"{each.module}.".startswith(f"{silent}.") for silent in SILENT)
    }


def test_what_a_worker_process_executes_is_in_the_engines_hash() -> None:
    engine = fingerprint._closure("engine", fingerprint.ENGINE)
    assert {Definition(each.__module__, each.__name__) for each in (serve, Setup)} <= engine


@pytest.mark.parametrize("name", ["fairness", "report", "_best_val", "clip", "JointTask", "Flip", "History"])
def test_the_engines_hash_covers(name: str) -> None:
    assert name in {each.name for each in source.closure(fingerprint.ENGINE)}
