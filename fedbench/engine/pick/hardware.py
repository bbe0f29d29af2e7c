"""From the hardware config to a device and an engine. Defaults are the fastest correct choice known for the machine."""

from __future__ import annotations

import logging
import math
import multiprocessing
from collections.abc import Mapping
from functools import partial

import torch

from fedbench.config.schema import HardwareConfig
from fedbench.core.errors import ConfigError
from fedbench.engine.pick import convolutions
from fedbench.engine.pick.calibrate import Contender, pace, run_steps
from fedbench.engine.pick.footprint import fitting_chunk
from fedbench.engine.setup import Setup
from fedbench.engine.train.by_kind import by_kind
from fedbench.engine.train.looped import LoopedTrainer
from fedbench.engine.train.replay import cuda_capture
from fedbench.engine.train.stacked import StackedTrainer
from fedbench.engine.train.trainer import Engine, Trainer
from fedbench.engine.train.workers import WorkersTrainer, available_workers

# Seconds that worker processes must save a run before they are worth starting, which took as long on two quiet cores
# (`start_seconds` in scripts/benchmarks/cores.py; `make bench` measures it for every workload).
WORKERS_START = 4.0


CLEARLY = 0.9  # of the stacked engine's time: a choice that noise does not turn around

log = logging.getLogger("fedbench")


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


def set_threads(config: HardwareConfig) -> None:
    """Torch's threads for whatever this thread computes, and those that start after it."""
    if config.threads:
        torch.set_num_threads(config.threads)


def set_precision(*, tf32: bool) -> None:
    """What a GPU multiplies in: float32, or TensorFloat-32, which torch by itself allows for convolutions alone.

    bfloat16 is no setting of the process, see Task.apply.
    """
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32


def stacks(config: HardwareConfig) -> bool:
    """Whether `config` may lead to the stacked engine, so that several seeds are worth joining."""
    return config.engine == "stacked" or (config.engine == "auto" and pick_device(config).type == "cuda")


def pick_trainer(setup: Setup, config: HardwareConfig) -> Trainer:
    """The engine for `setup`, one for each kind of client; `auto` is what trains a few steps fastest here."""
    set_threads(config)
    if config.precision == "tf32" and setup.federation.device.type != "cuda":
        raise ConfigError("hardware.precision=tf32 is a GPU's; use float32 or bf16 on a CPU")
    set_precision(tf32=config.precision == "tf32")
    return by_kind(setup, [_picked(kind, config) for kind in setup.kinds])


def _picked(setup: Setup, config: HardwareConfig) -> Engine:
    device = setup.federation.device
    if config.engine == "auto":
        return _fastest_on_gpu(setup, config) if device.type == "cuda" else _fastest_on_cpu(setup, config)
    if config.engine == "looped":
        return LoopedTrainer(setup)
    if config.engine == "stacked":
        return stacked_engine(setup, config)
    if device.type != "cpu":
        raise ConfigError(
            "hardware.engine=workers runs on a CPU; use hardware.engine=stacked or looped on a GPU"
        )
    return WorkersTrainer(setup, config.workers or available_workers())


def _fastest_on_cpu(setup: Setup, config: HardwareConfig) -> Engine:
    """Workers where they save more than their start costs; in a process that may have no children the plain loop.

    Stacking is no candidate: on no CPU workload of the benchmark is it as fast as workers.
    """
    workers = config.workers or available_workers()
    busy = min(workers, setup.at_once)
    if busy < 2 or multiprocessing.current_process().daemon:
        return LoopedTrainer(setup)
    step = _tried(setup, {"looped": Contender(LoopedTrainer)}).get("looped", math.inf)
    saved = run_steps(setup) * step * (1 - 1 / busy)
    return WorkersTrainer(setup, workers) if saved > WORKERS_START else LoopedTrainer(setup)


def _fastest_on_gpu(setup: Setup, config: HardwareConfig) -> Engine:
    """Stacked, unless looped takes clearly less time for a step of a client."""
    if setup.at_once == 1:
        return LoopedTrainer(setup)
    stacked = stacked_engine(setup, config)
    same = partial(StackedTrainer, chunk=stacked.chunk, capture=stacked.capture)
    together = Contender(same, min(stacked.chunk, setup.at_once))
    step = _tried(setup, {"looped": Contender(LoopedTrainer), "stacked": together})
    return LoopedTrainer(setup) if step and step["looped"] < CLEARLY * step["stacked"] else stacked


def _tried(setup: Setup, contenders: Mapping[str, Contender]) -> dict[str, float]:
    """The contenders' paces; none where the trial fails, as it may of a method that needs its preparation first."""
    try:
        return pace(setup, contenders)
    except Exception as error:  # noqa: BLE001 - a trial must not end a run; its own errors come in the run
        log.warning("no engine could be timed, so the default one trains: %s", error)
        return {}


def stacked_engine(setup: Setup, config: HardwareConfig) -> StackedTrainer:
    """Stacked, with as many clients at once as memory holds; captured on a GPU, unless `config` says otherwise."""
    device = setup.federation.device
    capture = cuda_capture(device) if device.type == "cuda" and config.graph == "auto" else None
    chunk = config.chunk or fitting_chunk(setup, capture)
    if capture is not None:  # elsewhere the functions of a lowering cost more host time than they save
        convolutions.choose(setup, min(chunk, setup.at_once))
    return StackedTrainer(setup, chunk, capture)
