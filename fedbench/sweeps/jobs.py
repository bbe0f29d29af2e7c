"""One job of the command line, in the process that a launcher starts, and its outcome."""

from __future__ import annotations

import logging
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from fedbench.config import messages, sources
from fedbench.config.compose import suited
from fedbench.core.errors import ConfigError, reason_of
from fedbench.core.files import make_folder, write_text
from fedbench.core.locks import wait_while_in_use
from fedbench.core.signals import Stopped, asked, passed_on, stop_if_asked, working_for
from fedbench.runs.config import RunConfig, resolve
from fedbench.runs.progress import Output, human_seconds, result_line
from fedbench.runs.run import Run


@dataclass
class SweepCount:
    """The position in a sweep whose jobs run in this process, one after the other."""

    first: int  # number of its first job
    jobs: int
    made: list[float] = field(default_factory=list)  # seconds of those that were run

    def line(self, number: int) -> str:
        """Return the line before the job with this number."""
        done = number - self.first
        left = sum(self.made) / len(self.made) * (self.jobs - done) if self.made else float("nan")
        ending = f", about {human_seconds(left)} left" if self.made else ""
        return f"run {done + 1} of {self.jobs}{ending}"


ValueT = TypeVar("ValueT")


@contextmanager
def _within(variable: ContextVar[Any], value: ValueT) -> Iterator[ValueT]:
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


def counted(first: int, jobs: int) -> AbstractContextManager[object]:
    """Let jobs in this process show their number, the total, and the remaining time.

    Inside another such block the outer count continues, because tuning launches its runs a few at a time.
    """
    return _within(_count, _count.get() or SweepCount(first, jobs))


_count: ContextVar[SweepCount | None] = ContextVar("_count", default=None)
LAUNCHER = "launcher"  # file in a sweep's folder: the class of what launches its jobs, wherever they run


@dataclass(frozen=True)
class JobOutcome:
    """The outcome of a job: its row, or the reason why there is none."""

    overrides: Mapping[str, str] = field(default_factory=dict)  # key -> value
    row: Mapping[str, Any] | None = None  # of a finished run
    folder: str = ""  # of the run
    plain: Mapping[str, Any] = field(default_factory=dict)  # the job's config
    code: int = messages.OK  # exit code
    failure: str = ""  # the message for the user
    shown: bool = False  # true: the message has been printed
    earlier: bool = False  # true: an earlier command finished the run
    code_changed: tuple[str, ...] = ()  # the parts of the code that differ from the code that made it
    stopped: str = ""  # if a signal stopped it: how far it got, and where that is saved


_kept: ContextVar[list[JobOutcome] | None] = ContextVar("_kept", default=None)


def keeping() -> AbstractContextManager[list[JobOutcome]]:
    """Give the list that collects every outcome, because Hydra's main function discards the jobs' results."""
    return _within(_kept, list[JobOutcome]())


def keep(outcome: JobOutcome) -> None:
    """Add to the list of `keeping`; print the failure of a job that ran in another process."""
    if outcome.failure and not outcome.shown:
        tell(outcome.failure)
    if (kept := _kept.get()) is not None:
        kept.append(outcome)


def tell(failure: str) -> None:
    """Print a failure."""
    with suppress(OSError):  # a full disk, which may be the failure; told again at the end
        sys.stdout.flush()
    print(failure, file=sys.stderr)


_planned: ContextVar[bool] = ContextVar("_planned", default=False)
_hushed: ContextVar[bool] = ContextVar("_hushed", default=False)


def only_planned() -> AbstractContextManager[object]:
    """Let runs and sweeps only say what they would make and how long it would take."""
    return _within(_planned, True)


def is_only_planned() -> bool:
    """Return whether this is within `only_planned`."""
    return _planned.get()


def hushed() -> AbstractContextManager[object]:
    """Silence `say` in this thread."""
    return _within(_hushed, True)


def say(*what: object, console: Output | None = None) -> None:
    """Print a sweep's text other than failures, unless `hushed`; other threads share standard output."""
    if not _hushed.get():
        (print if console is None else console.print)(*what)


def perform(config: DictConfig) -> JobOutcome:
    """Run one job as Hydra's task function, and never raise an Exception.

    Hydra would end a sweep with a traceback. So errors are part of the outcome, and the other jobs go on.
    """
    if HydraConfig.get().mode == RunMode.RUN:
        outcome = _outcome(config)
        keep(outcome)
        return outcome
    return run_stoppable(lambda: _outcome(config))


