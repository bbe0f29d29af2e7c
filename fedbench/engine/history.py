"""The history of a run, and the observers that follow it.

A history has one record for each evaluated round. It is append-only, and every checkpoint stores it without loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbench.metrics import PARTS, Measured, Reported, Tally, report
from fedbench.sample_metrics import METRICS

if TYPE_CHECKING:
    import torch


PHASES = ("prepare", "train", "server", "evaluate")
COMMON = "common"  # the one global model: a tally of one entry, not of one a client
TEST_SETS = ("local", "global", COMMON)  # the first that was scored is the one a run is judged by
VALIDATION = "val"
PREFIX = "history/"  # of its arrays in a checkpoint
TRAINED = "trained_"  # before a set's name: the models after local training, where both moments are scored
TIMING_PREFIX = "seconds_"  # columns that differ between two runs of the same configuration; no others do


@dataclass(frozen=True, eq=False)
class Record:
    """State of the federation after `round` completed rounds (0: before training)."""

    round: int
    # local, global, val, each also after the prefix TRAINED: [N]; common (one global model): [1]
    tallies: Mapping[str, Tally]
    bytes_up: int  # clients to server, whole federation, cumulative
    bytes_down: int  # server to clients, whole federation, cumulative
    seconds: Mapping[str, float]  # cumulative, by phase (PHASES)
    train_loss: float = math.nan  # mean over the round's clients of their mean over steps; nan without any
    measures: Mapping[str, Mapping[str, Measured]] = field(default_factory=dict)  # metrics of scores, by set and metric

    def primary(self) -> str:
        """Name of the test set that judges the run."""
        return next((name for name in TEST_SETS if name in self.tallies), next(iter(self.tallies)))


class History:
    """Records in ascending order of rounds."""

    def __init__(self, records: Sequence[Record] = ()) -> None:
        self._records: list[Record] = []
        for record in records:
            self.add(record)

    def __len__(self) -> int:
        return len(self._records)

    @property
    def records(self) -> tuple[Record, ...]:
        """All records so far."""
        return tuple(self._records)

    @property
    def last(self) -> Record:
        """The latest record. Raises IndexError before the first one."""
        return self._records[-1]

    def add(self, record: Record) -> None:
        """Append `record`. Raises ValueError when it is out of order or empty, or cumulative bytes went down."""
        if not record.tallies:
            raise ValueError(f"round {record.round}: a record needs at least one tally")
        if self._records:
            last = self.last
            if record.round <= last.round:
                raise ValueError(f"round {record.round} was recorded after round {last.round}")
            if record.bytes_up < last.bytes_up or record.bytes_down < last.bytes_down:
                raise ValueError(f"round {record.round}: cumulative bytes went down")
        self._records.append(record)

    def having(self, *sets: str) -> list[Record]:
        """Records that scored all of `sets`."""
        return [record for record in self._records if all(name in record.tallies for name in sets)]

    def test_sets(self) -> tuple[str, ...]:
        """Test sets with at least one score, the primary one first; the validation samples if there is none."""
        return tuple(name for name in TEST_SETS if self.having(name)) or (VALIDATION,)

    def report(self, test_set: str, rule: str, average: str = "client", per_client: bool = False) -> Reported:
        """Apply a report rule (fedbench.metrics) to the rounds that scored `test_set`.

        One global model has no client of its own, so it is read at the federation's best-validation round. Models that
        are also scored after training are separate candidates for a best round.
        """
        with_val = rule == "best_val" and bool(self.having(test_set, VALIDATION))
        candidates = self.candidates(test_set, rule)
        reported = report(
            rule,
            [record.round for record, _ in candidates],
            [record.tallies[moment + test_set] for record, moment in candidates],
            [record.tallies[moment + VALIDATION] for record, moment in candidates] if with_val else None,
            average,
            per_client and test_set != COMMON,
        )
        found = [record.measures.get(moment + test_set, {}) for record, moment in candidates]
        every = [name for name in METRICS if all(name in each for each in found)]
        measures = {name: Measured.over([each[name] for each in found], reported.places) for name in every}
        return replace(reported, measures=measures)

    def candidates(self, test_set: str, rule: str) -> list[tuple[Record, str]]:
        """Return what `rule` reads `test_set` from, see `report`: records, each with the prefix of the set's name."""
        with_val = rule == "best_val" and bool(self.having(test_set, VALIDATION))
        moments = (TRAINED, "") if rule.startswith("best") else ("",)
        return [
            (record, moment)
            for record in self._records
            for moment in moments
            if all(moment + name in record.tallies for name in (test_set, *[VALIDATION] * with_val))
        ]

    def rows(self) -> list[dict[str, Any]]:
        """One dict for each evaluated round; in percent acc_on_<set> (client mean) and acc_on_<set>_pooled."""
        return [record_row(record) for record in self._records]

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Everything except seconds; for each set the counts [R', N] and the rounds [R'] that scored it."""
        out: dict[str, np.ndarray[Any, Any]] = {
            "round": np.array([record.round for record in self._records], dtype=np.int64),
            "bytes_up": np.array([record.bytes_up for record in self._records], dtype=np.int64),
            "bytes_down": np.array([record.bytes_down for record in self._records], dtype=np.int64),
            "train_loss": np.array([record.train_loss for record in self._records], dtype=np.float64),
        }
        for name in dict.fromkeys(name for record in self._records for name in record.tallies):
            scored = self.having(name)
            out[f"tally/{name}/round"] = np.array([record.round for record in scored], dtype=np.int64)
            for part in PARTS:
                kept = [getattr(record.tallies[name], part) for record in scored]
                if kept[0] is not None:
                    out[f"tally/{name}/{part}"] = np.stack(kept)
            for metric in scored[0].measures.get(name, {}):
                values = [record.measures[name][metric] for record in scored]
                out[f"metric/{name}/{metric}/clients"] = np.stack([each.clients for each in values])
                out[f"metric/{name}/{metric}/pooled"] = np.array([each.pooled for each in values])
        return out

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """The history as int64 and float64 tensors, whose names begin with PREFIX, and JSON-able meta."""
        import torch

        phases = list(dict.fromkeys(phase for record in self._records for phase in record.seconds))
        arrays = self.arrays()
        for phase in phases:
            spent = [record.seconds.get(phase, math.nan) for record in self._records]
            arrays[f"seconds/{phase}"] = np.array(spent, dtype=np.float64)
        names = [key.split("/")[1] for key in arrays if key.startswith("tally/") and key.endswith("/round")]
        tensors = {PREFIX + key: torch.from_numpy(array) for key, array in arrays.items()}
        return tensors, {"sets": names, "phases": phases}

    @classmethod
    def restore(cls, tree: Mapping[str, torch.Tensor], meta: Mapping[str, Any]) -> History:
        """The history that `state` stored; other entries of `tree` are ignored."""
        arrays = {k[len(PREFIX) :]: leaf.cpu().numpy() for k, leaf in tree.items() if k.startswith(PREFIX)}
        tallies: dict[int, dict[str, Tally]] = {int(done): {} for done in arrays["round"]}
        measures: dict[int, dict[str, dict[str, Measured]]] = {int(done): {} for done in arrays["round"]}
        for name in meta["sets"]:
            kept = {part: arrays[f"tally/{name}/{part}"] for part in PARTS if f"tally/{name}/{part}" in arrays}
            clients, pooled = (
                {metric: arrays[key] for metric in METRICS if (key := f"metric/{name}/{metric}/{way}") in arrays}
                for way in ("clients", "pooled")
            )
            for index, done in enumerate(arrays[f"tally/{name}/round"]):
                tallies[int(done)][name] = Tally(**{part: values[index] for part, values in kept.items()})
                measures[int(done)][name] = {
                    metric: Measured(values[index], float(pooled[metric][index])) for metric, values in clients.items()
                }
        records = []
        for index, done in enumerate(arrays["round"]):
            seconds = {phase: float(arrays[f"seconds/{phase}"][index]) for phase in meta["phases"]}
            records.append(
                Record(
                    int(done),
                    tallies[int(done)],
                    int(arrays["bytes_up"][index]),
                    int(arrays["bytes_down"][index]),
                    {phase: spent for phase, spent in seconds.items() if not math.isnan(spent)},
                    float(arrays["train_loss"][index]),
                    measures[int(done)],
                )
            )
        return cls(records)


def seconds_columns(seconds: Mapping[str, float]) -> dict[str, float]:
    """seconds_<phase> for every phase, and seconds_total."""
    columns = {TIMING_PREFIX + phase: spent for phase, spent in seconds.items()}
    return {**columns, f"{TIMING_PREFIX}total": float(sum(seconds.values()))}


def measured_columns(test_set: str, measures: Mapping[str, Measured]) -> dict[str, float]:
    """The columns of metrics of scores on a test set: the mean over clients, and pooled if there are several."""
    row: dict[str, float] = {}
    for name, each in measures.items():
        row[f"{name}_on_{test_set}"] = METRICS[name].unit * each.mean()
        if test_set != COMMON:
            row[f"{name}_on_{test_set}_pooled"] = METRICS[name].unit * each.pooled
    return row


def record_row(record: Record) -> dict[str, Any]:
    """`record` as one flat row; accuracies in percent, seconds by phase and in total."""
    row: dict[str, Any] = {"round": record.round}
    for name, tally in record.tallies.items():
        row[f"acc_on_{name}"] = 100 * tally.mean()
        if name != COMMON:
            row[f"acc_on_{name}_pooled"] = 100 * tally.pooled()
        row |= measured_columns(name, record.measures.get(name, {}))
    row |= {"train_loss": record.train_loss, "bytes_up": record.bytes_up, "bytes_down": record.bytes_down}
    return row | seconds_columns(record.seconds)


# What a run tells the world while it goes on: a progress bar, a logger, or whatever subclasses Observer.


@dataclass(frozen=True)
class Labels:
    """The names under which people look for a run. They identify it only together with its key."""

    dataset: str
    partition: str
    model: str
    method: str
    protocol: str
    seed: int
    variant: str = ""  # distinguishes runs of one method in a sweep, such as "mu=0.1"


class Observer:
    """Base class: every hook does nothing. An observer never changes a result and never raises."""

    def start(self, labels: Labels, rounds: int, resumed_from: int) -> None:
        """A run of `rounds` rounds begins; `resumed_from` of them are already done (0: from the start)."""

    def expect(self, line: str) -> None:
        """The run's expected cost, known before it starts."""

    def phase(self, name: str) -> None:
        """The run enters a phase (fedbench.engine.history.PHASES)."""

    def within(self, share: float) -> None:
        """This `share` of the clients in training is trained."""

    def advance(self, done: int) -> None:
        """`done` rounds are completed; called after every round, scored or not."""

    def record(self, record: Record) -> None:
        """A round was scored."""

    def recall(self, result: Mapping[str, Any]) -> None:
        """An earlier command completed the run; this is called before `finish`."""

    def finish(self, result: Mapping[str, Any]) -> None:
        """The run is complete; `result` is its row (fedbench.runs.run)."""

    def close(self) -> None:
        """The run is over, complete or not: always called last, even after an error. It releases resources."""


class Observers(Observer):
    """Several observers as one: each hook calls all of them in order."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)


def _telling(hook: str) -> Callable[..., None]:
    def tell(self: Observers, *given: Any, **named: Any) -> None:
        for observer in self._observers:
            getattr(observer, hook)(*given, **named)

    return tell


for _hook in (name for name in vars(Observer) if not name.startswith("_")):
    setattr(Observers, _hook, _telling(_hook))
