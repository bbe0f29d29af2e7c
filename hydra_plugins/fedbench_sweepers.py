"""The sweepers behind `-m`, in the one package that Hydra takes plugins from: thin, every Hydra program imports it."""

from __future__ import annotations

from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper


class GridSweeper(BasicSweeper):
    """`hydra/sweeper=grid`: every combination, then one table and, for a named sweep, one figure."""

    def sweep(self, arguments: list[str]) -> Any:
        """Run all jobs; a key of the command line takes the place of the experiment's."""
        from fedbench.sweeps import session

        self.params = session.remaining(self.params, arguments)
        with session.scratch(self.config):
            returned = super().sweep(arguments)
        session.conclude([session.outcome_of(job) for batch in returned for job in batch])
        return returned


class OptunaSweeper(BasicSweeper):
    """`hydra/sweeper=optuna`: values proposed by Optuna, judged on validation samples."""

    def __init__(self, params: dict[str, str] | None = None, **settings: Any) -> None:
        super().__init__(max_batch_size=None, params=params)
        self.settings = settings

    def sweep(self, arguments: list[str]) -> Any:
        """Run all trials; returns the best parameters."""
        from fedbench.sweeps import session, tuning

        params = session.remaining(self.params, arguments)
        texts = [*(f"{key}={value}" for key, value in params.items()), *arguments]
        with session.scratch(self.config):
            return tuning.tune(self, texts, tuning.settings(self.settings))
