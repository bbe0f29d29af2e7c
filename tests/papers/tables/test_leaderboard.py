"""A leaderboard on digits: who wins, who does not, what is declared, and what is made again."""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbench.cli import program
from fedbench.config import groups
from fedbench.config.compose import compose
from fedbench.core.errors import ConfigError, DataMissing, Diverged, FedbenchError, UnknownName
from fedbench.methods import METHODS
from fedbench.papers import boards, standings
from fedbench.papers import leaderboard as command
from fedbench.papers.boards import Board, BoardFederation, BoardTrial, Ledger, Range, stages
from fedbench.papers.selection import Selection
from fedbench.papers.standings import Standing
from fedbench.runs import execution, fingerprint
from fedbench.runs.config import resolve
from tests.helpers.tiers import sampled

RESULTS = Path(__file__).parents[3] / "results"
YAMLS = {
    "better": "name: better\nprivate: []\nwork: 1\ntune: {work: [8]}\n",
    "memorised": "name: memorised\nprivate: []\ncheats: false\ntune: {cheats: [true]}\n",
}
BOARD = Board(
    name="tiny",
    title="Tiny",
    base=(
        *("dataset=digits", "dataset.limit=240", "model=mlp", "model.hidden=[16]", "protocol=fedcollab_label_shift"),
        *("protocol.local.batch_size=10", "protocol.test.fraction=0.5", "protocol.test.val_fraction=0.5"),
    ),
    federations=(BoardFederation("even", ("partition=homo", "partition.num_clients=3")),),
    rate=Range(0.09, 0.11),
    trials=2,
    rungs=(1, 2),
    tuning_seeds=(7, 8),
    rounds=3,
    eval_every=1,
    seeds=(0, 1, 2),
    references=("local", "fedavg"),
    methods=("local", "fedavg", "better", "memorised"),
)


