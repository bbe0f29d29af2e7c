"""The bubble plot of a partition: what is drawn is what was counted."""

from __future__ import annotations

import math
import time
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from fedbench.plots.runs import partition_svg

SVG = "{http://www.w3.org/2000/svg}"


def circles(counts, title="toy"):
    root = ET.fromstring(partition_svg(np.asarray(counts), title))
    return root, root.findall(f".//{SVG}circle")


def test_areas_are_in_proportion_and_places_in_order():
    root, found = circles([[100, 0, 25], [0, 4, 0]])
    drawn = {each.find(f"{SVG}title").text: each for each in found}
    assert set(drawn) == {"client 0, class 0: 100", "client 0, class 2: 25", "client 1, class 1: 4"}
    radius = {text.rpartition(" ")[2]: float(each.get("r")) for text, each in drawn.items()}
    assert radius["100"] == pytest.approx(2 * radius["25"], abs=0.01)
    assert radius["100"] == pytest.approx(5 * radius["4"], abs=0.03)
    x, y = ({t: float(each.get(k)) for t, each in drawn.items()} for k in ("cx", "cy"))
    assert x["client 0, class 0: 100"] == x["client 0, class 2: 25"] < x["client 1, class 1: 4"]
    assert y["client 0, class 2: 25"] < y["client 1, class 1: 4"] < y["client 0, class 0: 100"]  # class 0 at the bottom
    width, height = float(root.get("width")), float(root.get("height"))
    assert all(0 < float(each.get("cx")) < width and 0 < float(each.get("cy")) < height for each in found)


def test_labels_and_titles_are_text():
    root, _ = circles(np.ones((100, 200), dtype=int), "a <b> & c")
    texts = [each.text for each in root.findall(f"{SVG}text")]
    assert texts[0] == "a <b> & c; largest circle: 1"
    assert {"client", "class", "0", "10", "90", "180"} <= set(texts)
    assert len(texts) < 30


def test_it_costs_a_run_nothing():
    counts = np.random.default_rng(0).integers(0, 60, (100, 10))
    start = time.process_time()
    text = partition_svg(counts, "toy")
    assert time.process_time() - start < 0.1
    assert len(text) < 150_000
    assert math.isfinite(float(ET.fromstring(partition_svg(np.zeros((1, 1), int), "")).get("width")))
