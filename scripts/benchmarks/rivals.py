"""Another framework on W1 or W2: the same network, initial weights, samples and local steps as fedbench.

scripts/rival_pfl.py and scripts/rival_flower.py run it, by a Python that has both. fedbench's engines run right before
and right after it. Nothing counts unless all did the same number of client-steps and ended with the same accuracy, up
to a few points.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import bench
import torch
from torch import nn

from benchmarks.rounds import WORKLOADS, module_with, timed, trainers
from fedbench.engine.contract import Clock
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation
from fedbench.engine.trainer import Trainer
from fedbench.engine.workers import available_workers

CLOSE = 0.05  # largest difference of two accuracies
LEARNED = 0.5  # of accuracy: chance is 0.1, where closeness says nothing
TEST = 2000
LEARNABLE = {"W1": ("protocol.optimizer.lr=0.05",)}  # in a few rounds; no step takes longer for it
SCRIPTS = Path(__file__).resolve().parents[1]
QUIET = {"OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
FAIR = {"RAY_worker_niceness": "0"}  # Ray would let its workers yield to whatever else runs


@dataclasses.dataclass
class Answer:
    """What a contestant did."""

    seconds: list[float]  # of each round; the first is a warm-up
    steps: int  # client-steps of all rounds
    accuracy: float  # of the final global model on the test samples


Train = Callable[[str, str, int, int], Answer]
"""(workload, device, rounds, processes) -> what a rival did."""


def setup_of(name: str, device: str) -> Setup:
    """The workload with a learning rate and test samples that let accuracies be compared."""
    workload = WORKLOADS[name]
    overrides = (*workload.overrides, *LEARNABLE.get(name, ()))
    return dataclasses.replace(workload, overrides=overrides, test=TEST).setup(torch.device(device))


def network(setup: Setup) -> nn.Module:
    """The network with fedbench's initial weights, as an ordinary module that trains."""
    return module_with(setup, Simulation(setup, LoopedTrainer(setup)).begin().server)


@torch.no_grad()
def accuracy(setup: Setup, net: Callable[[torch.Tensor], torch.Tensor]) -> float:
    """Share of the test samples that `net` classifies correctly."""
    blocks = [setup.federation.gather(each) for each in setup.federation.global_test.split(500)]
    return sum(int((net(x).argmax(1) == y).sum()) for x, y in blocks) / TEST


def ours(setup: Setup, rounds: int) -> dict[str, Answer]:
    """The engines over the same rounds: on one core and on all, or captured on a GPU."""
    engines = trainers(setup)
    chosen = ("looped", "workers") if setup.federation.device.type == "cpu" else ("captured",)
    try:
        return {name: _train(setup, engines[name], rounds) for name in chosen if name in engines}
    finally:
        for trainer in engines.values():
            trainer.close()


def _train(setup: Setup, trainer: Trainer, rounds: int) -> Answer:
    simulation = Simulation(setup, trainer)
    state = simulation.begin()
    clocks = [Clock(number, setup.protocol.rounds) for number in range(rounds)]
    steps = sum(setup.steps(int(client)) for clock in clocks for client in setup.draw_cohort(clock))
    seconds = [timed(lambda: simulation.step(state), setup.federation.device)[0] for _ in clocks]
    model = setup.method.common(state.server, setup.task)
    return Answer(seconds, steps, accuracy(setup, lambda x: setup.task.apply(model, x)))


def equal_work(answers: dict[str, Answer]) -> None:
    """Refuse to compare contestants that did different work.

    Raises:
        AssertionError: client-steps differ, accuracies are not close, or nothing was learned.
    """
    steps = {who: answer.steps for who, answer in answers.items()}
    if len(set(steps.values())) != 1:
        raise AssertionError(f"unequal work, client-steps {steps}")
    found = {who: round(answer.accuracy, 3) for who, answer in answers.items()}
    if min(found.values()) < LEARNED or max(found.values()) - min(found.values()) > CLOSE:
        raise AssertionError(f"unequal results, accuracies {found}")


