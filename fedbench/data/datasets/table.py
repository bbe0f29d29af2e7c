"""dataset=table: rows of a .csv, .tsv, .parquet or .json file, and the estimates with which a network reads tables.

Numbers are standardised, and a missing number becomes the column's median. Categories are one-hot, and a missing one is
a category of its own. scikit-learn estimates all of this from the samples that clients train on.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedbench.config.fields import one_of
from fedbench.config.schema import TASKS, added
from fedbench.core.errors import ConfigError, DataCorrupt, DataMissing, Report, reason_of, unknown, warn_once
from fedbench.data.dataset import Dataset, Ints
from fedbench.data.datasets.own import KINDS, OwnData, Parsed

if TYPE_CHECKING:
    import pandas as pd

MOST_WORDS = 100  # different words of a column that are taken for categories
NAMED = 6  # columns that a line names
CODE = "0[0-9]+"  # 007 is no 7
WRITTEN = {  # what is no category, by the form of its words
    "dates": r"(\d{4}[-./]\d\d?[-./]\d\d?|\d\d?[-./]\d\d?[-./]\d{4})(\D.*)?",
    "times": r"\d\d?:\d\d(:.*)?|-?\d+ days?( [\d:.]+)?",
    "numbers with commas": r"[-+]?[\d.]+(,\d+)+",
}


@dataclass(frozen=True)
class OwnTable(OwnData):
    """A column is the label, one may be the client and one the split; all others are inputs."""

    name: ClassVar[str] = "table"

    target: str | None = None  # the column of the label
    client: str | None = None  # the column that names each row's client
    split: str | None = None  # the column with the words train, val or test
    categories: tuple[str, ...] = ()  # columns whose numbers name categories, and columns of more words than MOST_WORDS
    drop: tuple[str, ...] = ()  # columns that are not inputs, such as the row number
    task: str = added(one_of(*TASKS))  # regression: the label is a quantity
    mean: tuple[float, ...] | None = field(default=None, init=False)  # each column has its own
    std: tuple[float, ...] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        roles = [self.target, self.client, self.split, *{*self.drop}]
        if twice := [name for name in roles if name is not None and roles.count(name) > 1]:
            raise ConfigError(f"dataset.target, client, split, drop: '{twice[0]}' is in two of them; leave it in one")

    @property
    def variant(self) -> str:
        """A hash of the columns' roles."""
        roles = (self.target, self.client, self.split, self.categories, self.drop)
        given = "" if self.task == TASKS[0] else f"-{self.task}"
        return f"-{hashlib.sha256(repr(roles).encode()).hexdigest()[:8]}{given}"

    @property
    def owned(self) -> bool:
        return self.client is not None

    def parse(self, path: Path, report: Report) -> tuple[Parsed, Parsed | None]:
        frame = self._frame(path)
        columns = [str(name) for name in frame.columns]
        frame.columns = columns
        if self.target is None:
            raise ConfigError(f"dataset.target: name the column of the label; {self.shown} has {', '.join(columns)}")
        roles = [name for name in (self.target, self.client, self.split) if name is not None]
        for name in (*roles, *self.categories, *self.drop):
            if name not in columns:
                raise unknown(f"column of {self.shown}", name, columns)
        if not (inputs := [name for name in columns if name not in (*roles, *self.drop)]):
            raise DataCorrupt(f"{self.shown} has no column besides {', '.join([*roles, *self.drop])}; add inputs")
        try:
            read = [self._input(frame[name], name) for name in inputs]
            found: dict[str, NDArray[Any]] = {
                "x": np.stack([values for values, _ in read], axis=1),
                "y": _labels(frame[self.target], self.target),
                "columns": np.array([len(words) for _, words in read]),
                "words": np.array([word for _, words in read for word in words], np.str_),
                "inputs": np.array(inputs, np.str_),
                "kind": np.array("table"),
            }
        except ValueError as error:
            raise DataCorrupt(f"{self.shown}: {error}") from error
        for name, column in (("client", self.client), ("split", self.split)):
            if column is not None:
                found[name] = np.array([word or "" for word in _words(frame[column])], np.str_)
        said = _understood(found, inputs)
        for name, values in zip(inputs, np.sort(found["x"], axis=0).T, strict=True):
            if len(values) > MOST_WORDS and (np.diff(values) == 1).all():
                said.append(f"column '{name}' numbers the rows; if it is no input: dataset.drop=[{name}]")
        return {**found, "said": np.array(said, np.str_)}, None

    def _frame(self, path: Path) -> pd.DataFrame:
        import pandas as pd

        names = {name: str for name in (self.client, self.split) if name is not None}
        try:
            if path.suffix.lower() == ".parquet":
                return pd.read_parquet(path)
            if path.suffix.lower() == ".json":
                frame: pd.DataFrame = pd.DataFrame(json.loads(path.read_bytes()))
                return frame
            with path.open(encoding="utf-8-sig", newline="") as file:
                lines = [file.readline(), file.readline()]
            comma = max(",;\t", key=lines[0].count)
            comma = comma if comma in lines[0] or "|" not in lines[0] else "|"
            header, *rows = csv.reader(lines, delimiter=comma)
            if twice := [name for name in header if name and header.count(name) > 1]:
                raise ValueError(f"several columns '{twice[0]}'")
            if header and rows and len(rows[0]) > len(header):
                raise ValueError(f"{len(rows[0])} fields below {len(header)} names")
            words = pd.read_csv(path, sep=comma, dtype=str, encoding="utf-8-sig")
            names |= {str(name): str for name in words if words[name].str.fullmatch(CODE).any()}
            return pd.read_csv(path, sep=comma, dtype=names, encoding="utf-8-sig")
        except ImportError as error:
            raise ConfigError(
                f"{path}: .parquet is read by pyarrow: pip install 'fedbench-harness[parquet]', or write a .csv"
            ) from error
        except IsADirectoryError as error:
            raise ConfigError(f"{path} is a folder: join its files to one table, with a column of clients") from error
        except OSError as error:
            raise DataMissing(f"{path}: {error.strerror or reason_of(error)}") from error
        except Exception as error:  # of many classes
            raise DataCorrupt(
                f"{path} is not a table ({reason_of(error)}); write a .parquet, or a .csv in UTF-8 whose first line "
                "names each column, once"
            ) from error

    def _input(self, column: pd.Series[Any], name: str) -> tuple[NDArray[np.float64], list[str]]:
        """Return a column as numbers, nan for missing ones, and its categories if the numbers are places in them.

        Raises:
            ValueError: neither numbers nor categories.
        """
        import pandas as pd

        if name not in self.categories and pd.api.types.is_numeric_dtype(column):  # truth values too
            return _numbers(column, name), []
        words = np.unique(np.array([word for word in _words(column) if word is not None], np.str_))
        if name not in self.categories and not isinstance(column.dtype, pd.CategoricalDtype):
            for what, form in WRITTEN.items():
                if len(words) and all(re.fullmatch(form, word) for word in words.tolist()):
                    raise ValueError(
                        f"column '{name}' holds {what}, such as '{words[0]}'; write numbers such as 7.5, or set "
                        f"dataset.drop=[{name}], or dataset.categories=[{name}]"
                    )
            numbers = pd.to_numeric(pd.Series(words, dtype=object), errors="coerce").notna().to_numpy()
            codes = any(re.fullmatch(CODE, word) for word in words.tolist())
            if numbers.any() and numbers.all() and not codes:  # as words, such as decimals
                return _numbers(column, name), []
            if 2 * numbers.sum() > len(words) and not codes:
                raise ValueError(
                    f"column '{name}' holds numbers, and '{words[~numbers][0]}'; leave missing values empty, or set "
                    f"dataset.categories=[{name}]"
                )
            if len(words) > MOST_WORDS:
                raise ValueError(
                    f"column '{name}' holds {len(words)} different words, such as '{words[0][:40]}', which are not "
                    f"taken as categories; set dataset.drop=[{name}], or dataset.categories=[{name}] if they are"
                )
        known = words.tolist() or [""]  # of a column without a word
        return _codes(column, known), known


