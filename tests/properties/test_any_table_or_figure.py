"""Whatever happens to a file of a table or a figure: the numbers that were written, or one line of ours."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
from hypothesis import given

from fedbench.core.errors import FedbenchError
from fedbench.core.files import as_json, as_npz
from fedbench.papers import figure_plan as plan
from fedbench.papers import store
from tests.helpers.any_damage import Damage, damages, read_or_refused
from tests.helpers.examples import tried
from tests.papers.figures.test_figure_command import DRAWN
from tests.papers.tables.test_damaged_tables import stored, table


@given(damages())
@tried(4)
def test_any_table(damage: Damage) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = table(Path(place))
        whole, path = repr(stored(folder)), folder / store.ARCHIVE
        path.write_bytes(damage(path.read_bytes()))
        found = read_or_refused(path, lambda _: repr(stored(folder)), FedbenchError)
        assert found in (None, whole)


@given(damages())
@tried(4)
def test_any_figure(damage: Damage) -> None:
    with tempfile.TemporaryDirectory() as place:
        figure = Path(place) / "quick" / "fedsac_f7"
        figure.parent.mkdir()
        content = {
            f"{figure.name}.npz": as_npz({"W": np.eye(3)}),
            f"{figure.name}.json": as_json(asdict(DRAWN)),
        }
        plan.files_of_figure(figure).write(content)
        whole, path = repr(plan.load_figure(figure)), plan.files_of_figure(figure).place
        path.write_bytes(damage(path.read_bytes()))
        found = read_or_refused(path, lambda _: repr(plan.load_figure(figure)), FedbenchError)
        assert found in (None, whole)
