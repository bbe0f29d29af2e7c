"""Choose the device and the engine of a run by the hardware config, a few timed steps and the free memory.

Defaults are the fastest correct choice known for the machine.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedbench.config.schema import HardwareConfig
from fedbench.core import trees
from fedbench.core.errors import ConfigError, Diverged
from fedbench.data.dataset import Dataset
from fedbench.engine import graphs
from fedbench.engine.contract import Clock
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.setup import Setup, first_round_inputs
from fedbench.engine.stacked import Capture, StackedTrainer, capture_for
from fedbench.engine.timing import EngineCandidate, choose, run_steps, time_engines
from fedbench.engine.trainer import Engine, Trainer, by_modality
from fedbench.engine.workers import WorkersTrainer, available_workers
from fedbench.models.task import Model

# How many clients fit in memory at once: estimated, and where that is not sure, tried.

SHARE = 0.6  # of the free memory that a chunk may take
COPIES = 5  # of a client's model while it trains: weights, gradient, momentum, and two temporaries
ACTIVATION_COPIES = 3  # of every layer's output: itself, its gradient, workspace
CERTAIN = 4  # times the rough estimate: no method needs so much
TRIED = 4  # clients that are trained to tell what more would take

log = logging.getLogger("fedbench")

Peak = Callable[[Callable[[], object]], int]  # most bytes that work, which is called, has allocated at once


def activation_bytes(net: nn.Module, shape: tuple[int, ...], batch: int) -> int:
    """Bytes of all layer outputs of one forward pass on `batch` inputs, found without computing it."""
    total = 0

    def count(_module: nn.Module, _inputs: object, output: Any) -> None:
        nonlocal total
        first = output[0] if isinstance(output, tuple) else output  # a recurrent layer adds its state
        total += first.numel() * first.element_size()

    hooks = [m.register_forward_hook(count) for m in net.modules() if not list(m.children())]
    net.to("meta")(torch.zeros(batch, *shape, device="meta"))
    for hook in hooks:
        hook.remove()
    return total


def client_bytes(setup: Setup) -> int:
    """A quick estimate of the bytes for training a client within a chunk: those of one model, for any method."""
    task = setup.task
    model = sum(leaf.numel() * leaf.element_size() for leaf in task.init(torch.Generator()).values())
    pixels = 4 * torch.Size(task.shape).numel() * setup.protocol.local.batch_size
    activations = activation_bytes(task.fresh(), task.shape, setup.protocol.local.batch_size)
    return COPIES * model + ACTIVATION_COPIES * (activations + pixels)


@dataclass(frozen=True)
class MemoryModel:
    """Memory of the stacked engine in bytes: a `fixed` part, a client in training, and a trained client."""

    fixed: int
    training: int
    trained: int

    @classmethod
    def of(cls, setup: Setup, peak: Peak, capture: Capture | None = None) -> MemoryModel:
        """Fit it to the memory peaks of one large client, of a few clients together, and of a few one by one."""
        sizes = setup.population.sizes
        short = sizes % setup.protocol.local.batch_size != 0  # the padding of a short batch takes memory too
        large = (sizes + sizes.max() * short).topk(min(TRIED, setup.at_once)).indices
        clock = Clock(0, setup.protocol.rounds)

        def taken(ids: Tensor, chunk: int) -> int:
            trainer = StackedTrainer(setup, chunk, capture)
            message, memory = first_round_inputs(setup, ids, clock)
            given = [leaf for tree in (message, memory) for leaf in tree.values() if not trees.is_shared(leaf)]
            return sum(map(trees.leaf_bytes, given)) + peak(lambda: trainer.train(ids, message, memory, clock))

        alone, more = taken(large[:1], 1), len(large) - 1
        training, trained = ((taken(large, chunk) - alone) // more for chunk in (len(large), 1))
        return cls(max(0, alone - training), max(1, training), max(0, trained))

    def chunk(self, cohort: int, budget: float) -> int:
        """Return the largest number of clients, at most `cohort`, that `budget` bytes hold at once."""
        left = budget - self.fixed - self.trained * cohort
        return max(1, min(cohort, int(left / max(1, self.training - self.trained))))


def fitting_chunk(setup: Setup, capture: Capture | None = None) -> int:
    """Return how many clients of the cohort fit in memory at once, at least one; `capture` is the engine's.

    If the rough estimate leaves it open whether all fit, a few clients train on the GPU for a round, which is then
    discarded. On a CPU larger chunks gain nothing.
    """
    cohort, device = setup.at_once, setup.federation.device
    budget = SHARE * free_bytes(device)
    sure = max(1, min(cohort, int(budget / (CERTAIN * client_bytes(setup)))))
    if sure == cohort or device.type != "cuda":
        return sure
    try:
        return MemoryModel.of(setup, partial(gpu_peak, device), capture).chunk(cohort, budget)
    except Exception as error:  # noqa: BLE001 - a trial must not end a run, as it may of a method that needs its preparation first
        log.warning("the trial of memory failed, %d clients train at once: %s", sure, error)
        return sure


def gpu_peak(device: torch.device, work: Callable[[], object]) -> int:
    """Return the largest number of bytes that `work` allocates on a GPU at once."""
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    return torch.cuda.max_memory_allocated(device) - before


HELD = 5  # copies of a network in any run: one to train, one to score, the server's, a client's, and its gradient


def check_memory(model: Model, dataset: Dataset, device: torch.device) -> None:
    """Refuse a network that cannot fit into memory, before it is built.

    Raises:
        ConfigError: it does not fit; names the needed and the free memory.
    """
    needed = HELD * sum(each.leaf_bytes(each.view(dataset).shape, dataset.classes) for each in model.networks.values())
    if needed > (free := free_bytes(device)):
        raise ConfigError(
            f"model {model.label} takes at least {needed / 1e9:,.1f} GB for inputs of shape {list(dataset.shape)}, "
            f"{free / 1e9:,.1f} GB are free on {device}; choose a smaller model or smaller images"
        )


def free_bytes(device: torch.device) -> int:
    """Memory that is free on `device` now."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        available = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):  # no Linux: all there is, as macOS has no name for what is free
        if not hasattr(os, "sysconf"):
            return 2**40  # Windows: its memory is taken to suffice
        return os.sysconf("SC_PAGESIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([1024 * available, *_container_bytes()])


def _container_bytes(folder: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """The memory that this process's container (control groups, version 2), if any, may still take.

    Files that the system keeps in memory count as used there, but it frees those that nobody reads.
    """
    try:
        limit, used, stat = (
            (folder / name).read_text(encoding="ascii") for name in ("memory.max", "memory.current", "memory.stat")
        )
        cached = next(int(line.split()[1]) for line in stat.splitlines() if line.startswith("inactive_file "))
        return [max(0, int(limit) - int(used) + cached)]
    except (OSError, ValueError, StopIteration):  # no container, or "max": no limit
        return []


# Which engine trains. Worker processes are worth starting where they save a run this many seconds: their start took as
# long on two quiet cores (`workers_start` in results/bench).
WORKERS_START = 4.0
FORKS = "forkserver" in multiprocessing.get_all_start_methods()  # which starts workers; Windows lacks it

CLEARLY = 0.9  # of the stacked engine's time: a choice that noise does not turn around


def pick_device(config: HardwareConfig) -> torch.device:
    """The device that `config` asks for; `auto` is the GPU if there is one.

    Raises:
        ConfigError: the config asks for a GPU that does not exist.
    """
    name = config.device
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    gpus = torch.cuda.device_count()
    known = ("cpu", "cuda", *(f"cuda:{index}" for index in range(gpus)))
    if name not in known[: None if gpus else 1]:
        seen = f"{gpus} GPU(s)" if gpus else "no GPU"
        raise ConfigError(f"hardware.device={name}: torch {torch.__version__} sees {seen}; use hardware=cpu")
    return torch.device(name)


def apply(config: HardwareConfig) -> None:
    """Set what this process trains with: torch's threads, whether GPUs capture steps, and their precision."""
    if config.threads:
        torch.set_num_threads(config.threads)
    graphs.allowed.set(config.graph == "auto")
    set_precision(tf32=config.precision == "tf32")


def set_precision(*, tf32: bool) -> None:
    """Set a GPU's precision of products: float32, or TensorFloat-32, by torch's default only in convolutions.

    bfloat16 is no setting of the process, see Task.apply.
    """
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32


def pick_trainer(setup: Setup, config: HardwareConfig) -> Trainer:
    """The engine for `setup`, one for each modality; `auto` is the engine that trains a few steps fastest here."""
    apply(config)
    if config.precision == "tf32" and setup.federation.device.type != "cuda":
        raise ConfigError("hardware.precision=tf32 needs a GPU; use float32 or bf16 on a CPU")
    return by_modality(setup, [_picked(modality, config) for modality in setup.modalities])


def _picked(setup: Setup, config: HardwareConfig) -> Engine:
    device = setup.federation.device
    if config.engine == "auto":
        return _fastest_on_gpu(setup, config) if device.type == "cuda" else _fastest_on_cpu(setup, config)
    if config.engine == "looped":
        return LoopedTrainer(setup)
    if config.engine == "stacked":
        return stacked_engine(setup, config)
    if device.type != "cpu" or not FORKS:
        raise ConfigError("hardware.engine=workers runs on a CPU of Linux or macOS; use stacked or looped")
    return WorkersTrainer(setup, config.workers or available_workers())


def _fastest_on_cpu(setup: Setup, config: HardwareConfig) -> Engine:
    """Return workers if they save more than their start costs; in a process without children, the plain loop.

    Stacking is no candidate: workers are faster on every CPU workload of the benchmark.
    """
    workers = config.workers or available_workers()
    busy = min(workers, setup.at_once)
    if busy < 2 or not FORKS or multiprocessing.current_process().daemon:
        return LoopedTrainer(setup)
    step = _tried(setup, {"looped": EngineCandidate(LoopedTrainer)}).get("looped", math.inf)
    saved = run_steps(setup) * step * (1 - 1 / busy)
    return WorkersTrainer(setup, workers) if saved > WORKERS_START else LoopedTrainer(setup)


def processes(setup: Setup, config: HardwareConfig, seconds: float) -> int:
    """Return how many clients train at once, by the engine's choice, in a run that takes a single process `seconds`.

    It is 1 on a GPU, where the gain of a program of many clients is not known in advance.
    """
    workers = min(config.workers or available_workers(), setup.at_once)
    worth = config.engine == "auto" and FORKS and seconds * (1 - 1 / workers) > WORKERS_START
    return workers if setup.federation.device.type == "cpu" and (worth or config.engine == "workers") else 1


def _fastest_on_gpu(setup: Setup, config: HardwareConfig) -> Engine:
    """Return stacked, unless looped takes clearly less time for a step of a client."""
    if setup.at_once == 1:
        return LoopedTrainer(setup)
    stacked = stacked_engine(setup, config)
    step = _tried(setup, _on_gpu(setup, stacked))
    return LoopedTrainer(setup) if step and _loops(step) else stacked


def _on_gpu(setup: Setup, stacked: StackedTrainer) -> dict[str, EngineCandidate]:
    """The contenders, of which `stacked` would train."""
    same = partial(StackedTrainer, chunk=stacked.chunk, capture=stacked.capture)
    together = EngineCandidate(same, min(stacked.chunk, setup.at_once))
    return {"looped": EngineCandidate(LoopedTrainer), "stacked": together}


def _loops(step: Mapping[str, float]) -> bool:
    return step["looped"] < CLEARLY * step["stacked"]


def pace(setup: Setup, config: HardwareConfig) -> float:
    """Return the seconds of a client's plain local step: on a CPU in one process, on a GPU by the engine of `config`.

    Raises:
        Diverged: the first steps diverge.
    """
    apply(config)
    if setup.federation.device.type != "cuda" or setup.at_once == 1 or config.engine not in ("auto", "stacked"):
        return time_engines(setup, {"looped": EngineCandidate(LoopedTrainer)})["looped"]
    step = time_engines(setup, _on_gpu(setup, stacked_engine(setup, config)))
    return step["looped" if config.engine == "auto" and _loops(step) else "stacked"]


def _tried(setup: Setup, contenders: Mapping[str, EngineCandidate]) -> dict[str, float]:
    """Return the contenders' paces; none if the trial fails, as for a method that needs its preparation first."""
    try:
        return time_engines(setup, contenders)
    except Diverged:  # as the run will, and says
        return {}
    except Exception as error:  # noqa: BLE001 - a trial must not end a run; its own errors come in the run
        log.warning("no engine could be timed, so the default one trains: %s", error)
        return {}


def stacked_engine(setup: Setup, config: HardwareConfig) -> StackedTrainer:
    """Return the stacked engine with as many clients as memory holds, captured as `apply` allows."""
    capture = capture_for(setup.federation.device)
    chunk = config.chunk or fitting_chunk(setup, capture)
    if capture is not None:  # elsewhere the functions of a lowering cost more host time than they save
        choose(setup, min(chunk, setup.at_once))
    return StackedTrainer(setup, chunk, capture)
