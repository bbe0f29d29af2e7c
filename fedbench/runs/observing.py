"""Who is told how a run goes on: the display, and the experiment trackers that it asks for."""

from __future__ import annotations

from collections.abc import Callable

from fedbench.results.folder import RunFolder
from fedbench.results.observer import Observer, Observers
from fedbench.results.progress import Progress
from fedbench.runs.config import RunConfig


def observers(run: RunConfig, key: str, folder: RunFolder) -> Observer:
    """All of them as one, for the run with `key` whose files are in `folder`."""
    chosen: list[Observer] = [Progress(mode=run.settings.progress)]
    for name, options in run.settings.trackers.items():
        chosen.append(_tracker(name)(key, folder.path, run.plain, **options))
    return Observers(chosen)


def _tracker(name: str) -> Callable[..., Observer]:
    """The class of an experiment tracker; each imports its library when a run starts."""
    from fedbench.results.trackers import mlflow, tensorboard, wandb

    classes = (wandb.WandbTracker, tensorboard.TensorBoardTracker, mlflow.MlflowTracker)
    return {each.name: each for each in classes}[name]
