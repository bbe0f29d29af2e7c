"""A finished run: how its row is made, how its files are read, and many runs as one table."""

from __future__ import annotations

import dataclasses
import html
import json
import logging
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import yaml
from numpy.typing import ArrayLike, NDArray

from fedbench.config.groups import REGISTRIES, SCHEMAS
from fedbench.core.errors import CheckpointError, ConfigError, FedbenchError, UnknownName, unknown, warn_once
from fedbench.engine.history import COMMON, VALIDATION, History, Labels, measured_columns, seconds_columns
from fedbench.metrics import (
    RULES,
    Fairness,
    Floats,
    Measured,
    Reported,
    TimeToAccuracy,
    by_size,
    fairness,
    hurt,
    time_to_accuracy,
    worst,
)
from fedbench.runs.folder import (
    ARRAYS,
    CLIENTS,
    COLLABORATION,
    CONFIG,
    MODEL,
    NAME,
    PARTITION,
    RESULT,
    ROUNDS,
    TALLIES,
    files_of,
    finished_below,
    numeric_rows,
)
from fedbench.runs.progress import COLUMNS, decimals, headings, human_bytes, human_seconds
from fedbench.sample_metrics import METRICS

if TYPE_CHECKING:
    import pandas as pd

    from fedbench.core.trees import Tree
    from fedbench.runs.building import Prediction, ScoredModels


SHOWN = ("dataset", "partition", "model", "protocol", "seed")  # of the row, above the metrics


