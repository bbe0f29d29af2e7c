"""What a leaderboard says of rows made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from fedbench.cli import program
from fedbench.config.messages import INCOMPLETE, OK
from fedbench.core.errors import Damaged
from fedbench.papers import standings
from fedbench.papers.boards import ARCHIVE, FINAL, Ledger, stages
from fedbench.papers.leaderboard import conclude_board
from tests.papers.tables.toys import board, recorded

SCORES = {
    "local": (70.0, 72.0, 71.0),
    "fedavg": (80.0, 79.0, 81.5),
    "ditto": (90.1, 91.0, 92.1),
    "fedrep": (90.0, 90.8, 92.2),
    "fedprox": (60.0, 95.0, 80.0),
}


@pytest.fixture
def table(tmp_path: Path) -> dict[str, standings.Standing]:
    (found,) = standings.read_standings(recorded(tmp_path, SCORES)).federations
    return {line.row: line for line in found.lines}


def test_rows_come_by_their_mean_with_its_interval(table: dict[str, standings.Standing]) -> None:
    assert [*table] == ["ditto", "fedrep", "fedavg", "fedprox", "local"]
    assert table["local"].mean == 71
    assert table["local"].half == pytest.approx(stats.t.ppf(0.975, 2) * 1 / 3**0.5)


def test_what_cannot_be_told_from_the_best_is_among_them(table: dict[str, standings.Standing]) -> None:
    """FedRep is near, FedProx too unsteady; FedAvg is told from it also after Holm, whose factor here is 4 at most."""
    assert [row for row, line in table.items() if line.best] == ["ditto", "fedrep", "fedprox"]
    p = stats.ttest_rel(SCORES["ditto"], SCORES["fedavg"]).pvalue
    assert 3 * p < 0.05, "and Local, with a smaller p, comes first"


def test_who_is_above_the_references(table: dict[str, standings.Standing]) -> None:
    assert table["ditto"].above == {"local": True, "fedavg": True}
    assert table["fedprox"].above == {"local": False, "fedavg": False}
    assert table["fedavg"].above == {"local": True}
    assert table["local"].above == {"fedavg": False}


def test_metrics_beside_accuracy_are_further_columns(tmp_path: Path) -> None:
    """Means over seeds, of the rows that have them; a board without any has no such column."""
    folder = recorded(tmp_path, SCORES)
    assert "macro F1" not in standings.standings_markdown(standings.read_standings(folder))
    ledger = Ledger(board(SCORES), folder)
    ledger.read()
    for (stage, _, row, _, seed), line in [*ledger.lines.items()]:
        if stage == FINAL and row == "ditto":
            ledger.lines[stage, "here", row, 1, seed] = {**line, "macro_f1": str((80.0, 81.0, 83.5)[seed])}
    ledger.save()
    drawn = standings.read_standings(folder)
    assert drawn.federations[0].lines[0].measures == {"macro_f1": 81.5}
    heading, _, first, second, *_ = [
        line for line in standings.standings_markdown(drawn).splitlines() if line.startswith("|")
    ]
    assert [line.split("|")[-2].strip() for line in (heading, first, second)] == ["macro F1 %", "81.50", "-"]


def test_two_seeds_tell_nothing(tmp_path: Path) -> None:
    (found,) = standings.read_standings(
        recorded(tmp_path, {row: values[:2] for row, values in SCORES.items()})
    ).federations
    assert not any(any(line.above.values()) for line in found.lines)
    shown = [standings.cells(line, ["local", "fedavg"], 2)[2:4] for line in found.lines]
    assert shown == [["-", "-"]] * len(SCORES), "no row is left out, and none is said to be no better than Local"


def test_a_board_with_one_seed_and_part_of_a_second_says_so(tmp_path: Path) -> None:
    some = {**{row: values[:1] for row, values in SCORES.items()}, "ditto": SCORES["ditto"][:2]}
    drawn = standings.read_standings(recorded(tmp_path, some, seeds=(0, 1, 2, 3, 4)))
    text = standings.standings_markdown(drawn)
    assert "`partition=homo`, seeds 0 (1 of 5 declared)\n" in text
    (ditto,) = (line for line in text.splitlines() if line.startswith("| ditto"))
    assert ditto.startswith("| ditto | 90.10 | - | - | 50.0 → 60.0 |")
    first = {**dict.fromkeys(some, ()), "ditto": SCORES["ditto"][:2]}
    begun = standings.read_standings(recorded(tmp_path / "begun", first, seeds=(0, 1, 2)))
    assert f"seeds 0, 1 (2 of 3 declared; without {len(some) - 1} of {len(some)} rows)" in standings.standings_markdown(
        begun
    )
    assert "none yet" in standings.standings_markdown(
        standings.read_standings(recorded(tmp_path / "no", dict.fromkeys(some, ()), seeds=(0,)))
    )


def test_a_seed_counts_if_all_rows_have_run_it(tmp_path: Path) -> None:
    """One row has a seed more, in which it does well; in another the row failed, which it has run, too."""
    folder = recorded(tmp_path, {**SCORES, "local": (*SCORES["local"], 99.0)})
    ledger = Ledger(board(SCORES, seeds=(0, 1, 2, 3)), folder)
    ledger.lines[FINAL, "here", "fedrep", 1, 2] |= {"acc": "", "clients": "", "failure": "Diverged", "acc_unseen_1": ""}
    ledger.save()
    (found,) = standings.read_standings(folder).federations
    lines = {line.row: line for line in found.lines}
    assert found.seeds == (0, 1, 2)
    assert lines["local"].mean == 71
    assert [*lines["fedrep"].scores] == [0, 1]
    assert lines["fedrep"].unseen[1] == 40, "over the seeds that have a score, as all else"
    cells = standings.cells(lines["fedrep"], ["local", "fedavg"], 3)
    assert cells[1].endswith("(2 of 3 seeds)")
    assert cells[2:4] == ["-", "-"], "its two seeds tell nothing, though the best has three"


def test_a_row_that_lost_a_seed_leads_nothing(tmp_path: Path) -> None:
    """Its mean is over the seeds in which it did not diverge."""
    scores = {"local": (70.0, 72.0, 71.0, 70.0), "fedavg": (80.0, 79.0, 81.5, 80.0), "ditto": (97.0, 96.0, 98.5, 0.0)}
    folder = recorded(tmp_path, scores)
    ledger = Ledger(board(scores), folder)
    ledger.lines[FINAL, "here", "ditto", 1, 3] |= {"acc": "", "clients": "", "failure": "Diverged"}
    ledger.save()
    (found,) = standings.read_standings(folder).federations
    assert [(line.row, line.best) for line in found.lines] == [("ditto", True), ("fedavg", True), ("local", False)]


def test_a_reference_without_scores_is_no_beaten_one(tmp_path: Path) -> None:
    (found,) = standings.read_standings(recorded(tmp_path, {**SCORES, "fedavg": ()})).federations
    shown = {line.row: standings.cells(line, ["local", "fedavg"], 3)[3] for line in found.lines}
    assert shown == {
        "ditto": "fedavg",
        "fedrep": "fedavg",
        "fedprox": "local, fedavg",
        "local": "fedavg",
        "fedavg": "-",
    }


def test_redraw_draws_a_board_from_its_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = recorded(tmp_path, SCORES)
    (folder / standings.PAGE).write_text("another page", encoding="utf-8")
    assert program.main(["redraw", str(tmp_path)]) == OK
    drawn = standings.standings_markdown(standings.read_standings(folder))
    assert (folder / standings.PAGE).read_text(encoding="utf-8") == drawn
    assert program.main(["redraw", str(tmp_path / "none")]) != OK
    assert "nothing is filled below" in capsys.readouterr().err


def test_a_board_whose_final_runs_all_failed_is_drawn(tmp_path: Path) -> None:
    """No row of its file has a column of clients."""
    folder = recorded(tmp_path, {"local": (), "fedavg": ()}, seeds=(0,))
    ledger = Ledger(board({"local": (), "fedavg": ()}, seeds=(0,)), folder)
    ledger.read()
    failed = {"stage": FINAL, "trial": "1", "seed": "0", "acc": "", "failure": "Diverged: in round 2"}
    ledger.lines[FINAL, "here", "local", 1, 0] = {**next(iter(ledger.lines.values())), **failed}
    ledger.save()
    (found,) = standings.read_standings(folder).federations
    assert {line.row: line.lacks for line in found.lines}["local"] == "Diverged: in round 2"


def test_a_first_rung_that_was_stopped_is_drawn(tmp_path: Path) -> None:
    folder = recorded(tmp_path, dict.fromkeys(SCORES, ()), seeds=(0,))
    ledger = Ledger(board(dict.fromkeys(SCORES, ()), seeds=(0,)), folder)
    del ledger.lines[stages(ledger.board)[0].name, "here", "ditto", 0, 9]
    ledger.save()
    (found,) = standings.read_standings(folder).federations
    (cells,) = (standings.cells(line, ["local"], 0) for line in found.lines if line.row == "ditto")
    assert cells[4:7] == ["- → 60.0", "60.0 to 60.0", "default"]


def test_final_runs_of_a_trial_that_is_no_longer_chosen_go(tmp_path: Path) -> None:
    folder = recorded(tmp_path, SCORES)
    ledger = Ledger(board(SCORES), folder)
    ledger.lines[stages(ledger.board)[0].name, "here", "ditto", 0, 9] |= {"acc_on_val": "70.0"}
    ledger.save()
    (found,) = standings.read_standings(folder).federations
    (line,) = (line for line in found.lines if line.row == "ditto")
    assert (line.chosen, line.scores) == (0, {})
    assert not any(place[0] == FINAL and place[2] == "ditto" for place in Ledger(ledger.board, folder).lines)


def test_clients_and_cost(table: dict[str, standings.Standing], tmp_path: Path) -> None:
    assert table["local"].worst == 70.5
    assert table["local"].hurt == {"fedavg": 100}
    assert table["fedprox"].hurt == {"local": pytest.approx(100 / 3), "fedavg": pytest.approx(200 / 3)}
    assert (table["ditto"].megabytes, table["ditto"].seconds, table["ditto"].reached) == (2, 1.5, 3)
    assert table["ditto"].trials == {0: 50, 1: 60}
    drawn = standings.read_standings(tmp_path / "leaderboard" / "made")
    assert drawn.runs == 25
    assert drawn.cost == pytest.approx(25 * 36 / 3600)


def test_the_page_says_it_in_words(tmp_path: Path) -> None:
    folder = recorded(tmp_path, {**SCORES, "ditto": SCORES["ditto"][:2]})
    text = standings.standings_markdown(standings.read_standings(folder))
    rows = {line.split(" | ")[0].strip("| "): line for line in text.splitlines() if line.startswith("| ")}
    assert "50.0 → 60.0 | 50.0 to 60.0 | default | 2.0 MB, 1.5 s | 70.5 | -, 100 | -, 40.0, - |" in rows["local"]
    assert "90.55" in rows["ditto"]
    assert "seeds 0, 1 (2 of 3 declared)\n" in text, "as not all rows have the third"
    assert "| 90.40 ± " in rows["fedrep"]
    assert "0.25" not in text
    assert "24 runs" in text


def test_damage_is_noticed(tmp_path: Path) -> None:
    folder = recorded(tmp_path, SCORES)
    file = folder / ARCHIVE
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(Damaged, match="git restore"):
        standings.read_standings(folder)


def test_a_board_that_is_being_tuned_shows_what_leads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the mean over seeds at the furthest rung; a row of failures says why it has nothing."""
    changes: dict[str, Any] = {"seeds": (0,), "rungs": (4, 6), "tuning_seeds": (9, 8), "trials": 4}
    folder = recorded(tmp_path, dict.fromkeys(SCORES, ()), **changes)
    ledger = Ledger(board(dict.fromkeys(SCORES, ()), **changes), folder)
    first, second, *_ = stages(ledger.board)
    for trial, values in ((0, (70.0, 64.0)), (1, (71.0, 62.0))):
        for seed, value in zip((9, 8), values, strict=True):
            line = {**ledger.lines[first.name, "here", "ditto", trial, 9], "stage": second.name, "seed": seed}
            ledger.lines[second.name, "here", "ditto", trial, seed] = {**line, "acc_on_val": value, "values": trial}
    for place, line in ledger.lines.items():
        if place[2] == "local" or place[2:4] == ("fedrep", 0):
            line |= {"acc_on_val": "", "failure": "Diverged: training diverged in round 2"}
    ledger.save()
    (found,) = standings.read_standings(folder).federations
    lines = {line.row: standings.cells(line, ["local", "fedavg"], 0) for line in found.lines}
    assert lines["ditto"] == ["ditto", "not run to its end", "-", "-", "50.0 → 50.0", "50.0 to 60.0", "0", *"----"]
    assert lines["local"] == ["local", "Diverged", *"---------"]
    assert lines["fedrep"][1] == "not run to its end", "one of its trials failed"
    assert next(reversed(lines)) == "local"
    assert {len(cells) for cells in lines.values()} == {len(standings.HEADINGS)}
    assert conclude_board(ledger, "results") == INCOMPLETE
    assert capsys.readouterr().err.splitlines() == [
        "incomplete: Diverged: training diverged in round 2: local in here",
        "incomplete: not run to its end: fedavg in here, ditto in here, fedrep in here and 1 more",
    ]


