"""One run behind a cell of a table, or one study."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedbench.core.errors import FedbenchError
from fedbench.results.finished import Run
from fedbench.results.folder import RunFolder
from fedbench.runs import fingerprint
from fedbench.runs.config import RunConfig, run_key
from fedbench.runs.places import folder_of, labels_of, standing


@dataclass(frozen=True)
class Job:
    """One run, or study, with one seed."""

    overrides: tuple[str, ...]  # the command line that repeats it
    config: RunConfig
    study: str = ""

    @property
    def seed(self) -> int:
        """The run's seed."""
        return self.config.seed

    @cached_property
    def key(self) -> str:
        """Hash of what determines the result."""
        return run_key(self.config)

    @property
    def identity(self) -> str:
        """Tells runs and studies apart, and those of one configuration."""
        return f"{self.study} {self.key}"

    @cached_property
    def folder(self) -> RunFolder:
        """Where the result is kept."""
        if not self.study:
            return folder_of(self.config)
        runs = Path(self.config.settings.runs_dir) / "studies" / self.study
        return RunFolder(runs, self.key, labels_of(self.config), self.data)

    @cached_property
    def data(self) -> str:
        """Hash of the samples; "" if they are not on this machine."""
        try:
            return fingerprint.content(self.config.dataset)
        except FedbenchError:
            return ""

    @property
    def finished(self) -> bool:
        """Whether its result is there, and of today's code if the config wants no other."""
        return standing(self.config, self.folder, tell=False) == "finished"

    @property
    def run(self) -> Run:
        """The finished run.

        Raises:
            Damaged: its row is not as it was written.
            FedbenchError: its folder is of another configuration, or of other samples.
        """
        self.folder.result()
        return Run(self.folder.path)

    @property
    def failure(self) -> str:
        """Why it failed when it was last run; "" if it did not."""
        return self.folder.failure()


def local_twin(job: Job) -> Job:
    """The Local run that `job` is measured against; a Local run itself needs none other."""
    if job.config.local is None:
        return job
    values = job.config.local_values
    changed = {key: value for key, value in values.items() if job.config.plain.get(key) != value}
    kept = [text for text in job.overrides if re.split(r"[./=]", text.lstrip("+~"))[0] not in changed]
    return Job((*kept, *(f"{key}={_option(value)}" for key, value in changed.items())), job.config.local)


def _option(value: Any) -> str:
    """A value of a plain config as a command line gives it; of a group its name."""
    return str(value["name"]) if isinstance(value, Mapping) else json.dumps(value)


def unique(jobs: Sequence[Job]) -> list[Job]:
    """The first of each identity."""
    return list({job.identity: job for job in reversed(jobs)}.values())[::-1]
