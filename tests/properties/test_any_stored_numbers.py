"""What is written is what is read: tables of text, histories, folders with checksums."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from fedbench.core import checked, files
from fedbench.core.checked import ChecksummedFolder
from fedbench.engine.history import History, Record
from fedbench.metrics import Tally
from tests.helpers.examples import tried

cells = st.one_of(st.text(max_size=5), st.integers(), st.floats(), st.just('a"b,\n\r;'))


@given(st.lists(st.dictionaries(st.sampled_from(["a", "b c", "d,e"]), cells, min_size=1), min_size=1, max_size=4))
@example([{"a": 'a"b,\n', "b c": "\r0"}, {"a": "\r"}])
@tried(5)
def test_what_is_written_as_csv_is_read_back(rows: list[dict[str, Any]]) -> None:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    assume(len(columns) > 1 or all(str(row.get(columns[0], "")) for row in rows))
    with tempfile.TemporaryDirectory() as folder:
        ChecksummedFolder(Path(folder), "again").write({"x.csv": files.as_csv(rows)})
        found = ChecksummedFolder(Path(folder), "again").csv("x.csv")
    assert [list(row) for row in found] == [columns] * len(rows)
    for row, before in zip(found, rows, strict=True):
        for column, text in row.items():
            value = before.get(column, "")
            if isinstance(value, float):
                assert repr(float(text)) == repr(value)
            else:
                assert text == str(value)


@st.composite
def histories(draw: st.DrawFn) -> History:
    clients = draw(st.integers(1, 4))
    totals = draw(st.lists(st.integers(0, 9), min_size=clients, max_size=clients))
    history, done, up, down = History(), -1, 0, 0
    for _ in range(draw(st.integers(1, 4))):
        done += draw(st.integers(1, 3))
        up, down = up + draw(st.integers(0, 2**40)), down + draw(st.integers(0, 2**40))
        names = draw(st.lists(st.sampled_from(["local", "val", "trained_local"]), min_size=1, unique=True))
        tallies = {name: Tally([draw(st.integers(0, t)) for t in totals], totals) for name in names}
        seconds = draw(st.dictionaries(st.sampled_from(["train", "evaluate"]), st.floats(0, 1e6)))
        history.add(Record(done, tallies, up, down, seconds, draw(st.one_of(st.just(math.nan), st.floats(0, 9)))))
    return history


@given(histories())
@tried(3)
def test_a_history_comes_back_from_a_checkpoint(history: History) -> None:
    again = History.restore(*history.state())
    columns = [[{name: repr(value) for name, value in row.items()} for row in each.rows()] for each in (again, history)]
    assert columns[0] == columns[1]
    assert {k: v.tolist() for k, v in again.arrays().items() if k != "train_loss"} == {
        k: v.tolist() for k, v in history.arrays().items() if k != "train_loss"
    }


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.binary(max_size=9), min_size=1), min_size=1, max_size=3))
@tried(2)
def test_a_sealed_folder_holds_what_was_written_last_wherever_the_writer_stops(
    writes: list[dict[str, bytes]],
) -> None:
    """Stopped at any replacement of a file, every file is one of those written, and the last or the one before."""
    *before, last = writes
    known: dict[str, bytes] = {}
    for each in before:
        known |= each
    for stop in range(len(last) + 2):
        with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
            folder = ChecksummedFolder(Path(place), "again")
            for each in before:
                folder.write(each)
            written = []

            def one(path: Path, content: bytes, so_far: Any = written, end: int = stop) -> None:
                if len(so_far) == end:
                    raise KeyboardInterrupt
                so_far.append(path)
                files.write_bytes(path, content)

            patch.setattr(checked, "write_bytes", one)
            try:
                folder.write(last)
            except KeyboardInterrupt:
                assert len(written) == stop
            for name in {**known, **last}:
                if name in known or (Path(place) / name).is_file():
                    assert folder.read(name) in (known.get(name), last.get(name))
