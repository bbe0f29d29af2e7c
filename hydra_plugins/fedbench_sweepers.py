"""The sweepers behind `-m`, in the one package that Hydra takes plugins from: thin, every Hydra program imports it."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from typing import Any

from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class LaunchingSweeper(Sweeper, ABC):
    """Knows an experiment's `params`, key -> values, and the launcher."""

    def __init__(self, params: Mapping[str, str] | None = None) -> None:
        self.params = params or {}

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )


class GridSweeper(LaunchingSweeper):
    """`hydra/sweeper=grid`: every combination, then one table and, for a named sweep, one figure."""

    def sweep(self, arguments: list[str]) -> Any:
        """Run all jobs; returns what they send back."""
        from fedbench.sweeps import session

        with session.scratch(self.config):
            batch = session.combinations(session.parsed(self, arguments))
            session.check_figure(self.config.sweep, batch)
            planned = session.jobs.is_only_planned()
            if planned or self.config.progress != "none":
                session.announce(batch)
            if planned:
                return []
            outcomes = session.launched(self, batch)
        session.conclude(outcomes)
        return outcomes


class OptunaSweeper(LaunchingSweeper):
    """`hydra/sweeper=optuna`: values proposed by Optuna, judged on validation samples."""

    def __init__(self, params: Mapping[str, str] | None = None, **settings: Any) -> None:
        super().__init__(params)
        self.settings = settings

    def sweep(self, arguments: list[str]) -> Any:
        """Run all trials; returns the best parameters."""
        from fedbench.sweeps import session, tuning

        with session.scratch(self.config):
            return tuning.tune(self, session.parsed(self, arguments), self.settings)