def compared(name: str, rival: dict[str, Any], theirs: Answer, taken: list[dict[str, Answer]]) -> dict[str, Any]:
    """A workload's row; `ratio` is fedbench's speed over the rival's, of their fastest rounds after the warm-up.

    Whatever else the machine does in a round only makes it longer. The mean of the fastest of fedbench's two parts
    counts, as the fastest of twice the rounds would flatter it.
    """
    before, after = taken
    equal_work({**{f"fedbench, {engine}": each for engine, each in (before | after).items()}, "rival": theirs})
    cores = {"looped": 1, "workers": available_workers(), "captured": rival["processes"]}
    fastest = {e: statistics.fmean(min(part[e].seconds[1:]) for part in taken) for e in after}
    own = [_told(after[e], [s for part in taken for s in part[e].seconds[1:]], fastest[e]) for e in after]
    equal = [e for e in after if cores[e] == rival["processes"]] or list(after)
    against = min(equal, key=fastest.__getitem__)
    told = _told(theirs, theirs.seconds[1:], min(theirs.seconds[1:]))
    told |= {"against": against, "ratio": round(told["seconds"] / fastest[against], 2)}
    mine = [{"engine": e, "processes": cores[e], **each} for e, each in zip(after, own, strict=True)]
    return {"workload": name, "client_steps": theirs.steps, "fedbench": mine, "rivals": [{**rival, **told}]}


def _told(answer: Answer, seconds: list[float], fastest: float) -> dict[str, Any]:
    found = {"seconds": fastest, "median": statistics.median(seconds), "slowest": max(seconds)}
    return {key: round(value, 3) for key, value in found.items()} | {"accuracy": round(answer.accuracy, 4)}


def main(rival: str, package: str, train: Train) -> None:
    """Compare one rival on the workloads asked for, and put its rows beside those of the benchmark."""
    parser = argparse.ArgumentParser(description=f"{rival} on the same work as fedbench's engines.")
    parser.add_argument("workloads", nargs="*", default=["W1", "W2"], metavar="W1 W2")
    parser.add_argument("--processes", type=int, default=1, help="of the rival")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--repeats", type=int, default=3, help="rounds after the warm-up")
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)  # in a process of the rival's
    given = parser.parse_args()
    torch.set_num_threads(1)
    about = {"rival": rival, "version": version(package), "processes": given.processes}
    for name in given.workloads:
        if given.answer:
            found = train(name, given.device, given.repeats + 1, given.processes)
            given.answer.write_text(json.dumps(dataclasses.asdict(found)), encoding="utf-8")
            continue
        given.out.mkdir(parents=True, exist_ok=True)
        result = bench.begun(given.device, given.out)
        setup = setup_of(name, given.device)
        before = ours(setup, given.repeats + 1)
        theirs = alone(name, given, rival == "pfl")
        row = compared(name, about, theirs, [before, ours(setup, given.repeats + 1)])
        result["rivals"] = [*others(result.get("rivals", []), row), row | bench.conditions(result)]
        bench.store(result, given.out)
        print(row, flush=True)


def alone(name: str, given: argparse.Namespace, ranks: bool) -> Answer:
    """The rival's answer, from a process of its own; `ranks`: from as many of torch.distributed."""
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={given.processes}"]
    with tempfile.TemporaryDirectory(prefix="fedbench-rival-") as folder:
        answer = Path(folder) / "answer.json"
        options = [f"--{key}={getattr(given, key)}" for key in ("processes", "device", "repeats")]
        begin = [sys.executable, *(launch if ranks and given.processes > 1 else []), sys.argv[0]]
        environment = {**os.environ, **QUIET, **FAIR, "FLWR_HOME": folder}
        environment["PYTHONPATH"] = os.pathsep.join([str(SCRIPTS), str(SCRIPTS.parent)])
        environment |= {"CUDA_VISIBLE_DEVICES": ""} if given.device == "cpu" else {}  # else pfl takes what it sees
        subprocess.run([*begin, name, *options, f"--answer={answer}"], env=environment, check=True)
        return Answer(**json.loads(answer.read_text(encoding="utf-8")))


def others(rows: list[dict[str, Any]], new: dict[str, Any]) -> list[dict[str, Any]]:
    """`rows` without what `new` measured again."""

    def same(row: dict[str, Any], each: dict[str, Any]) -> bool:
        keys = ("rival", "processes")
        return row["workload"] == new["workload"] and [each[k] for k in keys] == [new["rivals"][0][k] for k in keys]

    found = [{**row, "rivals": [each for each in row["rivals"] if not same(row, each)]} for row in rows]
    return [row for row in found if row["rivals"]]
