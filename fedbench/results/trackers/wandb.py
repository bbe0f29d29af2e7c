"""Weights & Biases (pip install 'fedbench-harness[wandb]'), offline unless told otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from fedbench.results.observer import Labels
from fedbench.results.trackers.base import Tracker, setting, title


class WandbTracker(Tracker):
    """A wandb run, whose files are in the run's folder."""

    name: ClassVar[str] = "wandb"

    def __init__(
        self,
        key: str,
        folder: Path,
        config: Mapping[str, Any] | None = None,
        *,
        project: str = "fedbench",
        entity: str | None = None,
        mode: str = "offline",
        tags: Sequence[str] = (),
    ) -> None:
        """`mode` is offline (uploaded later by `wandb sync`), online or disabled; the rest as `Tracker`."""
        super().__init__(key, folder, config)
        self._settings: dict[str, Any] = {
            "id": key[:32],
            "dir": str(folder),
            "config": self.config,
            "project": project,
            "entity": entity,
            "mode": mode,
            "tags": list(tags),
        }
        self._run: Any = None

    def open(self, labels: Labels, rounds: int, resumed_from: int) -> None:
        """See Tracker.open."""
        import wandb

        online = self._settings["mode"] == "online"  # elsewhere nobody knows what was logged before
        self._run = wandb.init(
            **self._settings,
            name=title(labels),
            group=setting(labels),
            resume="allow" if online else None,
            settings=wandb.Settings(silent=True, console="off"),
        )
        self._run.define_metric("round")
        self._run.define_metric("*", step_metric="round")
        self._run.config.update({"fedbench_rounds": rounds, "fedbench_resumed_from": resumed_from})

    def log(self, round_: int, row: Mapping[str, Any]) -> None:
        """See Tracker.log."""
        self._run.log(dict(row))

    def summarise(self, result: Mapping[str, Any]) -> None:
        """See Tracker.summarise."""
        self._run.summary.update(dict(result))

    def end(self, *, complete: bool) -> None:
        """See Tracker.end."""
        self._run.finish(exit_code=0 if complete else 1)
