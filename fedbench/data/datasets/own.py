"""A user's own data: `dataset=npz` reads an .npz file, `dataset=images` a folder of image files.

Labels of any type are numbered in sorted order. If samples name their clients, `partition=natural` is the default. The
array `split` gives training and test samples; without it the protocol splits each client's samples. Without clients and
a test split, a fixed random fifth of each class is the test split, the same on every machine. Without `mean` and `std`
they are computed for each channel over the training samples. Tables and folders use the file's name for the data set; a
run's folder also has a hash of the samples. Impossible data are refused, and doubtful ones get a warning.
"""

from __future__ import annotations

import hashlib
import zipfile
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedbench.config.fields import at_least, finite, one_of, positive
from fedbench.config.schema import TASKS, added
from fedbench.core.cache import Arrays, cache_dir, cached_arrays, source_key
from fedbench.core.checked import load_npz
from fedbench.core.errors import DataCorrupt, DataMissing, Report, silent, warn_once
from fedbench.data.dataset import PARTS, Availability, Dataset, DataSource, Ints, stratified_fifth
from fedbench.data.files import data_dir
from fedbench.data.formats import IMAGE_SUFFIXES, read_images
from fedbench.data.memory import MEMORY

Parsed = Mapping[str, NDArray[Any]]
COLOURS = (1, 3)  # numbers of channels that are told from heights
SPLITS = ("training", "test")
KINDS = {"b": "booleans", "i": "integers", "u": "integers", "f": "floats"}  # numpy's letters for types of numbers
APART = 3.0  # times the deviation of the training samples at which test samples are on another scale
EXACT = 2**53  # whole numbers up to it are told apart as floats
EXACT_32 = 2**24  # and as float32, in which samples are kept
LOST = 1e-5  # share of a column's range by which float32 may change a number
PIXELS = 255  # whole numbers that span more are no pixels
CLASSES = 10  # that a line names
LENET5 = 16  # pixels of height and width that this network needs
MISSING = ("", "nan", "none", "<na>")  # what a label that is missing becomes as a word
WORDS = 8  # token numbers of a sample, at least
LIKE = 10  # times the largest number of a column at which another column holds the same kind of thing
SPLIT = {"train": 0, "training": 0, "val": 1, "valid": 1, "validation": 1, "test": 2, "testing": 2}  # place in PARTS


