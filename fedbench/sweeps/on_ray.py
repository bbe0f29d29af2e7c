"""Jobs of a sweep as tasks of a Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, run_job, setup_globals
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

from fedbench.core.errors import ConfigError


def run(
    jobs: Sequence[tuple[int, list[str]]],
    arguments: tuple[Any, ...],
    address: str | None,
    resources: dict[str, float],
) -> list[JobReturn]:
    """Run (number, overrides) jobs, `arguments` as `perform` takes them; what they returned, in order.

    Raises:
        ConfigError: Ray is not installed.
    """
    try:
        import ray
    except ImportError:
        raise ConfigError("hydra/launcher=ray needs Ray: pip install 'fedbench-harness[ray]'") from None
    ours = not ray.is_initialized()
    if ours:
        ray.init(address=address, log_to_driver=False, include_dashboard=None if address else False)
    try:
        task = ray.remote(max_retries=0, **resources)(perform)
        shared = [ray.put(each) for each in (*arguments, Singleton.get_state())]
        return [_result(ray, each) for each in [task.remote(*job, *shared) for job in jobs]]
    finally:
        if ours:
            ray.shutdown()


def perform(
    number: int,
    overrides: list[str],
    context: HydraContext,
    config: DictConfig,
    task: TaskFunction,
    state: dict[Any, Any],
) -> JobReturn:
    """One job, in a process of Ray's."""
    setup_globals()
    Singleton.set_state(state)
    own = context.config_loader.load_sweep_config(config, overrides)
    with open_dict(own):
        own.hydra.job.id = f"{own.hydra.job.name}_{number}"
        own.hydra.job.num = number
    HydraConfig.instance().set_config(own)
    return run_job(
        hydra_context=context,
        config=own,
        task_function=task,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
    )


def _result(ray: Any, reference: Any) -> JobReturn:
    try:
        returned = ray.get(reference)
    except ray.exceptions.RayError as error:
        returned = JobReturn(status=JobStatus.FAILED)
        returned.return_value = error
    if not isinstance(returned, JobReturn):
        raise TypeError(f"a job returned {type(returned).__name__}")
    return returned
