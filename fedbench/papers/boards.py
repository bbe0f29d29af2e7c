"""A leaderboard: all methods tuned alike on validation samples, then scored once on test samples (conf/leaderboard/).

A row is a method, a federation a partition of the board's data. In each federation every row has the same number of
trials. The first has the default values. The others draw the clients' learning rate and at most two keys that the
method's YAML names under `tune`. Successive halving keeps the better half of the trials by validation accuracy from
rung to rung. The trials of the last rung run with all tuning seeds, and the best mean is chosen. The final runs have
other seeds and read test samples after their last round.

The board runs rung by rung over all rows and federations, then seed by seed, so an interrupted board is fair, with
fewer seeds. All runs are ordinary runs. A rung's runs are not continued in the next one, because a method may depend on
the number of rounds.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import json
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from fedbench.config import groups
from fedbench.config.compose import compose
from fedbench.config.fields import typed
from fedbench.core.errors import ConfigError, FedbenchError, unknown
from fedbench.core.files import as_csv, as_json, make_folder
from fedbench.papers.plan import Job
from fedbench.papers.spec import content_of
from fedbench.papers.store import files_of
from fedbench.runs import fingerprint
from fedbench.runs.config import RunConfig, resolve
from fedbench.runs.folder import LOST
from fedbench.runs.progress import UNSEEN
from fedbench.runs.run import reaches
from fedbench.sample_metrics import known

RATE = "rate"  # in `tune`: the clients' learning rate; any other key is the method's own
OWN_KEYS = 2  # of a method that trials may choose among
KEPT = (  # of a result row
    *("rounds", "acc", "acc_on_val", "bytes_up", "bytes_down", "seconds_total"),
    *("of_clients", "clients_on_val"),
    *(*UNSEEN, "unseen_note"),
)
FINAL = "final"
ARCHIVE = "board.zip"
BOARD, ROWS = "board.json", "rows.csv"  # and what is in it
Place = tuple[str, str, str, int, int]  # stage, federation, row, trial, seed
Line = Mapping[str, Any]  # of rows.csv


# What the trials of a method are drawn from.


@dataclass(frozen=True)
class Range:
    """Numbers between two bounds, by default on a logarithmic scale; whole numbers between whole bounds."""

    low: float | int
    high: float | int
    log: bool = True

    def __post_init__(self) -> None:
        if not self.low < self.high or (self.log and self.low <= 0):
            raise ConfigError(f"a range from {self.low} to {self.high} is none; low must be below high, and above 0")

    def at(self, place: float) -> float | int:
        """Return the number at `place` in [0, 1), in three digits."""
        low, high = self.low, self.high
        value = low * (high / low) ** place if self.log else low + (high - low) * place
        whole = isinstance(low, int) and isinstance(high, int)
        return round(value) if whole else float(f"{value:.3g}")


Space = Range | tuple[Any, ...]


def space(method: str) -> dict[str, Space]:
    """Return what conf/method/`method`.yaml declares for tuning, with the learning rate under `rate`.

    Raises:
        UnknownName: a key that the method lacks.
        ConfigError: too many keys, or a value that the method refuses.
    """
    where, given = f"tune of method '{method}'", groups.tune(method)
    config = groups.plain_option("method", method)
    registry = groups.registry("method")
    fields = [each.name for each in dataclasses.fields(registry.get(str(config["name"])))]
    if len(own := [key for key in given if key != RATE]) > OWN_KEYS:
        raise ConfigError(f"{where} has {len(own)} keys of its own, {', '.join(own)}; it may have {OWN_KEYS}")
    found: dict[str, Space] = {}
    for key, value in given.items():
        if key != RATE and key not in fields:
            raise unknown(f"key in {where}", str(key), fields)
        found[key] = _space(value, f"{where}, {key}")
        for end in (value["low"], value["high"]) if isinstance(value, Mapping) else value:
            if key != RATE:
                try:
                    registry.build({**config, key: end})
                except FedbenchError as error:
                    raise ConfigError(f"{where}: {error}") from error
    return found


def _space(given: Any, where: str) -> Space:
    if isinstance(given, Mapping):
        return typed(Range, given, where)
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        raise ConfigError(f"{where} is {given}; give a list of values, or {{low: ..., high: ...}}")
    return tuple(given)


@dataclass(frozen=True)
class BoardTrial:
    """The values of one trial of a row; the first trial has none, so it is the default."""

    number: int
    values: tuple[tuple[str, Any], ...] = ()

    @property
    def keys(self) -> dict[str, Any]:
        """The values by their keys in a run's config."""
        return {f"method.{key}" if key != RATE else "protocol.optimizer.lr": value for key, value in self.values}

    def __str__(self) -> str:
        """The values for a reader."""
        return ", ".join(f"{key} {value}" for key, value in self.values) or "default"