@dataclass(frozen=True)
class OwnData(DataSource):
    """Samples at `path`, parsed once and cached until a file changes."""

    path: str | None = None
    mean: tuple[float, ...] | None = finite(None)  # mean of each channel; null: that of the training samples
    std: tuple[float, ...] | None = positive(None)

    @property
    def label(self) -> str:
        """The file's or folder's name."""
        stem = "" if self.path is None else self.place.resolve().stem
        return "-".join(str(part) for part in (self.name, stem, self.limit) if part)

    @property
    def place(self) -> Path:
        """Return `path`, or, if only the data folder (FEDBENCH_DATA) has it, the path there."""
        given = Path(self.path or "").expanduser()
        within = data_dir() / given
        return within if self.path and within.exists() and not given.exists() else given

    @property
    def shown(self) -> str:
        """What messages call the samples: their path, or `data` of those that came from memory."""
        place = self.place
        return f"data ({place.stem})" if place.parent == cache_dir() / MEMORY else str(place)

    @abstractmethod
    def parse(self, path: Path, report: Report) -> tuple[Parsed, Parsed | None]:
        """Return (training, test) samples as `x` [n, ...] and `y` [n]; without test samples a fifth is for testing.

        Optional entries: `client` [n], each sample's client; `split` [n], a key of SPLIT, if there are no test samples;
        `kind` (Npz.kind; by default images); for a table, whose x [n, d] may hold nan, the number of categories of each
        column (`columns` [d]), the `words` of all, and the columns' names (`inputs` [d]); `said`, lines on choices that
        the user may have meant otherwise.
        """

    def files(self, path: Path) -> list[Path]:
        """The files of the samples, which are parsed again when one changes."""
        return [path]

    @property
    def variant(self) -> str:
        """The options that change what `parse` yields."""
        return ""

    def state(self) -> Availability:
        """Ready if `path` exists."""
        ready = self.path is not None and self.place.exists()
        where = str(self.place) if ready else ""
        return Availability(ready, where, (self.path or "dataset.path",), "set dataset.path to your data")

    def read(self, report: Report = silent) -> Dataset:
        arrays = self._arrays(report)
        for line in arrays["said"].tolist():
            warn_once(f"{self.shown}: {line}")
        return self._dataset(arrays)

    def _arrays(self, report: Report = silent) -> Arrays:
        if not self.state().ready:
            places = dict.fromkeys((self.path, str(data_dir() / self.path))) if self.path else {}
            found = f"there is nothing at {' or '.join(places)}" if places else "set dataset.path to your data"
            raise DataMissing(f"dataset={self.name}: {found}")
        quantity = self.task != TASKS[0]
        return cached_arrays(self.stamp, lambda: _joined(self.shown, *self.parse(self.place, report), quantity))

    @property
    def stamp(self) -> str:
        files = self.files(self.place) if self.state().ready else []
        return source_key(f"{self.name}{self.variant}-said9", files)

    def _dataset(self, arrays: Arrays) -> Dataset:
        x, y, count, classes = arrays["x"], arrays["y"], int(arrays["num_train"][0]), int(arrays["classes"][0])
        scale = 255.0 if x.dtype == np.uint8 else 1.0
        mean, std = (tuple(map(float, arrays[name] / scale)) for name in ("mean", "std"))
        names, inputs = (tuple(arrays[name].tolist()) if name in arrays else () for name in ("names", "inputs"))
        ends = np.cumsum(arrays.get("columns", np.zeros(0, np.int64)))
        columns = tuple(tuple(each.tolist()) for each in np.split(arrays.get("words", np.zeros(0)), ends)[:-1])
        if given := self.mean is not None or self.std is not None:
            x = x.astype(np.float32) if x.dtype == np.float64 else x
        return Dataset(
            *(self.label, x, y, count, classes, self.mean or mean, self.std or std, scale),
            domain=arrays.get("domain"),
            names=names,
            part=arrays.get("part"),
            rows=arrays["rows"],
            columns=() if given else columns,
            inputs=inputs,
            estimates=bool(names) and not (given or columns or "tokens" in arrays),
            tokens=int(arrays["tokens"][0]) if "tokens" in arrays else 0,
            target=arrays.get("target"),
        )


@dataclass(frozen=True)
class Npz(OwnData):
    """Arrays `x` and `y`, and for a test split `x_test` and `y_test`; `client` and `split` as in `parse`.

    `x` is a table [n, d], token numbers [n, L], series [n, C, T], or images [n, H, W], [n, C, H, W] or [n, H, W, C];
    uint8 means pixels up to 255; other values are taken unchanged as float32.
    """

    name: ClassVar[str] = "npz"

    # what a sample is; auto: images but of two axes (tokens or a table, see `_kind_of`) and [C, T] (series, if C != T)
    kind: str = added(one_of("auto", "table", "tokens", "series", "image"))
    task: str = added(one_of(*TASKS))  # regression: y is a quantity

    @property
    def variant(self) -> str:
        """The kind and the task, if they are set."""
        given = "" if self.kind == "auto" else f"-{self.kind}"
        return given + ("" if self.task == TASKS[0] else f"-{self.task}")

    @property
    def owned(self) -> bool:
        """Whether there is an array `client`."""
        try:
            with zipfile.ZipFile(self.place) as archive:
                return "client.npy" in archive.namelist()
        except (OSError, zipfile.BadZipFile):  # said when it is read
            return False

    def network(self) -> dict[str, Any]:
        arrays = self._arrays()
        if "tokens" in arrays:
            return {"name": "embedding", "vocabulary": int(arrays["tokens"][0])}
        if arrays["kind"][0] == "image" and min(arrays["x"].shape[2:]) >= LENET5:
            return {"name": "lenet5"}
        return {"name": "cnn1d" if arrays["kind"][0] == "series" else self.model}

    def parse(self, path: Path, report: Report) -> tuple[Parsed, Parsed | None]:
        try:
            arrays = load_npz(path)
        except OSError as error:
            raise DataMissing(f"{path}: {error.strerror or error}") from error
        if arrays is None:
            raise DataCorrupt(
                f"{path} is not a .npz of arrays, or is damaged; write it with numpy.savez, and write arrays of Python "
                "objects, such as labels from pandas, as y.astype(str)"
            )
        tested = {"x_test", "y_test"} if any(name.endswith("_test") for name in arrays) else set()
        whose = {"client", "client_test"} if "client" in arrays and tested else {"client"} & set(arrays)
        needed = {"x", "y"} | tested | whose
        if not needed <= set(arrays) <= needed | (set() if tested else {"split"}):
            raise DataCorrupt(
                f"{self.shown} holds {', '.join(sorted(arrays)) or 'nothing'}; expected x and y, or x, y, x_test and "
                "y_test; add client (and client_test), each sample's client, or split, with train, val or test of one x"
            )
        named: Parsed = {name: arrays[name] for name in ("x", "y", "client", "split") if name in arrays}
        test = {name: arrays[f"{name}_test"] for name in named} if tested else None
        return {**named, "kind": np.array(self.kind)}, test


