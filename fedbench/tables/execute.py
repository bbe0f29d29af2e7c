"""Running the missing runs of a plan through one of Hydra's launchers, several at once where it can."""

from __future__ import annotations

import contextlib
import functools
import itertools
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.config.groups import conf_dir
from fedbench.core.errors import FedbenchError
from fedbench.runs import fingerprint
from fedbench.runs.config import from_plain, run_key
from fedbench.sweeps.jobs import JobOutcome, launch, run_stoppable
from fedbench.tables.plan import Job

if TYPE_CHECKING:
    from hydra.core.utils import JobReturn
    from omegaconf import DictConfig

POLL = 1.0  # seconds between two looks at the run folders
SHARED = "looped"  # engine of runs that share the cores: one each, unless they say otherwise
Watch = Callable[[Sequence[Job], Sequence[Job]], None]  # (finished, failed) so far


def run_all(
    waves: Sequence[Sequence[Job]],
    launcher: Sequence[str],
    watch: Watch | None = None,
    *,
    join_seeds: bool = True,
) -> None:
    """Run the jobs of each wave, one wave after the other; `launcher` holds overrides such as hydra/launcher=joblib.

    `join_seeds`: where runs are stacked, those of one cell are one program; their times are then shares of it.
    A job that fails leaves its reason in its folder and does not stop the others. `watch` is told now and then, from
    another thread, and once at the end, which are done.
    """
    every = [job for wave in waves for job in wave]
    with _watching(every, watch):
        for wave in waves:
            runs = [job for job in wave if not job.study]
            groups = _stackable(runs) if join_seeds and not launcher else []
            for group in groups:
                _together(group)
            if rest := [job for job in runs if not any(job in group for group in groups)]:
                _launch(rest, launcher)
            for job in wave:
                if job.study:
                    _study(job)


def _stackable(jobs: Sequence[Job]) -> list[list[Job]]:
    """Return jobs that differ in their seeds only, where they would train on the stacked engine.

    None that report to a tracker: wandb gives a process one run at a time, and all seeds would write to it.
    """
    from fedbench.engine.hardware import stacks

    groups: dict[str, list[Job]] = {}
    for job in jobs:
        if stacks(job.config.hardware) and not job.config.settings.trackers:
            groups.setdefault(run_key(job.config.changed(seed=0)), []).append(job)
    return [group for group in groups.values() if len(group) > 1]


def _together(jobs: Sequence[Job]) -> None:
    from fedbench.runs.execution import execute_batched

    for job, result in zip(jobs, execute_batched([job.config for job in jobs]), strict=True):
        if isinstance(result, Exception):
            with contextlib.suppress(Exception), job.folder.noting_failure():
                raise result


def _launch(jobs: Sequence[Job], launcher: Sequence[str]) -> None:
    import hydra
    from hydra._internal.callbacks import Callbacks  # a launcher's context, which is public, must hold them
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.plugins import Plugins
    from hydra.types import HydraContext, RunMode

    from fedbench.config import sources

    sources.register()
    with (
        tempfile.TemporaryDirectory(prefix="fedbench-") as scratch,
        hydra.initialize_config_dir(str(conf_dir()), job_name="fedbench", version_base="1.3"),
    ):
        loader = GlobalHydra.instance().config_loader()
        config = loader.load_configuration(
            "config", [*launcher, f"hydra.sweep.dir={scratch}"], run_mode=RunMode.MULTIRUN
        )
        context = HydraContext(config_loader=loader, callbacks=Callbacks(config))
        shared = bool(launcher) and len(jobs) > 1  # the only run, often Local, has all cores
        task = functools.partial(perform, [_plain(job, shared=shared) for job in jobs])
        runner = Plugins.instance().instantiate_launcher(context, task, config)
        returned = launch(runner, Path(scratch), [[] for _ in jobs], 0)
    for job, each in zip(jobs, returned, strict=False):
        _note_death(job, each)


def _note_death(job: Job, returned: JobReturn) -> None:
    """Note why a process died that left no reason in the folder of its run, or could not read its configuration."""
    from hydra.core.utils import JobStatus

    if returned.status is JobStatus.FAILED and not job.finished and not job.failure:
        with contextlib.suppress(Exception), job.folder.noting_failure():
            _ = returned.return_value  # raises what ended the job


def _plain(job: Job, *, shared: bool) -> dict[str, Any]:
    """Return the plain config of a job's run, the one form in which it goes to another process."""
    plain = dict(job.config.plain)
    if shared and plain["hardware"]["engine"] == "auto":
        plain["hardware"] = {**plain["hardware"], "engine": SHARED}
    return plain


def perform(plains: Sequence[Mapping[str, Any]], _: DictConfig) -> JobOutcome:
    """Run one job of the launcher, in whatever process; note its failure in the run's folder.

    What Hydra composes for the job is not looked at but for its number among `plains`.
    """
    from hydra.core.hydra_config import HydraConfig

    from fedbench.runs.execution import execute, folder_of

    def make() -> JobOutcome:
        run = from_plain(plains[HydraConfig.get().job.num])
        with contextlib.suppress(Exception), folder_of(run).noting_failure():
            execute(run)
        return JobOutcome()

    return run_stoppable(make)


def _study(job: Job) -> None:
    from fedbench.tables.studies import STUDIES

    folder = job.folder
    with contextlib.suppress(Exception), folder, folder.noting_failure():
        folder.clear()
        found = STUDIES.build({"name": job.study}).run(job.config)
        made = {"seed": job.seed, "data": job.data, "code": fingerprint.code_of(job.config)}
        folder.finish({**found, **made})


@contextlib.contextmanager
def _watching(jobs: Sequence[Job], watch: Watch | None) -> Iterator[None]:
    if watch is None:
        yield
        return
    done = threading.Event()
    waiting = list(jobs)
    finished: list[Job] = []

    def look() -> None:
        now = [job.finished for job in waiting]  # once it is, it stays so
        finished.extend(itertools.compress(waiting, now))
        waiting[:] = [job for job, ended in zip(waiting, now, strict=True) if not ended]
        watch(finished, [job for job in waiting if job.failure])

    def poll() -> None:
        while not done.wait(POLL):
            with contextlib.suppress(FedbenchError):  # told where the run is asked for
                look()

    thread: Any = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        look()
