"""The commands that make figures and draw them, and what they say."""

from __future__ import annotations

import re
import shutil
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedbench.cli import program, runs
from fedbench.config import groups
from fedbench.config.messages import INCOMPLETE
from fedbench.core import checked
from fedbench.core.errors import Damaged
from fedbench.core.files import as_json, as_npz
from fedbench.papers import figure_plan as plan
from fedbench.papers.render import table_figures
from fedbench.papers.selection import Selection
from tests.helpers.runs import FAST
from tests.helpers.tiers import sampled
from tests.papers.plots.made import MADE

QUICK = ["scale=quick", "jobs=1", "hardware.engine=looped", "protocol.local.epochs=1"]


@pytest.mark.slow
def test_a_figure_is_made_kept_and_drawn_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "fedbench.papers.figure_plan.load_figure_spec",
        lambda name, load=plan.load_figure_spec: small(load("fedrema_f3"), name),
    )
    asked = ["fedrema_f3", *QUICK, f"runs_dir={tmp_path / 'runs'}", f"results={tmp_path}"]
    assert program.main(["figure", *asked, "--dry-run"]) == 0
    assert "1 run to make" in capsys.readouterr().out, "FedAvg, without the Local that nothing of the figure reads"
    assert program.main(["figure", *asked]) == 0
    assert program.main(["figure", *asked, "dry_run=true"]) == 0
    assert "0 runs to make" in capsys.readouterr().out
    place = tmp_path / "figures" / "quick" / "fedrema_f3"
    drawn, arrays = plan.load_figure(place)
    assert arrays["array/record/similarity/round/0/0"].tolist() == [[1, 2]]
    assert b"verdict" not in plan.files_of_figure(place).read("fedrema_f3.json")
    for word in ("FedReMa, Figure 3", "digits", "seed 0", "python -m fedbench figure fedrema_f3 scale=quick"):
        assert word in drawn.caption
    page = (tmp_path / "figures" / "README.md").read_text(encoding="utf-8")
    assert f"| {drawn.claim} | at a small scale | digits with protocol.local.epochs=1; 1 seed |" in page
    before = (tmp_path / "figures/quick/fedrema_f3.svg").read_bytes()
    assert program.main(["redraw", str(tmp_path)]) == 0
    assert (tmp_path / "figures/quick/fedrema_f3.svg").read_bytes() == before
    plan.files_of_figure(place).place.write_bytes(b"other")
    with pytest.raises(Damaged, match=r"rm .*figures/quick/figures.zip"):
        plan.load_figure(place)


def test_a_figure_without_its_runs_is_incomplete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fedbench.papers.reproduce.make_runs", lambda *_: None)
    places = [f"runs_dir={tmp_path / 'runs'}", f"results={tmp_path}"]
    assert program.main(["figure", "fedrema_f3", *QUICK, *places]) == INCOMPLETE
    assert "runs are missing" in capsys.readouterr().err


def test_what_the_message_about_a_damaged_archive_says_repairs_it(tmp_path: Path) -> None:
    """The command that makes a figure writes into the archive of all, which it refuses to replace."""
    files = plan.files_of_figure(tmp_path / "quick" / "fedsac_f7")
    files.place.parent.mkdir()
    files.place.write_bytes(b"other")
    with pytest.raises(Damaged, match=f"make the figures again after: rm {files.place}$"):
        files.write({"fedsac_f7.json": b"{}"})
    files.place.unlink()
    files.write({"fedsac_f7.json": b"{}"})


def small(whole: plan.FigureSpec, name: str) -> plan.FigureSpec:
    """Figure 3 of FedReMa with two rounds, whatever figure is asked for."""
    import dataclasses

    short = [text for text in whole.setting("quick").overrides if not text.startswith(("record=", "protocol.rounds"))]
    setting = plan.Setting((*short, "protocol.rounds=2", "record=[similarity@1,2]", "partition.size=20"), data="digits")
    return dataclasses.replace(whole, name=name, settings={"quick": setting})


