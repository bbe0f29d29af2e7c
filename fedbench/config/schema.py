"""Typed schema of a run. The four components (data set, partition, model, method) have schemas of their own.

Everything here validates on construction, so an impossible config fails before any data is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fedbench.config import cohort
from fedbench.core.errors import ConfigError, unknown

T = TypeVar("T")

ADDED = "added"
RETIRED = "retired_fields"
KEYED = "keyed"  # metadata of a field: the function from its value to what the key of a run holds


def added(default: Any) -> Any:
    """A dataclass field that came after results were recorded; `default` is what was done before it came.

    At `default` it does not count in a run's key (`runs.config.run_key`), so what was run before still stands. So the
    default may never change: old results would pass for those of the new one. Another default needs another field.
    """
    return field(default=default, metadata={ADDED: True})


def retired(**values: Any) -> Callable[[type[T]], type[T]]:
    """Of a dataclass whose fields went after results were recorded: each with the value that every recorded run had.

    What these values chose is now done always. They go on counting in a run's key, as if the fields were there, so
    what was run before still stands. A name is never used again for a field, nor taken out of the list.
    """

    def decorate(cls: type[T]) -> type[T]:
        setattr(cls, RETIRED, values)
        return cls

    return decorate


def _one_of(what: str, value: str, options: tuple[str, ...]) -> None:
    if value not in options:
        raise unknown(what, value, options)


def _positive(what: str, value: float | None) -> None:
    if value is not None and not value > 0:
        raise ConfigError(f"{what} must be positive, got {value}")


def parse_augmentation(name: str) -> tuple[str, int]:
    """(kind, number) of an augmentation: crop<pixels of padding>, flip, rotate<degrees>.

    Raises:
        UnknownName: none of these.
        ConfigError: an impossible number.
    """
    match = re.fullmatch(r"(flip)|(crop|rotate)(\d+)", name)
    if match is None:
        raise unknown("protocol.augment", name, ("crop4", "flip", "rotate15"))
    number = int(match[3] or 0)
    if match[2] and not 0 < number <= 180:
        raise ConfigError(f"protocol.augment={name}: the number must lie in 1..180")
    return match[1] or match[2], number


@dataclass(frozen=True)
class OptimizerConfig:
    """The local optimiser, built anew for every client, round and stage."""

    name: str = "sgd"  # sgd or adam
    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None  # global gradient norm a client-step is clipped to

    def __post_init__(self) -> None:
        _one_of("optimizer", self.name, ("sgd", "adam"))
        _positive("protocol.optimizer.lr", self.lr)
        _positive("protocol.optimizer.clip", self.clip)
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"protocol.optimizer.momentum must lie in [0, 1), got {self.momentum}")
        if self.weight_decay < 0:
            raise ConfigError(
                f"protocol.optimizer.weight_decay must not be negative, got {self.weight_decay}"
            )


@dataclass(frozen=True)
class LocalConfig:
    """Local work of one client in one round: E epochs or K iterations of mini-batches."""

    epochs: int | None = 1
    iterations: int | None = None  # if set, takes the place of epochs
    batch_size: int = 32

    def __post_init__(self) -> None:
        if self.epochs is None and self.iterations is None:
            raise ConfigError("protocol.local needs epochs or iterations")
        _positive("protocol.local.epochs", self.epochs)
        _positive("protocol.local.iterations", self.iterations)
        _positive("protocol.local.batch_size", self.batch_size)


@dataclass(frozen=True)
class TestConfig:
    """Where test and validation samples come from, and which test sets are scored.

    A partition that fixes its own test sets (FedCollab's scenarios) overrides `pool` and `fraction`.
    """

    __test__ = False  # not a pytest class

    # local: the client's own samples | global: the whole test set, for every client's model | both
    # common: client models on their own samples, the one global model, where there is one, on the whole test set
    sets: str = "local"
    weighting: str = "none"  # global set: none, or label_shares (weighted by the client's label distribution)
    pool: bool = False  # concatenate the train and the test split before partitioning
    fraction: float = 0.2  # share of a client's samples held out as its local test set
    val_fraction: float = 0.0  # share of a client's training samples held out for validation

    def __post_init__(self) -> None:
        _one_of("protocol.test.sets", self.sets, ("local", "global", "both", "common"))
        _one_of("protocol.test.weighting", self.weighting, ("none", "label_shares"))
        for name, value in (("fraction", self.fraction), ("val_fraction", self.val_fraction)):
            if not 0 <= value < 1:
                raise ConfigError(f"protocol.test.{name} must lie in [0, 1), got {value}")


@dataclass(frozen=True)
class ProtocolConfig:
    """What the papers leave scattered: how long, how, and how a number is read off."""

    name: str = "custom"
    rounds: int = 200
    # clients a round: a count (5), a share (10%), or all
    cohort: str = field(default=cohort.ALL, metadata={KEYED: cohort.keyed})
    local: LocalConfig = field(default_factory=LocalConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    augment: tuple[str, ...] = ()  # crop4, flip, rotate<degrees>
    test: TestConfig = field(default_factory=TestConfig)
    score: str = (
        "received"  # received: before local training | trained: after the client's latest | both compete
    )
    average: str = "client"  # client: mean over clients | pooled: over samples
    report: str = "last"  # last | best_test | best_val | mean_last_5
    per_client: bool = False  # best_val: each client at its own best round (FedSaC's code)
    eval_every: int = 1  # rounds between evaluations; the last rounds are always scored

    def __post_init__(self) -> None:
        _one_of("protocol.score", self.score, ("received", "trained", "both"))
        _one_of("protocol.average", self.average, ("client", "pooled"))
        _one_of("protocol.report", self.report, ("last", "best_test", "best_val", "mean_last_5"))
        for name in self.augment:
            parse_augmentation(name)
        _positive("protocol.rounds", self.rounds)
        object.__setattr__(self, "cohort", str(self.cohort))
        cohort.parse(self.cohort)
        _positive("protocol.eval_every", self.eval_every)
        if self.report == "best_val" and self.test.val_fraction == 0:
            raise ConfigError("protocol.report=best_val needs protocol.test.val_fraction > 0")
        if self.score == "both" and not self.report.startswith("best"):
            raise ConfigError(
                f"protocol.score=both lets two models of a round compete, protocol.report={self.report} does not "
                "choose; use best_val or best_test"
            )

    def cohort_size(self, clients: int) -> int:
        """Clients drawn a round out of `clients` registered ones (at least one).

        Raises:
            ConfigError: more than there are.
        """
        return cohort.size(self.cohort, clients)


@dataclass(frozen=True)
class HardwareConfig:
    """Where and how clients are trained; never changes a result beyond rounding (which `tf32` makes coarse)."""

    name: str = "auto"
    device: str = "auto"  # auto | cpu | cuda | cuda:<i>
    engine: str = "auto"  # auto | looped | workers | stacked
    workers: int = 0  # processes of the workers engine; 0: one a core
    threads: int = 1  # torch threads in this process (more help no small net); 0: torch's own choice
    chunk: int = 0  # clients trained at once by the stacked engine; 0: as many as memory takes
    tf32: bool = (
        False  # on a GPU: products and convolutions in TensorFloat-32, of which only ten bits are exact
    )
    client_memory: str = (
        "auto"  # what clients keep between rounds: auto | device | host | file (memory-mapped)
    )
    client_memory_share: float = 0.25  # auto: of the free memory that it may take before it goes to a file
    scratch: str | None = None  # folder of that file; None: the run's own

    def __post_init__(self) -> None:
        _one_of("hardware.engine", self.engine, ("auto", "looped", "workers", "stacked"))
        _one_of("hardware.client_memory", self.client_memory, ("auto", "device", "host", "file"))
        if not 0 <= self.client_memory_share <= 1:
            raise ConfigError(
                f"hardware.client_memory_share must lie in [0, 1], got {self.client_memory_share}"
            )
        if self.device not in ("auto", "cpu", "cuda") and not self.device.startswith("cuda:"):
            raise unknown("hardware.device", self.device, ("auto", "cpu", "cuda", "cuda:0"))
        for name in ("workers", "threads", "chunk"):
            if getattr(self, name) < 0:
                raise ConfigError(f"hardware.{name} must not be negative")


@dataclass(frozen=True)
class CheckpointConfig:
    """When a run saves what it needs to go on after an interruption; 0 switches a rule off."""

    seconds: float = 20.0  # at most this much training is lost
    rounds: int = 0  # one every so many rounds

    def __post_init__(self) -> None:
        for name in ("seconds", "rounds"):
            if getattr(self, name) < 0:
                raise ConfigError(f"checkpoint.{name} must not be negative, got {getattr(self, name)}")


@dataclass(frozen=True)
class WandbConfig:
    """Logging to Weights & Biases; a run never depends on it."""

    enabled: bool = False
    project: str = "fedbench"
    entity: str | None = None
    mode: str = "offline"  # offline | online | disabled
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _one_of("wandb.mode", self.mode, ("offline", "online", "disabled"))


@dataclass(frozen=True)
class SweepConfig:
    """A named sweep keeps its table and a figure; results do not depend on it."""

    name: str | None = None  # of the folder; None: nothing is kept
    mirrors: str = ""  # the figure or table of a paper, for the title
    folder: str = "results/sweeps"
    figure: str = "lines"  # lines: over x | heatmap: of x and by | curves: over rounds, a line a value of x
    x: str = ""  # swept key; "": the first one
    by: str = ""  # second swept key: a line each (lines), the vertical axis (heatmap), a panel each (curves)
    y: str = "score"  # column of the result row, or of rounds.csv for curves

    def __post_init__(self) -> None:
        _one_of("sweep.figure", self.figure, ("lines", "heatmap", "curves"))


@dataclass(frozen=True)
class SettingsConfig:
    """What a run needs besides its components: the seed, and where and how results are kept and shown."""

    seed: int = 0
    partition_seed: int | None = None  # of the partition alone; None: the run's seed
    reference_seed: int | None = None  # of the Local run that IPR and RSD compare with; None: the run's seed
    runs_dir: str = "runs"
    force: bool = False  # repeat a run that has finished
    stale: str = "show"  # what other code made: show (and say so) | rerun | error
    save_models: bool = False  # keep the final client models beside the results
    progress: str = "auto"  # auto | bar | lines | none
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    wandb: WandbConfig = field(default_factory=WandbConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)

    def __post_init__(self) -> None:
        _one_of("progress", self.progress, ("auto", "bar", "lines", "none"))
        _one_of("stale", self.stale, ("show", "rerun", "error"))
        for name in ("seed", "partition_seed", "reference_seed"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ConfigError(f"{name} must not be negative, got {value}")
        if not self.runs_dir:
            raise ConfigError("runs_dir must not be empty")
