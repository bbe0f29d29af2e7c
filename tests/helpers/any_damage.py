"""Damage of any kind to any bytes, as a strategy, and what a reader may make of it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from fedbench.core.errors import DataCorrupt, FedbenchError
from tests.helpers.examples import line_of

Damage = Callable[[bytes], bytes]
EXTREME = (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\0\0", b"\0\0\0\x40", b"\x80")


@st.composite
def damages(draw: st.DrawFn) -> Damage:
    """A function that flips bits, cuts, repeats, inserts or replaces at places that it says in thousandths."""
    kinds = st.sampled_from(["flip", "cut", "remove", "repeat", "zero", "insert", "replace", "append", "all"])
    place = st.one_of(st.integers(0, 2**16), st.integers(0, 64), st.integers(-64, -1))
    steps = draw(st.lists(st.tuples(kinds, place, st.integers(1, 40), st.binary(max_size=24)), min_size=1, max_size=2))
    extreme = draw(st.sampled_from(EXTREME))

    def damage(content: bytes) -> bytes:
        for kind, number, length, new in steps:
            start = number % max(1, len(content))
            end = start + length
            content = {
                "flip": lambda c, a=start, n=length: c[:a] + bytes([c[a] ^ 1 << n % 8] if c else []) + c[a + 1 :],
                "cut": lambda c, a=start: c[:a],
                "remove": lambda c, a=start, b=end: c[:a] + c[b:],
                "repeat": lambda c, a=start, b=end: c[:b] + c[a:],
                "zero": lambda c, a=start, b=end: c[:a] + bytes(len(c[a:b])) + c[b:],
                "insert": lambda c, a=start, x=new: c[:a] + x + c[a:],
                "replace": lambda c, a=start, x=extreme: c[:a] + x + c[a + len(x) :],
                "append": lambda c, x=new: c + x,
                "all": lambda _, x=new: x,
            }[kind](content)
        return content

    return damage


@contextmanager
def holding(content: bytes, name: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        yield path


def read_or_refused(path: Path, read: Callable[[Path], Any], kind: type[FedbenchError] = DataCorrupt) -> Any:
    """What `read` gives; None where it refuses the file by its name in one line."""
    try:
        return read(path)
    except kind as error:
        line = line_of(error)
    assert path.name in line
    return None
