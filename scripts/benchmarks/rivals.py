"""pfl and Flower on W1 and W2: the same network, initial weights, samples and local steps, each in its own environment.

fedbench's engines run right before and right after the rivals, from the same weights. Nothing counts unless every
contestant did the same number of client-steps and ended with the same accuracy, up to a few points.
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.rival_envs import FLOWER, PFL, Rival, RivalError, prepare, run
from benchmarks.rival_ours import export, ours
from benchmarks.rival_work import Answer
from benchmarks.workloads import WORKLOADS, Workload
from fedbench.engine.setup import Setup
from fedbench.engine.workers import available_workers

CLOSE = 0.05  # largest difference of two accuracies
LEARNED = (
    0.5  # accuracy that says that something was learned (chance is 0.1), or their closeness would say nothing
)
TEST = 2000
GPU_PROCESSES = (1, 2, 4, 8)  # of pfl on one GPU; Flower gets half as many actors as the most
LEARNABLE = {"W1": ("protocol.optimizer.lr=0.05",)}  # in a few rounds; no step takes longer for it
COMPARED = ("W1", "W2")


def compare(name: str, device: torch.device, repeats: int) -> dict[str, Any]:
    """One workload's row: seconds a round of fedbench's engines and of each rival, and their ratios.

    Raises:
        AssertionError: contestants did different work.
    """
    original = WORKLOADS[name]
    workload = dataclasses.replace(
        original, overrides=(*original.overrides, *LEARNABLE.get(name, ())), test=TEST
    )
    setup = workload.setup(device)
    rounds = repeats + 1  # the first is a warm-up
    with tempfile.TemporaryDirectory(prefix="fedbench-rivals-") as folder:
        export(setup, rounds, Path(folder) / "work.pt")
        before = ours(setup, rounds)
        theirs = {each: _rival(*each, Path(folder), device) for each in contestants(device)}
        after = ours(setup, rounds)
    answers = {f"fedbench, {engine}": answer for engine, answer in (before | after).items()}
    answers |= {f"{r.name} x {n}": answer for (r, n), answer in theirs.items() if isinstance(answer, Answer)}
    equal_work(name, answers)
    return row(workload, setup, [before, after], theirs, repeats)


def contestants(device: torch.device) -> list[tuple[Rival, int]]:
    """(rival, processes): alone and on all cores, or as many as a GPU is shared by."""
    if device.type == "cuda":
        return [*((PFL, count) for count in GPU_PROCESSES), (FLOWER, max(GPU_PROCESSES) // 2)]
    counts = sorted({1, available_workers()})
    return [*((PFL, count) for count in counts), (FLOWER, counts[-1])]


def _rival(rival: Rival, processes: int, folder: Path, device: torch.device) -> Answer | str:
    """The rival's answer, or why there is none."""
    answer, log = folder / "answer.json", folder / "log.txt"
    answer.unlink(missing_ok=True)
    arguments = [str(folder / "work.pt"), str(answer), device.type]
    print(f"  {rival.name}, {processes} processes", flush=True)
    try:
        prepare(rival)
        if rival is FLOWER:
            run(rival, [*arguments, str(processes)], log, device=device.type)
        else:
            run(rival, arguments, log, device=device.type, processes=processes)
        return Answer.read(answer)
    except (RivalError, OSError, ValueError) as error:
        print(f"  {error}", flush=True)
        return str(error)


def equal_work(name: str, answers: dict[str, Answer]) -> None:
    """Refuse to compare contestants that did different work.

    Raises:
        AssertionError: client-steps differ, accuracies are not close, or nothing was learned.
    """
    steps = {who: answer.steps for who, answer in answers.items()}
    if len(set(steps.values())) != 1:
        raise AssertionError(f"{name}: unequal work, client-steps {steps}")
    accuracy = {who: round(answer.accuracy, 3) for who, answer in answers.items()}
    if min(accuracy.values()) < LEARNED or max(accuracy.values()) - min(accuracy.values()) > CLOSE:
        raise AssertionError(f"{name}: unequal results, accuracies {accuracy}")


def row(
    workload: Workload,
    setup: Setup,
    taken: list[dict[str, Answer]],
    theirs: dict[tuple[Rival, int], Answer | str],
    repeats: int,
) -> dict[str, Any]:
    """What is stored; `ratio` is fedbench's speed over the rival's, of their fastest rounds after the warm-up.

    Contestants run minutes apart, and whatever else the machine does in a round only makes it longer. fedbench has two
    parts, before and after; the mean of their fastest counts, as the fastest of twice the rounds would flatter it.
    """
    cores = {"looped": 1, "workers": available_workers(), "stacked": 1}
    own = {engine: [second for part in taken for second in part[engine].seconds[1:]] for engine in taken[0]}
    fastest = {engine: statistics.fmean(min(part[engine].seconds[1:]) for part in taken) for engine in own}
    rivals: list[dict[str, Any]] = []
    for (rival, processes), answer in theirs.items():
        entry = {"rival": rival.name, "version": rival.version, "processes": processes}
        if isinstance(answer, str):
            rivals.append({**entry, "missing": answer})
            continue
        equal = [engine for engine in own if cores[engine] == processes] or list(own)
        against = min(equal, key=fastest.__getitem__)
        ratio = round(min(answer.seconds[1:]) / fastest[against], 2)
        rivals.append({**entry, **_told(answer, answer.seconds[1:]), "against": against, "ratio": ratio})
    last = taken[-1]
    return {
        "workload": workload.name,
        "client_steps": next(iter(last.values())).steps // (repeats + 1),
        "lr": setup.protocol.optimizer.lr,
        "repeats": repeats,
        "fedbench": [
            {
                "engine": engine,
                "processes": cores[engine],
                **_told(last[engine], own[engine]),
                "seconds": round(fastest[engine], 3),
                "before_and_after": [round(min(part[engine].seconds[1:]), 3) for part in taken],
            }
            for engine in own
        ],
        "rivals": rivals,
    }


def _told(answer: Answer, seconds: list[float]) -> dict[str, Any]:
    """A contestant's rounds after the warm-up: fastest, median and slowest; its first round; its accuracy."""
    return {
        "seconds": round(min(seconds), 3),
        "median": round(statistics.median(seconds), 3),
        "slowest": round(max(seconds), 3),
        "first_round": round(answer.seconds[0], 2),
        "accuracy": round(answer.accuracy, 4),
    }
