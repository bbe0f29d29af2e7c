"""MLflow (pip install 'fedbench-harness[mlflow]'): parameters, metrics by round, the final metrics.

The tracking server is MLflow's own default (MLFLOW_TRACKING_URI, else a local store) unless `uri` names one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from fedbench.results.gather import flat
from fedbench.results.observer import Labels
from fedbench.results.trackers.base import FINAL, Tracker, setting, title
from fedbench.results.units import number

LONGEST = 500  # characters of a parameter that every MLflow server takes


class MlflowTracker(Tracker):
    """An MLflow run; one that goes on is found by the run's key among the tags of its experiment."""

    name: ClassVar[str] = "mlflow"

    def __init__(
        self,
        key: str,
        folder: Path,
        config: Mapping[str, Any] | None = None,
        *,
        uri: str | None = None,
        experiment: str = "fedbench",
    ) -> None:
        """`uri`: of the tracking server, None: MLflow's own; the rest as `Tracker`."""
        super().__init__(key, folder, config)
        self._uri, self._experiment = uri, experiment
        self._client: Any = None
        self._run = ""

    def open(self, labels: Labels, rounds: int, resumed_from: int) -> None:
        """See Tracker.open."""
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(tracking_uri=self._uri)
        found = self._client.get_experiment_by_name(self._experiment)
        experiment = found.experiment_id if found else self._client.create_experiment(self._experiment)
        if resumed_from:
            before = self._client.search_runs([experiment], f"tags.key = '{self.key}'", max_results=1)
            self._run = before[0].info.run_id if before else ""
        if not self._run:
            tags = {"key": self.key, "setting": setting(labels), "folder": str(self.folder)}
            made = self._client.create_run(experiment, tags=tags, run_name=title(labels))
            self._run = made.info.run_id
            for name, value in flat(self.config).items():
                self._client.log_param(self._run, name, str(value)[:LONGEST])

    def log(self, round_: int, row: Mapping[str, Any]) -> None:
        """See Tracker.log."""
        for name, value in row.items():
            known = number(value)
            if name != "round" and known is not None:
                self._client.log_metric(self._run, name, known, step=round_)

    def summarise(self, result: Mapping[str, Any]) -> None:
        """See Tracker.summarise."""
        for name in FINAL:
            known = number(result.get(name))
            if known is not None:
                self._client.log_metric(self._run, f"final_{name}", known)

    def end(self, *, complete: bool) -> None:
        """See Tracker.end."""
        self._client.set_terminated(self._run, "FINISHED" if complete else "FAILED")
