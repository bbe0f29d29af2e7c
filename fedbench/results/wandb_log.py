"""Weights & Biases logging: optional, offline by default, and never the reason a run fails."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

from fedbench.results.history import Record, record_row
from fedbench.results.observer import Labels, Observer

P = ParamSpec("P")
log = logging.getLogger("fedbench")


def _guarded(
    hook: Callable[Concatenate[WandbObserver, P], None],
) -> Callable[Concatenate[WandbObserver, P], None]:
    """A failure of wandb (missing, no network, full disk) is told once and ends the logging, not the run."""

    @functools.wraps(hook)
    def guarded(self: WandbObserver, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if self.failed:
            return
        try:
            hook(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the library's own failures are of many types
            self.failed = True
            log.warning("wandb logging is off for this run: %s", error)

    return guarded


class WandbObserver(Observer):
    """Logs the config, a row for every scored round and the final metrics; imports wandb at the start."""

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
        """`key` is the run's key (a resumed run goes on under it), `folder` where wandb keeps its files.

        `mode` is offline (uploaded later by `wandb sync`), online or disabled; `config` a nested mapping.
        """
        self.failed = False
        self._settings: dict[str, Any] = {
            "id": key[:32],
            "dir": str(folder),
            "config": dict(config or {}),
            "project": project,
            "entity": entity,
            "mode": mode,
            "tags": list(tags),
        }
        self._run: Any = None
        self._complete = False

    @_guarded
    def start(self, labels: Labels, rounds: int, resumed_from: int) -> None:
        """Open the wandb run."""
        import wandb

        online = (
            self._settings["mode"] == "online"
        )  # elsewhere there is nothing to ask what was logged before
        self._run = wandb.init(
            **self._settings,
            name=f"{labels.method} {labels.variant} seed {labels.seed}".replace("  ", " "),
            group=f"{labels.dataset}/{labels.partition}/{labels.model}/{labels.protocol}",
            resume="allow" if online else None,
            settings=wandb.Settings(silent=True, console="off"),
        )
        self._run.define_metric("round")
        self._run.define_metric("*", step_metric="round")
        self._run.config.update({"fedbench_rounds": rounds, "fedbench_resumed_from": resumed_from})

    @_guarded
    def record(self, record: Record) -> None:
        """Log the row of a scored round."""
        if self._run is not None:
            self._run.log(record_row(record))

    @_guarded
    def finish(self, result: Mapping[str, Any]) -> None:
        """Put the final metrics into the summary."""
        if self._run is not None:
            self._run.summary.update(dict(result))
        self._complete = True

    @_guarded
    def close(self) -> None:
        """Close the wandb run; one that did not finish is marked as failed."""
        if self._run is not None:
            self._run.finish(exit_code=0 if self._complete else 1)
            self._run = None
