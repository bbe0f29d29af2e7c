"""The counts of verdicts over all tables, and that those in the repository are today's."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from fedbench.cli import program
from fedbench.papers import spec, store
from fedbench.papers.published import published_values
from fedbench.papers.summary import FILE, Judged, count_table, count_words, judged, paper_counts, tally_verdicts
from tests.papers.report.toys import stored

ROOT = Path(__file__).parents[3]
FOLDERS = store.table_folders(ROOT / "results")


def test_a_value_in_two_tables_counts_once_and_exploratory_ones_apart() -> None:
    one = Judged("p", "a", "", ("k1", "k2"), "acc", "equivalent", False)
    found = [
        one,
        Judged("p", "b", "", ("k1", "k2"), "acc", "equivalent", False),  # the same runs
        Judged("p", "b", "", ("k1", "k2"), "rsd", "different", False),
        Judged("p", "b", "", ("k3",), "acc", "inconclusive", True),
        Judged("p", "kept", "partition_seed=0", ("k4",), "acc", "inconclusive", False),
        Judged("p", "kept", "partition_seed=0", ("k6",), "acc", "undecidable", False),
        Judged("p", "c", "", ("k5",), "acc", "different", True),  # a table of exploratory values alone
    ]
    lines = [line.strip("| ").split(" | ") for line in count_table(found).splitlines()]
    assert {line[0].partition("]")[0]: list(map(int, line[1:])) for line in lines[2:]} == {
        "[a": [1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        "[b": [2, 1, 1, 1, 0, 0, 1, 1, 0, 0, 1, 0],
        "[kept": [2, 2, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0],
        "[c": [0, 0, 0, 0, 0, 0, 1, 1, 0, 1, 0, 0],
        "p, paper's setting, 2 tables, each value once": [2, 1, 1, 1, 0, 0, 1, 1, 0, 0, 1, 0],
        "p, partition_seed=0, 1 table, each value once": [2, 2, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0],
    }
    told = "2 equivalent (1 table row), 1 different (1 row); exploratory: 1 inconclusive (1 table row)"
    assert count_words(found[:4]) == told
    assert [count_words(each) for each in ([], found[-1:])] == [
        "none",
        "none; exploratory: 1 different (1 table row)",
    ]


def test_two_studies_of_one_configuration_are_two_rows() -> None:
    """FedCollab's Table 5: operations and parameters of two networks, whose run keys are the same."""
    folder = ROOT / "results" / "tables" / "fedcollab_t5"
    (tally,) = tally_verdicts(judged({"a": store.read_table(folder)}))
    assert count_words(tally.values) == "4 equivalent (2 table rows)"


def test_a_study_gives_a_value_in_each_column() -> None:
    """pFedSim's Table 2: each measure of the same models has a value for each of four pairs of clients."""
    table = store.read_table(ROOT / "results" / "tables" / "pfedsim_t2")
    (tally,) = tally_verdicts(judged({"a": table}))
    assert len(tally.values) == 19, "one of 20 has a published value of 0, and so no margin"


def test_a_value_counts_once_where_one_table_has_a_seed_more() -> None:
    few = Judged("p", "b", "", ("k1", "k2"), "acc", "inconclusive", False)
    more = Judged("p", "a", "", ("k1", "k2", "k3"), "acc", "equivalent", False)
    for found in ([few, more], [more, few]):
        (tally,) = tally_verdicts(found)
        assert tally.values == (more,)


def test_two_values_of_one_run_are_two_and_one_that_is_printed_twice_is_judged_twice() -> None:
    """FedSaC's Table 2 has the accuracy on images and on text of each run; FedCollab's own is in three tables."""
    table = spec.load_spec("fedsac_t2")
    row, columns, (metric,) = table.rows[0], table.columns[:2], table.metrics
    keys = ("k0", "k1", "k2")
    cells = []
    for column in columns:
        published = table.published(row, column, metric)
        mean = published.mean if published else 0.0
        values = (mean - 0.1, mean, mean + 0.1)
        cells.append(store.Cell(row.label, column.label, metric.name, values, (0, 1, 2), keys, published))
    filled = store.TableResult(dataclasses.replace(table, rows=(row,), columns=columns), tuple(cells))
    (tally,) = tally_verdicts(judged({"a": filled}))
    assert len(tally.values) == 2
    one = Judged("fedcollab", "a", "", keys, "acc", "equivalent", False)
    found = [one, dataclasses.replace(one, folder="b"), dataclasses.replace(one, folder="c", setting="left=open")]
    published_lines = sum(each.paper == "fedcollab" for each in published_values())
    assert paper_counts(found)["fedcollab"] == (1, 0, 0, published_lines - 2)


def test_redrawing_counts_what_is_stored(tmp_path: Path) -> None:
    stored(tmp_path)
    assert program.main(["redraw", str(tmp_path)]) == 0
    text = (tmp_path / FILE).read_text(encoding="utf-8")
    assert "| [fedcollab_t1](tables/fedcollab_t1/table.md) | 5 | 3 | 1 | 2 | 0 | 2 |" in text
    (tmp_path / FILE).write_text(f"{text}\nOurs.\n", encoding="utf-8")
    program.main(["redraw", str(tmp_path)])
    assert (tmp_path / FILE).read_text(encoding="utf-8") == f"{text}\nOurs.\n", "what stands below is kept"


def test_the_committed_counts_are_those_of_the_committed_tables() -> None:
    """If this fails: make tables."""
    counted = count_table(judged({name: store.read_table(folder) for name, folder in FOLDERS.items()}))
    assert counted in (ROOT / "results" / FILE).read_text(encoding="utf-8")


def test_notes_and_marks_are_those_of_today_s_yaml() -> None:
    """A filled table is judged by its YAML as it is, not by a copy of what it was."""
    folder = ROOT / "results" / "tables" / "fedcollab_t2"
    today, filled = spec.load_spec("fedcollab_t2"), store.read_table(folder).spec
    assert all(getattr(filled, name) == getattr(today, name) for name in store.JUDGING)
    assert [row.exploratory for row in filled.rows] == [row.exploratory for row in today.rows]
