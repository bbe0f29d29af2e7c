"""Running the missing runs of a plan through one of Hydra's launchers, several at once where it can."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import itertools
import os
import platform
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.callbacks import Callbacks  # a launcher's context, which is public, must hold them
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig

from fedbench.config import messages, sources
from fedbench.config.groups import conf_dir
from fedbench.core.errors import FedbenchError, FolderInUse, unknown
from fedbench.engine.hardware import pick_device
from fedbench.papers.plan import Job
from fedbench.runs import execution
from fedbench.runs.config import from_plain
from fedbench.runs.folder import RunFolder, folder_of
from fedbench.sweeps.jobs import JobOutcome, launch, run_stoppable, tell
from fedbench.sweeps.session import scratch

POLL = 1.0  # seconds between two looks at the run folders
Watch = Callable[[Sequence[Job], Sequence[Job]], None]  # (finished, failed) so far


def run_all(waves: Sequence[Sequence[Job]], launcher: Sequence[str], watch: Watch = lambda *_: None) -> None:
    """Run the jobs of each wave, one wave after the other; `launcher` holds overrides such as hydra/launcher=joblib.

    A job that fails leaves its reason in its folder and does not stop the others. `watch` gets the finished jobs now
    and then, from another thread, and once at the end.
    """
    every = [job for wave in waves for job in wave]
    with _watching(every, watch):
        for wave in waves:
            for job in (each for each in wave if each.study):  # first, as a wave of runs may last for hours
                _study(job)
            _launch([job for job in wave if not job.study], launcher)


def _launch(jobs: Sequence[Job], launcher: Sequence[str]) -> None:
    if not jobs:
        return
    sources.register()
    with hydra.initialize_config_dir(str(conf_dir()), job_name="fedbench", version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        # An override, as each process composes its config anew; a folder that other machines see.
        runs_dir = str(Path(jobs[0].config.settings.runs_dir).absolute()).replace("'", r"\'")
        shared_dir = f"hydra.sweep.dir='{runs_dir}/.sweeps/${{fedbench.unique:}}'"
        config = loader.load_configuration("config", [*launcher, shared_dir], run_mode=RunMode.MULTIRUN)
        cards = any(config.hydra.launcher.get(key) for key in CARDS)
        target = str(config.hydra.launcher["_target_"])
        apart, here = not target.endswith("BasicLauncher"), target.endswith("JoblibLauncher")
        shared = apart and len(jobs) > 1 and not cards  # the only run, often Local, has all cores
        plains = [_plain(job, shared=shared, apart=apart, here=here) for job in jobs]
        context = HydraContext(config_loader=loader, callbacks=Callbacks(config))
        perform_them = functools.partial(perform, plains, apart)

        def attempt(numbers: Sequence[int]) -> list[JobReturn]:
            runner = Plugins.instance().instantiate_launcher(context, perform_them, config)
            return launch(runner, folder, [[f"+job={number}"] for number in numbers], 0)

        with scratch(config):
            folder = Path(config.hydra.sweep.dir)
            _persist(jobs, folder, attempt)


CARDS = ("num_gpus", "gpus_per_node", "gpus_per_task", "gres")  # keys of launchers that give a job cards
DIED = "its process died (killed, out of memory, or its machine is gone)"


def _persist(jobs: Sequence[Job], folder: Path, attempt: Callable[[Sequence[int]], list[JobReturn]]) -> None:
    """Give all jobs, by their numbers, to `attempt`, and those whose process died a second time.

    A dying process of joblib ends all others, and its job is not known. So each job that had begun then runs alone,
    and a job that kills its process costs no other.
    """
    batches = [list(range(len(jobs)))]
    died_before: set[int] = set()
    while batches:
        batch, error, returned = batches.pop(0), None, dict[int, Any]()
        try:
            returned = dict(zip(batch, attempt(batch), strict=False))
        except FedbenchError:
            raise
        except Exception as problem:  # noqa: BLE001 - the launcher itself, or what one of its processes did to it
            error = problem
        for each in returned.values():
            if not _failed(each) and each.return_value.failure:
                tell(each.return_value.failure)
        died = [number for number in batch if _log(folder, number).is_file() or _failed(returned.get(number))]
        left = [number for number in batch if number not in died and _open(jobs[number])] if error is not None else []
        if error is not None and left == batch:  # nothing began: it is no process that died
            raise error
        for number in died_before.intersection(died):
            _note_death(jobs[number], returned.get(number), _log(folder, number))
        again = [number for number in died if number not in died_before]
        died_before.update(again)
        for number in again:
            named = " ".join(jobs[number].overrides)
            tell(f"{DIED}, it is tried once more: {named}; log: {_log(folder, number)}")
        batches += [[number] for number in again] if error is not None else [again] if again else []
        batches += [left] if left else []


def _open(job: Job) -> bool:
    return not job.finished and not job.failure


def _failed(returned: JobReturn | None) -> bool:
    return returned is not None and returned.status is JobStatus.FAILED


def _log(folder: Path, number: int) -> Path:
    """The log of a job, which exists from its beginning and survives its death."""
    return folder / f"{number}.log"


def _note_death(job: Job, returned: JobReturn | None, log: Path) -> None:
    """Write into the folder of a job's run why its process died or could not read its configuration."""
    if _open(job):
        with contextlib.suppress(Exception), job.folder.noting_failure():
            if log.is_file() or returned is None:
                raise FedbenchError(f"{DIED}, twice; log: {log}")
            _ = returned.return_value  # raises what ended the job


