"""`hydra/launcher=ray`: a sweep's runs as tasks of a Ray cluster. Thin, every Hydra program imports it.

Hydra's own Ray plugin needs a package that no Python from 3.8 on can install.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class RayLauncher(Launcher):
    """Starts Ray, or joins a cluster, for as long as a batch of runs takes."""

    def __init__(self, address: str | None = None, num_cpus: float = 1.0, num_gpus: float = 0.0) -> None:
        self.address = address
        self.resources = {"num_cpus": num_cpus, "num_gpus": num_gpus}

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.context, self.task, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list[JobReturn]:
        """Run every list of overrides; a run whose process died is returned as failed, as one that raised.

        Raises:
            ConfigError: Ray is not installed, cannot be reached, or has no machine that is large enough.
        """
        from fedbench.sweeps.jobs import launch_on_ray

        Path(str(self.config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
        jobs = [(initial_job_idx + i, list(overrides)) for i, overrides in enumerate(job_overrides)]
        arguments: tuple[Any, ...] = (self.context, self.config, self.task)
        return launch_on_ray(jobs, arguments, self.address, self.resources)