def _joined(shown: str, train: Parsed, test: Parsed | None, quantity: bool) -> Parsed:
    """Return the arrays to keep: training samples first, numbered labels, each channel's mean and deviation.

    `quantity`: whether the labels are one. `said`: a line for each choice that the user may have meant otherwise.

    Raises:
        DataCorrupt: impossible samples or labels.
    """
    parts = [train] if test is None else [train, test]
    for split, part in zip(SPLITS, parts, strict=False):
        shape = part["y"].shape
        if shape[:1] == part["x"].shape[:1] == (0,):
            raise DataCorrupt(f"{shown}: the {split} split is empty; leave it out, or add samples")
        if len(shape) != 1 or shape != part["x"].shape[:1] or not part["y"].size:
            one = "a column take y.ravel()" if shape[1:] == (1,) else "one-hot labels take y.argmax(1)"
            hint = f"; of {one}" if len(shape) == 2 else ""
            raise DataCorrupt(
                f"{shown}: labels must be a list as long as the samples, got {part['x'].shape} and {shape}{hint}"
            )
    try:
        asked = str(train.get("kind", "image"))
        kind = _kind_of(train["x"]) if asked == "auto" else asked
        x = _samples([part["x"] for part in parts], kind, raw="columns" in train)
        labels, said = _labels([part["y"] for part in parts], quantity=quantity)
        names, y, more = _numbered(labels, quantity=quantity)
        owned, heard = _owned(parts)
        order, count = _order(y, owned, len(train["y"]))
    except (ValueError, TypeError) as error:
        raise DataCorrupt(f"{shown}: {error}") from error
    said += [line for part in parts for line in part.get("said", np.zeros(0, np.str_)).tolist()] + heard
    said += _understood(train["x"], asked, kind)
    if kind == "image" and train["x"].shape[1:] == x.shape[1:] and x.shape[3] < x.shape[1] not in COLOURS:
        said.append(f"samples {list(x.shape[1:])} were taken as [C, H, W]: {x.shape[1]} channels; transpose [H, W, C]")
    x, y = x[order], y[order]
    owned |= {name: owned[name][order] for name in ("domain", "part") if name in owned}
    more = {"rows": order} | {name: each[order] for name, each in more.items()}
    said += _doubts(names, y, count)
    seen = np.nan_to_num(x[:count].astype(np.float64), copy=False)
    mean, std = seen.mean((0, 2, 3)), seen.std((0, 2, 3))
    if kind == "tokens":
        more["tokens"] = np.array([int(x.max()) + 1])
        mean, std = np.zeros(1), np.ones(1)
    elif kind == "table":
        more |= {name: train[name] for name in ("columns", "words", "inputs") if name in train}
        more.setdefault("columns", np.zeros(x.shape[3], dtype=np.int64))
    said += [] if test is None or "tokens" in more else _scales(seen, x[count:])
    said += _copies(x, more.get("target", y), count)
    return {
        "x": x,
        "y": y,
        "num_train": np.array([count]),
        "classes": np.array([len(names)]),
        "mean": mean,
        "std": np.where(std > 0, std, 1.0),
        "said": np.array(said, dtype=np.str_),
        "kind": np.array([kind]),
        **more,
        **owned,
    }


