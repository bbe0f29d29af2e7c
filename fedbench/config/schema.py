"""Typed schema of a run. The four components (data set, partition, model, method) have schemas of their own.

Everything here validates on construction, so an impossible config fails before any data is read.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field
from fractions import Fraction
from typing import Any, ClassVar, TypeVar

from fedbench.config.fields import Component, at_least, one_of, positive, share
from fedbench.core.errors import ConfigError, unknown

# protocol.cohort, the clients of a round: a count (`5`), a share of all clients (`10%`), or `all`.

ALL_CLIENTS = "all"
COHORT_FORM = re.compile(r"([0-9]{1,15})|([0-9]{1,3}(?:\.[0-9]{1,15})?)\s*%")


def parse_cohort(text: str) -> int | Fraction:
    """A number of clients, or the share of all clients in (0, 1].

    Raises:
        ConfigError: neither.
    """
    match = COHORT_FORM.fullmatch("100%" if text == ALL_CLIENTS else text)
    if match is None:
        raise ConfigError(f"protocol.cohort is a count (5), a share (10%) or all, got {text}{_share_meant(text)}")
    count, percent = match.groups()
    size = int(count) if count else Fraction(percent) / 100
    if size == 0 or (percent and size > 1):
        raise ConfigError(f"protocol.cohort={text}: a count of at least 1, or a share above 0% up to 100%")
    return size


def cohort_key(text: str) -> float | str:
    """What the key of a run holds: a number that is a share up to 1 and a count above, and a word for one client."""
    wanted = parse_cohort(text)
    return "1 client" if isinstance(wanted, int) and wanted == 1 else float(wanted)


def _share_meant(text: str) -> str:
    """Advice for a bare number such as 0.1, which may be meant as a share."""
    try:
        share = float(text)
    except ValueError:
        return ""
    return f"; if that is a share: protocol.cohort={100 * share:g}%" if 0 < share <= 1 else ""


T = TypeVar("T")

ADDED = "added"
RETIRED = "retired_fields"
KEYED = "keyed"  # metadata of a field: the function from its value to what the key of a run holds


def added(default: Any) -> Any:
    """A dataclass field that came after results were recorded; `default` is what was done before it came.

    At `default` it does not count in `RunConfig.key`, so what was run before still stands. So the default may never
    change: old results would pass for those of the new one. Another default needs another field.
    A field with a domain is `added(at_least(0, default))`.
    """
    if isinstance(default, Field):
        return field(default=default.default, metadata={**default.metadata, ADDED: True})
    return field(default=default, metadata={ADDED: True})


def keyed(given: Any, name: Callable[[Any], Any]) -> Any:
    """The field `given`; the key of a run holds `name(value)` in place of its value."""
    return field(default=given.default, metadata={**given.metadata, KEYED: name})


def retired(**values: Any) -> Callable[[type[T]], type[T]]:
    """Keep deleted fields of a dataclass in the keys of runs, each with the value that every recorded run had.

    What these values chose is now done always. They go on counting in a run's key, as if the fields were there, so
    what was run before still stands. A name is never used again for a field, nor taken out of the list.
    """

    def decorate(cls: type[T]) -> type[T]:
        setattr(cls, RETIRED, values)
        return cls

    return decorate


# protocol.metrics, in the order of columns: the score that is always measured (accuracy, of regression the explained
# variance), and those of fedbench.sample_metrics.

ACCURACY = "acc"
SCORES = {"classification": "accuracy", "regression": "explained variance"}  # what is predicted: what that score is
TASKS = tuple(SCORES)
METRICS = (ACCURACY, "balanced_acc", "macro_f1", "auroc", "auprc", "nll", "ece", "r2", "mse", "mae")


def score_of(rows: Iterable[Mapping[Any, Any]]) -> str:
    """What the score of result rows is; of both kinds "accuracy or explained variance"."""
    return " or ".join(sorted({SCORES.get(row.get("task", ""), SCORES[TASKS[0]]) for row in rows})) or SCORES[TASKS[0]]


def parse_augmentation(name: str) -> tuple[str, int]:
    """(kind, number) of an augmentation: crop<pixels of padding>, flip, rotate<degrees>.

    Raises:
        UnknownName: none of these.
        ConfigError: an impossible number.
    """
    match = re.fullmatch(r"(flip)|(crop|rotate)([0-9]{1,9})", name)
    if match is None:
        raise unknown("protocol.augment", name, ("crop4", "flip", "rotate15"))
    number = int(match[3] or 0)
    if match[2] and not 0 < number <= 180:
        raise ConfigError(f"protocol.augment={name}: the number must lie in 1..180")
    return match[1] or match[2], number


@dataclass(frozen=True)
class ScheduleConfig(Component):
    """The factor of the learning rate over a run, equal to torch's schedulers.

    A warm-up (LinearLR) raises the factor in equal parts over `warmup` rounds, or local steps of a client, up to 1.
    Then it stays at 1 (`constant`), is multiplied by `gamma` after every `every` rounds or steps (StepLR), or falls
    along a cosine to `final` after the last one (CosineAnnealingLR). Steps are counted as if the client took
    part in every round, so the rate depends only on the round and the step.
    """

    section: ClassVar[str] = "protocol.optimizer.schedule"

    name: str = one_of("constant", "step", "cosine")
    by: str = one_of("round", "step")  # what `warmup` and `every` count, and what the rate changes with
    warmup: int = at_least(0, 0)
    every: int | None = at_least(1, None)
    gamma: float = share(0.1, above=True)
    final: float = share(0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name == "step" and self.every is None:
            raise ConfigError(f"{self.section}.name=step needs {self.section}.every, a number of {self.by}s")
        for key, name in (("every", "step"), ("gamma", "step"), ("final", "cosine")):
            if self.name != name and (value := getattr(self, key)) != getattr(ScheduleConfig, key):
                raise ConfigError(f"{self.section}.{key}={value} counts only with {self.section}.name={name}")
        if self.by == "step" and not self.moves:
            raise ConfigError(f"{self.section}.by=step counts only with a warmup, or a name other than constant")

    @property
    def moves(self) -> bool:
        """Whether the rate is ever another one."""
        return self.name != "constant" or self.warmup > 0


@dataclass(frozen=True)
class OptimizerConfig(Component):
    """The local optimiser of every client and stage.

    `state` says what happens to momentum, or to Adam's moments and count, at the end of a round. With `fresh` the next
    round begins without it. With `kept` each client continues from its own, also after rounds in which it did not take
    part. Fine-tuning before scoring and a method's preparation begin without. FedNova and SCAFFOLD's option II refuse
    kept momentum.
    """

    section: ClassVar[str] = "protocol.optimizer"

    name: str = one_of("sgd", "adam", "adamw")
    lr: float = positive(0.1)
    momentum: float = share(0.0, below=True)
    weight_decay: float = at_least(0, 0.0)
    clip: float | None = positive(None)  # global gradient norm a client-step is clipped to
    state: str = added(one_of("fresh", "kept"))
    schedule: ScheduleConfig = field(default=ScheduleConfig(), metadata={ADDED: True})


@dataclass(frozen=True)
class LocalConfig(Component):
    """Local work of one client in one round: E epochs or K iterations of mini-batches."""

    section: ClassVar[str] = "protocol.local"

    epochs: int | None = at_least(1, 1)
    iterations: int | None = at_least(1, None)  # if set, takes the place of epochs
    batch_size: int = at_least(1, 32)
    drop_last: bool = added(False)  # leave out the short last batch of an epoch

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epochs is None and self.iterations is None:
            raise ConfigError("protocol.local needs epochs or iterations")


@dataclass(frozen=True)
class WorkConfig(Component):
    """Partial work and lost uploads, drawn for each client and round, the same for all methods of a seed.

    A client may both stop early and lose its upload.
    """

    section: ClassVar[str] = "protocol.work"

    partial: float = share(0.0)  # probability that a client stops early in a round
    fraction: float = share(0.5, above=True)  # of each stage's steps that it then does, rounded up
    dropout: float = share(0.0, below=True)  # probability that it trains and its upload never arrives

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.partial == 0 and self.fraction != WorkConfig.fraction:
            raise ConfigError(
                f"protocol.work.fraction={self.fraction} has no effect without partial work; set protocol.work.partial"
            )


@dataclass(frozen=True)
class TestConfig(Component):
    """Where test and validation samples come from, and which test sets are scored.

    A partition that fixes its own test sets (FedCollab's scenarios) overrides `pool` and `fraction`.
    """

    section: ClassVar[str] = "protocol.test"

    __test__ = False  # not a pytest class

    # local: the client's own samples | global: the whole test set, for every client's model | both
    # common: client models on their own samples, the one global model, where there is one, on the whole test set
    # validation: the client's validation samples; no test sample is scored, so that choices cannot depend on any
    sets: str = one_of("local", "global", "both", "common", "validation")
    # of the global set; label_shares: by the client's label distribution
    weighting: str = one_of("none", "label_shares")
    pool: bool = False  # concatenate the train and the test split before partitioning
    fraction: float = share(0.2, below=True)  # share of a client's samples held out as its local test set
    # share of a client's training samples held out for validation
    val_fraction: float = share(0.0, below=True)
    once: bool = added(False)  # the test sets are scored after the last round alone, validation samples as always

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sets == "validation" and self.val_fraction == 0:
            raise ConfigError("protocol.test.sets=validation needs protocol.test.val_fraction > 0")
        if self.once and self.val_fraction == 0:
            raise ConfigError(
                "protocol.test.once=true scores only validation samples before the last round, and there are none; set "
                "protocol.test.val_fraction > 0"
            )

    @property
    def whole(self) -> bool:
        """Whether the data set's own test split is scored."""
        return self.sets in ("global", "both", "common")


@dataclass(frozen=True)
class ProtocolConfig(Component):
    """The protocol of a run: rounds, cohort, local work, test samples, scoring and reporting."""

    section: ClassVar[str] = "protocol"

    name: str = "custom"
    rounds: int = at_least(1, 200)
    # clients a round: a count (5), a share (10%), or all
    cohort: str = field(default=ALL_CLIENTS, metadata={KEYED: cohort_key})
    local: LocalConfig = field(default_factory=LocalConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    work: WorkConfig = field(default=WorkConfig(), metadata={ADDED: True})
    augment: tuple[str, ...] = ()  # crop4, flip, rotate<degrees>
    test: TestConfig = field(default_factory=TestConfig)
    metrics: tuple[str, ...] = added((ACCURACY,))  # see METRICS
    unseen: int = added(at_least(0, 0))  # the last clients, that no round meets; scored when the run is over
    # received: before local training | trained: after the client's latest | both compete | own: the method's, see
    # fedbench.engine.method.own_score
    score: str = one_of("received", "trained", "both", "own")
    average: str = one_of("client", "pooled")  # client: mean over clients | pooled: over samples
    report: str = one_of("last", "best_test", "best_val", "mean_last_5")
    per_client: bool = False  # best_val: each client at its own best round (FedSaC's code)
    eval_every: int = at_least(1, 1)  # rounds between evaluations; the last rounds are always scored

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.augment:
            parse_augmentation(name)
        object.__setattr__(self, "cohort", str(self.cohort))  # a number from Python counts as its text
        parse_cohort(self.cohort)
        for name in self.metrics:
            if name not in METRICS:
                raise unknown("protocol.metrics", name, METRICS)
        chosen = {ACCURACY, *self.metrics}  # in one order, so that one choice is one run
        object.__setattr__(self, "metrics", tuple(name for name in METRICS if name in chosen))
        if self.of_scores and self.test.weighting != "none":
            raise ConfigError(
                f"protocol.metrics={list(self.metrics)} weighs every sample equally, "
                f"protocol.test.weighting={self.test.weighting} does not; use weighting=none, or metrics=[acc]"
            )
        if self.report == "best_val" and self.test.val_fraction == 0:
            raise ConfigError("protocol.report=best_val needs protocol.test.val_fraction > 0")
        if self.test.once and (self.report, self.score) != ("last", "received"):
            raise ConfigError(
                "protocol.test.once=true scores test samples after the last round alone, which leaves nothing to "
                "choose from; use protocol.report=last and protocol.score=received"
            )
        if self.per_client and self.report != "best_val":
            raise ConfigError(
                f"protocol.per_client=true has each client choose a round, protocol.report={self.report} does not "
                "let it; use best_val, or per_client=false"
            )
        if self.score == "both" and not self.report.startswith("best"):
            raise ConfigError(
                f"protocol.score=both lets two models of a round compete, protocol.report={self.report} does not "
                "choose; use best_val or best_test"
            )

    @property
    def of_scores(self) -> tuple[str, ...]:
        """The metrics that need each sample's scores."""
        return tuple(name for name in self.metrics if name != ACCURACY)

    def cohort_size(self, clients: int) -> int:
        """Clients drawn a round out of `clients` registered ones (at least one).

        Raises:
            ConfigError: more than there are.
        """
        wanted = parse_cohort(self.cohort)
        if isinstance(wanted, Fraction):
            return max(1, round(float(wanted) * clients))
        if wanted > clients:
            raise ConfigError(
                f"protocol.cohort={wanted} is more than the {clients} clients that rounds meet; add "
                "protocol.cohort=all, or a share: protocol.cohort=10%"
            )
        return wanted

    def seen(self, clients: int) -> int:
        """Clients out of `clients` that rounds may meet: all but the last `unseen`.

        Raises:
            ConfigError: there is none.
        """
        if self.unseen >= clients:
            raise ConfigError(
                f"protocol.unseen={self.unseen} holds out all {clients} clients of the partition; lower it, or add "
                "clients"
            )
        return clients - self.unseen


@dataclass(frozen=True)
class HardwareConfig(Component):
    """Where and how clients are trained. Only `precision` changes a result beyond rounding."""

    section: ClassVar[str] = "hardware"

    name: str = "auto"
    device: str = "auto"  # auto | cpu | cuda | cuda:<i>
    engine: str = one_of("auto", "looped", "workers", "stacked")
    workers: int = at_least(0, 0)  # processes of the workers engine; 0: one for each core
    # torch threads in this process (more help no small net); 0: torch's own choice
    threads: int = at_least(0, 1)
    chunk: int = at_least(0, 0)  # clients trained at once by the stacked engine; 0: as many as memory takes
    # on a GPU steps of the stacked engine and of servers are captured once and replayed (CUDA graphs); off: never
    graph: str = one_of("auto", "off")
    # tf32: a GPU multiplies with ten exact bits | bf16: the passes of local training run in bfloat16, seven exact bits
    precision: str = one_of("float32", "tf32", "bf16")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.device not in ("auto", "cpu", "cuda") and not self.device.startswith("cuda:"):
            raise ConfigError(f"hardware.device={self.device} must be auto, cpu, cuda, or one GPU: cuda:0, cuda:1, ...")


# A run besides its components: seeds, which change results; folders, checkpoints, trackers, display, which do not.


@dataclass(frozen=True)
class CheckpointConfig(Component):
    """When a run writes a checkpoint; 0 switches a rule off."""

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
    uri: str | None = None  # of the tracking server; None: MLFLOW_TRACKING_URI, else mlflow.db in runs_dir
    experiment: str = "fedbench"


@dataclass(frozen=True)
class SweepConfig(Component):
    """A named sweep keeps its table and a figure; results do not depend on it."""

    section: ClassVar[str] = "sweep"

    name: str | None = None  # of the folder; None: nothing is kept
    mirrors: str = ""  # the figure or table of a paper, for the title
    folder: str = "results/sweeps"
    # lines: over x | heatmap: of x and by | curves: over rounds, a line a value of x, a panel for all other keys
    figure: str = one_of("lines", "heatmap", "curves")
    x: str = ""  # swept key; "": the first one
    by: str = ""  # second swept key: a line each (lines), the vertical axis (heatmap)
    y: str = "score"  # column of the result row, or for curves of rounds.csv, by default its first test accuracy

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name is not None and (self.name.startswith(".") or {"/", "\\"} & set(self.name)):
            raise ConfigError(
                f"sweep.name={self.name} contains a folder; give a name alone, and the folder as sweep.folder=FOLDER"
            )


@dataclass(frozen=True)
class SettingsConfig(Component):
    """Settings of a run beside its components: the seed, and how results are stored and shown."""

    seed: int = at_least(0, 0)
    partition_seed: int | None = at_least(0, None)  # of the partition alone; None: the run's seed
    reference: str = one_of("local", "none")  # what IPR, RSD and gains compare with; none: no Local is trained
    # of the Local that IPR and RSD compare with; None: the run's seed
    reference_seed: int | None = at_least(0, None)
    reference_lr: float | None = positive(None)  # of the same Local; None: the run's learning rate
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
        if self.runs_dir.startswith("~"):
            raise ConfigError(f"runs_dir={self.runs_dir}: ~ is expanded only by shells; write the whole path")

    @property
    def trackers(self) -> dict[str, dict[str, Any]]:
        """Name of each enabled experiment tracker -> its options."""
        options = {name: dataclasses.asdict(getattr(self, name)) for name in ("wandb", "tensorboard", "mlflow")}
        return {name: given for name, given in options.items() if given.pop("enabled")}