# A board, as its YAML declares it before anything is run.


@dataclass(frozen=True)
class BoardFederation:
    """A partition of the board's data."""

    label: str
    overrides: tuple[str, ...] = ()
    groups: tuple[int, ...] = ()  # the true group of each client, for Oracle; (): there are none


@dataclass(frozen=True, eq=False)
class Board:
    """The declaration of a board."""

    name: str
    title: str
    base: tuple[str, ...]  # overrides of every run
    federations: tuple[BoardFederation, ...]
    rate: Range  # learning rates of the trials, unless a method declares others
    trials: int  # of each row in each federation
    rungs: tuple[int, ...]  # rounds of a trial; half of the trials go on to the next one
    tuning_seeds: tuple[int, ...]  # the first runs at every rung, the others only at the last one
    rounds: int  # of a final run
    seeds: tuple[int, ...]  # of the final runs
    references: tuple[str, ...]  # rows that all others are compared with: Local, and a fine-tuned FedAvg
    eval_every: int = 5  # rounds between evaluations on validation samples in a final run
    draw: int = 0  # seed of the drawn trials
    methods: tuple[str, ...] = ()  # one row for each, in its own preset; (): all methods
    without: dict[str, str] = field(default_factory=dict)  # method -> why it is left out
    rows: dict[str, Any] = field(default_factory=dict)  # additional row -> its overrides
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        where = f"leaderboard '{self.name}'"
        if not self.seeds or not self.tuning_seeds or not self.federations:
            raise ConfigError(f"{where} needs seeds, tuning_seeds and federations")
        if both := {*self.seeds} & {*self.tuning_seeds}:
            raise ConfigError(
                f"{where} tunes on seed {min(both)}, which is also a final seed; use another in tuning_seeds"
            )
        if list(self.rungs) != sorted({*self.rungs}) or self.trials < 2 ** (len(self.rungs) - 1) or not self.rungs:
            raise ConfigError(
                f"{where}: {self.trials} trials over rungs of {list(self.rungs)} rounds; half of them enter the next "
                "rung, and one must be left"
            )
        if "local" not in self.references:
            raise ConfigError(f"{where}: references must contain local, because every row is compared with it")
        for name in (*self.references, *self.without):
            if name not in {**self.all_rows, **dict.fromkeys(groups.names("method"))}:
                raise unknown(f"row of {where}", name, self.all_rows)

    @functools.cached_property
    def all_rows(self) -> dict[str, list[str]]:
        """Row -> its overrides, the references first."""
        own = self.methods or [
            each for each in groups.names("method") if groups.plain_option("method", each)["name"] == each
        ]
        rows = {name: [f"method={name}"] for name in own if name not in self.without}
        rows |= {name: [*overrides] for name, overrides in self.rows.items()}
        return {**{name: rows[name] for name in self.references if name in rows}, **rows}

    def has(self, federation: BoardFederation, row: str) -> bool:
        """Return whether a row runs in a federation: Oracle only where there are true groups."""
        return bool(federation.groups) or "method=oracle" not in self.all_rows[row]

    @functools.cached_property
    def hash(self) -> str:
        """12 hex digits over what is declared here but `without`, which changes no row."""
        text = json.dumps({**dataclasses.asdict(self), "without": {}}, sort_keys=True, default=list)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @functools.cache  # noqa: B019 - a process has one or two boards
    def trials_of(self, row: str) -> tuple[BoardTrial, ...]:
        """Return the trials of a row: the default, and a scrambled Sobol sequence in [0, 1)^3 (Joe & Kuo, 2008).

        Its first coordinate is the learning rate, so rows with the same range try the same rates.

        Raises:
            ConfigError, UnknownName: see `space`.
        """
        from scipy.stats import qmc

        method = self.all_rows[row][0].partition("=")[2]
        spaces: dict[str, Space] = {RATE: self.rate, **space(method)}
        count = self.trials - 1
        points = qmc.Sobol(1 + OWN_KEYS, seed=self.draw).random_base2(math.ceil(math.log2(max(1, count))))
        drawn = [
            tuple(
                (key, each.at(place) if isinstance(each, Range) else each[int(place * len(each))])
                for (key, each), place in zip(spaces.items(), point, strict=False)
            )
            for point in points[:count].tolist()
        ]
        return (BoardTrial(0), *(BoardTrial(number, values) for number, values in enumerate(drawn, 1)))


