"""The bubble plot of a partition: what is drawn is what was counted."""

from __future__ import annotations

import numpy as np
import pytest

from fedbench.plots.runs import partition_bubbles


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
