"""Figures as data, their runs, and the commands that make them."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbench.cli import figure, plot
from fedbench.config import groups
from fedbench.core.errors import ConfigError, Damaged, UnknownName
from fedbench.data import authors, dataset
from fedbench.figures import extras, overview, pictures, plan, read, spec, store
from fedbench.figures.judges.verdict import VERDICTS
from fedbench.recorders import parse
from fedbench.tables.spec import TableSpec
from tests.helpers.runs import FAST
from tests.helpers.tiers import tiered

NAMES = sorted(file.stem for file in (groups.conf_dir() / "figure").glob("*.yaml"))
QUICK = ["scale=quick", "jobs=1", "hardware.engine=looped", "protocol.local.epochs=1"]


def planned(name: str, scale: str, folder: Path, *changed: str) -> plan.FigurePlan:
    wanted = plan.Wanted(scale, changed=changed, settings=(f"runs_dir={folder}", "progress=none"))
    return plan.FigurePlan(spec.load(name), scale, plan._plan(spec.load(name), scale, wanted), wanted)


def test_all_figures_of_the_papers_are_here() -> None:
    wanted = {
        "fedsac": (1, 3, 4, 5, 6, 7),
        "pfedsim": (1, 2, 3, 5),
        "sosicfl": range(2, 10),
        "fedrema": (1, 3, 4),
        "fedcollab": (1, 3, 4, 5, 6, 7, 8),
    }
    assert overview.ordered() == [f"{paper}_f{number}" for paper, all_ in wanted.items() for number in all_]
    assert sorted(overview.ordered()) == NAMES == spec.names()


@pytest.mark.parametrize(
    "name", tiered(NAMES, quick=["fedsac_f3", "pfedsim_f1", "sosicfl_f6", "fedrema_f3", "fedcollab_f5"])
)
def test_a_figure_plans_without_training(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "load", None, raising=False)
    found = planned(name, "quick", tmp_path)
    assert not any(entry.reason for entry in found.runs.entries)
    assert bool(found.missing()) == found.spec.runs
    assert not list(tmp_path.iterdir())
    recorded = {recorder.name for job in found.runs.jobs for recorder in job.config.recorders}
    read_off = {key.split("/")[1] for key in found.spec.reads.get("arrays", ()) if key.startswith("record/")}
    assert read_off <= recorded
    assert found.spec.claim
    assert found.spec.setting("quick").data
    assert callable(
        getattr(importlib.import_module(f"fedbench.plots.{found.spec.paper}"), name.split("_")[1])
    )
    assert found.spec.reads.get("extra") in (None, *extras.EXTRAS)


def test_the_authors_distances_are_those_of_the_scenario(tmp_path: Path) -> None:
    """Beside another partition there are none."""
    for scenario in authors.SCENARIOS:
        shown = extras.authors(planned("fedcollab_f5", "quick", tmp_path, f"partition={scenario}"), {})
        assert (shown["authors"] == authors.distances(scenario)).all()
    assert not extras.authors(planned("fedcollab_f5", "quick", tmp_path, "partition=dir0.1"), {})


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_other_settings_plan_too(name: str, tmp_path: Path) -> None:
    for scale in spec.load(name).settings:
        for entry in planned(name, scale, tmp_path).runs.entries:
            assert not entry.reason or "missing" in entry.reason


def test_a_figure_is_made_kept_and_drawn_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "fedbench.figures.spec.load", lambda name, load=spec.load: small(load("fedrema_f3"), name)
    )
    asked = ["fedrema_f3", *QUICK, f"runs_dir={tmp_path / 'runs'}", f"results={tmp_path}"]
    assert figure.main([*asked, "--dry-run"]) == 0
    assert "2 runs to make" in capsys.readouterr().out, "FedAvg and its Local"
    assert figure.main(asked) == 0
    assert figure.main([*asked, "dry_run=true"]) == 0
    assert "0 runs to make" in capsys.readouterr().out
    place = tmp_path / "figures" / "quick" / "fedrema_f3"
    drawn, arrays = store.read(place)
    assert arrays["array/record/similarity/round/0/0"].tolist() == [[1, 2]]
    assert drawn.verdict in VERDICTS
    for word in ("FedReMa, Figure 3", "digits", "seed 0", "python -m fedbench.figure fedrema_f3 scale=quick"):
        assert word in drawn.caption
    page = (tmp_path / "figures" / "README.md").read_text(encoding="utf-8")
    assert drawn.claim in page
    assert (tmp_path / "figures" / "contact.png").is_file()
    before = (tmp_path / "figures/quick/fedrema_f3.svg").read_bytes()
    assert figure.main(["fedrema_f3", "render=true", f"results={tmp_path}"]) == 0
    assert (tmp_path / "figures/quick/fedrema_f3.svg").read_bytes() == before
    (place.parent / "fedrema_f3.npz").write_bytes(b"other")
    with pytest.raises(Damaged, match=r"python -m fedbench\.figure fedrema_f3"):
        store.read(place)


def small(whole: spec.FigureSpec, name: str) -> spec.FigureSpec:
    """Figure 3 of FedReMa with two rounds, whatever figure is asked for."""
    import dataclasses

    short = [
        text
        for text in whole.setting("quick").overrides
        if not text.startswith(("record=", "protocol.rounds"))
    ]
    setting = spec.Setting(
        (*short, "protocol.rounds=2", "record=[similarity@1,2]", "partition.size=20"), data="digits"
    )
    return dataclasses.replace(whole, name=name, settings={"quick": setting})


def test_a_figure_that_was_not_made_says_which_command_makes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert figure.main(["fedsac_f7", "render=true", f"results={tmp_path}"]) == 1
    assert "python -m fedbench.figure fedsac_f7 scale=quick makes them" in capsys.readouterr().err


def test_without_the_papers_data_open_data_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "lack", lambda *_: "data missing (python -m fedbench.prepare cifar10)")
    wanted = plan.Wanted("paper", settings=(f"runs_dir={tmp_path}",))
    made = plan.make(spec.load("pfedsim_f3"), wanted)
    assert made.scale == "open"
    assert "cifar10" in made.substituted
    assert "Fashion-MNIST" in made.setting.data
    with pytest.raises(ConfigError, match="scale=quick draws it"):
        plan.make(spec.load("fedcollab_f3"), wanted)
    assert plan.make(spec.load("fedcollab_f3"), plan.Wanted("quick")).substituted == ""


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], ""),
        (["scale=quick"], "which figure"),
        (["fedsac_f9"], "nearest: fedsac_f"),
        (["fedsac_f7", "scale=huge"], "quick"),
        (["fedsac_f7", "seeds=0"], "seeds=0"),
        (["fedsac_f7", "scale=quick", "protocol.round=3"], "protocol.round"),
    ],
)
def test_bad_arguments_are_told_in_a_line(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert figure.main(arguments) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert "Traceback" not in error


def test_wrong_yaml_is_refused() -> None:
    good = {"paper": "fedsac", "figure": "1", "title": "t", "claim": "c", "settings": {"quick": {}}}
    assert spec.parse(good, "x").mirrors == "FedSaC, Figure 1"
    for change, error in (
        ({"paper": "nobody"}, UnknownName),
        ({"settings": {"paper": {}}}, ConfigError),
        ({"settings": {"quick": {}, "huge": {}}}, UnknownName),
        ({"rowz": []}, UnknownName),
    ):
        with pytest.raises(error):
            spec.parse({**good, **change}, "x")


def test_runs_that_figures_share_are_made_once_with_what_all_record(tmp_path: Path) -> None:
    one, two, three = (
        planned("fedrema_f3", "quick", tmp_path, f"record=[{entry}]").runs.jobs[-1]
        for entry in ("similarity@5", "cka", "update_variance@1")
    )
    (job,) = plan.together([one, two, three])
    found = {each.name: each.rounds for each in job.config.recorders}
    last = job.config.protocol.rounds
    assert found == {"cka": (last,), "similarity": (5,), "update_variance": (1,)}
    kept = {"record/similarity/round": np.array([2, 5]), "positions": np.zeros(3)}
    again = plan.recording(one, kept, force=True)
    assert again.config.settings.force
    assert again.config.recorders == parse(["similarity@2", "5"])


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from fedbench.cli import app

    folder = tmp_path_factory.mktemp("runs")
    for method in ("fedavg", "fedsac"):
        assert (
            app.main([*FAST, f"method={method}", f"runs_dir={folder}", "progress=none", "hardware=cpu"]) == 0
        )
    return folder


def test_any_run_is_drawn(two_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, tables = pictures.folders([str(two_runs)])
    assert (len(found), tables) == (3, [])
    fedsac = next(folder for folder in found if "fedsac" in str(folder))
    assert list(pictures.of_run(fedsac)) == ["gain", "collaboration", "clients"]
    local = next(folder for folder in found if "local" in str(folder))
    assert list(pictures.of_run(local)) == ["clients"], "nothing to gain over itself"
    both = pictures.of_runs(found)
    names = [text.get_text() for text in both["curves"].legends[0].get_texts()]
    assert sorted(names) == ["fedavg", "fedsac", "local"]
    assert plot.main([str(fedsac), f"out={tmp_path}", "formats=svg"]) == 0
    written = capsys.readouterr().out.split()
    assert all(Path(f"{path}.svg").is_file() for path in written)
    assert len(written) == 5


def test_runs_are_told_apart_by_what_differs() -> None:
    row = {"method": "fedavg", "dataset": "digits", "seed": 0, "key": "abcdef"}
    other = {**row, "dataset": "mnist"}
    assert pictures.names([row, {**row, "seed": 1}]) == ["fedavg", "fedavg"]
    assert pictures.names([row, other]) == ["fedavg, digits", "fedavg, mnist"]
    assert pictures.names([row, {**row, "key": "123456"}]) == ["fedavg abcd", "fedavg 1234"]


def test_a_filled_table_is_drawn() -> None:
    figures = pictures.of_table(Path("results/tables/fedcollab_t1"))
    assert set(figures) == {"curves-1", "beside-1"}, "some rows lack runs, so methods have no ranks"
    figures = pictures.of_table(Path("results/tables/fedcollab_t1-partition_seed=0"))
    ranks = " ".join(text.get_text() for text in figures["ranks"].axes[0].texts)
    assert "critical difference" in ranks
    assert "Ditto+FedCollab" in ranks


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["out=x"], "which run"),
        (["/nowhere/at/all"], "holds no finished run"),
        ([".", "format=svg"], "nearest: formats"),
        ([".", "formats=bmp"], "unknown format"),
    ],
)
def test_what_cannot_be_drawn_is_told(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert plot.main(arguments) != 0
    assert reason in capsys.readouterr().err


def test_committed_figures_are_of_what_is_kept() -> None:
    folder = Path("results/figures")
    found = overview.made(folder)
    assert len(found) >= 20
    page = (folder / "README.md").read_text(encoding="utf-8")
    assert page == overview.text(found), "run `make tables`"
    for each in found:
        for kind in ("svg", "png", "npz"):
            assert (folder / each.scale / f"{each.name}.{kind}").is_file()
        kept = json.loads((folder / each.scale / f"{each.name}.json").read_text(encoding="utf-8"))
        assert kept["claim"] == spec.load(each.name).claim, "run `make tables`"


def test_a_figures_runs_are_a_table_to_the_planner() -> None:
    table = spec.load("sosicfl_f7").table("quick")
    assert isinstance(table, TableSpec)
    assert [column.label for column in table.columns] == ["0.1", "0.4"]
    assert read.collect.__doc__