@dataclass(frozen=True)
class Run:
    """A finished run. Each part is read from its folder on first use.

    Reading a damaged file raises Damaged.
    """

    folder: Path
    earlier: bool = False  # true: it was finished before this call
    code_changed: tuple[str, ...] = ()  # the parts of the code that differ from the code that made it

    @cached_property
    def row(self) -> dict[str, Any]:
        """Labels, metrics (accuracies and IPR in percent, RSD in percentage points), bytes, seconds, versions."""
        return files_of(self.folder).json(RESULT)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The resolved config of the run."""
        return cast("dict[str, Any]", yaml.safe_load(files_of(self.folder).read(CONFIG)))

    @cached_property
    def history(self) -> pd.DataFrame:
        """One line for each scored round: accuracies, loss, bytes and seconds so far."""
        return files_of(self.folder).frame(ROUNDS)

    @cached_property
    def clients(self) -> pd.DataFrame:
        """One line for each client: samples, accuracy, and Local's accuracy."""
        return files_of(self.folder).frame(CLIENTS, (NAME,))

    @cached_property
    def rounds(self) -> list[dict[str, str]]:
        """The lines of `history`, each number as the text that was written."""
        return numeric_rows(files_of(self.folder), ROUNDS, "round", "seconds_total", "bytes_up", "bytes_down")

    @cached_property
    def client_rows(self) -> list[dict[str, str]]:
        """The lines of `clients`, each number as the text that was written."""
        return numeric_rows(files_of(self.folder), CLIENTS, "acc")

    @property
    def names(self) -> list[str]:
        """The data's names of the clients; nothing if they have none."""
        return [row[NAME] for row in self.client_rows if NAME in row]

    @cached_property
    def accuracies(self) -> NDArray[np.float64] | None:
        """Reported accuracies [N] of the clients in percent; None if they were not kept."""
        if not files_of(self.folder).has(CLIENTS):
            return None
        return np.array([float(row["acc"] or "nan") for row in self.client_rows])

    @cached_property
    def tallies(self) -> dict[str, NDArray[Any]]:
        """Counts of every client at each scored round, `tally/SET/correct` and `tally/SET/total`, and the rounds."""
        return files_of(self.folder).npz(TALLIES)

    @cached_property
    def label_counts(self) -> NDArray[np.float64]:
        """Training samples [N, K] of each label."""
        return np.asarray(files_of(self.folder).frame(PARTITION).filter(regex="^class_"), dtype=np.float64)

    @cached_property
    def W(self) -> NDArray[np.float64] | None:  # noqa: N802 - the papers' name
        """The collaboration matrix [N, N], row i: whose models client i's is made of; None without one."""
        files = files_of(self.folder)
        return files.npz(COLLABORATION)["W"] if files.has(COLLABORATION) else None

    @cached_property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays that the method recorded (distances, coalitions, ...), by name; empty if none."""
        files = files_of(self.folder)
        return files.npz(ARRAYS) if files.has(ARRAYS) else {}

    @cached_property
    def models(self) -> Tree:
        """The final state of server and clients as tensors, by leaf: `server/...` and `memory/...` [N, ...].

        `scored/...` has the sources of the scored models for `predict`, if these are others.

        Raises:
            FedbenchError: the run did not keep them, or their file is damaged.
        """
        from fedbench.engine import checkpoint

        if not (self.folder / MODEL).is_file():
            raise FedbenchError(f"{self.folder} stored no models; run it again with save_models=true and force=true")
        try:
            return checkpoint.read_checkpoint(self.folder / MODEL)[0]
        except CheckpointError as error:
            raise files_of(self.folder).damaged(MODEL, str(error.__cause__ or "its checksum does not match")) from error

    @cached_property
    def _scored_models(self) -> ScoredModels:
        from fedbench.runs.building import ScoredModels

        return ScoredModels(self.config, self.row, self.models)

    def predict(self, client: int | str, x: ArrayLike | None = None) -> Prediction:
        """Predict with the client's model behind the accuracy in `clients`, for its test samples or for samples `x`.

        The model is the one that the protocol scores and reports (`protocol.score`, `protocol.report`), adapted as for
        its score. `x` [n, ...] has the units and shape of the data set's samples. `client` is a number, or a name if
        the data have names.

        Raises:
            UnknownName: there is no client of that name.
            ConfigError: `client` is no number, or `x` are not samples of its kind.
            FedbenchError: the run was made without save_models=true, its accuracies do not belong to one model, or its
                data are not here.
        """
        if isinstance(client, str):
            if not (names := self.names):
                raise ConfigError(f"client={client!r}: the data name no clients; give a number")
            if client not in names:
                raise unknown("client", client, names)
            client = names.index(client)
        try:
            number = operator.index(client)
        except TypeError as error:
            raise ConfigError(f"client={client!r} is neither a number nor a name") from error
        if (names := self.names) and str(number) in names and names[number : number + 1] != [str(number)]:
            warn_once(f"client={number} counts the clients from 0; client='{number}' is the one of that name")
        from fedbench.runs.building import own_torch

        with own_torch():
            return self._scored_models.predict(number, x)

    def column(self, name: str) -> float:
        """Return a column of the row as a number.

        Raises:
            UnknownName: the row has no such column.
        """
        if name not in self.row:
            raise unknown("result column", name, [str(key) for key in self.row])
        value = self.row[name]
        return float("nan") if value is None else float(value)

    def curve(self, test_set: str) -> list[float]:
        """Return the accuracy on `test_set` at each scored round, as fractions.

        Raises:
            UnknownName: the run was not scored on it.
        """
        name = f"acc_on_{test_set}"
        if name not in self.rounds[0]:
            scored = [key.removeprefix("acc_on_") for key in self.rounds[0] if key.startswith("acc_on_")]
            raise UnknownName(f"{self.folder} has no scores on the test set '{test_set}', only on {', '.join(scored)}")
        return [float(row[name] or "nan") / 100 for row in self.rounds]

    def _lines(self) -> list[tuple[str, str]]:
        row = self.row
        seconds = row.get("seconds_total")
        return [
            *((name, str(row[name])) for name in SHOWN),
            *((heading, decimals(row.get(name))) for name, heading in headings([row], COLUMNS).items()),
            ("traffic up, down", f"{human_bytes(row['bytes_up'])}, {human_bytes(row['bytes_down'])}"),
            *([("time", human_seconds(seconds))] if seconds is not None else []),
            ("folder", str(self.folder)),
            *([("made by other code", f"{', '.join(self.code_changed)} changed")] if self.code_changed else []),
        ]

    def __repr__(self) -> str:
        """Method, setting and metrics, each in a line."""
        return "\n".join([str(self.row["method"]), *(f"  {name}: {value}" for name, value in self._lines())])

    def _repr_html_(self) -> str:
        """The same as a table, for notebooks."""
        lines = (
            f"<tr><th style='text-align:left'>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>"
            for name, value in self._lines()
        )
        return f"<table><caption>{html.escape(str(self.row['method']))}</caption>{''.join(lines)}</table>"


log = logging.getLogger("fedbench")

FURTHER = ("partition_seed", "reference_seed", "reference_lr")  # columns beside the groups', where any run has them


def collect(paths: Iterable[Path | str], config: bool = False) -> pd.DataFrame:
    """Result rows of all finished runs in or below `paths`, with their folder as `path`, in order of folder.

    Runs that are not finished are left out; a result that cannot be read is left out with a warning, and one
    that is reached twice counts once. Missing values are nan.

    Args:
        paths: run folders, or folders that hold some.
        config: add each run's config as flat columns (method.mu, protocol.optimizer.lr, ...). A column has one type:
            numbers where all runs have numbers, else text (JSON).

    Raises:
        FedbenchError: a path does not exist.
    """
    import pandas as pd

    folders: set[Path] = set()
    for path in map(Path, paths):
        if not (path.is_dir() or (path.name == RESULT and path.exists())):
            raise FedbenchError(f"no runs at {path}: there is no such folder")
        folders |= {each.resolve() for each in ([path.parent] if path.name == RESULT else finished_below(path))}
    rows = [row for folder in sorted(folders) for row in _readable(folder, config)]
    table: pd.DataFrame = pd.DataFrame(_one_type(rows) if config else rows)
    return table


SAME = ("dataset", "data", "partition_hash", "model", "rounds", "test_set", "seed", "unseen")  # of a run's reference


def add_client_measures(table: pd.DataFrame, against: Sequence[str] = (), margin: float = 1.0) -> None:
    """Add to a table of `collect` columns, in percent, on what the mean over clients hides.

    `acc_worst_tenth`; `acc_small`, `acc_middle`, `acc_large`, the thirds of the clients by training samples; and for
    each method in `against` `hurt_METHOD`, the share of the clients that are more than `margin` points below that
    method's run with the same data, partition, network, rounds and seed, at any learning rate; nan without such a run.
    Of several runs of Local the one of the row's IPR counts. `hurt_METHOD` is over the `clients_hurt_METHOD` that both
    runs scored, the others are over the row's `clients`.

    Raises:
        ConfigError: no run in the table is of such a method, or several would serve as a run's reference.
    """
    from fedbench.core.tables import grouped  # which a single run does without

    runs = [Run(Path(path)) for path in table["path"]]
    accuracy = [np.array([float(row["acc"] or "nan") for row in run.client_rows]) / 100 for run in runs]
    columns: dict[str, list[float]] = {"acc_worst_tenth": [100 * worst(each) for each in accuracy]}
    for run, each in zip(runs, accuracy, strict=True):
        sizes = np.array([float(row["size_train"]) for row in run.client_rows])
        for name, value in by_size(each, sizes).items():
            columns.setdefault(f"acc_{name}", []).append(100 * value)
    for method in against:
        references = grouped((_setting(run), place) for place, run in enumerate(runs) if run.row["method"] == method)
        if not references:
            raise ConfigError(f"no run of {method} among the collected runs to compare with")
        for run, mine in zip(runs, accuracy, strict=True):
            other = _reference(run, runs, references.get(_setting(run), []))
            theirs = np.full_like(mine, np.nan) if other is None else accuracy[other]
            columns.setdefault(f"hurt_{method}", []).append(100 * hurt(mine, theirs, margin / 100))
            columns.setdefault(f"clients_hurt_{method}", []).append(int(np.isfinite(mine - theirs).sum()))
    for name, values in columns.items():
        table[name] = values


def _setting(run: Run) -> tuple[Any, ...]:
    return tuple(run.row.get(name) for name in SAME)


def _reference(run: Run, runs: Sequence[Run], places: Sequence[int]) -> int | None:
    """Return the one of the runs at `places`, all of one method, with which `run` is compared."""
    if len(places) > 1:
        own = (run.row["key"], run.row.get("local_key"))
        places = [place for place in places if runs[place].row["key"] in own] or places
    if len(places) > 1:
        both = f"{runs[places[0]].folder} and {runs[places[1]].folder} are both runs of {runs[places[0]].row['method']}"
        raise ConfigError(f"{both}: collect folders that hold one of them")
    return places[0] if places else None


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested mapping with dotted keys; lists are kept."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def _readable(folder: Path, config: bool) -> list[dict[str, Any]]:
    """Return the row of a run, or warn and return none."""
    try:
        row = {**files_of(folder).json(RESULT), "path": str(folder)}
    except FedbenchError as error:
        log.warning("%s", error)
        return []
    return [{**row, **_config(folder)} if config else row]


def _config(folder: Path) -> dict[str, Any]:
    """Return the run's config as flat columns, or warn and return nothing if it cannot be read."""
    try:
        content = yaml.safe_load(files_of(folder).read(CONFIG))
        groups = (*REGISTRIES, *SCHEMAS)
        kept = {group: content[group] for group in groups if isinstance(content.get(group), Mapping)}
        return flat({**kept, **{key: content[key] for key in FURTHER if content.get(key) is not None}})
    except (FedbenchError, ValueError, AttributeError, yaml.YAMLError) as error:
        log.warning("%s has no readable config.yaml, its columns stay empty: %s", folder, error)
        return {}