def run_stoppable(make: Callable[[], JobOutcome]) -> JobOutcome:
    """Return the result of `make` in a launcher's job, or, in a separate process, the signal that stopped it.

    Raises:
        Stopped: a signal came, and the job runs in the process that was asked to stop.
    """
    with working_for(Path(HydraConfig.get().sweep.dir)) as elsewhere:
        try:
            stop_if_asked()
            return make()
        except Stopped as stop:
            if not elsewhere:
                raise
            return JobOutcome(values_of(_task()), code=128 + stop.number, stopped=stop.where)


def _outcome(config: DictConfig) -> JobOutcome:
    """Return the outcome of the run that `config` describes."""
    here = _kept.get() is not None  # else in a process that a launcher started
    alone = HydraConfig.get().mode == RunMode.RUN
    plain: Mapping[str, Any] = {}
    try:
        _refuse_another_launcher()
        run = resolve(suited(config, _task()))
        plain = run.plain
        name = run.settings.sweep.name
        if name and alone:  # nothing would be kept under it
            raise ConfigError(f"sweep.name={name} needs a sweep; add -m: python -m fedbench -m ...")
        if is_only_planned():
            from fedbench.runs.estimate import plan_lines

            for line in plan_lines([run], [""]):
                say(line)
            return JobOutcome(values_of(_task()), plain=plain)
        if not here and run.settings.progress == "auto":  # several bars on one terminal would overwrite each other
            run = run.changed(progress="lines")
        result = _execute(run)
        if here and alone:
            quiet = run.settings.progress == "none"
            print(*([result_line(result.row)] if quiet else []), f"folder: {result.folder}", sep="\n")
        return JobOutcome(
            values_of(_task()),
            dict(result.row),
            str(result.folder),
            plain,
            earlier=result.earlier,
            code_changed=result.code_changed,
        )
    except Exception as error:  # noqa: BLE001 - told, and the exit code tells
        job = "" if alone else " ".join(override.lstrip("+") for override in _task())
        code, failure = messages.explained(error, job)
        if here:
            tell(failure)
        return JobOutcome(values_of(_task()), plain=plain, code=code, failure=failure, shown=here)


def _refuse_another_launcher() -> None:
    """Refuse a launcher that a swept experiment names; it would have no effect, as the sweep has its own by then."""
    if HydraConfig.get().mode == RunMode.RUN:
        return
    own = (Path(HydraConfig.get().sweep.dir) / LAUNCHER).read_text(encoding="utf-8")
    if HydraConfig.get().launcher.get("_target_") != own:
        name = HydraConfig.get().runtime.choices.get("hydra/launcher")
        raise ConfigError(f"hydra/launcher={name} in a swept config has no effect; add it to the command")


def _execute(run: RunConfig) -> Run:
    """Return the run's result; in a sweep show the job's number, and wait for another process with the same run."""
    from fedbench.runs import execution

    count, begin = _count.get(), time.monotonic()
    if count is not None and run.settings.progress != "none":
        Output(highlight=False, force_jupyter=False).print(count.line(HydraConfig.get().job.num))
    result = wait_while_in_use(lambda: execution.execute(run), stop_if_asked)
    if count is not None and not result.earlier:  # what is only read takes no time
        count.made.append(time.monotonic() - begin)
    return result


def values_of(overrides: Iterable[str]) -> dict[str, str]:
    """Return the values of overrides by key: `++method.mu=1` as {"method.mu": "1"}."""
    return dict(text.lstrip("+").partition("=")[::2] for text in overrides)


def _task() -> list[str]:
    """Return the overrides as written, because a value of `${...}` in them may be what cannot be found."""
    return cast("list[str]", OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False))


sources.register_resolvers()  # on import: a launcher's process reads the config before it calls `perform`


def launch(launcher: Any, folder: Path, batch: Sequence[Sequence[str]], first: int) -> list[JobReturn]:
    """Return the results of a launcher's jobs, numbered from `first`, in `folder` (hydra.sweep.dir).

    Raises:
        Stopped: a signal came; the running jobs have saved their state.
    """
    make_folder(folder)
    write_text(folder / LAUNCHER, f"{type(launcher).__module__}.{type(launcher).__qualname__}")
    if isinstance(options := getattr(launcher, "joblib", None), Mapping) and "n_jobs" in options:
        launcher.joblib = {**options, "n_jobs": _needed(options["n_jobs"], len(batch))}
    with passed_on(folder):
        returned: list[JobReturn] = []
        try:
            with _each_for_itself(folder):
                returned = list(launcher.launch(batch, initial_job_idx=first))
        except Exception:
            if not asked():
                raise
        if number := asked():
            raise Stopped(number, "\n".join(filter(None, map(_saved, returned))))
    for job, overrides in zip(returned, batch, strict=False):  # one that died did not say which it was
        job.overrides = job.overrides or list(overrides)
    return returned


