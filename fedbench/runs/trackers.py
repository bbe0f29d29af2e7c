"""Experiment trackers: Weights & Biases, TensorBoard, MLflow.

A failure of a tracker is reported once and ends its logging, not the run. Each call has a time limit, so a slow tracker
does not delay a run. A failed tracker stays off for all later runs of the process.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, cast

from fedbench.core.errors import reason_of
from fedbench.core.files import short_name
from fedbench.engine.history import Labels, Observer, Record, record_row
from fedbench.runs.progress import COLUMNS, headings, number, title
from fedbench.runs.run import flat

log = logging.getLogger("fedbench")
PATIENCE = 20.0  # seconds that a tracker may take for one thing
OPENING = 60.0  # and to begin, when it may have to make a data base
MLFLOW = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}  # unless they are set
WANDB_NAME = 128  # characters of a name that wandb takes
LEFT: set[str] = set()  # names of trackers that failed in this process


class Tracker(Observer):
    """Opens a record of the run, logs a row for every scored round and the final metrics, and closes it.

    A subclass names its library, which is imported before `open`.
    """

    name: ClassVar[str]
    library: ClassVar[str]

    def __init__(self, key: str, folder: Path, config: Mapping[str, Any], **options: Any) -> None:
        """`key` identifies the run, also when it resumes; `folder` is the run's; `config` is nested.

        `options` are the tracker's own in a config, without `enabled`: see fedbench.config.schema.
        """
        self.key, self.folder, self.config, self.options = key, folder, config, options
        self._opened = self._complete = False

    # ---- what a subclass does

    @abstractmethod
    def open(self, labels: Labels, rounds: int, resumed_from: int) -> None:
        """Open or continue the record of a run."""

    def scalar(self, name: str, value: float, round_: int | None = None) -> None:
        """A number of a scored round, or of the run's result; for libraries that take numbers only."""

    def log(self, round_: int, row: Mapping[str, Any]) -> None:
        """The row of a scored round."""
        for name, value in row.items():
            if name != "round" and (known := number(value)) is not None:
                self.scalar(name, known, round_)

    def summarise(self, result: Mapping[str, Any]) -> None:
        """Log the result row, with the numbers of a closing table."""
        for name in headings([result], COLUMNS):
            if (known := number(result.get(name))) is not None:
                self.scalar(name, known)

    @abstractmethod
    def end(self, *, complete: bool) -> None:
        """Close the record."""

    # ---- Observer

    def start(self, labels: Labels, rounds: int, resumed_from: int) -> None:
        self._opened = self._guarded(lambda: importlib.import_module(self.library), None) and self._guarded(
            lambda: self.open(labels, rounds, resumed_from), OPENING
        )

    def record(self, record: Record) -> None:
        if self._opened:
            self._guarded(lambda: self.log(record.round, record_row(record)))

    def finish(self, result: Mapping[str, Any]) -> None:
        if self._opened:
            self._guarded(lambda: self.summarise(result))
        self._complete = True

    def close(self) -> None:
        if self._opened:
            self._opened = False
            self._guarded(lambda: self.end(complete=self._complete))

    @property
    def failed(self) -> bool:
        """Whether it is left."""
        return self.name in LEFT

    def _guarded(self, action: Callable[[], object], seconds: float | None = PATIENCE) -> bool:
        """Whether the action is done in time; None: there is no limit."""
        if self.failed:
            return False
        try:
            _within(seconds, action)
        except Exception as error:  # noqa: BLE001 - the library's own failures are of many types
            LEFT.add(self.name)
            log.warning("%s logging is off for the rest of the run: %s", self.name, reason_of(error))
        return not self.failed


def _within(seconds: float | None, action: Callable[[], object]) -> None:
    """Do `action` in a thread, which is abandoned if it takes longer.

    Raises:
        TimeoutError: it takes longer.
        Exception: whatever `action` raises.
    """
    raised: list[Exception] = []

    def work() -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - raised again outside
            raised.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"no answer in {seconds:g} s")
    if raised:
        raise raised[0]


def setting(labels: Labels) -> str:
    """The settings that comparable runs share."""
    return f"{labels.dataset}/{labels.partition}/{labels.model}/{labels.protocol}"