def _order(y: Ints, owned: Parsed, count: int) -> tuple[Ints, int]:
    """Return (the samples in the order in which they are kept, training samples first; the number of these).

    `y` has all labels, `count` those of the training samples of the file; `owned` has `part` if it is given.

    Raises:
        ValueError: there is no training sample.
    """
    if "part" in owned:
        tested = owned["part"] == PARTS.index("test")
        if not np.any(owned["part"] == PARTS.index("train")):
            raise ValueError("no sample is for training; write train in split for the training samples")
        return np.argsort(tested, kind="stable"), int(np.sum(~tested))
    if count < len(y) or owned:  # the protocol splits the samples of each client
        return np.arange(len(y)), count
    held = stratified_fifth(y, "own")
    return np.concatenate([np.flatnonzero(~held), np.flatnonzero(held)]), int(np.sum(~held))


def _kind_of(x: NDArray[Any]) -> str:
    """Return the kind of the samples [n, ...]; see Npz.kind."""
    if x.dtype == np.uint8 or x.ndim not in (2, 3):
        return "image"
    if x.ndim == 3:
        return "image" if x.shape[1] == x.shape[2] else "series"
    if x.dtype.kind not in "iu" or x.shape[1] < WORDS or x.min() < 0 or x.max() <= PIXELS:
        return "table"
    return "tokens" if 2 * np.sum(LIKE * x.max(0).astype(np.float64) >= x.max()) >= x.shape[1] else "table"


def _owned(parts: Sequence[Parsed]) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """Return (those of `domain` [n], `names` of the clients and `part` [n] that the data give; a line on them).

    Raises:
        ValueError: samples without a client, all samples of one client, or an unknown part.
    """
    sizes = [len(part["y"]) for part in parts]
    given = {"part": _parts(parts[0]["split"], sizes[0])} if "split" in parts[0] else {}
    if "client" not in parts[0]:
        if {PARTS.index("train"), PARTS.index("val")} <= {*given.get("part", np.zeros(0)).tolist()}:
            raise ValueError("split has val, which needs samples that name their clients; name them, or write train")
        return given, []
    if len(parts) > 1:
        given["part"] = np.repeat(np.array([0, PARTS.index("test")], np.int8), sizes)
    told = []
    for split, part in zip(SPLITS, parts, strict=False):
        whose, count = part["client"], len(part["y"])
        if whose.shape != (count,) or whose.dtype.kind not in "USiufb":
            raise ValueError(
                f"client must be a list of names or numbers as long as the {count} {split} samples, got {whose.dtype} "
                f"{whose.shape}"
            )
        words = np.char.strip(_as_words(whose).astype(np.str_))
        if len(missing := np.flatnonzero(np.isin(np.char.lower(words), MISSING))):
            raise ValueError(
                f"{len(missing)} of {count} {split} samples, the first at {missing[0]}, name no client; give each one, "
                "or leave them out"
            )
        told.append(words)
    names, domain, counts = np.unique(np.concatenate(told), return_inverse=True, return_counts=True)
    if len(names) < 2:
        raise ValueError(
            f"all samples are of client {names[0]}, a federation needs two clients; leave the client out and divide "
            "the samples with partition=dir0.3"
        )
    if all(name.isdecimal() for name in names.tolist()):
        order = np.array(sorted(range(len(names)), key=lambda place: int(names[place])))
        names, domain = names[order], np.argsort(order)[domain]
    line = f"{len(names)} clients, {names[0]} to {names[-1]}, of {counts.min()} to {counts.max()} samples"
    return {**given, "domain": domain.astype(np.int64), "names": names}, [line]