def _needed(processes: int, runs: int) -> int:
    """Return how many processes joblib should start; it starts all of them at once."""
    import joblib  # type: ignore[import-untyped]

    return int(min(joblib.effective_n_jobs(processes), joblib.cpu_count(), runs))


def _saved(job: JobReturn) -> str:
    try:
        return str(job.return_value.stopped)
    except Exception:  # noqa: BLE001 - whatever ended its process saved nothing
        return ""


@contextmanager
def _each_for_itself(folder: Path) -> Iterator[None]:
    """Let a dead job of submitit return the reason; Hydra's plugin waits for jobs in turn, up to the first failure."""
    try:
        from submitit import AutoExecutor
    except ImportError:
        yield
        return
    submit = AutoExecutor.map_array

    def submitted(self: Any, function: Callable[..., Any], *arguments: Any) -> list[_SubmititJob]:
        return [_SubmititJob(job, folder) for job in submit(self, function, *arguments)]

    AutoExecutor.map_array = submitted  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        AutoExecutor.map_array = submit  # type: ignore[method-assign]


@dataclass(frozen=True)
class _SubmititJob:
    job: Any
    folder: Path

    def results(self) -> list[JobReturn]:
        try:
            return cast("list[JobReturn]", self.job.results())
        except Exception as error:  # noqa: BLE001 - whatever ended its process
            log = self.folder / f"submitit-{self.job.job_id}.log"
            with suppress(OSError):  # it may have died before it had one
                shutil.copyfile(self.job.paths.stderr, log)
                tell(f"a job died; what it printed: {log}")
            return [_dead(error)]


def _dead(error: Exception) -> JobReturn:
    returned = JobReturn(status=JobStatus.FAILED)
    returned.return_value = error
    return returned


@contextmanager
def started_ray(address: str | None, resources: Mapping[str, float]) -> Iterator[Any]:
    """Yield the module `ray`, connected to the cluster at `address` (None: to one of this machine, which ends here).

    `resources` are those of a task, such as num_gpus=1.

    Raises:
        ConfigError: Ray is not installed, nothing answers at `address`, or no machine has the `resources`.
    """
    try:
        import ray
    except ImportError:
        raise ConfigError("hydra.launcher needs Ray: pip install 'fedbench-harness[ray]'") from None
    ours = not ray.is_initialized()
    if ours:
        before = signal.getsignal(signal.SIGTERM)
        try:
            _knock(address)
            ray.init(
                address=address,
                log_to_driver=False,
                include_dashboard=None if address else False,
                logging_level=logging.ERROR,
            )
        except Exception as error:  # ray has no class for it, and says it in many lines
            raise ConfigError(
                f"no Ray at hydra.launcher.address={address}; ray start --head starts one: {reason_of(error)}"
            ) from error
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray has taken it, to end the process at once
    try:
        _require(ray, resources)
        yield ray
    finally:
        if ours:
            ray.shutdown()


def _knock(address: str | None) -> None:
    """Raise OSError if nothing listens at HOST:PORT; Ray itself would try for ten minutes."""
    host, _, port = (address or "").rpartition(":")
    if host and port.isdigit() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=10).close()


def _require(ray: Any, resources: Mapping[str, float]) -> None:
    """Refuse resources that no machine has; Ray itself would wait for them forever."""
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for key, name in (("num_gpus", "GPU"), ("num_cpus", "CPU")):
        if (wanted := resources.get(key, 0)) > (most := max((each.get(name, 0) for each in machines), default=0)):
            raise ConfigError(f"hydra.launcher.{key}={wanted:g}: a machine of this Ray has at most {most:g} {name}")


def launch_on_ray(
    jobs: Sequence[tuple[int, list[str]]],
    arguments: tuple[Any, ...],
    address: str | None,
    resources: dict[str, float],
) -> list[JobReturn]:
    """Run jobs (number, overrides) as tasks of a Ray cluster and return their results in order.

    `arguments`: Hydra's context, the sweep's config and the task function.

    Raises:
        ConfigError: Ray is not installed, its cluster does not answer, or none of its machines has the `resources`.
    """
    from hydra.core.singleton import Singleton

    # It makes of a process one of Hydra's and runs a job there; nothing public of Hydra or its plugins does.
    from hydra_plugins.hydra_joblib_launcher._core import execute_job

    with started_ray(address, resources) as ray:
        task = ray.remote(max_retries=0, **resources)(execute_job)
        shared = [ray.put(each) for each in (*arguments, Singleton.get_state())]
        return [_result_on_ray(ray, each) for each in [task.remote(*job, *shared) for job in jobs]]


def _result_on_ray(ray: Any, reference: Any) -> JobReturn:
    try:
        return cast("JobReturn", ray.get(reference))
    except ray.exceptions.RayError as error:
        return _dead(error)