@pytest.fixture(scope="module", autouse=True)
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two methods of another package."""
    folder = tmp_path_factory.mktemp("conf")
    (folder / "method").mkdir()
    for name, text in YAMLS.items():
        (folder / "method" / f"{name}.yaml").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "conf_dirs_of_others", lambda: {folder: "planted"})
        for name in YAMLS:
            patch.setitem(METHODS._entries, name, f"tests.papers.tables.planted:{name.title()}")
        yield folder


def fill(folder: Path, board: Board = BOARD, rows: tuple[str, ...] = (), seeds: tuple[int, ...] = ()) -> Ledger:
    ledger = Ledger(board, folder / "leaderboard" / board.name, [f"runs_dir={folder / 'runs'}", "progress=none"])
    assert command.fill_board(ledger, Selection(jobs=1, seeds=seeds), rows) == ""
    return ledger


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return fill(tmp_path_factory.mktemp("board"))


@pytest.fixture(scope="module")
def table(filled: Ledger) -> Mapping[str, Standing]:
    (found,) = standings.read_standings(filled.folder).federations
    return {line.row: line for line in found.lines}


@pytest.mark.slow
def test_a_better_method_wins(table: Mapping[str, Standing]) -> None:
    assert [row for row, line in table.items() if line.best] == ["better"]
    assert next(iter(table)) == "better"
    assert table["better"].above == {"local": True, "fedavg": True}
    assert "work 8" in table["better"].trial, "by its own key, which validation chose"


@pytest.mark.slow
def test_one_that_knows_the_validation_samples_does_not(filled: Ledger, table: Mapping[str, Standing]) -> None:
    found = table["memorised"]
    assert found.trials[found.chosen] == 100, "tuning falls for it"
    assert not found.best
    assert not found.above["fedavg"]
    assert found.mean < table["better"].mean - 5
    looked = {
        line["acc_on_val"] for line in filled.lines.values() if line["row"] == "memorised" and line["trial"] == "1"
    }
    assert looked == {"100.0"}


@pytest.mark.slow
def test_no_trial_reads_a_test_sample_and_no_final_run_has_a_seed_of_theirs(filled: Ledger) -> None:
    for stage in stages(BOARD):
        for entry in filled.entries(stage):
            last = entry.job.run.history.iloc[-1]
            read = "acc_on_local" in entry.job.run.history
            assert read == (stage.rung is None)
            assert not read or entry.job.run.history["acc_on_local"].notna().sum() == 1
            assert not read or 100 > last["acc_on_local"] > 0
    tried = {place[-1] for place in filled.lines if place[0] != boards.FINAL}
    assert tried == {7, 8}
    assert {place[-1] for place in filled.lines} - tried == {0, 1, 2}


@pytest.mark.slow
def test_every_row_has_as_many_trials_and_the_default_is_the_first(filled: Ledger) -> None:
    for row in BOARD.all_rows:
        for rung, numbers in enumerate(([0, 1], [0, 1][:1])):
            found = filled.survivors("even", row, rung)
            assert len(found) == len(numbers)
        assert BOARD.trials_of(row)[0] == BoardTrial(0)
    rates = {dict(BOARD.trials_of(row)[1].values)["rate"] for row in BOARD.all_rows}
    assert len(rates) == 1, "the same for all, as they name no other range"


@pytest.mark.slow
def test_cells_over_fewer_clients_say_so(tmp_path: Path) -> None:
    """Two of ten clients have no test sample, and three no validation sample: of its one training sample."""
    counts = [24] * 7 + [1, 1, 1]
    ends = np.cumsum(counts)
    train = {f"train_{k}": np.arange(end - n, end) for k, (n, end) in enumerate(zip(counts, ends, strict=True))}
    test = {f"test_{k}": np.arange(200 + 4 * k, 204 + 4 * k) if k < 8 else np.empty(0, np.int64) for k in range(10)}
    np.savez(tmp_path / "split.npz", **train, **test)
    split = ("partition=file", f"partition.path={tmp_path}/split.npz")
    small = dataclasses.replace(BOARD, federations=(BoardFederation("even", split),), rungs=(1,), seeds=(0,))
    small = dataclasses.replace(small, trials=1, references=("local",), methods=("local",))
    ledger = fill(tmp_path, small)
    (final,) = (entry.job.run for entry in ledger.entries(stages(small)[-1]))
    drawn = standings.standings_markdown(standings.read_standings(ledger.folder))
    assert final.row["clients"] == 8
    assert final.row["clients_on_val"] == 7
    assert f"{final.row['acc']:.2f} (8 of 10 clients)" in drawn
    assert "(7 of 10 clients)" in drawn


@pytest.mark.slow
def test_the_reference_is_local_at_its_own_rate(filled: Ledger) -> None:
    (final, *_) = [stage for stage in stages(BOARD) if stage.rung is None]
    entries = {entry.row: entry for entry in filled.entries(final)}
    for row in ("fedavg", "better"):
        assert entries[row].job.folder.result()["local_key"] == entries["local"].job.key


@pytest.mark.slow
def test_a_board_that_was_interrupted_is_the_same(filled: Ledger, tmp_path: Path, monkeypatch: Any) -> None:
    rows, made = ("local", "fedavg"), []
    execute = execution.execute

    def stopped(*given: Any, **more: Any) -> Any:
        made.append(1)
        if len(made) in (3, 8, 12):
            raise KeyboardInterrupt
        return execute(*given, **more)

    monkeypatch.setattr(execution, "execute", stopped)
    for kept in (2, 6, 9):
        with pytest.raises(KeyboardInterrupt):
            fill(tmp_path, rows=rows)
        assert len(Ledger(BOARD, tmp_path / "leaderboard" / BOARD.name).lines) == kept
        shutil.rmtree(tmp_path / "runs")  # as on another machine
    assert not list(fill(tmp_path, rows=rows, seeds=(0,)).entries(stages(BOARD)[-1], ["better"]))
    again = fill(tmp_path, rows=rows)
    timeless = lambda line: {k: str(v) for k, v in line.items() if "seconds" not in k and v not in ("", None)}  # noqa: E731
    whole = {place: line for place, line in filled.lines.items() if line["row"] in rows}
    assert [*map(timeless, again.lines.values())] == [timeless(whole[place]) for place in again.lines]
    assert len(again.lines) == len(whole)
    stored = Ledger(BOARD, again.folder)
    assert [*map(timeless, stored.lines.values())] == [*map(timeless, map(again.lines.get, stored.lines))]


@pytest.mark.slow
def test_rows_stand_without_their_runs_and_those_of_other_code_are_made_again(
    filled: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = Ledger(BOARD, filled.folder, [f"runs_dir={tmp_path}", "progress=none"])
    composed = lambda: [entry for stage in stages(BOARD) for entry in again.entries(stage)]  # noqa: E731
    assert len(composed()) == len(filled.lines)
    assert again.missing(composed()) == []
    code_of = fingerprint.code_of
    edited = lambda run: code_of(run).replace("method:", "method:0" * (run.labels["method"] == "better") or "method:")  # noqa: E731
    monkeypatch.setattr(fingerprint, "code_of", edited)
    lacking = again.missing(composed())
    assert {entry.row for entry in lacking} == {"better"}
    assert len(lacking) == sum(place[2] == "better" for place in again.lines)


@pytest.mark.slow
def test_a_run_that_other_code_failed_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reason lies in its folder; what is recorded names the code that failed."""

    def diverged(*_: Any, **__: Any) -> None:
        raise Diverged("training diverged")

    monkeypatch.setattr(execution.Simulation, "step", diverged)
    ledger = fill(tmp_path, dataclasses.replace(BOARD, methods=("local", "fedavg")))
    composed = lambda: [entry for entry in ledger.entries(stages(BOARD)[0]) if entry.row == "fedavg"]  # noqa: E731
    entries = composed()
    assert {entry.job.failure for entry in entries} == {"Diverged: training diverged"}
    assert ledger.missing(entries) == []
    ledger.lines[entries[0].place] = {**ledger.lines[entries[0].place], "failure": "of an earlier try"}
    ledger.save()
    ledger.record(entries)
    assert ledger.lines[entries[0].place]["failure"] == "Diverged: training diverged"
    code_of = fingerprint.code_of
    monkeypatch.setattr(fingerprint, "code_of", lambda run: code_of(run).replace("method:", "method:0"))
    entries = composed()
    assert ledger.missing(entries) == entries
    ledger.record(entries)
    assert ledger.missing(entries) == entries, "it was not tried since"


