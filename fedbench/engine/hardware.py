"""From the hardware config to a device and an engine. Defaults are the fastest correct choice known for the machine."""

from __future__ import annotations

import multiprocessing

import torch

from fedbench.config import HardwareConfig
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.memory import fitting_chunk
from fedbench.engine.setup import Setup
from fedbench.engine.stacked import StackedTrainer
from fedbench.engine.trainer import Trainer
from fedbench.engine.workers import WorkersTrainer, available_workers
from fedbench.errors import ConfigError

# Samples a run must train on before worker processes (two seconds to start) pay for themselves.
WORTH_WORKERS = 2_000_000


def pick_device(config: HardwareConfig) -> torch.device:
    """The device that `config` asks for; `auto` is the GPU where there is one.

    Raises:
        ConfigError: a GPU was asked for that is not there.
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


def stacks(config: HardwareConfig) -> bool:
    """Whether `config` leads to the stacked engine."""
    return config.engine == "stacked" or (config.engine == "auto" and pick_device(config).type == "cuda")


def pick_trainer(setup: Setup, config: HardwareConfig) -> Trainer:
    """The engine for `setup`: stacked on a GPU; on a CPU worker processes for long runs, else the plain loop."""
    device = setup.federation.device
    if config.threads:
        torch.set_num_threads(config.threads)
    engine = config.engine
    workers = config.workers or available_workers()
    if engine == "auto":
        engine = "stacked" if device.type == "cuda" else _for_cpu(setup, workers)
    if engine == "workers" and device.type != "cpu":
        raise ConfigError(
            "hardware.engine=workers runs on a CPU; use hardware.engine=stacked or looped on a GPU"
        )
    if engine == "workers":
        return WorkersTrainer(setup, workers)
    if engine == "stacked":
        return StackedTrainer(setup, config.chunk or fitting_chunk(setup))
    return LoopedTrainer(setup)


def _for_cpu(setup: Setup, workers: int) -> str:
    """Workers where the run is long enough; inside a daemonic process (a sweep's own workers) the plain loop."""
    protocol = setup.protocol
    local = protocol.local
    sizes = setup.population.sizes
    share = protocol.cohort_size(len(sizes)) / len(sizes)
    work = float(sizes.sum()) * (local.epochs or 0)
    if local.iterations is not None:
        work = float(local.iterations * local.batch_size * len(sizes))
    alone = workers < 2 or share * len(sizes) < 2 or multiprocessing.current_process().daemon
    return "looped" if alone or work * share * protocol.rounds < WORTH_WORKERS else "workers"