def _plain(job: Job, *, shared: bool, apart: bool, here: bool) -> dict[str, Any]:
    """Return the plain config of a job's run, the one form in which it goes to another process."""
    plain, hardware = dict(job.config.plain), job.config.hardware
    if shared and hardware.engine == "auto" and not (here and pick_device(hardware).type == "cuda"):
        plain["hardware"] = {**plain["hardware"], "engine": "looped"}  # runs share the cores, one each
    if apart:  # there `runs` could be another folder, and a log with rounds says how far it got
        plain |= {"runs_dir": str(Path(plain["runs_dir"]).absolute()), "progress": "lines"}
    return plain


def perform(plains: Sequence[Mapping[str, Any]], logged: bool, config: DictConfig) -> JobOutcome:
    """Run one job of the launcher in any process, and write a failure into its run's folder.

    Of Hydra's config for the job only its number among `plains` and the folder of its log are used.
    """

    def make() -> JobOutcome:
        log = _log(Path(HydraConfig.get().sweep.dir), config.job)
        with _printing_to(log) if logged else contextlib.nullcontext():
            run = from_plain(plains[config.job])
            return JobOutcome(failure=_failure_of(lambda: execution.execute(run), folder_of(run)))

    return run_stoppable(make)


def _failure_of(work: Callable[[], object], folder: RunFolder) -> str:
    """Do `work`; write into `folder` why it failed, or return that if writing fails too, as on a full disk."""
    try:
        with folder.noting_failure():
            work()
    except Exception as error:  # noqa: BLE001 - noted, or told
        if not folder.failure() and not isinstance(error, FolderInUse):
            return messages.explained(error)[1]
    return ""


@contextlib.contextmanager
def _printing_to(path: Path) -> Iterator[None]:
    """Send this process's output to a log, which remains if the process dies in the block, but not if it is stopped."""
    with path.open("ab") as log:
        log.write(f"process {os.getpid()} on {platform.node()}\n".encode())
        log.flush()
        streams = {number: os.dup(number) for number in (1, 2)}
        for number in streams:
            os.dup2(log.fileno(), number)
        faulthandler.enable(log)
        try:
            yield
        finally:
            faulthandler.disable()
            sys.stdout.flush()
            sys.stderr.flush()
            for number, own in streams.items():
                os.dup2(own, number)
                os.close(own)
            path.unlink(missing_ok=True)


def _study(job: Job) -> None:
    from fedbench.papers.studies import STUDIES

    def make() -> None:
        with job.folder as folder:
            folder.clear()
            if job.study not in STUDIES:
                raise unknown("study", job.study, STUDIES)
            found = STUDIES[job.study](job.config)
            made = {"seed": job.seed, "data": job.data, "code": folder.today}
            folder.finish({**found, **made})

    if failure := _failure_of(make, job.folder):
        tell(failure)


@contextlib.contextmanager
def _watching(jobs: Sequence[Job], watch: Watch) -> Iterator[None]:
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
            with contextlib.suppress(FedbenchError, OSError):  # told by the last look, if it lasts until then
                look()

    thread: Any = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        look()
