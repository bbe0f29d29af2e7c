"""Data in memory as a data set: written once into the cache under a hash of the content, then read as a file.

A run on such data has a key, other processes find the data, and an interrupted run can resume.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbench.core.cache import cache_dir
from fedbench.core.errors import ConfigError
from fedbench.core.files import make_folder, replacing, write_bytes
from fedbench.data.formats import WITH_ALPHA

MEMORY = "memory"  # folder of the cache
ROLES = ("y", "client", "split")  # what may stand behind the samples, in this order
COLUMNS = dict(zip(ROLES, ("target", "client", "split"), strict=True))  # keys of dataset=table
NUMBERS = (Real, Decimal)
KEPT = ("1", "L", "I", "I;16", "F", "RGB", "RGBA")  # Pillow's modes whose numbers are shades or colours
FORMS = (
    "give data=(x, y), (x, y, client) or (x, y, client, split) of arrays; a torch Dataset of such tuples; or (table, "
    "'label', 'client') of a pandas frame or a Hugging Face dataset and the names of its columns"
)


def overrides_of(data: Any) -> dict[str, Any]:
    """Return the keys of a config, such as dataset.path, by which runs read `data`, which is in the cache from now on.

    Raises:
        ConfigError: the data have none of these forms.
    """
    samples, *rest = data if isinstance(data, (tuple, list)) else (data,)
    if len(rest) > len(ROLES):
        raise ConfigError(f"data has {len(rest) + 1} parts; {FORMS}")
    roles = {role: given for role, given in zip(ROLES, rest, strict=False) if given is not None}
    if hasattr(samples, "column_names") and hasattr(samples, "to_pandas"):  # of Hugging Face
        return _table(samples.to_pandas(), roles) if _is_flat(samples) else _columns(samples, roles)
    if hasattr(samples, "to_csv") and hasattr(samples, "columns"):  # of pandas
        return _table(samples, roles)
    if isinstance(samples, Mapping):
        raise ConfigError(f"data is a dictionary of {', '.join(map(str, samples))}: give one of them; {FORMS}")
    if not roles:
        if not (hasattr(samples, "__getitem__") and hasattr(samples, "__len__")) or isinstance(samples, (str, Path)):
            raise ConfigError(f"data is of the type {type(samples).__name__}; {FORMS}")
        items = [samples[i] for i in range(len(samples))]
        sizes = {len(item) if isinstance(item, (tuple, list)) else 0 for item in items}
        if len(sizes) != 1 or not 1 < max(sizes) <= 1 + len(ROLES):
            raise ConfigError(f"data has {len(items)} items, and not each is (x, y), with client and split; {FORMS}")
        samples, *rest = ([item[place] for item in items] for place in range(*sizes))
        roles = dict(zip(ROLES, rest, strict=False))
    if "y" not in roles or any(isinstance(given, str) for given in roles.values()):
        raise ConfigError(f"data has samples and no labels for each; {FORMS}")
    return _arrays({"x": samples, **roles})


def _is_flat(samples: Any) -> bool:
    """Whether each column of a Hugging Face dataset holds one number, word or date in each row."""
    first = samples[0] if len(samples) else {}
    return all(value is None or isinstance(value, (str, date, timedelta, *NUMBERS)) for value in first.values())


def _columns(samples: Any, roles: Mapping[str, Any]) -> dict[str, Any]:
    """A Hugging Face dataset with one column of images, or lists of numbers."""
    inputs = [name for name in samples.column_names if name not in roles.values()]
    if len(inputs) != 1 or "y" not in roles:
        raise ConfigError(
            f"data has the columns {', '.join(samples.column_names)}, but needs one for the samples and one for the "
            f"labels; choose them with select_columns; {FORMS}"
        )
    return _arrays({"x": samples[inputs[0]], **{role: samples[name] for role, name in roles.items()}})


def _table(frame: Any, roles: Mapping[str, Any]) -> dict[str, Any]:
    if odd := [role for role, name in roles.items() if not isinstance(name, str)]:
        raise ConfigError(f"data is a table, so its {odd[0]} must be the name of a column; {FORMS}")
    if frame.columns.nlevels > 1:
        raise ConfigError("data is a table with several levels of columns; join their names into one")
    if (names := frame.columns.astype(str)).has_duplicates:
        twice = names[names.duplicated()][0]
        raise ConfigError(f"data is a table with several columns '{twice}'; give each a name of its own")
    words = frame.set_axis(names, axis=1).astype(object)
    cells = words.where(words.notna() & (words != ""), None).to_dict("list")
    content = json.dumps(cells, default=lambda each: float(each) if isinstance(each, NUMBERS) else str(each)).encode()
    path = _path(hashlib.sha256(content).hexdigest(), "json")  # which tells words from numbers, as a .csv does not
    if not path.is_file():
        write_bytes(path, content)
    kinds = [str(name) for name in frame.columns if str(frame[name].dtype) == "category"]
    named = {f"dataset.{COLUMNS[role]}": name for role, name in roles.items()}
    return {"dataset": "table", "dataset.path": path, **named, **({"dataset.categories": kinds} if kinds else {})}


def _arrays(given: Mapping[str, Any]) -> dict[str, Any]:
    arrays: dict[str, Any] = {name: _array(values, name) for name, values in given.items()}
    digest = hashlib.sha256()
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    path = _path(digest.hexdigest(), "npz")
    if not path.is_file():
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez(file, **arrays)
    return {"dataset": "npz", "dataset.path": path}


def _array(values: Any, name: str) -> NDArray[Any]:
    """Return one of the arrays; objects such as words of pandas, and dates, become text, "" for missing ones.

    Raises:
        ConfigError: samples have different shapes or are no numbers, or entries are masked.
    """
    import pandas as pd

    if np.ma.is_masked(values):
        raise ConfigError(f"data: {name} has masked entries; fill them, or leave these samples out")
    if isinstance(values, Sequence) and any(each is None for each in values):
        values = pd.Series(values, dtype=object).to_numpy()  # NumPy writes None among words as one
    elif isinstance(values, Sequence) and len(values):
        values = [plain(each) for each in values]
        if len({each.shape for each in values}) > 1:
            raise ConfigError(f"data: {name} has parts of different shapes, as {values[0].shape}; make them alike")
    array = plain(values)
    if array.dtype.kind not in "OTMm":
        return array
    if name == "x":
        if odd := [each for each in array.flat if not isinstance(each, (Real, np.bool_))]:
            raise ConfigError(f"data: x holds {odd[0]!r}; give numbers, or a table with names of columns")
        return array.astype(np.float64)
    missing = np.asarray(pd.isna(array))
    if name == "y" and missing.any():
        raise ConfigError(
            f"data: {missing.sum()} of {len(array)} labels, the first at {missing.argmax()}, are missing; leave these "
            "samples out"
        )
    return np.where(missing, "", array.astype(np.str_))


def plain(values: Any) -> NDArray[Any]:
    """Return an array, a tensor of torch or an image of Pillow as an array; NumPy has no bfloat16."""
    if hasattr(values, "getbands") and values.mode not in KEPT:
        values = values.convert("RGBA" if values.mode in WITH_ALPHA or "transparency" in values.info else "RGB")
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.float() if str(values.dtype) == "torch.bfloat16" else values
    return np.asarray(values)


def _path(digest: str, ending: str) -> Path:
    make_folder(folder := cache_dir() / MEMORY)
    return folder / f"data-{digest[:12]}.{ending}"
