"""What one child process of the scale benchmark measures: rounds among N clients."""

from __future__ import annotations

import dataclasses
import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from fedbench.config.compose import compose
from fedbench.data.datasets.synthetic import Synthetic
from fedbench.data.federation import Federation
from fedbench.data.partition import Partition
from fedbench.engine import simulation as states
from fedbench.engine.client_state import Storage
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation, State
from fedbench.engine.stacked import StackedTrainer
from fedbench.runs.config import resolve

MIB = 2**20
POOL = 5000  # images that all clients share, so that what grows with N is what fedbench keeps of a client
SAMPLES, BATCH = 40, 20  # of each client: two steps a round
TIMED = 7  # rounds, after one that warms up
BLOCK = 256  # rows written at once to fill a store


def rounds(
    clients: int, cohort: int, method: str, kind: str, device: str, model: str = "lenet5"
) -> dict[str, Any]:
    """Seconds and memory of a round of `cohort` among `clients`; their memory, if any, in a `kind` of store."""
    setup = registered(clients, cohort, method, model, torch.device(device))
    trainer = (
        StackedTrainer(setup, cohort) if setup.federation.device.type == "cuda" else LoopedTrainer(setup)
    )
    with tempfile.TemporaryDirectory(prefix="fedbench-scale-") as folder:
        place = Storage(clients, kind, path=Path(folder) / "memory.rows")
        simulation = Simulation(setup, trainer, storage=place)
        state = simulation.begin()
        with state.memory:
            fill(state)
            simulation.step(state)
            gc.collect()
            reset_peak()
            found = {**timed(simulation, state), "process_mib": peak_of_process()}
            found |= {"own_mib": status("RssAnon"), "round_mib": allocated(simulation, state) / MIB}
            found |= checkpointed(simulation, state, Path(folder)) if len(state.memory) else {}
            found["file_mib"] = place.path.stat().st_size / MIB if state.memory.mapped and place.path else 0.0
            found["rows_mib"] = state.memory.layout.width * clients / MIB
    found["lists_mib"] = (
        sum(each.values.nbytes + each.offsets.nbytes for each in setup.federation.sets.values()) / MIB
    )
    given = {"clients": clients, "cohort": cohort, "method": method, "store": kind, "model": model}
    return given | {key: round(value, 4) for key, value in found.items()}


def registered(clients: int, cohort: int, method: str, model: str, device: torch.device) -> Setup:
    """Clients with `SAMPLES` of the pool's images each."""
    overrides = [f"method={method}", f"model={model}", "protocol=quick", "protocol.rounds=1000"]
    overrides += ["protocol.eval_every=1000", "protocol.score=trained", f"protocol.local.batch_size={BATCH}"]
    overrides += ["model.pretrained=false"] if model in ("resnet18", "mobilenet_v2") else []
    config = resolve(compose([*overrides, "protocol.optimizer.lr=0.01"]))
    share = {"cohort": cohort if cohort > 1 else cohort / clients}
    protocol = dataclasses.replace(config.protocol, **share)
    data = Synthetic(train=POOL, test=10, channels=3, size=32).load()
    owned = (np.arange(clients)[:, None] * 7 + np.arange(SAMPLES)) % POOL
    none = [np.zeros(0, dtype=np.int64)] * clients
    tests = list((POOL + np.arange(clients) % 10)[:, None])
    federation = Federation(data, Partition("scale", 0, data.name, 10, list(owned), none, tests), device)
    task = config.model.task(federation.shape, federation.classes)
    return Setup(config.method, task, federation, protocol, 0)


def fill(state: State) -> None:
    """Give every client a row, as after many rounds."""
    if len(state.memory):
        for ids in torch.arange(state.memory.clients).split(BLOCK):
            state.memory.put(ids, state.memory.take(ids))


def timed(simulation: Simulation, state: State) -> dict[str, float]:
    """Median seconds of a round, by the clock and of this process (which others on the machine hardly change)."""
    spent, own = [], []
    for _ in range(TIMED):
        wait(simulation.setup)
        begin, cpu = time.perf_counter(), time.process_time()
        simulation.step(state)
        wait(simulation.setup)
        spent.append(time.perf_counter() - begin)
        own.append(time.process_time() - cpu)
    return {"seconds": statistics.median(spent), "cpu_seconds": statistics.median(own)}


def checkpointed(simulation: Simulation, state: State, folder: Path) -> dict[str, float]:
    """Seconds and size of a checkpoint a round after another one."""
    states.save(folder / "checkpoint", state, "")
    simulation.step(state)
    begin = time.perf_counter()
    states.save(folder / "checkpoint", state, "")
    seconds = time.perf_counter() - begin
    return {"checkpoint_seconds": seconds, "checkpoint_mib": (folder / "checkpoint").stat().st_size / MIB}


def allocated(simulation: Simulation, state: State) -> int:
    """Most bytes that a round had allocated at once beyond what there was before it."""
    if simulation.setup.federation.device.type == "cuda":
        wait(simulation.setup)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        simulation.step(state)
        return int(torch.cuda.max_memory_allocated()) - before
    return profiled(lambda: simulation.step(state))


def profiled(work: Callable[[], object]) -> int:
    """The same on a CPU, by the account of torch's allocator."""
    # acc_events: without it torch 2.11 warns of cycles, of which there is one.
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as seen:
        work()
    live = peak = 0
    for event in seen.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak


def wait(setup: Setup) -> None:
    """Until the GPU, if it is one, has done what it was given."""
    if setup.federation.device.type == "cuda":
        torch.cuda.synchronize()


def reset_peak() -> None:
    """Forget the process's largest size so far (Linux)."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_of_process() -> float:
    """Largest resident size since then, in MiB."""
    return status("VmHWM")


def status(field: str) -> float:
    """A size in /proc/self/status, in MiB (Linux)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))
