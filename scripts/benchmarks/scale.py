"""SCALE: time and memory of a round against the number of clients and the cohort, each case in its own process."""

from __future__ import annotations

import dataclasses
import gc
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pages import table
from torch.profiler import ProfilerActivity, profile

from benchmarks.rounds import timed
from fedbench.config.compose import compose
from fedbench.config.schema import HardwareConfig
from fedbench.data.dataset import Dataset
from fedbench.data.datasets.synthetic import Synthetic
from fedbench.data.federation import Federation
from fedbench.data.partition import Partition, make_partition
from fedbench.engine.contract import Clock
from fedbench.engine.hardware import pick_trainer
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation, received, scored_sets, scored_together
from fedbench.runs.config import resolve

CLIENTS = (100, 1000, 10_000, 100_000, 1_000_000)  # stateless, a cohort of 100
COHORTS = (10, 30, 100, 300)  # of 100,000 clients
STATEFUL = (100, 1000, 10_000)  # a cohort of 100
MIB = 2**20
POOL = 5000  # images that all clients share, so that what grows with N is what fedbench keeps of a client
SAMPLES, BATCH = 40, 20  # of each client: two steps a round
SCORED = 8  # groups of clients that get their messages together, of 256 at most
TIMED = 7  # rounds, after one that warms up
COLUMNS = {
    "clients": "clients N",
    "cohort": "cohort",
    "seconds": "s a round",
    "cpu_seconds": "CPU s a round",
    "round_mib": "MiB a round",
    "process_mib": "MiB, process",
    "load_before": "load",
}


def run(device: str, *, quick: bool) -> Iterator[dict[str, Any]]:
    """All cases, what there is so far after each; `quick`: no more than 10,000 clients."""
    found: dict[str, list[dict[str, Any]]] = {"by_clients": [], "by_cohort": [], "stateful": []}
    most = 10_000 if quick else CLIENTS[-1]
    cases = [("by_clients", n, 100, "fedavg") for n in CLIENTS]
    cases += [("by_cohort", min(most, 100_000), cohort, "fedavg") for cohort in COHORTS]
    cases += [("stateful", n, 100, "ditto") for n in STATEFUL]
    for part, *case in [case for case in cases if case[1] <= most]:
        found[part].append(alone(rounds, *case, device))
        yield found


def alone(work: Callable[..., dict[str, Any]], *given: Any) -> dict[str, Any]:
    """What `work` returns in a process of its own, and the machine's load before it."""
    load = os.getloadavg()[0]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        row = pool.apply(work, given) | {"load_before": round(load, 2)}
    print(work.__name__, row, flush=True)
    return row


def rounds(clients: int, cohort: int, method: str, device: str, model: str = "lenet5") -> dict[str, Any]:
    """Seconds and memory of a round of `cohort` among `clients`, by the clock and of this process."""
    setup = registered(clients, cohort, method, model, torch.device(device))
    engine = "looped" if device == "cpu" else "stacked"
    simulation = Simulation(setup, pick_trainer(setup, HardwareConfig(engine=engine)))
    state = simulation.begin()
    simulation.step(state)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forget the largest size so far (Linux)
    spent, own = [], []
    for _ in range(TIMED):
        cpu = time.process_time()
        spent.append(timed(lambda: simulation.step(state), torch.device(device))[0])
        own.append(time.process_time() - cpu)
    found = {
        "seconds": statistics.median(spent),
        "cpu_seconds": statistics.median(own),
        "process_mib": largest_mib(),
        "round_mib": allocated(lambda: simulation.step(state), device) / MIB,
    }
    given = {"clients": clients, "cohort": cohort, "method": method, "model": model}
    return given | {key: round(value, 4) for key, value in found.items()}


def largest_mib() -> float:
    """The largest size of this process so far (Linux)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


def registered(clients: int, cohort: int, method: str, model: str, device: torch.device) -> Setup:
    """Clients with `SAMPLES` of the pool's images each."""
    overrides = [f"method={method}", f"model={model}", "protocol=quick", "protocol.rounds=1000"]
    overrides += ["protocol.eval_every=1000", "protocol.score=trained", f"protocol.local.batch_size={BATCH}"]
    config = resolve(compose([*overrides, "protocol.optimizer.lr=0.01"]))
    protocol = dataclasses.replace(config.protocol, cohort=cohort)
    data = Synthetic(train=POOL, test=10, channels=3, size=32).load()
    owned = (np.arange(clients)[:, None] * 7 + np.arange(SAMPLES)) % POOL
    none = [np.zeros(0, dtype=np.int64)] * clients
    tests = list((POOL + np.arange(clients) % 10)[:, None])
    federation = Federation(data, Partition("scale", 0, data.name, 10, list(owned), none, tests), device)
    return Setup(config.method, config.model.task(federation.shape, federation.classes), federation, protocol, 0)


