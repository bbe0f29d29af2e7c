"""A hook that fails says which it was, where and on what, whichever engine called it; what users can act on stays."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

from fedbench.config.schema import TestConfig
from fedbench.core.errors import ConfigError, Diverged
from fedbench.engine.contract import Clock
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.method import HookError
from fedbench.engine.setup import Setup
from fedbench.engine.stacked import StackedTrainer
from fedbench.engine.trainer import Trainer
from fedbench.engine.workers import WorkersTrainer
from tests.engine.broken import Broken
from tests.methods.toys import setup, simulate


def chosen(hook: str, **options: Any) -> Setup:
    """Two rounds of clients 1 and 4 (then 0 and 3, or whoever is drawn)."""
    score = "received" if hook in ("personal", "adapt", "common") else "trained"
    test = TestConfig(sets="global") if hook == "common" else TestConfig()
    return setup(Broken(hook=hook, **options), cohort=2, score=score, test=test)


def failure(broken: Setup, trainer: Trainer) -> HookError:
    with pytest.raises(HookError) as caught:
        simulate(broken, trainer)
    return caught.value


ENGINES = {"looped": LoopedTrainer, "stacked": lambda broken: StackedTrainer(broken, 2)}
ON_CLIENTS = ("start", "draw", "loss", "towards", "finish", "model", "stages")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("hook", ON_CLIENTS)
def test_a_failing_client_hook_names_itself_its_clients_and_the_round(hook: str, engine: str) -> None:
    broken = chosen(hook)
    first, second = broken.draw_cohort(Clock(1, 2)).tolist()
    error = failure(broken, ENGINES[engine](broken))
    head, *rest = str(error).splitlines()
    whose = (
        f"client {first}",
        f"client {second}",
        f"2 clients, {first}, {second}",
        f"2 clients, {second}, {first}",
    )
    assert head in [f"Broken.{hook} failed in round 2 for {who}: KeyError: 'momentum'" for who in whose]
    assert ("2 clients" in head) == (engine == "stacked" and hook != "draw")
    assert error.__cause__ is broken.method.error  # type: ignore[attr-defined]
    if hook != "stages":
        (message,) = [line for line in rest if line.startswith("  message: ")]
        assert "fc.0.weight [7, 16] float64" in message
    if hook in ("loss", "finish", "model") and engine == "looped":
        (work,) = [line for line in rest if line.startswith("  work: ")]
        assert "head.weight [4, 7] float64" in work
    if hook == "finish" and engine == "stacked":
        (work,) = [line for line in rest if line.startswith("  work: ")]
        assert "head.weight [2, 4, 7] float64" in work


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("hook", ["personal", "adapt", "predict"])
def test_so_does_one_that_scores(hook: str, engine: str) -> None:
    broken = chosen(hook)
    assert str(failure(broken, ENGINES[engine](broken))).startswith(f"Broken.{hook} failed in round ")


@pytest.mark.parametrize("hook", ["init", "prepare", "send", "aggregate", "common"])
def test_a_failing_server_hook_names_itself_its_cohort_and_trees(hook: str) -> None:
    broken = chosen(hook)
    error = failure(broken, LoopedTrainer(broken))
    head, *rest = str(error).splitlines()
    assert head.startswith(f"Broken.{hook} failed")
    assert isinstance(error.__cause__, KeyError)
    if hook in ("send", "aggregate"):
        first, second = broken.draw_cohort(Clock(1, 2)).tolist()
        assert f"in round 2 for 2 clients, {first}, {second}: KeyError" in head
        assert "  cohort: ids" in "\n".join(rest)
    if hook != "init":
        assert "  server: " in "\n".join(rest)
    if hook == "aggregate":
        assert "  uploads: " in "\n".join(rest)
        assert "head.bias [2, 4] float64" in "\n".join(rest)


def test_worker_processes_tell_as_much() -> None:
    broken = chosen("loss")
    error = failure(broken, WorkersTrainer(broken, 2))
    assert str(error).startswith("Broken.loss failed in round 2 for client ")
    assert "  work: " in str(error)
    assert repr(error.__cause__) == "KeyError('momentum')"
    where = str(error.__cause__.__cause__)  # type: ignore[union-attr]
    assert "in loss" in where
    assert where.count("Traceback") == 1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "error",
    [
        Diverged("on its own terms"),
        ConfigError("of its own"),
        torch.OutOfMemoryError(),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_errors_that_someone_can_act_on_pass_unchanged(error: Exception, engine: str) -> None:
    broken = setup(Broken(hook="aggregate", error=error))
    with pytest.raises(type(error)) as caught:
        simulate(broken, ENGINES[engine](broken))
    assert caught.value is error


def test_what_cannot_pass_a_pipe_is_told_in_words() -> None:
    class Local(Exception):
        pass

    error = HookError("Broken.loss failed")
    error.__cause__ = Local("why")
    found = pickle.loads(pickle.dumps(error))
    assert str(found) == "Broken.loss failed"
    assert str(found.__cause__) == "Local: why"