def load_board(name: str) -> Board:
    """Return the board in conf/leaderboard/`name`.yaml, after a check of all that its methods declare.

    Raises:
        UnknownName: no such board, key or row.
        ConfigError: an impossible value.
    """
    where, content = f"leaderboard '{name}'", content_of("leaderboard", name)
    federations = tuple(typed(BoardFederation, each, where) for each in content.get("federations", ()))
    rate = _space(content.get("rate"), f"{where}, rate")
    board = typed(Board, {"name": name, **content, "federations": federations, "rate": rate}, where)
    for row in board.all_rows:
        board.trials_of(row)
    return board


# The runs of a board, stage by stage; which they are depends on what those of earlier stages gave.


@dataclass(frozen=True)
class BoardStage:
    """A rung, or the final runs of one seed."""

    name: str
    rounds: int
    seeds: tuple[int, ...]
    rung: int | None = None  # its number; None: final runs


def stages(board: Board, seeds: Sequence[int] = ()) -> list[BoardStage]:
    """Return all stages in order; `seeds` selects final runs (none: all)."""
    last = len(board.rungs) - 1
    rungs = [
        BoardStage(f"{rounds} rounds", rounds, board.tuning_seeds if i == last else board.tuning_seeds[:1], i)
        for i, rounds in enumerate(board.rungs)
    ]
    return [*rungs, *(BoardStage(FINAL, board.rounds, (seed,)) for seed in seeds or board.seeds)]


@dataclass(frozen=True)
class Entry:
    """A run of the board."""

    stage: BoardStage
    federation: BoardFederation
    row: str
    trial: BoardTrial
    job: Job

    @property
    def place(self) -> Place:
        """Its name in rows.csv."""
        return self.stage.name, self.federation.label, self.row, self.trial.number, self.job.seed