def _numbers(column: pd.Series[Any], name: str) -> NDArray[np.float64]:
    """Return the numbers of a column, nan for missing ones.

    Raises:
        ValueError: one is none, infinite, or outside float32.
    """
    try:
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
    except (ValueError, TypeError) as error:
        raise ValueError(f"column '{name}' holds no numbers: {reason_of(error)}") from error
    if len(odd := np.flatnonzero(np.abs(values) > np.finfo(np.float32).max)):
        raise ValueError(f"column '{name}' holds {column.iloc[odd[0]]} at {odd[0]}; leave missing values empty")
    return values


def _codes(column: pd.Series[Any], words: Sequence[str]) -> NDArray[np.float64]:
    """Return the places in `words` of a column's words, -1 for unknown ones; nan for missing values."""
    places = {word: place for place, word in enumerate(words)}
    return np.array([np.nan if word is None else places.get(word, -1) for word in _words(column)], np.float64)


def _words(column: pd.Series[Any]) -> list[str | None]:
    """Return a column as text, None for missing values; 1.0 becomes "1", as gaps turn whole numbers into floats."""
    return [
        None if gap else str(int(each)) if isinstance(each, float) and each.is_integer() else str(each)
        for each, gap in zip(column.tolist(), column.isna().tolist(), strict=True)
    ]


def _labels(column: pd.Series[Any], name: str) -> NDArray[Any]:
    """Labels as numbers or words.

    Raises:
        ValueError: a label is missing.
    """
    if len(missing := np.flatnonzero(column.isna())):
        raise ValueError(
            f"{len(missing)} of {len(column)} rows, the first at {missing[0]}, have no label in '{name}' (NA, "
            "None and the like count as missing); leave them out, or label them otherwise"
        )
    labels = np.array(column.tolist())
    return labels if labels.dtype.kind in KINDS else np.array(column.astype(str), np.str_)


