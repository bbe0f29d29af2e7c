"""Whatever arrays a file of one's own holds: each class is one label of theirs and every number is right, or a line.

A mistake that people make is never silent: it is refused, or a line says what was understood.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedbench.core import errors
from fedbench.core.errors import FedbenchError, warn_once
from fedbench.data.dataset import Dataset
from fedbench.data.datasets import own
from fedbench.data.datasets.own import Npz
from tests.helpers.examples import line_of, tried

Arrays = dict[str, np.ndarray]


def read(arrays: Arrays) -> tuple[Dataset | None, list[str]]:
    """What is made of a file with `arrays`, and the lines that are said: the error's, if it is refused.

    Without that on copies, of which these few small samples have many: it would pass for any mistake's.
    """
    said: list[str] = []
    warn_once.cache_clear()
    with (
        tempfile.TemporaryDirectory() as folder,
        warnings.catch_warnings(),
        pytest.MonkeyPatch.context() as patch,
    ):
        warnings.simplefilter("error")  # no warning of numpy reaches a person
        patch.setattr(errors.log, "warning", lambda form, *values: said.append(form % values))
        patch.setattr(own, "cached_arrays", lambda _, build: build())
        np.savez(path := Path(folder) / "mine.npz", **arrays)
        try:
            return Npz(path=str(path)).load(), [line for line in said if "are copies of others" not in line]
        except FedbenchError as error:
            return None, [*said, line_of(error)]


sizes = st.integers(6, 12)
types = st.sampled_from(["uint8", "int8", "uint16", "int64", "uint64", "float16", "float32", "float64", "bool"])
shapes = st.sampled_from([(3,), (2, 2), (1, 2, 2), (2, 2, 3), (3, 2, 2)])
label_types = st.sampled_from(["int64", "uint8", "uint64", "float32", "float64", "bool", "U3", "S3"])


@st.composite
def wholes(draw: st.DrawFn) -> Arrays:
    """Arrays in which nothing is odd: some samples of each of two to three classes, in one type and scale."""
    shape, kind, label = draw(shapes), draw(types), draw(label_types)
    found: Arrays = {}
    for suffix in ("", "_test"):
        n, classes = draw(sizes), 2 if label == "bool" else 3
        values = np.arange(n * int(np.prod(shape))).reshape(n, *shape) % 7
        found[f"x{suffix}"] = values.astype(kind)
        found[f"y{suffix}"] = (np.arange(n) % classes).astype(label)
    return found if draw(st.booleans()) else {name: found[name] for name in ("x", "y")}


@given(wholes())
@tried(6)
def test_what_is_whole_is_read_as_it_is(arrays: Arrays) -> None:
    data, said = read(arrays)
    assert data is not None
    assert all("labels are floats" in line for line in said)
    assert bool(said) == (arrays["y"].dtype.kind == "f")
    y = np.concatenate([arrays[name] for name in ("y", "y_test") if name in arrays])
    assert sorted(np.bincount(data.y)) == sorted(np.unique(y, return_counts=True)[1])
    if "y_test" in arrays:
        assert [str(np.unique(y)[k]) for k in data.y] == [str(each) for each in y]
        assert data.num_train == len(arrays["y"])
    else:
        counts = np.bincount(data.y)
        assert data.num_train == len(y) - np.maximum(counts // 5, np.minimum(1, counts - 1)).sum()


def set_label(value: float) -> Callable[[Arrays, str, int], None]:
    def spoil(arrays: Arrays, suffix: str, place: int) -> None:
        for each in ("y", "y_test"):
            arrays[each] = arrays[each].astype(np.float64)
        arrays[f"y{suffix}"][place % len(arrays[f"y{suffix}"])] = value

    return spoil


def set_pixel(value: float) -> Callable[[Arrays, str, int], None]:
    def spoil(arrays: Arrays, suffix: str, place: int) -> None:
        for each in ("x", "x_test"):
            arrays[each] = arrays[each].astype(np.float64)
        arrays[f"x{suffix}"].reshape(-1)[place % arrays[f"x{suffix}"].size] = value

    return spoil


def other_type(arrays: Arrays, suffix: str, place: int) -> None:
    kinds = ["uint8", "float32", "int64"]
    kinds = [kind for kind in kinds if own.KINDS[np.dtype(kind).kind] != own.KINDS[arrays["x"].dtype.kind]]
    arrays[f"x{suffix}"] = arrays[f"x{suffix}"].astype(kinds[place % len(kinds)])


def other_scale(arrays: Arrays, suffix: str, place: int) -> None:
    for each in ("x", "x_test"):
        arrays[each] = arrays[each].astype(np.float64)
    arrays[f"x{suffix}"] *= (255.0, 1 / 255, 16.0, 65_535.0)[place % 4]


def other_words(arrays: Arrays, suffix: str, place: int) -> None:
    labels = arrays[f"y{suffix}"]
    worded = labels.dtype.kind in "US"
    arrays[f"y{suffix}"] = np.arange(len(labels)) % 3 if worded else labels.astype(str)


def other_shape(arrays: Arrays, suffix: str, place: int) -> None:
    x = arrays[f"x{suffix}"]
    arrays[f"x{suffix}"] = np.concatenate([x, x], axis=2 if x.ndim == 4 else 1)


def shorter(arrays: Arrays, suffix: str, place: int) -> None:
    arrays[f"y{suffix}"] = arrays[f"y{suffix}"][1:]


def shifted(arrays: Arrays, suffix: str, place: int) -> None:
    """Labels from 1 in one split and from 0 in the other."""
    for each in ("y", "y_test"):
        arrays[each] = np.arange(len(arrays[each])) % 3
    arrays["y_test"] += 1


MISTAKES = {
    "nan label": set_label(float("nan")),
    "inf label": set_label(float("inf")),
    "part of a label": set_label(1.5),
    "nan": set_pixel(float("nan")),
    "inf": set_pixel(float("-inf")),
    "large": set_pixel(1e300),
    "type": other_type,
    "scale": other_scale,
    "words": other_words,
    "shape": other_shape,
    "shorter": shorter,
    "shifted": shifted,
}


@pytest.mark.slow
@given(wholes().filter(lambda arrays: "y_test" in arrays), st.sampled_from(sorted(MISTAKES)), st.booleans(), sizes)
@tried(12)
def test_no_mistake_is_silent(arrays: Arrays, mistake: str, test: bool, place: int) -> None:
    MISTAKES[mistake](arrays, "_test" if test else "", place)
    _, said = read(arrays)
    assert [line for line in said if "labels are floats" not in line], "a word"


anything = st.builds(
    lambda kind, shape, values: np.resize(np.array(values), shape).astype(kind, casting="unsafe"),
    st.sampled_from(["uint8", "int64", "float64", "float16", "complex64", "bool", "U2", "S1", "datetime64[s]"]),
    st.lists(st.integers(0, 6), min_size=0, max_size=5).map(tuple),
    st.lists(st.integers(-3, 300), min_size=1, max_size=9),
)


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(["x", "y", "x_test", "y_test"]), anything, min_size=1))
@example({"x": np.zeros((3, 2, 2, 2, 2)), "y": np.zeros(3)})
@example({"x": np.array(1.0), "y": np.array(1.0)})
@tried(12)
def test_any_arrays(arrays: Arrays) -> None:
    data, said = read(arrays)
    assert (data is None) <= (len(said) > 0)
    if data is not None:
        assert np.isfinite(data.x).all()
        assert all(dtype.kind in "biufUS" for dtype in (array.dtype for array in arrays.values()))