def registries(*, quick: bool) -> Iterator[list[dict[str, Any]]]:
    """A method with a model a client and a stateless one, among many clients: what there is so far after each.

    `quick`: 1 % of them.
    """
    found: list[dict[str, Any]] = []
    for name, clients in {"ditto": 100_000, "fedavg": 1_000_000}.items():
        found.append(alone(registry, {"method": name, "clients": clients // 100 if quick else clients}))
        yield found


def registry(given: dict[str, Any]) -> dict[str, Any]:
    """CPU seconds of what clients cost besides their training, and MiB; each has two samples of eight numbers.

    `scoring`: of the first `SCORED` groups, times N over their clients.
    """
    found: dict[str, Any] = {}

    def spent(name: str, work: Callable[[], Any]) -> Any:
        begin = time.process_time()
        made = work()
        found[f"{name}_s"] = time.process_time() - begin
        return made

    clients, generator = given["clients"], np.random.default_rng(0)
    x, y = generator.random((2 * clients, 1, 1, 8), np.float32), generator.integers(10, size=2 * clients)
    data = Dataset("many", x, y, len(y), 10, (0.5,), (0.3,), 1.0)
    overrides = [f"method={given['method']}", "model=mlp", "protocol=quick", "partition=homo", "protocol.score=trained"]
    overrides += [f"partition.num_clients={clients}", "protocol.cohort=100", "protocol.test.fraction=0.5"]
    config = resolve(compose([*overrides, "protocol.test.pool=true", "protocol.eval_every=1000"]))
    partition = spent("partition", lambda: make_partition(config.partition, data, config.protocol.test, 0))
    federation = spent("to_device", lambda: Federation(data, partition, torch.device("cpu")))
    task = config.model.task(federation.shape, federation.classes)
    setup = Setup(config.method, task, federation, config.protocol, 0)
    trainer = pick_trainer(setup, HardwareConfig(engine="looped"))
    simulation = Simulation(setup, trainer)
    state = spent("begin", simulation.begin)
    spent("round", lambda: simulation.step(state))
    groups, clock = scored_together(setup, state)[:SCORED], Clock(state.round, setup.protocol.rounds)

    def score() -> None:
        for ids in groups:
            trainer.evaluate(ids, *received(setup, state, ids), clock, scored_sets(setup))

    spent("scoring", score)
    found["scoring_s"] *= clients / sum(map(len, groups))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "partition.npz"
        spent("npz", lambda: partition.save(file))
        found["npz_mib"] = file.stat().st_size / MIB
    return given | found | {"process_mib": largest_mib()}


def rows_table(rows: list[dict[str, Any]]) -> str:
    """Cases for people."""
    cells = [[f"{each:,.4g}" if isinstance(each, float) else each for each in row.values()] for row in rows]
    return "\n".join(table(list(rows[0]), *cells))


def allocated(work: Any, device: str) -> int:
    """Most bytes that `work` had allocated at once beyond what there was before it."""
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        timed(work, torch.device(device))
        return int(torch.cuda.max_memory_allocated()) - before
    # acc_events: without it torch 2.11 warns of cycles, of which there is one.
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as seen:
        work()
    live = peak = 0
    for event in seen.profiler.kineto_results.events():  # type: ignore[union-attr]
        live += event.nbytes() if event.name() == "[memory]" else 0
        peak = max(peak, live)
    return peak


def markdown(result: dict[str, Any]) -> str:
    """One machine's cases, with the conditions they were measured under."""
    cells = {
        part: [[f"{r[key]:,.4g}" if isinstance(r[key], float) else f"{r[key]:,}" for key in COLUMNS] for r in rows]
        for part, rows in result.items()
        if part in ("by_clients", "by_cohort", "stateful")
    }
    about = f"{result['machine']}, device {result['device']}, torch {result['version_torch']}, {result['date']}"
    lines = [
        f"{about}, commit {result['commit'][:12]}",
        "",
        "Rounds of a stateless method (FedAvg, LeNet5, 3 x 32 x 32, two steps a client); `MiB a round`: most that was",
        "allocated at once beyond what there was before; `load`: average number of running processes before the case:",
        "",
        *table(list(COLUMNS.values()), *cells["by_clients"], *cells["by_cohort"]),
        "",
        "A stateful method (Ditto, LeNet5, a cohort of 100), clients with memory of their own:",
        "",
        *table(list(COLUMNS.values()), *cells["stateful"]),
    ]
    return "\n".join(lines) + "\n"
