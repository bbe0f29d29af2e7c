"""The verdict on a cell: which test it is given, and when it is given none."""

from __future__ import annotations

import math

import pytest

from fedbench.core.errors import ConfigError
from fedbench.tables import text, verdict
from fedbench.tables.equivalence import DIFFERENT, EQUIVALENT, INCONCLUSIVE
from fedbench.tables.spec import Published
from fedbench.tables.store import Provenance, TableResult
from fedbench.tables.text import Layout
from fedbench.tables.verdict import NONE, Verdict, counts, verdict_of
from tests.tables.toys import filled, value

SAME = (89.9, 90.0, 90.1)


def judged(*values: float, published: Published | None = None, **changes: object) -> Verdict:
    """The verdict on a table's only cell."""
    changes = {"published_seeds": 5, **changes}
    table = filled({"A": values}, {"A": published or value(90.0, 0.1)}, **changes)  # type: ignore[arg-type]
    return verdict_of(table, table.cells[0])


@pytest.mark.parametrize(
    ("published", "kind"), [(90.0, EQUIVALENT), (90.8, EQUIVALENT), (91.0, INCONCLUSIVE), (91.3, DIFFERENT)]
)
def test_within_a_point_of_accuracy(published: float, kind: str) -> None:
    found = judged(*SAME, published=value(published, 0.1))
    assert (found.kind, found.difference) == (kind, pytest.approx(90 - published))
    assert found.comparison is not None
    assert found.comparison.margin == 1.0
    assert found.text.startswith(kind)


def test_how_many_seeds_would_decide_is_said() -> None:
    assert judged(89.0, 90.0, 91.0).text == "inconclusive, 10 seeds would decide"
    wide = judged(*SAME, published=value(90.5, 5.0))
    assert math.isinf(wide.seeds)
    assert wide.text == "inconclusive, 633 seeds on both sides would decide"
    assert judged(*SAME, published=value(91.0, 0.1)).text == "inconclusive, 1000 seeds would not decide"


def test_one_seed_is_inconclusive_and_says_why() -> None:
    found = judged(90.0)
    assert (found.kind, found.text) == (INCONCLUSIVE, "inconclusive: one seed, a test needs 2")
    assert found.comparison is None


@pytest.mark.parametrize(
    "made",
    [Provenance("quick"), Provenance(substitute="digits"), Provenance(changed=("model=mlp",))],
)
def test_no_verdict_away_from_the_papers_setting(made: Provenance) -> None:
    found = judged(*SAME, made=made)
    assert (found.kind, found.difference) == (NONE, pytest.approx(0.0))


def test_no_verdict_without_finite_values_or_on_seconds() -> None:
    assert judged(90.0, 90.0, math.nan).kind == NONE
    assert judged().text == "not run"
    assert judged(*SAME, metrics=[{"name": "acc", "timing": True}]).text == "no verdict: depends on the machine"
    table = filled({"A": SAME})
    assert verdict_of(table, table.cells[0]).text == "nothing published"


def test_a_bound_is_met_or_not() -> None:
    bound = value(3000, decimals=0, bound=">")
    for mean, kind in ((3500.0, EQUIVALENT), (2500.0, DIFFERENT)):
        found = judged(mean - 1, mean, mean + 1, published=bound, metrics=[{"name": "acc", "label": "rounds"}])
        assert found.kind == kind


# ---- counted apart


def both(**changes: object) -> TableResult:
    rows = [{"label": "A"}, {"label": "B", "exploratory": "taken after A had come out low"}]
    published = {"A": value(90.0, 0.1), "B": value(90.0, 0.1)}
    return filled({"A": SAME, "B": SAME}, published, **{"rows": rows, "published_seeds": 5, **changes})  # type: ignore[arg-type]


def test_exploratory_rows_are_marked_and_counted_apart() -> None:
    table = both()
    found = verdict_of(table, table.cell("B", "c", "acc"))
    assert (found.kind, found.text) == (EQUIVALENT, "equivalent (exploratory)")
    assert found.exploratory == "taken after A had come out low"
    assert (counts(table).total(), counts(table, exploratory=True)[EQUIVALENT]) == (1, 1)


def test_what_was_chosen_on_the_command_line_marks_the_whole_table() -> None:
    reason = "the nearest of five"
    chosen = both(exploratory={"partition_seed=2": reason}, made=Provenance(varied=("partition_seed=2",)), rows=ROWS)
    assert [verdict.verdict_of(chosen, cell).exploratory for cell in chosen.cells] == [reason, reason]
    other = both(exploratory={"partition_seed=2": reason}, made=Provenance(varied=("partition_seed=1",)), rows=ROWS)
    assert counts(other, exploratory=True).total() == 0


ROWS = [{"label": "A"}, {"label": "B"}]


def test_a_choice_that_decides_nothing_somewhere_marks_nothing_there() -> None:
    marked = {"exploratory": "taken after A had come out low", "exploratory_but": ["partition=file"]}
    rows = [ROWS[0], {**ROWS[1], **marked}]
    for override, expected in (("partition=file", 0), ("partition_seed=1", 1)):
        table = both(rows=rows, made=Provenance(varied=(override,)))
        assert counts(table, exploratory=True).total() == expected


def test_settings_tried_beside_one_published_value_are_exploratory() -> None:
    assert counts(both(varies="another", rows=ROWS), exploratory=True).total() == 2


@pytest.mark.parametrize("reason", ["", "  ", True, 1])
def test_a_mark_needs_a_reason(reason: object) -> None:
    with pytest.raises(ConfigError, match="row 'A' is marked exploratory without a reason"):
        filled({"A": SAME}, rows=[{"label": "A", "exploratory": reason}])
    with pytest.raises(ConfigError, match="'partition_seed=2' is marked exploratory without a reason"):
        filled({"A": SAME}, exploratory={"partition_seed=2": reason})


def test_a_columns_mark_counts_all_its_rows_apart_and_is_said_once() -> None:
    reason = "its partition was chosen by what came out"
    table = both(columns=[{"label": "c", "exploratory": reason}], rows=ROWS)
    assert (counts(table).total(), counts(table, exploratory=True).total()) == (0, 2)
    assert [line for line in text.sentences(Layout(table)) if reason in line] == [f"Exploratory (†), c: {reason}."]
    with pytest.raises(ConfigError, match="column 'c' is marked exploratory without a reason"):
        both(columns=[{"label": "c", "exploratory": " "}])