class Ledger:
    """The recorded rows of a board, and their missing runs."""

    def __init__(self, board: Board, folder: Path, settings: Sequence[str] = ()) -> None:
        """`settings` are overrides of every run that change no result, such as runs_dir=DIR.

        Raises:
            ConfigError: the folder was recorded by another declaration of the board.
            Damaged: a file in it is not as it was written.
        """
        self.board, self.folder, self.settings = board, folder, settings
        self.lines: dict[Place, Line] = {}
        self.machines: set[str] = set()  # that made them
        self.files = files_of(folder, "board")
        self.read()

    def read(self) -> None:
        """Read the rows recorded so far, also by other processes. Raises as `Ledger`."""
        if not self.files.has(ROWS):
            return
        self.lines = {place_in_board(line): line for line in self.files.csv(ROWS)}
        made, board = self.files.json(BOARD), self.board
        self.machines = {*made["machine"].split("; ")}
        if made["hash"] != board.hash:
            raise ConfigError(
                f"conf/leaderboard/{board.name}.yaml differs from the one that made {self.folder} "
                f"({made['hash']}, now {board.hash}): restore it, or copy it to another name for another board"
            )
        if lost := {row for _, _, row, *_ in self.lines} - {*board.all_rows}:
            raise ConfigError(f"{self.folder} has a row '{min(lost)}', but there is no method of that name")

    def entries(self, stage: BoardStage, rows: Sequence[str] = ()) -> Iterator[Entry]:
        """Yield the runs of a stage for the selected rows (none: all), as far as earlier stages determine them."""
        for federation in self.board.federations:
            for row in rows or self.board.all_rows:
                if not self.board.has(federation, row):
                    continue
                for number, seed in product(self.numbers(stage, federation.label, row), stage.seeds):
                    trial = self.board.trials_of(row)[number]
                    yield Entry(stage, federation, row, trial, self.job(stage, federation, row, trial, seed))

    def numbers(self, stage: BoardStage, federation: str, row: str) -> list[int]:
        """Return the trials that a stage runs."""
        if stage.rung is not None:
            return self.survivors(federation, row, stage.rung)
        return [] if (number := self.chosen(federation, row)) is None else [number]

    def survivors(self, federation: str, row: str, rung: int) -> list[int]:
        """Return the trials that run at a rung: the half of the earlier ones with the best validation accuracy.

        Ties go to the earlier trial. A trial that failed goes no further.
        """
        if rung == 0:
            return [trial.number for trial in self.board.trials_of(row)]
        return self._ranked(federation, row, rung - 1)[: self.board.trials // 2**rung]

    def chosen(self, federation: str, row: str) -> int | None:
        """Return the trial of the final runs; None if none has finished the last rung."""
        return next(iter(self._ranked(federation, row, len(self.board.rungs) - 1)), None)

    def _ranked(self, federation: str, row: str, rung: int) -> list[int]:
        here = self.survivors(federation, row, rung)
        scores = {number: self.validation(federation, row, number, rung) for number in here}
        return sorted((n for n in scores if math.isfinite(scores[n])), key=lambda number: (-scores[number], number))

    def validation(self, federation: str, row: str, number: int, rung: int) -> float:
        """Return a trial's validation accuracy at a rung in percent, mean over its seeds; nan if one is missing."""
        stage = stages(self.board)[rung]
        lines = [self.lines.get((stage.name, federation, row, number, seed), {}) for seed in stage.seeds]
        return sum(float(line.get("acc_on_val") or "nan") for line in lines) / len(lines)

    def job(self, stage: BoardStage, federation: BoardFederation, row: str, trial: BoardTrial, seed: int) -> Job:
        """Return a run of the board."""
        keys: dict[str, Any] = {**trial.keys, "protocol.rounds": stage.rounds, "seed": seed}
        if stage.rung is None:
            keys |= {"protocol.eval_every": self.board.eval_every, "protocol.test.once": True}
            if row != "local" and (local := self.chosen(federation.label, "local")) is not None:
                default = self._default(federation, "local")[1].protocol.optimizer.lr
                keys["reference_lr"] = dict(self.board.trials_of("local")[local].values).get(RATE, default)
        else:
            keys |= {"protocol.eval_every": stage.rounds, "protocol.test.sets": "validation"}
        overrides, config = self._default(federation, row)
        overrides = [*overrides, *(f"{key}={json.dumps(value)}" for key, value in keys.items())]
        values = copy.deepcopy({group: config.plain[group] for group in (key.partition(".")[0] for key in keys)})
        for key, value in keys.items():
            *path, last = key.split(".")
            functools.reduce(operator.getitem, path, values)[last] = value
        return Job(tuple(overrides), config.changed(**values))

    @functools.cache  # noqa: B019 - a process has one or two ledgers
    def _default(self, federation: BoardFederation, row: str) -> tuple[list[str], RunConfig]:
        """Return a row's config without a trial's values, cached because composing takes longer than all else."""
        overrides = [*self.board.base, *federation.overrides, *self.board.all_rows[row]]
        if "method=oracle" in overrides:
            overrides.append(f"method.coalition={list(federation.groups)}")
        overrides += ["stale=rerun", *self.settings]
        return overrides, resolve(compose(overrides))

    # What is there of a stage, and what is not.

    def lost(self, federation: str, row: str, seeds: Sequence[int]) -> list[int]:
        """Return the seeds of `seeds` whose final run has no score."""
        place = FINAL, federation, row, self.chosen(federation, row) or 0
        return [seed for seed in seeds if not self.lines.get((*place, seed), {}).get("acc")]

    def recorded(self, stage: BoardStage, federation: BoardFederation, row: str, today: str) -> int:
        """Return how many runs of a stage, of any trials, have a row made by `today`'s code."""
        place = stage.name, federation.label, row
        lines = [line for name, line in self.lines.items() if name[:3] == place and name[4] in stage.seeds]
        return sum(not fingerprint.changed(str(line["code"]), today) for line in lines)

    def missing(self, entries: Sequence[Entry], *, retry: bool = False) -> list[Entry]:
        """Return the runs without a row of today's code and samples; those that failed only if `retry`."""
        return [entry for entry in entries if not entry.job.finished and not self._stands(entry, retry=retry)]

    def _stands(self, entry: Entry, *, retry: bool = False) -> bool:
        line, job = self.lines.get(entry.place, {}), entry.job
        if line.get("key") != job.key or (retry and line.get("failure")):
            return False
        if line["data"] and job.data and line["data"] != job.data:
            return False
        return not fingerprint.changed(str(line["code"]), job.folder.today)

    def record(self, entries: Sequence[Entry]) -> None:
        """Record the row of every finished or failed run, in addition to those of other processes."""
        self.read()
        for entry in sorted(entries, key=lambda each: each.row != "local"):
            if entry.job.finished:
                self._put(entry, entry.job.folder.result())
            elif (why := entry.job.failure) and not self._stands(entry, retry=True):
                code = entry.job.folder.code  # of the run that failed; one that was refused before it began noted none
                code = entry.job.folder.today if code in ("", LOST) else code
                self._put(entry, {"data": entry.job.data, "code": code, "failure": why})

    def _put(self, entry: Entry, result: Mapping[str, Any]) -> None:
        line = self._line(entry, result)
        if not line.items() <= self.lines.get(entry.place, {}).items():
            self.lines[entry.place] = line
            self.machines.add(fingerprint.machine(entry.job.folder.environment()))

    def _line(self, entry: Entry, result: Mapping[str, Any]) -> Line:
        named = zip(("stage", "federation", "row", "trial", "seed"), entry.place, strict=True)
        line: dict[str, Any] = {**dict(named), "values": entry.trial, "key": entry.job.key}
        line |= {name: result.get(name) for name in ("data", "code", "failure", *KEPT, *known(result))}
        if entry.stage.rung is None and entry.job.finished:
            run, where = entry.job.run, entry.federation.label
            place = FINAL, where, "local", self.chosen(where, "local") or 0, entry.job.seed
            local = line if entry.row == "local" else self.lines.get(place, {})
            reached = reaches(run, float(local.get("acc_on_val") or "nan") / 100, "val")
            line |= {f"{name}_to_local": getattr(reached, name) for name in ("rounds", "bytes", "seconds")}
            line["clients"] = " ".join(f"{each:.9g}" for each in (() if run.accuracies is None else run.accuracies))
        return {name: "" if value is None else str(value) for name, value in line.items()}  # as the file gives it back

    def save(self) -> None:
        """Write board.zip, rows.csv in an order that does not depend on when a row was made.

        It removes lines of trials that left their stage because earlier runs were made again.
        """
        labels = [each.label for each in self.board.federations]
        asked = {stage.name: stage for stage in stages(self.board)}
        kept: dict[Place, Line] = {}
        for stage, federation, row in product(asked.values(), labels, self.board.all_rows):
            seeds = self.board.seeds if stage.rung is None else stage.seeds
            for number, seed in product(self.numbers(stage, federation, row), seeds):
                if (place := (stage.name, federation, row, number, seed)) in self.lines:
                    kept[place] = self.lines[place]
        self.lines = kept
        make_folder(self.folder)
        machine = "; ".join(sorted(self.machines))
        made = {"hash": self.board.hash, "machine": machine, "board": dataclasses.asdict(self.board)}
        self.files.write({BOARD: as_json(made), ROWS: as_csv([*kept.values()])})


def place_in_board(line: Line) -> Place:
    """Return the place of a line of rows.csv."""
    return line["stage"], line["federation"], line["row"], int(line["trial"]), int(line["seed"])