def _as_words(whose: NDArray[Any]) -> NDArray[Any]:
    """Return clients' numbers as whole numbers ("" for a gap, which makes them floats); names stay as they are."""
    if whose.dtype.kind != "f":
        return whose
    if (endless := np.isinf(whose)).any():
        raise ValueError(f"client is {whose[endless][0]} for some samples; name the client of each sample")
    numbers = np.nan_to_num(whose)
    if (numbers != numbers.round()).any():
        return whose
    return np.where(np.isnan(whose), "", numbers.astype(np.int64).astype(str))


def _parts(split: NDArray[Any], count: int) -> NDArray[np.int8]:
    """The place in PARTS of each of `count` samples.

    Raises:
        ValueError: other words than SPLIT has.
    """
    words = np.char.lower(np.char.strip(split.astype(np.str_)))
    if words.shape != (count,):
        raise ValueError(f"split must be a list as long as the {count} samples, got {split.shape}")
    if len(odd := np.flatnonzero(~np.isin(words, list(SPLIT)))):
        raise ValueError(f"split is '{split[odd[0]]}' at {odd[0]}; write train, val or test")
    return np.array([SPLIT[word] for word in words.tolist()], dtype=np.int8)


def _samples(parts: Sequence[NDArray[Any]], kind: str, *, raw: bool) -> NDArray[Any]:
    """The samples of both splits as one array [n, C, H, W], uint8 or float32; with `raw` it may contain nan.

    A table is float64 if float32 loses a part of a column's range, as of seconds since 1970.

    Raises:
        ValueError: an impossible shape, no numbers, values that are not finite, or splits that differ in these.
    """
    read = [_shaped(part, kind) for part in parts]
    kinds = ["uint8, pixels up to 255" if part.dtype == np.uint8 else KINDS[part.dtype.kind] for part in parts]
    shapes = [list(part.shape[1:]) for part in read]
    for what, found in (("are", kinds), ("have shape [C, H, W] =", shapes)):
        if found[0] != found[-1]:
            raise ValueError(f"training samples {what} {found[0]}, test samples {what} {found[-1]}; make them the same")
    for split, part in zip(SPLITS, read, strict=False):
        odd = np.flatnonzero(~np.isfinite(part).all((1, 2, 3)))
        if len(odd) and not raw:
            raise ValueError(
                f"{len(odd)} of {len(part)} {split} samples, the first at {odd[0]}, hold nan, inf or a number outside "
                "float32; leave them out, or replace the value"
            )
    rounded = np.concatenate(read)
    if kind != "table":
        return rounded
    exact = np.concatenate(parts).astype(np.float64).reshape(rounded.shape)
    span = np.ma.masked_invalid(exact).ptp(axis=0).filled(0)  # nan marks gaps
    lost = (span > 0) & (np.nan_to_num(np.abs(exact - rounded)).max(axis=0) > LOST * span)
    return exact if lost.any() else rounded


