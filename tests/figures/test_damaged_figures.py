"""The files of a figure, damaged at many places: refused in one line, never another number."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from fedbench.core import files
from fedbench.core.files import as_json, as_npz
from fedbench.figures import plan
from tests.helpers.damage import DAMAGES, tried

DRAWN = plan.Drawn("fedsac_f7", "quick", "Figure 7", "t", "digits", (0,), "command", "claim")


@pytest.mark.parametrize("name", ["fedsac_f7.npz", "fedsac_f7.json", files.MANIFEST])
def test_a_figure_gives_its_own_numbers_or_none(tmp_path: Path, name: str) -> None:
    place = tmp_path / "quick" / "fedsac_f7"
    place.parent.mkdir()
    content = {f"{place.name}.npz": as_npz({"W": np.eye(3)}), f"{place.name}.json": as_json(asdict(DRAWN))}
    plan.files_of(place).write(content)
    found = tried(place.with_name(name), lambda: plan.load_figure(place))
    assert found["refused"] > 2 * DAMAGES
    assert set(found) <= ({"refused", "no difference"} if name == files.MANIFEST else {"refused"})
