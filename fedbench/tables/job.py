"""One run behind a cell of a table, or one study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedbench.results.folder import RunFolder
from fedbench.runs.config import RunConfig, run_key
from fedbench.runs.execution import folder_of, labels_of, local_config


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
        return RunFolder(runs, self.key, labels_of(self.config))

    @property
    def finished(self) -> bool:
        """Whether its result is there."""
        return self.folder.status() == "finished"

    @property
    def failure(self) -> str:
        """Why it failed when it was last run; "" if it did not."""
        return self.folder.failure()


def local_twin(job: Job) -> Job:
    """The Local run that `job` is measured against; a Local run itself needs none other."""
    if job.config.labels["method"] == "local":
        return job
    twin = local_config(job.config)
    kept = [text for text in job.overrides if not text.lstrip("+~").startswith(("method", "reference_seed="))]
    if twin.seed != job.config.seed:
        kept += [f"seed={twin.seed}", f"partition_seed={twin.partition_seed}"]
    return Job((*kept, "method=local"), twin)


def unique(jobs: Sequence[Job]) -> list[Job]:
    """The first of each identity."""
    return list({job.identity: job for job in reversed(jobs)}.values())[::-1]