def _labels(parts: Sequence[NDArray[Any]], *, quantity: bool) -> tuple[NDArray[Any], list[str]]:
    """Return the labels of both splits as integers, words or (a `quantity`) float64, and a line on how they are read.

    Raises:
        ValueError: labels that name no classes, or numbers in one split and words in the other.
    """
    if quantity:
        return np.concatenate([_quantities(*each) for each in zip(SPLITS, parts, strict=False)]), []
    kinds = {"U": "words", "S": "words", "b": "booleans"}
    words = [kinds.get(part.dtype.kind, "numbers") for part in parts]
    if words[0] != words[-1]:
        raise ValueError(f"training labels are {words[0]}, test labels {words[-1]}; write both in one way")
    if words[0] == "words":
        return np.concatenate(parts), []
    whole = []
    for split, part in zip(SPLITS, parts, strict=False):
        if part.dtype.kind not in KINDS:
            raise ValueError(f"labels must be numbers or words, got {part.dtype}")
        floats = part if part.dtype.kind == "f" else np.zeros(0)
        odd = np.flatnonzero(~(np.abs(floats) <= EXACT) | (np.trunc(floats) != floats))
        if len(odd):
            raise ValueError(
                f"{len(odd)} of {len(part)} {split} labels, the first {part[odd[0]]:g} at {odd[0]}, are not a class; a "
                "label is a whole number or a word; dataset.task=regression: for a quantity"
            )
        if part.dtype.kind == "u" and part.max() > np.iinfo(np.int64).max:
            raise ValueError(f"{split} labels do not fit into int64; number the classes")
        whole.append(part.astype(np.int64))
    labels = np.concatenate(whole)
    taken = f"labels are floats; as they are whole they were taken for {len(np.unique(labels))} classes"
    told = [split for split, part in zip(SPLITS, parts, strict=False) if part.dtype.kind == "f"]
    return labels, [f"{split} {taken}; dataset.task=regression: for a quantity" for split in told]


def _numbered(labels: NDArray[Any], *, quantity: bool) -> tuple[NDArray[Any], Ints, dict[str, NDArray[Any]]]:
    """Return (names of the classes, class number of each label; with a quantity `target` and a single class).

    Raises:
        ValueError: all labels are the same.
    """
    names, y = np.unique(labels, return_inverse=True)
    if len(names) < 2:
        needed = "another number" if quantity else "at least two classes"
        raise ValueError(f"all labels are {names[0]}, so any model is right; give {needed}")
    if quantity:
        return names[:1], np.zeros(len(labels), dtype=np.int64), {"target": labels}
    return names, y.astype(np.int64), {}


def _quantities(split: str, y: NDArray[Any]) -> NDArray[np.float64]:
    """Return the quantities that are a split's labels.

    Raises:
        ValueError: no numbers, or some that are not finite.
    """
    if y.dtype.kind not in "iuf":
        raise ValueError(
            f"{split} labels are {KINDS.get(y.dtype.kind, 'words')}; dataset.task=regression needs numbers"
        )
    if len(odd := np.flatnonzero(~np.isfinite(y))):
        raise ValueError(
            f"{len(odd)} of {len(y)} {split} labels, the first {y[odd[0]]:g} at {odd[0]}, are no quantity; leave these "
            "samples out"
        )
    return y.astype(np.float64)


def _understood(x: NDArray[Any], asked: str, kind: str) -> list[str]:
    """Return how the training samples of the file are read, if the user may have meant otherwise."""
    if asked != "auto":
        return []
    shape, line = list(x.shape[1:]), ""
    if kind == "tokens":
        line = (
            f"samples {shape} of whole numbers up to {x.max()} were taken for token numbers, 0 for padding; "
            "dataset.kind=table: for quantities"
        )
    elif kind == "series":
        line = (
            f"samples {shape} were taken for series of {shape[0]} channels and {shape[1]} steps; "
            "dataset.kind=image: for grey images"
        )
    elif x.dtype.kind in "iu" and x.dtype != np.uint8 and int(x.max()) - int(x.min()) > PIXELS:
        line = (
            f"samples are integers from {x.min()} to {x.max()}, taken for quantities; dataset.kind=tokens: for "
            "token numbers"
        )
    return [line] * bool(line)