@pytest.mark.slow
def test_a_row_that_is_refused_before_it_begins_does_not_stop_the_board(tmp_path: Path) -> None:
    rows = {"headless": ("method=fedavg", "method.private=[@norm]")}
    board = dataclasses.replace(BOARD, methods=("local", "fedavg"), rows=rows, rungs=(1,), seeds=(0,))
    for _ in range(2):
        ledger = fill(tmp_path, board, ("local", "headless"))
        lines = [line for place, line in ledger.lines.items() if place[2] == "headless"]
        assert len(lines) == 4
        assert all("matches none of the network's leaves" in line["failure"] for line in lines)
        assert ledger.lost("even", "local", [0]) == []


@pytest.mark.slow
def test_who_only_looks_is_not_among_the_machines(
    filled: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor who records what another machine made."""
    monkeypatch.setattr(fingerprint, "machine", lambda made: f"of {made['started']}")
    entries = list(filled.entries(stages(BOARD)[0]))
    filled.record(entries)
    assert not any(name.startswith("of ") for name in filled.machines)
    copy = Ledger(BOARD, tmp_path)
    copy.record(entries[:1])
    assert copy.machines == {f"of {entries[0].job.folder.environment()['started']}"}


@pytest.mark.slow
def test_two_processes_that_record_lose_nothing(filled: Ledger, tmp_path: Path) -> None:
    first, *_ = stages(BOARD)
    entries = {row: [each for each in filled.entries(first) if each.row == row] for row in ("local", "fedavg")}
    ledgers = {row: Ledger(BOARD, tmp_path) for row in entries}
    for row, ledger in ledgers.items():
        ledger.record(entries[row])
        ledger.machines.add(f"of {row}")
        ledger.save()
    found = Ledger(BOARD, tmp_path)
    assert {place[2] for place in found.lines} == {"local", "fedavg"}
    assert {"of local", "of fedavg", fingerprint.machine()} == found.machines


@pytest.mark.slow
def test_a_stage_with_unfinished_runs_is_not_built_upon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As those that another process makes."""
    monkeypatch.setattr(command, "make_runs", lambda *_: None)
    given = ["leaderboard", "board=mini", "rows=fedavg", f"results={tmp_path}", f"runs_dir={tmp_path / 'runs'}"]
    assert program.main(given) == 3
    said = capsys.readouterr()
    assert re.fullmatch(r"incomplete: \d+ runs of 4 rounds did not end, as .*give the same command again\n", said.err)
    assert "8 rounds" not in said.out


@pytest.mark.slow
def test_what_local_reached_is_unknown_without_it(filled: Ledger, tmp_path: Path) -> None:
    last = stages(BOARD)[-1]
    (entry,) = filled.entries(last, ["better"])
    ledger = Ledger(BOARD, tmp_path)
    assert ledger._line(entry, entry.job.folder.result())["bytes_to_local"] == ""
    ledger.lines = filled.lines
    assert int(ledger._line(entry, entry.job.folder.result())["bytes_to_local"]) > 0


@pytest.mark.slow
def test_runs_are_what_their_command_lines_compose() -> None:
    board = boards.load_board("mini")
    ledger = Ledger(board, Path("nowhere"))
    for row in ("local", "fedrc", "finetune_lpft", "oracle"):
        for stage in (stages(board)[0], stages(board)[-1]):
            job = ledger.job(stage, board.federations[-1], row, board.trials_of(row)[3], 5)
            assert resolve(compose(job.overrides)).plain == job.config.plain


@pytest.mark.slow
def test_a_row_without_its_method_is_refused(filled: Ledger) -> None:
    """As a method of a package that is not installed here; which there are is no part of a declaration."""
    board = dataclasses.replace(BOARD)
    board.__dict__["all_rows"] = {name: [f"method={name}"] for name in BOARD.methods[:-1]}
    with pytest.raises(ConfigError, match="has a row 'memorised', but there is no method of that name"):
        Ledger(board, filled.folder)


@pytest.mark.slow
def test_another_declaration_is_refused(filled: Ledger) -> None:
    other = dataclasses.replace(BOARD, rounds=4)
    with pytest.raises(ConfigError, match=r"tiny.yaml differs from the one that made "):
        Ledger(other, filled.folder)
    Ledger(BOARD, filled.folder)


@pytest.mark.parametrize("name", [folder.name for folder in standings.board_folders(RESULTS)])
def test_a_recorded_board_goes_on_when_a_further_method_is_left_out(name: str) -> None:
    board = boards.load_board(name)
    further = dataclasses.replace(board, without={**board.without, "better": "why"})
    assert Ledger(further, RESULTS / "leaderboard" / name).lines == Ledger(board, RESULTS / "leaderboard" / name).lines
    with pytest.raises(ConfigError, match=rf"{name}.yaml differs from the one that made "):
        Ledger(dataclasses.replace(board, trials=board.trials + 1), RESULTS / "leaderboard" / name)


@pytest.mark.slow
def test_a_failed_trial_goes_no_further(filled: Ledger) -> None:
    ledger = Ledger(BOARD, filled.folder)
    for place in [place for place in ledger.lines if place[2:4] == ("better", 1)]:
        ledger.lines[place] = {**ledger.lines[place], "acc_on_val": "", "failure": "Diverged"}
    assert ledger.survivors("even", "better", 1) == [0]
    assert ledger.chosen("even", "better") is None, "the default did not run at the last rung"


@pytest.mark.parametrize(
    ("tune", "error", "message"),
    [
        ("{mu: [1]}", UnknownName, "unknown key in tune of method 'better' 'mu'"),
        (
            "{work: [1], private: [[]], rate: [1], paper: [1]}",
            ConfigError,
            "has 3 keys of its own, work, private, paper",
        ),
        ("{work: 3}", ConfigError, "tune of method 'better', work is 3; give a list of values, or"),
        ("{work: {low: 3, high: 1}}", FedbenchError, "a range from 3 to 1 is none"),
        ("{work: {low: 0.5, high: 1.5}}", ConfigError, "tune of method 'better': .*work"),
    ],
)
def test_what_cannot_be_tuned_is_refused(planted: Path, tune: str, error: type[Exception], message: str) -> None:
    file = planted / "method" / "better.yaml"
    file.write_text(f"name: better\nprivate: []\nwork: 1\ntune: {tune}\n")
    try:
        with pytest.raises(error, match=message):
            boards.space("better")
    finally:
        file.write_text(YAMLS["better"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tuning_seeds": (1, 7)}, "tunes on seed 1, which is also a final seed"),
        ({"rungs": (2, 1)}, r"rungs of \[2, 1\] rounds"),
        ({"rungs": (1, 2, 3)}, "2 trials over rungs"),
        ({"references": ("local", "fedavgg")}, "unknown row of leaderboard 'tiny' 'fedavgg'"),
    ],
)
def test_boards_that_cannot_be_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(FedbenchError, match=message):
        dataclasses.replace(BOARD, **change)


@pytest.mark.parametrize("name", sampled(groups.names("leaderboard"), every=3))
def test_the_boards_here_can_be_run(name: str) -> None:
    """Each has the rows that must be there, and their runs compose."""
    board = boards.load_board(name)
    assert {"local", "fedavg", "finetune_all", "finetune_head", "finetune_lpft", "fedadam + finetune"} <= {
        *board.all_rows
    }
    assert board.references[0] == "local"
    ledger = Ledger(board, Path("nowhere"))
    for federation in board.federations:
        for row in board.all_rows:
            if row in ("local", "oracle", "fedadam + finetune") and board.has(federation, row):
                first, *_, last = stages(board)
                trial, final = (ledger.job(stage, federation, row, BoardTrial(0), 0).config for stage in (first, last))
                assert trial.protocol.test.sets == "validation"
                assert final.protocol.test.once
                assert trial.method == final.method
                assert row != "oracle" or len(trial.method.coalition) == len(federation.groups) > 0


def test_ranges() -> None:
    assert Range(0.01, 1.0).at(0.5) == 0.1
    assert Range(0.0, 1.0, log=False).at(0.25) == 0.25
    assert Range(1, 4).at(0.99) == 4
    assert isinstance(Range(1, 4).at(0.5), int)


@pytest.mark.slow
def test_the_command_refuses_what_would_change_a_board(capsys: pytest.CaptureFixture[str]) -> None:
    for more, message in (
        ("protocol.rounds=3", "a board runs only as declared"),
        ("seeds=[9]", "the board has no seed 9"),
        ("rows=fedavgg", "unknown row of the board 'fedavgg'"),
    ):
        assert program.main(["leaderboard", "board=mini", more]) == 2
        assert message in capsys.readouterr().err


def test_hours_are_told_before_anything_is_trained(tmp_path: Path) -> None:
    ledger = Ledger(BOARD, tmp_path / "board", [f"runs_dir={tmp_path / 'runs'}"])
    *rows, last = command.hours(ledger, ["local", "better"], 2)
    assert [line.partition(":")[0] for line in rows] == ["local", "better"]
    assert last.startswith("14 runs, about 0.0 hours of one core")
    assert not list(tmp_path.iterdir())


def test_a_row_that_cannot_be_built_does_not_hide_the_others_hours(tmp_path: Path) -> None:
    rows = {"headless": ("method=fedavg", "method.private=[@norm]"), "wild": ("method=fedprox", "method.mu=1e38")}
    ledger = Ledger(dataclasses.replace(BOARD, methods=("local",), rows=rows), tmp_path, [f"runs_dir={tmp_path}"])
    *told, last = command.hours(ledger, ["headless", "wild", "local"], 1)
    assert ["cannot be built" in line for line in told] == [True, True, False], told
    assert last.startswith("7 runs, ")


def test_a_board_without_its_data_is_refused_before_anything_is_recorded(tmp_path: Path) -> None:
    away = dataclasses.replace(BOARD.federations[0], overrides=("dataset=npz", "dataset.path=away.npz"))
    ledger = Ledger(dataclasses.replace(BOARD, federations=(away,)), tmp_path, [f"runs_dir={tmp_path / 'runs'}"])
    with pytest.raises(DataMissing, match=r"there is nothing at away\.npz"):
        command.fill_board(ledger, Selection())
    with pytest.raises(DataMissing, match=r"there is nothing at away\.npz"):
        list(command.hours(ledger, ["local"], 1))
    assert not list(tmp_path.iterdir())


def test_a_launchers_machines_are_not_asked_for_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster's login node has no GPU."""
    monkeypatch.setattr(command, "make_runs", lambda *_: None)
    ledger = Ledger(BOARD, tmp_path, [f"runs_dir={tmp_path}", "hardware.device=cuda"])
    selection = Selection(overrides=("hydra/launcher=submitit_slurm",))
    assert "did not end" in command.fill_board(ledger, selection, ("local",))