class WandbTracker(Tracker):
    """A wandb run, whose files are in the run's folder."""

    name: ClassVar[str] = "wandb"
    library: ClassVar[str] = "wandb"
    _run: Any

    def open(self, labels: Labels, rounds: int, resumed_from: int) -> None:
        import wandb

        # Elsewhere nobody knows what was logged before; without `resume` a run of the same id takes its place.
        goes_on = self.options["mode"] == "online" and resumed_from > 0
        self._run = wandb.init(
            **self.options,
            id=self.key,
            dir=str(self.folder),
            config=dict(self.config),
            name=short_name(title(labels), WANDB_NAME),
            group=short_name(setting(labels), WANDB_NAME),
            resume="allow" if goes_on else None,
            settings=wandb.Settings(silent=True, console="off"),
        )
        self._run.define_metric("round")
        self._run.define_metric("*", step_metric="round")
        self._run.config.update({"fedbench_rounds": rounds, "fedbench_resumed_from": resumed_from})

    def log(self, round_: int, row: Mapping[str, Any]) -> None:
        self._run.log(dict(row))

    def summarise(self, result: Mapping[str, Any]) -> None:
        self._run.summary.update(dict(result))

    def end(self, *, complete: bool) -> None:
        self._run.finish(exit_code=0 if complete else 1)


class TensorBoardTracker(Tracker):
    """Scalars by round, the config as text, the final metrics as scalars of their own."""

    name: ClassVar[str] = "tensorboard"
    library: ClassVar[str] = "torch.utils.tensorboard"
    _writer: Any

    def open(self, labels: Labels, rounds: int, resumed_from: int) -> None:
        import yaml
        from torch.utils.tensorboard import SummaryWriter

        # A run that begins anew, as with force=true, takes the place of all that an earlier one wrote.
        self._writer = SummaryWriter(str(self.folder / "tensorboard"), purge_step=resumed_from and resumed_from + 1)
        text = yaml.safe_dump(dict(self.config), sort_keys=False)
        self._writer.add_text(title(labels), f"```\n{text}```")

    def scalar(self, name: str, value: float, round_: int | None = None) -> None:
        self._writer.add_scalar(name if round_ is not None else f"final/{name}", value, round_)

    def end(self, *, complete: bool) -> None:
        self._writer.close()


LONGEST = 500  # characters of a parameter that every MLflow server takes


class MlflowTracker(Tracker):
    """An MLflow run. A resumed run is found by its key among the tags of the experiment."""

    name: ClassVar[str] = "mlflow"
    library: ClassVar[str] = "mlflow.tracking"
    _client: Any
    _run = ""

    def open(self, labels: Labels, rounds: int, resumed_from: int) -> None:
        from mlflow.tracking import MlflowClient

        for name, value in MLFLOW.items():
            os.environ.setdefault(name, value)
        self._client, name = MlflowClient(tracking_uri=self._store()), self.options["experiment"]
        found = self._client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self._client.create_experiment(name)
        before = self._client.search_runs([experiment], f"tags.key = '{self.key}'")  # the last that began first
        folder = str(self.folder.resolve())  # others on the server have a runs/ too
        if resumed_from and before:
            self._run = before[0].info.run_id
        else:
            # As with force=true: a run that begins anew takes the place of what its folder held.
            for each in (run for run in before if run.data.tags.get("folder") == folder):
                self._client.delete_run(each.info.run_id)
            tags = {"key": self.key, "setting": setting(labels), "folder": folder}
            made = self._client.create_run(experiment, tags=tags, run_name=title(labels))
            self._run = made.info.run_id
            for name, value in flat(self.config).items():
                self._client.log_param(self._run, name, str(value)[:LONGEST])

    def _store(self) -> str | None:
        """The server's address; by default next to the runs, because MLflow's own default is the current folder."""
        if self.options["uri"] or os.environ.get("MLFLOW_TRACKING_URI"):
            return cast("str | None", self.options["uri"])
        runs = Path(self.config["runs_dir"]).resolve()
        runs.mkdir(parents=True, exist_ok=True)
        in_file = importlib.util.find_spec("sqlalchemy") is None  # which MLflow's small package does without
        return (runs / "mlruns").as_uri() if in_file else f"sqlite:///{runs / 'mlflow.db'}"

    def scalar(self, name: str, value: float, round_: int | None = None) -> None:
        self._client.log_metric(self._run, name if round_ is not None else f"final_{name}", value, step=round_)

    def end(self, *, complete: bool) -> None:
        self._client.set_terminated(self._run, "FINISHED" if complete else "FAILED")


TRACKERS = {each.name: each for each in (WandbTracker, TensorBoardTracker, MlflowTracker)}  # by their part of a config
