"""The verdict on a cell: which test it is given, and when it is given none."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from fedbench.config import groups
from fedbench.core.errors import ConfigError, UnknownName
from fedbench.papers import render, spec, text, verdict
from fedbench.papers.equivalence import DIFFERENT, EQUIVALENT, INCONCLUSIVE, UNDECIDABLE
from fedbench.papers.published import Published, width
from fedbench.papers.store import Provenance, TableResult
from fedbench.papers.text import Layout
from fedbench.papers.verdict import NONE, Verdict, counts, verdict_of
from tests.papers.tables.toys import filled, value

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
    wide = judged(89.3, 90.0, 90.7, published=value(90.5, 0.9))
    assert math.isinf(wide.seeds)
    assert wide.text == "inconclusive, 34 seeds on both sides would decide"
    assert judged(*SAME, published=value(91.0, 0.1)).text == "inconclusive, 1000 seeds would not decide"


def test_one_seed_is_undecidable_and_says_what_is_not() -> None:
    found = judged(90.0)
    assert (found.kind, found.text) == (UNDECIDABLE, "undecidable with 1 seed, 2 seeds could decide")
    assert (found.comparison, found.seeds, found.difference) == (None, 2, 0)
    bound = judged(3500.0, published=value(3000, decimals=0, bound=">"))
    assert (bound.kind, bound.seeds) == (UNDECIDABLE, 2)


def test_where_the_published_mean_is_too_uncertain_no_outcome_is_equivalent() -> None:
    """t(.95, 4) 5 / sqrt(5) is 4.8, without any spread of ours, and the margin is 1."""
    wide = value(90.5, 5.0)
    found = judged(*SAME, published=wide)
    assert (found.kind, found.seeds) == (UNDECIDABLE, math.inf)
    assert found.text == "undecidable with 3 seeds, 71 seeds on both sides could decide"
    assert found.comparison is not None
    assert judged(79.9, 80.0, 80.1, published=wide).kind == DIFFERENT, "which can come out"
    coarse = judged(4.0, 4.0, 4.0, published=value(4.0, decimals=0), metrics=[{"name": "f"}])  # a margin of 0.4
    assert coarse.text == "undecidable with 3 seeds, 1000 seeds could not decide"


def test_what_is_undecidable_is_known_before_it_is_run() -> None:
    waiting = judged(published=value(90.5, 5.0), seeds=3)
    assert (waiting.kind, waiting.both) == (NONE, 71)
    assert waiting.text == "not run; undecidable with 3 seeds, 71 seeds on both sides could decide"
    assert judged(published=value(90.5, 0.1)).text == "not run"
    assert judged(published=value(90.5, 5.0), made=Provenance("quick")).text == "not run"
    assert judged(published=value(90.5, 5.0), metrics=[{"name": "acc", "timing": True}]).text == "not run"
    share = {"metrics": [{"name": "ipr"}], "published": value(46.0, 2.24), "seeds": 5}
    assert judged(**share).text == "not run", "its margin is one client of how many?"
    assert judged(**share, clients=20).text.endswith("29 seeds on both sides could decide")


@pytest.mark.parametrize("run", [False, True])
def test_the_undecidable_are_marked_and_counted_in_the_table(run: bool) -> None:
    values = {"A": SAME, "B": SAME} if run else {"A": (), "B": ()}
    table = filled(values, {"A": value(90.5, 5.0), "B": value(90.0, 0.1)}, published_seeds=5)
    drawn = render.draw_markdown(table)
    assert drawn.count(" ∅ 71 both |") == run, "a table without a run has no grid"
    said = "2 published values were not run. 1 of them would be undecidable with 5 seeds (1 Acc %)."
    assert (said in drawn) != run
    assert (r"\emptyset" in render.draw_latex(table)) == run
    assert counts(table) == ({UNDECIDABLE: 1, EQUIVALENT: 1} if run else {NONE: 2})


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


def test_a_choice_that_decides_only_under_some_overrides_marks_only_there() -> None:
    marked = {"exploratory": {"partition=redrawn": "taken after A had come out low"}}
    rows = [ROWS[0], {**ROWS[1], **marked}]
    for override, expected in (("partition=redrawn", 1), ("partition_seed=1", 0)):
        table = both(rows=rows, made=Provenance(varied=(override,)))
        assert counts(table, exploratory=True).total() == expected


def test_settings_tried_beside_one_published_value_are_exploratory() -> None:
    assert counts(both(varies="another", rows=ROWS), exploratory=True).total() == 2


@pytest.mark.parametrize("reason", ["", "  ", True, 1])
def test_a_mark_needs_a_reason(reason: object) -> None:
    with pytest.raises(ConfigError, match="row 'A' is exploratory without a reason"):
        filled({"A": SAME}, rows=[{"label": "A", "exploratory": reason}])
    with pytest.raises(ConfigError, match="'partition_seed=2' is exploratory without a reason"):
        filled({"A": SAME}, exploratory={"partition_seed=2": reason})


def test_a_columns_mark_counts_all_its_rows_apart_and_is_said_once() -> None:
    reason = "its partition was chosen by what came out"
    table = both(columns=[{"label": "c", "exploratory": reason}], rows=ROWS)
    assert (counts(table).total(), counts(table, exploratory=True).total()) == (0, 2)
    assert [line for line in text.sentences(Layout(table)) if reason in line] == [f"Exploratory (†), c: {reason}."]
    with pytest.raises(ConfigError, match="column 'c' is exploratory without a reason"):
        both(columns=[{"label": "c", "exploratory": " "}])


def test_the_margins_in_the_metrics_own_units() -> None:
    for name in ("acc", "score", "best_acc", "acc_global", "rsd"):
        assert width(name, 50.0, 20) == 1.0
    assert width("ipr", 50.0, 20) == 5.0
    assert width("ipr", 50.0, None) is None
    assert width("tta_speedup_global", 2.5, 20) == pytest.approx(0.25)
    assert width("similarity", -0.5, None) == pytest.approx(0.05)
    assert width("similarity", 0.0, None) is None


def test_an_unknown_number_of_clients_gives_no_verdict_on_ipr() -> None:
    table = filled({"A": SAME}, {"A": value(90.0)}, metrics=[{"name": "ipr"}])
    assert verdict_of(table, table.cells[0]).text == "no verdict: its margin is not known"


@pytest.mark.parametrize(("over_k", "std"), [(False, 2.0), (True, math.sqrt(5))])
def test_a_published_deviation_over_k_counts_as_one_over_k_minus_one(over_k: bool, std: float) -> None:
    """87, 89, 90, 91 and 93 deviate by 2 over five and by the root of 20 / 4 over four."""
    table = filled({"A": SAME}, {"A": value(90.0, 2.0)}, published_seeds=5, published_over_k=over_k)
    found = verdict.theirs_of(table, table.cells[0], value(90.0, 2.0))
    assert found.std == pytest.approx(std)
    assert verdict.theirs_of(table, table.cells[0], value(90.0)).std is None
    alone = filled({"A": SAME}, {"A": value(90.0, 2.0)}, published_seeds=1, published_over_k=over_k)
    assert verdict.theirs_of(alone, alone.cells[0], value(90.0, 2.0)).std == 2.0


@pytest.mark.parametrize("clients", [-1, 2.5, "20"])
def test_a_paper_has_whole_clients(clients: object) -> None:
    with pytest.raises(ConfigError, match=f"clients is {clients}; it must be a whole number of at least 0"):
        filled({"A": SAME}, clients=clients)


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


@pytest.mark.parametrize(("key", "given"), [("notes", "one text"), ("notes", [{"two seeds": "here"}]), ("base", [1])])
def test_a_list_that_is_not_of_texts(key: str, given: object) -> None:
    with pytest.raises(ConfigError, match=f"'{key}' must be a list of texts; put a text with ': ' in quotes"):
        filled({"A": SAME}, **{key: given})


def test_a_group_of_rows_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "table").mkdir()
    text = (groups.conf_dir() / "table" / "fedcollab_t1.yaml").read_text()
    (tmp_path / "table" / "mine.yaml").write_text(
        text.replace('["*+FedCollab"]', '["*+FedColab"]').replace("name: fedcollab_t1", "name: mine")
    )
    monkeypatch.setattr(groups, "conf_dir", lambda: tmp_path)
    with pytest.raises(UnknownName, match=r"row in group 'inside FedCollab' of table 'mine' '\*\+FedColab'"):
        spec.load_spec("mine")


def test_a_mark_of_the_whole_table_holds_always_or_under_an_override() -> None:
    assert counts(both(exploratory="because", rows=ROWS), exploratory=True).total() == 2


def test_what_is_said_of_bounds_marks_and_tables_that_are_not_done() -> None:
    coarse = {"metrics": [{"name": "f"}]}  # a margin of 0.4 around 4
    bound = value(4, decimals=0, bound=">")  # printed more coarsely than the margin: no matter to a bound
    assert judged(4.0, published=bound, **coarse).text == "undecidable with 1 seed, 2 seeds could decide"
    open_end = judged(3.0, 4.0, 5.0, published=bound, **coarse)
    assert (open_end.kind, open_end.text, open_end.exploratory) == (INCONCLUSIVE, "inconclusive", "")
    assert math.isnan(open_end.seeds)
    assert judged(3.0, 4.0, 5.0, published=value(4.0, 0.0), **coarse).seeds > 3
    rows = [{"label": "A", "exploratory": "why"}]
    one, some = judged(90.0, rows=rows), judged(89.0, 90.0, 91.0, rows=rows)
    assert one.text == "undecidable (exploratory) with 1 seed, 2 seeds could decide"
    assert some.text == "inconclusive (exploratory), 10 seeds would decide"
    assert [one.exploratory, some.exploratory] == ["why", "why"]
    assert judged(*SAME, made=Provenance(todo=1)).text == "no verdict: the table's YAML says TODO"
    assert judged(*SAME, made=Provenance("quick")).text == "no verdict: not the paper's setting"
    assert judged(90.0, math.inf, 90.0).text == "no verdict: not reached by every seed"
    assert judged(90.0, published=value(0.0), metrics=[{"name": "f"}]).text == "no verdict: its margin is not known"


@pytest.mark.parametrize("values", [SAME, (90.0,), (70.0, 70.1, 70.2)])
def test_seeds_that_are_left_when_one_diverged_get_no_verdict(values: tuple[float, ...]) -> None:
    table = filled({"A": values}, {"A": value(90.0, 0.1)}, published_seeds=5)
    for reason, kind in (("seed 3: not run yet", False), ("seed 3: Diverged: training diverged in round 6", True)):
        found = verdict_of(table, dataclasses.replace(table.cells[0], reason=reason))
        assert (found.text == "no verdict: a seed diverged") == (found.kind == NONE) == kind
        assert found.difference == pytest.approx(sum(values) / len(values) - 90)


def test_only_a_share_of_clients_has_their_least_spread() -> None:
    """The share of 100 clients that gain varies by 3 points at these means, accuracy by what it does; margins are 1."""
    for name, kind in (("acc", EQUIVALENT), ("ipr", UNDECIDABLE)):
        assert judged(*SAME, clients=100, metrics=[{"name": name}]).kind == kind
