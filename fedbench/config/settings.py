"""A run besides its components: seeds, which change results; folders, checkpoints, trackers, display, which do not."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, ClassVar

from fedbench.config.domain import Component, at_least, one_of
from fedbench.core.errors import ConfigError


@dataclass(frozen=True)
class CheckpointConfig(Component):
    """When a run saves what it needs to go on after an interruption; 0 switches a rule off."""

    section: ClassVar[str] = "checkpoint"

    seconds: float = at_least(0, 20.0)  # at most this much training is lost
    rounds: int = at_least(0, 0)  # one every so many rounds


@dataclass(frozen=True)
class WandbConfig(Component):
    """Logging to Weights & Biases; a run never depends on it."""

    section: ClassVar[str] = "wandb"

    enabled: bool = False
    project: str = "fedbench"
    entity: str | None = None
    mode: str = one_of("offline", "online", "disabled")
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class TensorBoardConfig(Component):
    """Event files in the run's folder; a run never depends on them."""

    section: ClassVar[str] = "tensorboard"

    enabled: bool = False


@dataclass(frozen=True)
class MlflowConfig(Component):
    """Logging to MLflow; a run never depends on it."""

    section: ClassVar[str] = "mlflow"

    enabled: bool = False
    uri: str | None = None  # of the tracking server; None: MLflow's own default
    experiment: str = "fedbench"


@dataclass(frozen=True)
class SweepConfig(Component):
    """A named sweep keeps its table and a figure; results do not depend on it."""

    section: ClassVar[str] = "sweep"

    name: str | None = None  # of the folder; None: nothing is kept
    mirrors: str = ""  # the figure or table of a paper, for the title
    folder: str = "results/sweeps"
    # lines: over x | heatmap: of x and by | curves: over rounds, a line a value of x
    figure: str = one_of("lines", "heatmap", "curves")
    x: str = ""  # swept key; "": the first one
    by: str = ""  # second swept key: a line each (lines), the vertical axis (heatmap), a panel each (curves)
    y: str = "score"  # column of the result row, or of rounds.csv for curves


@dataclass(frozen=True)
class SettingsConfig(Component):
    """What a run needs besides its components: the seed, and where and how results are kept and shown."""

    seed: int = at_least(0, 0)
    partition_seed: int | None = at_least(0, None)  # of the partition alone; None: the run's seed
    # of the Local that IPR and RSD compare with; None: the run's seed
    reference_seed: int | None = at_least(0, None)
    runs_dir: str = "runs"
    force: bool = False  # repeat a run that has finished
    # what other code made, or has another Local: show it (and say so), ...
    stale: str = one_of("show", "rerun", "error")
    save_models: bool = False  # keep the final client models beside the results
    record: tuple[str, ...] = ()  # what else to keep, as [cka,similarity@1,50]: fedbench.recorders
    progress: str = one_of("auto", "bar", "lines", "none")
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    wandb: WandbConfig = field(default_factory=WandbConfig)
    tensorboard: TensorBoardConfig = field(default_factory=TensorBoardConfig)
    mlflow: MlflowConfig = field(default_factory=MlflowConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.runs_dir:
            raise ConfigError("runs_dir must not be empty")

    @property
    def trackers(self) -> dict[str, dict[str, Any]]:
        """Name of each enabled experiment tracker -> its options."""
        known: dict[str, Any] = {"wandb": self.wandb, "tensorboard": self.tensorboard, "mlflow": self.mlflow}
        options = {name: dataclasses.asdict(each) for name, each in known.items()}
        return {name: given for name, given in options.items() if given.pop("enabled")}
