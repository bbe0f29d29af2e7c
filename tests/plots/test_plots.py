"""The bubble plot of a partition: what is drawn is what was counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedbench.plots import style
from fedbench.plots.runs import gain_bars, partition_bubbles


def test_areas_are_in_proportion_and_places_in_order() -> None:
    counts = np.array([[100, 0, 25], [0, 4, 0]])
    (axis,) = partition_bubbles(counts, "toy", ["south", "north"]).axes
    (circles,) = axis.collections
    assert circles.get_offsets().tolist() == [[0, 0], [0, 2], [1, 1]], "[client, class]"
    assert circles.get_sizes() / circles.get_sizes()[0] == pytest.approx([1, 0.25, 0.04])
    assert (axis.get_title(), axis.get_xlabel(), axis.get_ylabel()) == ("toy", "client", "class")
    assert [text.get_text() for text in axis.get_xticklabels()] == ["south", "north"]


def test_a_client_without_samples_is_drawn_too() -> None:
    (axis,) = partition_bubbles(np.zeros((1, 1), int)).axes
    assert not axis.collections[0].get_offsets().tolist()


def test_dollars_in_a_client_s_name_are_no_formula(tmp_path: Path) -> None:
    """`$5_$` would end the command: no formula ends with _."""
    names = ["$10k-$20k", "$5_$"]
    with style.styled("gain"):
        style.save_as(gain_bars(np.array([1.0, -1.0]), "fedavg, table-$a_$", names), tmp_path / "gain", formats=["svg"])
    text = (tmp_path / "gain.svg").read_text(encoding="utf-8")
    assert all(f">{name}</text>" in text for name in [*names, "fedavg, table-$a_$"])