def test_what_is_missing_is_told_of_what_was_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = Ledger(board(SCORES), recorded(tmp_path, {**SCORES, "ditto": SCORES["ditto"][:2]}))
    assert conclude_board(ledger, str(tmp_path)) == INCOMPLETE
    assert "fedbench report" not in (said := capsys.readouterr()).out, "there is no table for a page"
    assert said.err == "incomplete: without a score: seeds 2: ditto in here\n"
    assert conclude_board(ledger, "results", rows=["fedrep", "local"]) == OK
    assert conclude_board(ledger, "results", seeds=[0, 1]) == OK
    ledger.lines = {place: line for place, line in ledger.lines.items() if place[2] != "ditto"}
    ledger.save()
    assert conclude_board(ledger, "results") == INCOMPLETE
    assert capsys.readouterr().err == "incomplete: not run: ditto in here\n"


def test_a_board_says_over_how_few_clients_a_mean_is() -> None:
    assert standings._fewest([(10, 10), (8, 10), (9, 10)]) == " (8 of 10 clients)"
    assert standings._fewest([(10, 10)]) == standings._fewest([]) == ""
    shown = standings.cells(
        standings.Standing("a", scores={0: 50.0}, trials={0: 40.0}, fewer=(" (8 of 10 clients)", "")), (), 1
    )
    assert shown[1] == "50.00 (8 of 10 clients)"
