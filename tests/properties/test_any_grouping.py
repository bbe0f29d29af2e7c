"""Whatever runs are put side by side: each counts once, and those of other samples or another key share no line."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fedbench.cli.runs import distinct_names
from fedbench.runs.progress import comparison_table, identity
from tests.helpers.examples import tried

ROW = {"dataset": "d", "partition": "p", "model": "m", "protocol": "q", "acc": 1.0, "acc_pooled": 1.0}
rows = st.builds(
    lambda method, setting, data, seed: {
        **ROW, "method": method, "seed": seed, "data": data * 12, "key": f"{setting}{method}{seed}" + 8 * "0"
    },
    st.sampled_from(["a", "b"]),
    st.sampled_from("12"),
    st.sampled_from("xyz"),
    st.integers(0, 2),
)  # fmt: skip


@given(st.lists(rows, min_size=1, max_size=9))
@tried(6)
def test_every_run_counts_once(found: list[dict[str, Any]]) -> None:
    counts = [str(cell) for table in comparison_table(found).renderables[1::2] for cell in table.columns[1].cells]
    runs = sum(int(text.partition("(")[2].partition(" ")[0] or text) for text in counts)
    assert runs == len({identity(row) for row in found})


@given(st.lists(rows, min_size=1, max_size=9, unique_by=identity))
@tried(6)
def test_no_line_of_a_figure_mixes_samples(found: list[dict[str, Any]]) -> None:
    names = distinct_names(found)
    lines: dict[str, list[dict[str, Any]]] = {}
    for name, row in zip(names, found, strict=True):
        lines.setdefault(name, []).append(row)
    for alike in lines.values():
        assert len({row["data"] for row in alike}) == 1
        assert len({row["seed"] for row in alike}) == len(alike)