ONE_TYPE = ("boolean", "integer", "floating", "mixed-integer-float", "string", "empty")  # in the words of pandas


def _one_type(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows whose columns have one type each, as parquet needs: mixed ones and lists become JSON text."""
    from pandas.api.types import infer_dtype

    names = dict.fromkeys(name for row in rows for name in row)
    for name in names:
        values = [row[name] for row in rows if row.get(name) is not None]
        if infer_dtype(values) not in ONE_TYPE:
            for row in rows:
                if row.get(name) is not None and not isinstance(row[name], str):
                    row[name] = json.dumps(row[name])
    return [{name: row.get(name) for name in names} for row in rows]


@dataclass(frozen=True)
class Reading:
    """How a number is read from a history: protocol.report, protocol.average, and whose best-validation round."""

    report: str = "last"
    average: str = "client"
    per_client: bool = False

    def of(self, history: History, test_set: str, rule: str | None = None) -> Reported:
        """Return what is reported on `test_set`, by another `rule` if given."""
        return history.report(test_set, rule or self.report, self.average, self.per_client)


def summarise(
    labels: Labels,
    key: str,
    history: History,
    reading: Reading,
    *,
    partition_hash: str,
    local: Floats | None = None,
    local_measures: Mapping[str, Floats] = MappingProxyType({}),
    local_key: str = "",
    modalities: Sequence[str] = (),
    prepared: tuple[int, int] = (0, 0),
    versions: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """One row of plain values; accuracies, IPR in percent, RSD in percent points.

    `acc` (client mean) and `acc_pooled` follow the report rule on the primary test set; `score` is the one of
    the two that the protocol calls its accuracy. acc_on_<set> repeats both for every test set, each by the same
    rule (and acc_on_val for the validation samples, if any); acc_<rule> reads the primary test set by every rule
    that applies; acc_of_<modality> is `acc` over the clients of a modality. `report_first`,
    `report_last` are the first and last round used. Of the `of_clients` clients, `clients` have an accuracy in `acc`,
    clients_on_<set> in acc_on_<set>, and `clients_ipr` a gain in `ipr` and `rsd`. A client without a test sample or
    without a scored model has none.
    A metric of scores has the columns <metric>, <metric>_pooled, <metric>_on_<set> (and _pooled), clients_<metric> (the
    number of clients for which it is defined), ipr_<metric> and rsd_<metric>.

    Args:
        labels: names of the run.
        key: hash of what determines the result.
        history: the scored rounds.
        reading: how the protocol reads numbers from a history.
        partition_hash: hash of the partition.
        local: accuracies [N] (fractions) of Local by the same reading, for IPR and RSD; None: both are nan.
        local_measures: the same of the metrics of scores, for ipr_<metric> and rsd_<metric>.
        local_key: key of that Local run.
        modalities: of each client; none with one modality.
        prepared: bytes up and down of the method's preparation.
        versions: columns to append, such as versions and the commit.

    Raises:
        ConfigError: no scored client has a test sample.
    """
    primary = history.test_sets()[0]
    reported = reading.of(history, primary)
    client, pooled = 100 * reported.tally.mean(), 100 * reported.tally.pooled()
    if math.isnan(client):
        raise ConfigError(
            f"no client that was scored has a sample of the {primary} test set, so there is no accuracy: more rounds, "
            "a larger protocol.cohort or protocol.test.fraction, or fewer clients with more samples each"
        )
    fair = None if local is None else fairness(reported.tally.accuracy(), local)
    row = dataclasses.asdict(labels) | {
        "key": key,
        "partition_hash": partition_hash,
        "clients": reported.tally.scored,
        "of_clients": len(reported.tally),
        "rounds": history.last.round,
        **dataclasses.asdict(reading),
        "test_set": primary,
        "report_first": int(reported.rounds.min()),
        "report_last": int(reported.rounds.max()),
        "score": {"client": client, "pooled": pooled}[reading.average],
        "acc": client,
        "acc_pooled": pooled,
        "ipr": float("nan") if fair is None else fair.ipr,
        "rsd": float("nan") if fair is None else fair.rsd,
        "local_key": local_key,
        "clients_ipr": None if fair is None else fair.clients,
    }
    gains = gains_of(reported.measures, local_measures)
    for name, each in reported.measures.items():
        row |= {name: METRICS[name].unit * each.mean(), f"{name}_pooled": METRICS[name].unit * each.pooled}
        row |= {f"clients_{name}": each.defined, **gain_columns(name, gains.get(name))}
    validated = (VALIDATION,) if history.having(VALIDATION) else ()
    for test_set in (*history.test_sets(), *validated):
        found = reading.of(history, test_set)
        row |= _accuracies(f"acc_on_{test_set}", found)
        row |= {} if test_set == COMMON else {f"clients_on_{test_set}": found.tally.scored}
        row |= measured_columns(test_set, found.measures)
    for rule in RULES:
        if rule != "best_val" or history.having(primary, VALIDATION):
            row |= _accuracies(f"acc_{rule}", reading.of(history, primary, rule))
    for modality in dict.fromkeys(modalities):
        own = reported.tally.accuracy()[np.array(modalities) == modality]
        row[f"acc_of_{modality}"] = 100 * float(np.nanmean(own)) if np.isfinite(own).any() else float("nan")
    row |= {"bytes_up": history.last.bytes_up, "bytes_down": history.last.bytes_down}
    row |= {"bytes_up_prepare": prepared[0], "bytes_down_prepare": prepared[1]}
    return row | seconds_columns(history.last.seconds) | dict(versions or {})


TEXT = (  # columns of a row that are text, whatever they look like
    *("dataset", "partition", "model", "method", "protocol", "variant", "key", "partition_hash", "local_key"),
    *("report", "average", "test_set", "data", "scored", "precision", "code", "unseen_note", "commit", "task"),
    *("version_fedbench", "version_python", "version_torch", "version_numpy"),
)
NUMBERS = (  # those that are numbers; of the families, what comes after depends on the run
    *("seed", "clients", "of_clients", "clients_ipr", "rounds", "report_first", "report_last"),
    *("score", "acc", "acc_pooled", "ipr", "rsd", "bytes_up", "bytes_down", "bytes_up_prepare", "bytes_down_prepare"),
    *(f"acc_{rule}{way}" for rule in RULES for way in ("", "_pooled")),
    *("unseen", "epsilon"),
    *(each for name in METRICS for each in (name, f"{name}_pooled", f"clients_{name}", f"ipr_{name}", f"rsd_{name}")),
)
FAMILIES = (
    *("acc_on_", "acc_of_", "acc_unseen_", "clients_on_", "seconds_"),
    *(f"{name}{family}" for name in METRICS for family in ("_on_", "_unseen_")),
)


def client_rows(
    history: History,
    reading: Reading,
    *,
    sizes: Mapping[str, Sequence[int] | NDArray[np.int64]],
    local: Floats | None = None,
    local_measures: Mapping[str, Floats] = MappingProxyType({}),
    modalities: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """One row for each client: `sizes` (such as train, val, test: [N]), acc, acc_local and gain over it, in percent.

    Each metric of scores has <metric>, <metric>_local, and <metric>_gain, which is positive if the client is better
    than alone. With several modalities (`modalities` [N]) the row has the client's.

    `round` is the (last) round used; clients differ in it when each has its own best-validation round.
    """
    reported = reading.of(history, history.test_sets()[0])
    accuracy = reported.tally.accuracy()
    reference = np.full_like(accuracy, np.nan) if local is None else local
    gains = fairness(accuracy, reference).gains
    gained = gains_of(reported.measures, local_measures)
    nothing = np.full_like(accuracy, np.nan)
    measures: dict[str, Floats] = {}
    for name, each in reported.measures.items():
        unit, fair = METRICS[name].unit, gained.get(name)
        measures |= {name: unit * each.clients, f"{name}_local": unit * local_measures.get(name, nothing)}
        measures[f"{name}_gain"] = nothing if fair is None else fair.gains
    order = {modality: number for number, modality in enumerate(dict.fromkeys(modalities))}
    return [
        {"client": index}
        | ({"modality": order[modalities[index]]} if modalities else {})
        | {f"size_{name}": int(values[index]) for name, values in sizes.items()}
        | {
            "round": int(reported.rounds[-1, index]),
            "acc": 100 * float(accuracy[index]),
            "acc_local": 100 * float(reference[index]),
            "gain": float(gains[index]),
        }
        | {name: float(values[index]) for name, values in measures.items()}
        for index in range(len(accuracy))
    ]


def gains_of(measures: Mapping[str, Measured], local: Mapping[str, Floats]) -> dict[str, Fairness]:
    """IPR, RSD and gains in each metric of scores that `local` has clients' values [N] of; a larger gain is better."""
    found = {}
    for name in [name for name in measures if name in local]:
        sign = -1.0 if METRICS[name].lower_is_better else 1.0
        found[name] = fairness(sign * measures[name].clients, sign * local[name], unit=METRICS[name].unit)
    return found


def gain_columns(name: str, fair: Fairness | None) -> dict[str, float]:
    """The columns of a row for a metric's gain over Local."""
    return {
        f"ipr_{name}": math.nan if fair is None else fair.ipr,
        f"rsd_{name}": math.nan if fair is None else fair.rsd,
    }


def _accuracies(name: str, reported: Reported) -> dict[str, float]:
    return {name: 100 * reported.tally.mean(), f"{name}_pooled": 100 * reported.tally.pooled()}


def reaches(run: Run, reference: float, test_set: str) -> TimeToAccuracy:
    """Return rounds, seconds and bytes until the accuracy of `run` on `test_set` is at least `reference`, a fraction.

    Raises:
        UnknownName: the run was not scored on it.
    """
    return time_to_accuracy(
        [int(row["round"]) for row in run.rounds],
        run.curve(test_set),
        reference,
        [float(row["seconds_total"]) for row in run.rounds],
        [int(row["bytes_up"]) + int(row["bytes_down"]) for row in run.rounds],
    )
