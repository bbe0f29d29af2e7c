"""Every figure's drawing on made-up arrays: it has what it was given, at 8 points, told apart without colour."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbench.config import groups
from fedbench.plots import runs, style
from tests.helpers.tiers import tiered
from tests.papers.plots.made import MADE, counts


def test_every_figure_is_drawn_here() -> None:
    assert sorted(MADE) == groups.names("figure")
    assert len(MADE) == 28


@pytest.mark.parametrize("name", tiered(sorted(MADE), quick=sorted(MADE)[::9]))
def test_a_figure_is_drawn(name: str, tmp_path: Path) -> None:
    paper, _, number = name.rpartition("_")
    with style.styled(name, math=True):
        figure = getattr(importlib.import_module(f"fedbench.papers.plots.{paper}"), number)(MADE[name])
        style.save_as(figure, tmp_path / name, "a caption " * 9, ("svg",))
    text = (tmp_path / f"{name}.svg").read_text(encoding="utf-8")
    assert "a caption" in text
    assert figure.get_size_inches()[0] in (style.COLUMN, style.PAGE)
    for axis in figure.axes:
        for label in (axis.xaxis.label, axis.yaxis.label, axis.title):
            assert not label.get_text() or label.get_fontsize() >= style.SIZE


def test_the_same_arrays_are_the_same_file(tmp_path: Path) -> None:
    from fedbench.papers.plots import fedrema

    for copy in ("a", "b"):
        with style.styled("fedrema_f1", math=True):
            style.save_as(fedrema.f1(MADE["fedrema_f1"]), tmp_path / copy, formats=("svg",))
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_no_two_lines_look_alike_in_grey() -> None:
    looks = [style.line_style(index) for index in range(30)]
    assert len({(str(each["linestyle"]), each["marker"], each["color"]) for each in looks}) == 30
    first = [(str(each["linestyle"]), each["marker"]) for each in looks[:8]]
    assert len(set(first)) == 8


def test_no_two_methods_of_a_plane_look_alike() -> None:
    figure = runs.local_common_plane({f"method {index}": [(50.0, 60.0)] for index in range(20)})
    looks = [(line.get_color(), line.get_marker()) for line in figure.axes[0].get_lines() if line.get_alpha() is None]
    assert len(set(looks)) == 21, "of twenty methods, and of the dotted line"


def test_lines_are_means_with_their_deviation() -> None:
    figure, ((axis,),) = style.panels()
    values = np.array([[[1.0, 2.0], [3.0, np.nan]]])
    style.draw_lines(axis, [0, 1], values, ["x"])
    assert axis.lines[0].get_ydata().tolist() == [2.0, 2.0]
    band = axis.collections[0].get_paths()[0].vertices
    assert band[:, 1].max() == pytest.approx(2 + np.sqrt(2))
    assert figure.axes == [axis]


def test_a_line_goes_on_where_another_was_scored_more_often() -> None:
    often, seldom = ({"round": rounds, "acc": [float(done) for done in rounds]} for rounds in ([0, 1, 2, 3], [0, 3]))
    lines = runs.accuracy_curves({"often": [often], "seldom": [seldom]}, "acc").axes[0].lines
    assert [line.get_xdata().tolist() for line in lines] == [[0, 1, 2, 3], [0, 3]]


def test_a_legend_of_long_names_stays_within_its_figure() -> None:
    for letters, across in ((5, 3), (12, 2), (40, 1)):
        figure, ((axis,),) = style.panels()
        for index in range(6):
            axis.plot([0, 1], [0, index], label="x" * letters)
        style.legend(figure, axis)
        assert figure.legends[0]._ncols == across
        figure.canvas.draw()
        box = figure.legends[0].get_window_extent()
        assert box.x0 >= 0, letters
        assert box.x1 <= figure.bbox.x1, letters


def test_cosines_of_label_distributions() -> None:
    q = np.array([[2, 2, 0], [1, 1, 0], [0, 0, 5]])
    assert style.label_cosine(q)[0] == pytest.approx([1, 1, 0])


def test_pictures_of_runs_show_what_they_are_given() -> None:
    figure = runs.gain_bars(np.array([3.0, -1.0, 5.0]))
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    assert heights == [5.0, 3.0, -1.0]
    labels = [text.get_text() for text in figure.axes[0].get_xticklabels()]
    assert labels == ["2", "0", "1"]
    _, counted = runs.gain_bars(np.array([3.0, -1.0, 5.0, np.nan])).axes[0].get_legend_handles_labels()
    assert counted == ["gains: 2 of 3", "does not gain: 1 of 3"], "a client without a test sample does not count"
    W = np.kron(np.array([[0, 1], [1, 0]]), np.ones((2, 2)))[:, ::-1] / 2  # clients 0, 1 and 2, 3 together
    mixed = W[np.ix_([0, 2, 1, 3], [0, 2, 1, 3])]
    ordered = style.cluster_order(mixed).tolist()
    assert {frozenset(ordered[:2]), frozenset(ordered[2:])} == {frozenset({0, 2}), frozenset({1, 3})}
    run = {
        "round": [0, 5],
        "acc": [10.0, 60.0],
        "bytes_up": [0, 1e9],
        "bytes_down": [0, 1e9],
        "seconds_total": [0.0, 3.0],
    }
    left, right = runs.cost_curves({"a": [run]}, "acc").axes  # fmt: skip
    assert left.lines[0].get_xdata().tolist() == [0.0, 2.0]
    assert list(right.lines[0].get_xdata()) == [0.0, 3.0]
    assert runs.accuracy_curves({"a": [run, run]}, "acc").axes[0].lines[0].get_ydata().tolist() == [
        10.0,
        60.0,
    ]
    assert runs.client_map(counts(9), np.eye(9)).axes
    assert runs.client_map(np.array([[3, 1], [1, 3]])).axes


def named(side: Any) -> list[tuple[int, int]]:
    """(place, name) of the ticks of a side of a picture, which names clients."""
    names = [int(label.get_text()) for label in side.get_ticklabels()]
    return list(zip(map(int, side.get_ticklocs()), names, strict=True))


@pytest.mark.parametrize("clients", [30, 75])
def test_ticks_name_the_clients_that_stand_there(clients: int) -> None:
    gain = np.random.default_rng(0).permutation(clients) - 0.5
    bars = runs.gain_bars(gain).axes[0]
    heights = {round(bar.get_x() + bar.get_width() / 2): bar.get_height() for bar in bars.patches}
    assert all(gain[client] == heights[at] for at, client in named(bars.xaxis))
    own = np.diag(np.arange(1.0, clients + 1)) + np.eye(clients)[:, ::-1]  # by its diagonal a client is known
    drawn = runs.collaboration_matrix(own).axes[0]
    shown = drawn.images[0].get_array().diagonal()
    for side in (drawn.xaxis, drawn.yaxis):
        assert 15 <= len(named(side)) <= 30
        assert all(shown[at] == own[client, client] for at, client in named(side))


def test_no_two_labels_of_a_stack_look_alike() -> None:
    bars = MADE["fedcollab_f3"]["counts/0/0"].shape[1]
    drawn = importlib.import_module("fedbench.papers.plots.fedcollab").f3(MADE["fedcollab_f3"]).axes[0].containers
    assert len({(each[0].get_facecolor(), each[0].get_hatch()) for each in drawn}) == len(drawn) == bars


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_many_methods_leave_the_axes_their_room() -> None:
    for count in (4, 64):
        methods = [f"method {index}" for index in range(count)]
        with style.styled("many"):
            figure = style.line_figure([0, 1], np.ones((count, 1, 2)), methods, "x", "y", height=2.8, columns=2)
            figure.draw_without_rendering()
        assert 1.5 < figure.axes[0].get_position().height * figure.get_figheight() < 2.5, count
