"""What the commands share that make runs of a plan: reading arguments, choosing a launcher, running with a bar."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedbench.config import compose
from fedbench.core.errors import ConfigError

if TYPE_CHECKING:
    from fedbench.tables.plan import Job


def value(text: str, given: str) -> Any:
    """The value in `text`, read as YAML."""
    import yaml

    try:
        return yaml.safe_load(given)
    except yaml.YAMLError as error:
        raise ConfigError(f"cannot read '{text}'; quote it, or see --help") from error


def seeds(given: Any) -> list[int]:
    """`seeds=5` as the first five; `seeds=[0,3]` as it is."""
    listed = list(range(given)) if type(given) is int else given
    if (
        not isinstance(listed, list)
        or not listed
        or not all(type(each) is int and each >= 0 for each in listed)
    ):
        raise ConfigError(f"seeds={given}: how many (seeds=5, at least 1), or which (seeds=[0,3])")
    return listed


def of_every_run(override: str) -> str:
    """`override`, which every run of a plan is to have.

    Raises:
        ConfigError: of `seed`, as each run of a cell has its own; of `force`, as a plan only runs what is missing.
    """
    key, _, given = override.lstrip("+~").partition("=")
    if key == "seed":
        raise ConfigError(
            f"{override}: a cell has a run for each of its seeds; use seeds=[{given.strip('[]')}]"
        )
    if key == "force":
        raise ConfigError(
            f"{override}: what is finished is not run again here; stale=rerun repeats what other code made, and "
            "reproduce's retry=true what failed"
        )
    return override


def is_setting(override: str) -> bool:
    """Whether an override changes no result."""
    return compose.is_setting(override.lstrip("+~").partition("=")[0])


def launcher(wanted: int, overrides: Sequence[str]) -> tuple[list[str], int]:
    """(Hydra overrides that choose the launcher, runs at once); `wanted` at once, 0: one a core, on a GPU one."""
    import torch

    chosen = [text for text in overrides if text.lstrip("+~").startswith("hydra")]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    jobs = wanted or (1 if torch.cuda.is_available() else cores)
    if chosen or jobs == 1:
        return chosen, 1 if not chosen else jobs
    return ["hydra/launcher=joblib", f"hydra.launcher.n_jobs={jobs}"], jobs


def run(missing: Sequence[Job], launcher: Sequence[str], *, join_seeds: bool = True) -> None:
    """Make the runs, first those of Local, which others are measured against, with a bar."""
    from rich.progress import Progress

    from fedbench.tables.execute import run_all

    first = [job for job in missing if job.config.labels["method"] == "local"]
    rest = [job for job in missing if job.config.labels["method"] != "local"]
    with Progress() as progress:
        bar = progress.add_task("runs", total=len(missing))

        def watch(finished: Sequence[Job], failed: Sequence[Job]) -> None:
            text = f"runs, {len(failed)} failed" if failed else "runs"
            progress.update(bar, completed=len(finished) + len(failed), description=text)

        run_all((first, rest), launcher, watch, join_seeds=join_seeds)