def _doubts(names: NDArray[Any], y: NDArray[np.int64], count: int) -> list[str]:
    """Return names and doubts about the classes `names` of samples with labels `y`; the first `count` train."""
    words = [each.decode(errors="replace") if isinstance(each, bytes) else str(each) for each in names.tolist()]
    numbered = len(words) < 2 or words == [*map(str, range(len(words)))]  # or a quantity, which has one class
    shown = ", ".join(words[:CLASSES]) + ", ..." * (len(words) > CLASSES)
    said = [] if numbered else [f"classes 0 to {len(words) - 1} are the labels {shown}"]
    if len(names) > max(2, len(y) // 2):
        taken = f"{len(y)} samples have {len(names)} different labels, each taken for a class"
        said.append(f"{taken}; dataset.task=regression: for a quantity" if names.dtype.kind in "iuf" else taken)
    if lost := [str(name) for name in names.tolist() if str(name).lower() in MISSING]:
        said.append(f"labels {lost} were taken for classes; leave out samples whose label is missing")
    if unseen := names[np.setdiff1d(y[count:], y[:count])].tolist():
        more = ", ..." if len(unseen) > 5 else ""
        said.append(f"no training sample has a label that test samples have: {', '.join(map(str, unseen[:5]))}{more}")
    return said


def _copies(x: NDArray[Any], y: NDArray[Any], count: int) -> list[str]:
    """Return a line on samples that occur more than once with one label; the first `count` are for training."""
    digests = [hashlib.blake2b(x[i].tobytes() + y[i].tobytes()).digest() for i in range(len(y))]
    copies, trained = len(digests) - len({*digests}), {*digests[:count]}
    if not copies:
        return []
    leaked = sum(digest in trained for digest in digests[count:])
    told = f"{copies} of {len(y)} samples are copies of others"
    told += f", {leaked} test samples are of training samples" * (count < len(y))  # else the protocol will split them
    return [f"{told}: models may be tested on their training samples; remove copies, or use partition=file"]


def _scales(seen: NDArray[np.float64], test: NDArray[Any]) -> list[str]:
    """Return a line on test samples with another scale than the training samples `seen`, such as 0..255 and 0..1."""
    mean, std = float(seen.mean()), float(seen.std())
    off, spread = abs(float(test.mean(dtype=np.float64)) - mean), float(test.std(dtype=np.float64))
    if off <= APART * std and std <= APART * spread and spread <= APART * std:
        return []
    first, second = (f"{part.min():g} to {part.max():g}" for part in (seen, test))
    return [f"training samples span {first}, test samples {second}: other scales, taken as they are"]


def _shaped(x: NDArray[Any], kind: str) -> NDArray[Any]:
    """Return `x` as [n, C, H, W], uint8 or float32; numbers too large for it become inf.

    Tables and tokens become [n, 1, 1, d], series [n, C, 1, T].

    Raises:
        ValueError: an impossible shape for this kind, or values that are no numbers.
    """
    if x.dtype.kind not in KINDS:
        raise ValueError(f"samples must be numbers, got {x.dtype}")
    if kind == "tokens" and not (np.array_equal(x, np.trunc(x)) and x.min(initial=0) >= 0 and x.max() < EXACT_32):
        raise ValueError(f"token numbers must be whole, from 0 to {EXACT_32 - 1}, got {x.min()} to {x.max()}")
    with np.errstate(over="ignore", invalid="ignore"):
        x = x if x.dtype == np.uint8 and kind == "image" else x.astype(np.float32)
    if 0 in x.shape:
        raise ValueError(f"samples must not be empty, got {list(x.shape)}")
    if kind == "series" and x.ndim in (2, 3):
        return x.reshape(len(x), -1, 1, x.shape[-1])
    if x.ndim == 2:
        return x[:, None, None, :]
    if kind in ("table", "tokens", "series"):
        raise ValueError(f"{kind} of samples {list(x.shape)}; expected {'[n, C, T]' if kind == 'series' else '[n, d]'}")
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 4:
        last = x.shape[3] in (*COLOURS, 4) and x.shape[1] not in COLOURS
        return x.transpose(0, 3, 1, 2) if last else x
    raise ValueError(f"samples must be [n, d], [n, H, W], [n, C, H, W] or [n, H, W, C], got {list(x.shape)}")


@dataclass(frozen=True)
class ImageFolder(OwnData):
    """CLASS/IMAGE files, or train/CLASS/IMAGE and test/CLASS/IMAGE; colour images, scaled to one size.

    CLIENT/CLASS/IMAGE if no folder of the first level holds an image and one of the second does.
    """

    name: ClassVar[str] = "images"

    model: str = "lenet5"
    size: int = at_least(1, 32)  # height and width in pixels

    @property
    def label(self) -> str:
        """The folder's name and the size."""
        return f"{super().label}-{self.size}px"

    @property
    def variant(self) -> str:
        """The size, and the rules of parsing: 16 bits of grey are scaled, and turned images are set upright."""
        return f"-{self.size}-deep-upright"

    @property
    def owned(self) -> bool:
        """Whether the first level of folders, below train and test if they are there, are clients."""
        return _of_clients(_splits(self.place))

    def read(self, report: Report = silent) -> Dataset:
        for line in _left_out(self.place):
            warn_once(line)
        return super().read(report)

    def files(self, path: Path) -> list[Path]:
        """Every image."""
        return [file for split in _splits(path) for label in _classes(split, self.owned) for file in _images(label)]

    def parse(self, path: Path, report: Report) -> tuple[Parsed, Parsed | None]:
        splits = _splits(path)
        parts = [each.name for each in _classes(path) if each.name.lower() in SPLIT]
        if len(splits) == 1 < len(parts):
            raise DataCorrupt(f"{path} has the folders {' and '.join(parts)}; the names of splits are train and test")
        train, *test = [self._split(split, report) for split in splits]
        return train, test[0] if test else None

    def _split(self, folder: Path, report: Report) -> Parsed:
        files = [file for label in _classes(folder, self.owned) for file in _images(label)]
        if not files:
            raise DataCorrupt(
                f"{folder} holds no images ({', '.join(IMAGE_SUFFIXES)}) in a folder for each class: CLASS/IMAGE, or "
                "CLIENT/CLASS/IMAGE"
            )
        doubts: dict[str, list[Path]] = {}
        x = read_images(files, self.size, resize=True, upright=True, report=report, doubts=doubts)
        said = [
            f"{len(found)} of {len(files)} images, the first {min(found).relative_to(folder)}, {doubt}"
            for doubt, found in sorted(doubts.items())
        ]
        whose = {"client": np.array([file.parents[1].name for file in files])} if self.owned else {}
        labels = np.array([file.parent.name for file in files])
        return {"x": x, "y": labels, "said": np.array(said, dtype=np.str_), **whose}


def _splits(path: Path) -> list[Path]:
    named = [path / "train", path / "test"]
    return named if all(folder.is_dir() for folder in named) else [path]


def _of_clients(splits: Sequence[Path]) -> bool:
    """Whether each of `splits` has images two levels of folders down and none one level down."""
    first = [folder for split in splits for folder in _classes(split)]
    return not any(map(_images, first)) and any(map(_images, (each for folder in first for each in _classes(folder))))


def _classes(folder: Path, owned: bool = False) -> list[Path]:
    """Return the folders of classes in `folder`, or, if `owned`, in each of its folders."""
    folders = [entry for entry in _shown(folder) if entry.is_dir()]
    return [each for client in folders for each in _classes(client)] if owned else folders


def _images(folder: Path) -> list[Path]:
    return [file for file in _shown(folder) if file.suffix.lower() in IMAGE_SUFFIXES and file.is_file()]


def _shown(folder: Path) -> list[Path]:
    """Return the content of a folder without names that begin with a dot, such as .ipynb_checkpoints."""
    return sorted(each for each in folder.iterdir() if not each.name.startswith(".")) if folder.is_dir() else []


def _left_out(path: Path) -> Iterator[str]:
    """Yield the files of a folder of images that are not read but may be meant to be."""
    splits, suffixes = _splits(path), ", ".join(IMAGE_SUFFIXES)
    owned = _of_clients(splits)
    if beside := [each.name for each in _classes(path) if len(splits) > 1 and each not in splits]:
        yield f"{path}: only train and test are read, not {', '.join(beside)}"
    for label in (each for split in splits for each in _classes(split, owned)):
        images = {*_images(label)}
        if not images:
            yield f"{label} holds no image ({suffixes}) and is no class"
        elif others := [each.name for each in _shown(label) if each not in images]:
            more = f" and {len(others) - 1} more" * (len(others) > 1)
            yield f"{label}: {others[0]}{more} left out, no image ({suffixes})"
