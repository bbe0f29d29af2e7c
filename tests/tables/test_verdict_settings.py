"""The margins, groups and marks that a table's YAML sets, and those that it cannot."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fedbench.config import groups
from fedbench.core.errors import ConfigError, UnknownName
from fedbench.tables import spec
from fedbench.tables.equivalence import DIFFERENT, EQUIVALENT
from fedbench.tables.spec import Margin, Published, width
from fedbench.tables.verdict import Verdict, verdict_of
from tests.tables.toys import filled, value

SAME = (89.9, 90.0, 90.1)


def judged(*values: float, published: Published | None = None, **changes: object) -> Verdict:
    """The verdict on a table's only cell."""
    changes = {"published_seeds": 5, **changes}
    table = filled({"A": values}, {"A": published or value(90.0, 0.1)}, **changes)  # type: ignore[arg-type]
    return verdict_of(table, table.cells[0])


def test_the_margins_in_the_metrics_own_units() -> None:
    for name in ("acc", "best_acc", "acc_global", "rsd"):
        assert width(name, {}, 50.0, 20) == 1.0
    assert width("ipr", {}, 50.0, 20) == 5.0
    assert width("ipr", {}, 50.0, None) is None
    assert width("tta_speedup_global", {}, 2.5, 20) == pytest.approx(0.25)
    assert width("similarity", {}, -0.5, None) == pytest.approx(0.05)
    assert width("similarity", {}, 0.0, None) is None
    own = {"acc": Margin(2.0, "few images"), "ipr": Margin(20.0, "noisy", relative=True)}
    assert (width("acc", own, 50.0, 20), width("ipr", own, 50.0, 20)) == (2.0, 10.0)


def test_a_table_may_set_a_margin_and_says_why() -> None:
    assert judged(*SAME, published=value(91.3, 0.1)).kind == DIFFERENT
    own = {"acc": {"value": 2, "why": "accuracy is of 50 test images"}}
    assert judged(*SAME, published=value(91.3, 0.1), margins=own).kind == EQUIVALENT


@pytest.mark.parametrize(
    ("margins", "told"),
    [
        ({"acc": {"value": 0, "why": "w"}}, "the margin of acc is 0; it must be above 0"),
        ({"acc": {"value": -1, "why": "w"}}, "the margin of acc is -1; it must be above 0"),
        ({"acc": {"value": 1}}, r"say why the margin of acc is 1 \(margins.acc.why\)"),
        (
            {"acc": {"value": math.inf, "why": "w"}},
            "the margin of acc is inf; it must be above 0, and finite",
        ),
        ({"acc": {"value": "wide", "why": "w"}}, "margin of acc"),
        ({"acc": 2}, "margin of acc is 2; it must be a mapping of some of value, why, relative"),
        (5, "'margins' must be a mapping"),
        (["acc"], "'margins' must be a mapping"),
    ],
)
def test_a_margin_that_is_none(margins: object, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as error:
        filled({"A": SAME}, margins=margins)
    assert "\n" not in str(error.value)


def test_a_margin_of_a_metric_that_is_not_there() -> None:
    with pytest.raises(UnknownName, match="ipr"):
        filled({"A": SAME}, margins={"ipr": {"value": 1, "why": "w"}})


def test_an_unknown_number_of_clients_gives_no_verdict_on_ipr() -> None:
    table = filled({"A": SAME}, {"A": value(90.0)}, metrics=[{"name": "ipr"}])
    assert verdict_of(table, table.cells[0]).text == "no verdict: its margin is not known"


@pytest.mark.parametrize("seeds", [0, 2.5, "5"])
def test_a_published_mean_is_of_a_seed_at_least(seeds: object) -> None:
    with pytest.raises(ConfigError, match=f"published_seeds is {seeds}; it must be a whole number"):
        filled({"A": SAME}, published_seeds=seeds)


@pytest.mark.parametrize(
    ("groups", "told"),
    [
        ("nobody", "'groups' must be a mapping"),
        ({"a": 5}, "group 'a' must be a list of rows"),
        ({"a": []}, "group 'a' must be a list of rows"),
    ],
)
def test_a_group_that_is_none(groups: object, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as error:
        filled({"A": SAME}, groups=groups)
    assert "\n" not in str(error.value)


def test_a_group_of_rows_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "table").mkdir()
    text = (groups.conf_dir() / "table" / "fedcollab_t1.yaml").read_text()
    (tmp_path / "table" / "mine.yaml").write_text(text.replace('["*+FedCollab"]', '["*+FedColab"]'))
    monkeypatch.setattr(spec, "conf_dir", lambda: tmp_path)
    with pytest.raises(UnknownName, match=r"row in group 'inside FedCollab' of table 'mine' '\*\+FedColab'"):
        spec.load("mine")


def test_a_mark_of_the_whole_table_names_what_it_marks() -> None:
    with pytest.raises(ConfigError, match="'exploratory' must be a mapping"):
        filled({"A": SAME}, exploratory="because")