def test_a_figure_is_drawn_again_at_the_scale_nearest_the_papers(tmp_path: Path) -> None:
    for scale in ("open", "quick"):
        (tmp_path / scale).mkdir()
        plan.files_of_figure(tmp_path / scale / "fedsac_f7").write({"fedsac_f7.json": b""})
    assert plan.drawn_places(tmp_path) == [tmp_path / "open" / "fedsac_f7"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], ""),
        (["scale=quick"], "which figure"),
        (["fedsac_f9"], "nearest: fedsac_f"),
        (["fedsac_f7", "scale=huge"], "quick"),
        (["fedsac_f7", "scale=half"], "unknown scale of figures 'half'"),
        (["fedsac_f7", "seeds=0"], "seeds=0"),
        (["fedsac_f7", "scale=quick", "--dry-run", "formats=svg,bmp"], "unknown format 'bmp'; nearest: "),
        (["fedsac_f7", "scale=quick", "protocol.round=3"], "protocol.round"),
        (["fedsac_f7", "scale=quick", "--dry-run", "seed=3"], "use seeds=[3]"),
        (["fedsac_f7", "scale=quick", "--dry-run", "force=true"], "stale=rerun"),
    ],
)
def test_bad_arguments_are_told_in_a_line(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main(["figure", *arguments]) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert "Traceback" not in error


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for method in ("fedavg", "fedsac"):
        assert program.main([*FAST, f"method={method}", f"runs_dir={folder}", "progress=none", "hardware=cpu"]) == 0
    return folder


@pytest.mark.slow
def test_any_run_is_drawn(two_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, tables = runs.find_folders([str(two_runs)])
    assert (len(found), tables) == (3, [])
    assert runs.find_folders([str(found[1]), str(two_runs), str(two_runs)])[0] == [found[1], found[0], found[2]]
    fedsac = next(folder for folder in found if "fedsac" in str(folder))
    assert list(runs.run_figures(fedsac)) == ["gain", "collaboration", "partition", "clients"]
    local = next(folder for folder in found if "local" in str(folder))
    assert list(runs.run_figures(local)) == ["partition", "clients"], "nothing to gain over itself"
    both = runs.comparison_figures(found)
    names = [text.get_text() for text in both["curves"].legends[0].get_texts()]
    assert sorted(names) == ["fedavg", "fedsac", "local"]
    assert program.main(["plot", str(fedsac), f"out={tmp_path}", "formats=svg"]) == 0
    written = capsys.readouterr().out.split()
    assert all(Path(f"{path}.svg").is_file() for path in written)
    assert len(written) == 6
    twin = shutil.copytree(fedsac, tmp_path.joinpath("elsewhere", *fedsac.resolve().parts[-3:]))
    assert program.main(["plot", str(fedsac), str(twin), f"out={tmp_path}", "formats=svg"]) == 0
    again = capsys.readouterr().out.split()
    assert len({*again}) == len(again), "the same run of two places: neither is written over"


@pytest.mark.slow
def test_the_folder_one_stands_in_may_be_drawn(two_runs: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    first = runs.find_folders([str(two_runs)])[0][0]
    monkeypatch.chdir(first)
    assert program.main(["plot", ".", f"out={tmp_path}/pictures", "formats=svg"]) == 0
    drawn = [Path(line) for line in capsys.readouterr().out.split()]
    assert {path.parent for path in drawn} == {tmp_path / "pictures"}
    assert any(path.name.startswith("-".join(first.parts[-3:])) for path in drawn)


@pytest.mark.slow
def test_a_damaged_run_is_left_out_and_stops_no_other(
    two_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(two_runs, tmp_path / "runs")
    first, second, third = runs.find_folders([str(tmp_path / "runs")])[0]
    (first / "clients.csv").unlink()
    (second / "rounds.csv").write_text("round,")
    command = ["plot", str(tmp_path / "runs"), f"out={tmp_path}", "formats=svg"]
    assert program.main(command) == 0
    said = capsys.readouterr()
    assert [line.startswith("left out: ") for line in said.err.splitlines()] == [True, True]
    assert "-".join(third.parts[-3:]) in said.out
    assert (tmp_path / "runs-curves.svg").is_file()
    assert program.main(["plot", str(first), f"out={tmp_path}"]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_runs_are_told_apart_by_what_differs() -> None:
    row = {"method": "fedavg", "dataset": "digits", "seed": 0, "key": "abcdef"}
    other = {**row, "dataset": "mnist"}
    assert runs.distinct_names([row, {**row, "seed": 1}]) == ["fedavg", "fedavg"]
    assert runs.distinct_names([row, other]) == ["fedavg, digits", "fedavg, mnist"]
    assert runs.distinct_names([row, {**row, "key": "123456"}]) == ["fedavg abcd", "fedavg 1234"]
    samples = [{**row, "data": data, "seed": seed} for data, seed in (("a1" * 6, 0), ("b2" * 6, 1), ("b2" * 6, 2))]
    assert runs.distinct_names(samples) == ["fedavg a1a1a1", "fedavg b2b2b2", "fedavg b2b2b2"]


@pytest.mark.slow
def test_runs_that_differ_in_a_setting_are_no_seeds_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"method": "fedprox", "dataset": "digits", "test_set": "local", "acc_on_local": 1.0, "acc_on_global": 2.0}

    def made(folder: int, rounds: tuple[float, ...] = (1.0, 2.0)) -> Any:
        """Two seeds of two values of mu, one of them from another place and of before a setting was added."""
        method = {"name": "fedprox", "mu": (0.01, 1)[folder // 2], **({"added": 3} if folder else {})}
        config = {"dataset": {"root": f"place{folder}"}, "partition": {}, "model": {}, "method": method}
        history = {"bytes_up": "0", "bytes_down": "0", "seconds_total": "1"}
        return SimpleNamespace(
            row={**row, "seed": folder % 2, "key": f"{folder}" * 8},
            config=config,
            rounds=[{"round": f"{done}", "acc_on_local": f"{done + 10 * folder}", **history} for done in rounds],
        )

    monkeypatch.setattr(runs, "Run", made)
    figures = runs.comparison_figures([0, 1, 2, 3])
    for name in ("curves", "plane"):
        (legend,) = figures[name].legends
        assert [text.get_text() for text in legend.get_texts()] == ["fedprox, mu=0.01", "fedprox, mu=1"], name
    assert [line.get_ydata().tolist() for line in figures["curves"].axes[0].lines] == [[6, 7], [26, 27]]


def test_a_picture_of_other_data_is_titled_by_them() -> None:
    figures = table_figures(next(Path("results/tables/sosicfl_t2").glob("quick-fashion_mnist-*")))
    title = " ".join(figures["beside-1"].get_suptitle().split())
    assert title.startswith("sosicfl_t2 on fashion_mnist, in the place of SosicFL (2024), Table 2")
    assert re.search(r"\(quick scale; .*\): fashion_mnist, in place of CIFAR-10\b", title)
    label = figures["curves-1"].axes[0].get_ylabel()
    assert " ".join(label.split()).startswith("fashion_mnist, in place of CIFAR-10")
    assert max(map(len, [*label.split("\n"), *figures["beside-1"].get_suptitle().split("\n")])) <= 90


def test_a_filled_table_is_drawn() -> None:
    figures = table_figures(Path("results/tables/fedcollab_t1/partition=label_shift"))
    assert set(figures) == {"curves-1", "beside-1"}
    assert "Ditto+FedCollab" in [text.get_text() for text in figures["beside-1"].axes[0].get_yticklabels()]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["out=x"], "which run"),
        (["/nowhere/at/all"], "holds no finished run"),
        ([".", "format=svg"], "nearest: formats"),
        ([".", "formats=bmp"], "unknown format"),
        ([".", "out="], "'out=' has no value; give one or leave it out"),
        ([".", "--out", "x"], "unknown option '--out'; nearest: out"),
    ],
)
def test_what_cannot_be_drawn_is_told(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert program.main(["plot", *arguments]) != 0
    assert reason in capsys.readouterr().err


def test_committed_figures_are_of_what_is_kept() -> None:
    folder = Path("results/figures")
    found = [plan.load_figure(place)[0] for place in plan.drawn_places(folder)]
    assert len(found) >= 20
    page = (folder / "README.md").read_text(encoding="utf-8")
    assert page == plan.overview_text(found), "run `make tables`"
    for each in found:
        assert each.claim == plan.load_figure_spec(each.name).claim, "run `make tables`"


NAMES = groups.names("figure")
PLACES = [Path("results/figures") / scale / name for scale in plan.SETTINGS for name in NAMES]
COMMITTED = [place for place in PLACES if plan.files_of_figure(place).has(f"{place.name}.json")]


@pytest.mark.parametrize("place", sampled(COMMITTED, every=8), ids=lambda place: f"{place.parent.name}-{place.name}")
def test_a_committed_figure_is_of_todays_settings(place: Path) -> None:
    """If this fails: the figure was made before its YAML or a preset changed; its command makes it again."""
    drawn, arrays = plan.load_figure(place)
    assert arrays
    spec = plan.load_figure_spec(drawn.name)
    today = plan.FigurePlan(spec, drawn.scale, plan._plan(spec, drawn.scale, Selection(seeds=drawn.seeds)), Selection())
    if not all(cell.jobs for cell in today.runs.cells):
        pytest.skip("its data are not on this machine")
    assert drawn.runs == today.keys(), drawn.command


@pytest.mark.parametrize(("given", "kinds"), sampled([([], {".svg", ".png"}), (["formats=pdf"], {".pdf"})], every=2))
def test_a_figure_is_drawn_again_in_the_formats_that_are_asked_for(
    tmp_path: Path, given: list[str], kinds: set[str]
) -> None:
    place = tmp_path / "figures" / "quick" / "fedsac_f7"
    place.parent.mkdir(parents=True)
    content = {f"{place.name}.npz": as_npz(MADE["fedsac_f7"]), f"{place.name}.json": as_json(asdict(DRAWN))}
    plan.files_of_figure(place).write(content)
    assert program.main(["redraw", str(tmp_path), *given]) == 0
    assert {file.suffix for file in place.parent.glob("fedsac_f7.*")} == kinds
    assert "| `quick/fedsac_f7` |" in (tmp_path / "figures" / "README.md").read_text(encoding="utf-8")


DRAWN = plan.Drawn("fedsac_f7", "quick", "Figure 7", "t", "digits", (0,), "command", "claim")


def test_figures_of_a_scale_are_written_while_their_folder_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They share an archive, and commands for two of them may run at once."""
    held, write = [], checked.Archive.write

    def watched(self: checked.Archive, *given: Any) -> None:
        held.append((self.place.parent / ".lock").is_file())
        write(self, *given)

    monkeypatch.setattr(checked.Archive, "write", watched)
    monkeypatch.setattr(plan, "draw_figure", lambda *_: None)
    given = SimpleNamespace(
        changed=(), seeds=(0,), scale="quick", spec=plan.load_figure_spec("fedsac_f7"), command=str, keys=str
    )
    plan.save_figure(tmp_path, SimpleNamespace(selection=given, runs=given, **vars(given)), MADE["fedsac_f7"])
    plan.redraw(tmp_path / "quick" / "fedsac_f7")
    assert held == [True, True]
