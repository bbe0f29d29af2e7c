"""What a leaderboard says of rows made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from fedbench.cli.leaderboard import conclude
from fedbench.config.messages import INCOMPLETE
from fedbench.core.errors import Damaged
from fedbench.tables import standings
from fedbench.tables.leaderboard import Ledger, stages
from tests.tables.toys import board, recorded

SCORES = {
    "local": (70.0, 72.0, 71.0),
    "fedavg": (80.0, 79.0, 81.5),
    "ditto": (90.1, 91.0, 92.1),
    "fedrep": (90.0, 90.8, 92.2),
    "fedprox": (60.0, 95.0, 80.0),
}


@pytest.fixture
def table(tmp_path: Path) -> dict[str, standings.Standing]:
    (found,) = standings.read(recorded(tmp_path, SCORES)).federations
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


def test_two_seeds_tell_nothing(tmp_path: Path) -> None:
    (found,) = standings.read(recorded(tmp_path, {row: values[:2] for row, values in SCORES.items()})).federations
    assert not any(line.best or any(line.above.values()) for line in found.lines)


def test_clients_and_cost(table: dict[str, standings.Standing], tmp_path: Path) -> None:
    assert table["local"].worst == 70.5
    assert table["local"].hurt == {"fedavg": 100}
    assert table["fedprox"].hurt == {"local": pytest.approx(100 / 3), "fedavg": pytest.approx(200 / 3)}
    assert (table["ditto"].megabytes, table["ditto"].seconds, table["ditto"].reached) == (2, 1.5, 3)
    assert table["ditto"].trials == (50, 60)
    drawn = standings.read(tmp_path / "leaderboard" / "made")
    assert drawn.runs == 25
    assert drawn.cost == pytest.approx(25 * 36 / 3600)


def test_the_page_says_it_in_words(tmp_path: Path) -> None:
    folder = recorded(tmp_path, {**SCORES, "ditto": SCORES["ditto"][:2]})
    text = standings.markdown(standings.read(folder))
    rows = {line.split(" | ")[0].strip("| "): line for line in text.splitlines() if line.startswith("| ")}
    assert "50.0 → 60.0 | 50.0 to 60.0 | default | 2.0 MB, 1.5 s | 70.5 | -, 100 | -, 40.0, - |" in rows["local"]
    assert "90.55" in rows["ditto"]
    assert "(2 seeds)" in rows["ditto"]
    assert "| ● |" in rows["fedrep"]
    assert "0.25" not in text
    assert "24 runs, 0.24 hours of one core" in text


def test_damage_is_noticed(tmp_path: Path) -> None:
    folder = recorded(tmp_path, SCORES)
    (folder / "rows.csv").write_text((folder / "rows.csv").read_text().replace("90.1", "95.1"))
    with pytest.raises(Damaged, match="git restore"):
        standings.read(folder)


def test_a_board_that_is_being_tuned_shows_what_leads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the mean over seeds at the furthest rung; a row of failures says why it has nothing."""
    changes: dict[str, Any] = {"seeds": (0,), "rungs": (4, 6), "tuning_seeds": (8, 9)}
    folder = recorded(tmp_path, dict.fromkeys(SCORES, ()), **changes)
    ledger = Ledger(board(dict.fromkeys(SCORES, ()), **changes), folder)
    first, second, *_ = stages(ledger.board)
    for trial, values in ((0, (70.0, 64.0)), (1, (71.0, 62.0))):
        for seed, value in zip((8, 9), values, strict=True):
            line = {**ledger.lines[first.name, "here", "ditto", trial, 9], "stage": second.name, "seed": seed}
            ledger.lines[second.name, "here", "ditto", trial, seed] = {**line, "acc_on_val": value, "values": trial}
    for place, line in ledger.lines.items():
        if place[2] == "local" or place[2:4] == ("fedrep", 0):
            line |= {"acc_on_val": "", "failure": "Diverged: training diverged in round 2"}
    ledger.save()
    (found,) = standings.read(folder).federations
    lines = {line.row: standings.cells(line, ["local", "fedavg"], 0) for line in found.lines}
    assert lines["ditto"] == ["ditto", "not run to its end", "-", "-", "50.0 → 50.0", "50.0 to 60.0", "0", *"----"]
    assert lines["local"] == ["local", "Diverged: training diverged in round 2", *"---------"]
    assert lines["fedrep"][1] == "not run to its end", "one of its trials failed"
    assert next(reversed(lines)) == "local"
    assert {len(cells) for cells in lines.values()} == {len(standings.HEADINGS)}
    assert conclude(folder, "results") == INCOMPLETE
    assert capsys.readouterr().err.splitlines() == [
        f"incomplete: not run to its end: {', '.join(f'{row} in here' for row in [*lines][:3])} and 1 more",
        "incomplete: Diverged: training diverged in round 2: local in here",
    ]