def _understood(found: Parsed, inputs: Sequence[str]) -> list[str]:
    """Return a line on how the inputs are read."""
    counts, gaps = found["columns"].tolist(), np.isnan(found["x"]).sum(0).tolist()
    numbers = [name for name, count in zip(inputs, counts, strict=True) if not count]
    words = [f"{name} ({count})" for name, count in zip(inputs, counts, strict=True) if count]
    lacking = [f"{name} ({gap})" for name, gap in zip(inputs, gaps, strict=True) if gap]
    parts = {f"{len(numbers)} columns of numbers": numbers, f"{len(words)} of categories": words, "missing": lacking}
    shown = {what: ", ".join(each[:NAMED]) + ", ..." * (len(each) > NAMED) for what, each in parts.items() if each}
    return ["; ".join(f"{what}: {names}" for what, names in shown.items())]


def _tell_of_new(
    data: Dataset, whose: str, rows: NDArray[Any], seen: NDArray[Any], frame: Any = None, least: int = 1
) -> None:
    """Warn of a column in which at least `least` of `rows`, read from `frame`, have a category that `seen` lack."""
    for column, words in enumerate(data.columns):
        codes = rows[:, column]
        new = np.flatnonzero(~np.isin(codes, seen[:, column]) & ~np.isnan(codes)) if words else np.zeros(0, np.int64)
        if len(new) >= least:
            name, code = data.inputs[column], float(codes[new[0]])
            word = dict[float, Any](enumerate(words)).get(code, code) if frame is None else _words(frame[name])[new[0]]
            warn_once(
                f"{whose}: {len(new)} of {len(rows)} rows have in column '{name}' a category that no training sample "
                f"has, such as '{word}', and count as without one; write categories as in training "
                f"(pandas.read_csv with dtype={{'{name}': str}} keeps zeros)"
            )


def fitted(data: Dataset, train: Ints) -> Dataset:
    """Return `data` as networks read them, with all estimates from the samples `train` only.

    Raises:
        ConfigError: these samples all have the same quantity.
    """
    if data.target is not None:
        seen = data.target[train]
        if seen.min() == seen.max():
            raise ConfigError(
                f"{data.name}: the label of all {len(seen)} training samples is {seen[0]:g}, so there is nothing to "
                "learn; train on others, or dataset.task=classification"
            )
        data = replace(data, target_unit=(float(seen.mean()), float(seen.std())))
    if data.estimates:
        seen = data.x[train].astype(np.float64)
        mean, std = seen.mean((0, 2, 3)) / data.scale, seen.std((0, 2, 3)) / data.scale
        std = np.where(std > 0, std, 1.0)
        return replace(data, mean=tuple(mean.tolist()), std=tuple(std.tolist()), estimates=False)
    if not data.columns:
        return data
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    raw = data.x.reshape(len(data), -1).astype(np.float64)
    chosen = {worded: [i for i, words in enumerate(data.columns) if bool(words) == worded] for worded in (False, True)}
    numbers = make_pipeline(SimpleImputer(strategy="median", keep_empty_features=True), StandardScaler())
    words = OneHotEncoder(handle_unknown="ignore", sparse_output=False)  # a category that nobody trains on: all 0
    encoder = ColumnTransformer([("numbers", numbers, chosen[False]), ("words", words, chosen[True])]).fit(raw[train])

    def encode(rows: Any) -> NDArray[np.float32]:
        """Return rows of the file's form, an array or a frame, as networks read them.

        Raises:
            ConfigError: the columns are not the table's.
            ValueError: words where the table has numbers, or an infinite number.
        """
        frame = rows.rename(columns=str) if data.inputs and hasattr(rows, "columns") else None  # as a file has them
        if frame is not None:
            if odd := [name for name in data.inputs if [*frame.columns].count(name) != 1]:
                raise ConfigError(f"x lacks the columns {', '.join(odd)}, or has several; give those of {data.name}")
            pairs = [(frame[name], name, words) for name, words in zip(data.inputs, data.columns, strict=True)]
            rows = np.stack([_codes(each, words) if words else _numbers(each, name) for each, name, words in pairs], 1)
        with np.errstate(over="ignore"):
            given = np.asarray(rows, data.x.dtype).astype(np.float64).reshape(len(rows), -1)  # rounded as `raw` is
        if given.shape[1] != len(data.columns):
            raise ConfigError(f"x has {given.shape[1]} columns, {data.name} has {len(data.columns)}; give as many")
        _tell_of_new(data, "x", given, raw[train], frame)
        encoded: NDArray[np.float32] = encoder.transform(given).astype(np.float32)
        return encoded

    others = np.delete(raw, train, axis=0)
    _tell_of_new(data, f"{data.name}, samples not for training", others, raw[train], least=max(1, len(others)))
    x = encoder.transform(raw).astype(np.float32)[:, None, None, :]
    return replace(data, x=x, columns=(), inputs=(), mean=(0.0,), std=(1.0,), scale=1.0, encode=encode)
