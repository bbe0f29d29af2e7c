"""Figures as data, and their runs."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedbench.config import groups
from fedbench.core.errors import ConfigError, UnknownName
from fedbench.data import authors, dataset
from fedbench.papers import figure_arrays as arrays
from fedbench.papers import figure_plan as plan
from fedbench.papers.selection import Selection
from fedbench.papers.spec import TableSpec
from fedbench.recorders import parse

NAMES = sorted(file.stem for file in (groups.conf_dir() / "figure").glob("*.yaml"))


def planned(name: str, scale: str, folder: Path, *changed: str) -> plan.FigurePlan:
    selection = Selection(scale=scale, overrides=(*changed, f"runs_dir={folder}"))
    return plan.FigurePlan(
        plan.load_figure_spec(name), scale, plan._plan(plan.load_figure_spec(name), scale, selection), selection
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedsac_f5", "fedsac_f6", "fedsac_f7"])
def test_fedsacs_figures_score_a_personalised_model_as_trained(name: str, tmp_path: Path) -> None:
    for scale in plan.load_figure_spec(name).settings:
        jobs = planned(name, scale, tmp_path, *(() if scale == "quick" else ("dataset=digits", "model=mlp"))).runs.jobs
        own = {job.config.protocol.score for job in jobs if job.config.labels["method"] in ("fedsac", "local")}
        assert own in ({"both", "trained"}, {"trained"}), scale


def test_all_figures_of_the_papers_are_here() -> None:
    wanted = {  # in the order of the tables
        "fedcollab": (1, 3, 4, 5, 6, 7, 8),
        "fedsac": (1, 3, 4, 5, 6, 7),
        "pfedsim": (1, 2, 3, 5),
        "sosicfl": range(2, 10),
        "fedrema": (1, 3, 4),
    }
    ordered = [spec.name for spec in plan.ordered_specs()]
    assert ordered == [f"{paper}_f{number}" for paper, all_ in wanted.items() for number in all_]
    assert sorted(ordered) == NAMES


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_figure_plans_without_training(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "load", None, raising=False)
    found = planned(name, "quick", tmp_path)
    assert not any(entry.reason for entry in found.runs.cells)
    assert bool(found.missing()) == found.spec.runs
    assert not list(tmp_path.iterdir())
    recorded = {recorder.name for job in found.runs.jobs for recorder in job.config.recorders}
    read_off = {key.split("/")[1] for key in found.spec.reads.get("arrays", ()) if key.startswith("record/")}
    assert read_off <= recorded
    assert found.spec.claim
    assert found.spec.setting("quick").data
    assert callable(getattr(importlib.import_module(f"fedbench.papers.plots.{found.spec.paper}"), name.split("_")[1]))
    assert found.spec.reads.get("extra") in (None, *arrays.EXTRAS)


@pytest.mark.slow
def test_the_authors_distances_are_those_of_the_scenario(tmp_path: Path) -> None:
    """Beside another partition there are none."""
    for scenario in authors.SCENARIOS:
        shown = arrays.authors_distances(planned("fedcollab_f5", "quick", tmp_path, f"partition={scenario}"), {})
        assert (shown["authors"] == authors.distances(scenario)).all()
    assert not arrays.authors_distances(planned("fedcollab_f5", "quick", tmp_path, "partition=dir0.1"), {})


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_other_settings_plan_too(name: str, tmp_path: Path) -> None:
    for scale in plan.load_figure_spec(name).settings:
        for entry in planned(name, scale, tmp_path).runs.cells:
            assert not entry.reason or "missing" in entry.reason


def test_without_the_papers_data_open_data_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = "data missing (python -m fedbench prepare cifar10)"
    monkeypatch.setattr("fedbench.papers.plan._lacking", lambda table, *_: missing if "cifar10" in str(table) else "")
    selection = Selection(overrides=(f"runs_dir={tmp_path}",))
    made = plan.make_plan(plan.load_figure_spec("pfedsim_f3"), selection)
    assert made.scale == "open"
    assert "cifar10" in made.substituted
    assert "Fashion-MNIST" in made.spec.setting(made.scale).data
    monkeypatch.setattr("fedbench.papers.plan._lacking", lambda *_: missing)
    with pytest.raises(ConfigError, match="scale=quick draws it"):
        plan.make_plan(plan.load_figure_spec("fedcollab_f3"), selection)
    assert plan.make_plan(plan.load_figure_spec("fedcollab_f3"), Selection(scale="quick")).substituted == ""


def test_wrong_yaml_is_refused() -> None:
    good = {"paper": "fedsac", "figure": "1", "title": "t", "claim": "c", "settings": {"quick": {}}}
    assert plan.parse_figure_spec(good, "x").mirrors == "FedSaC, Figure 1"
    for change, error in (
        ({"paper": "nobody"}, UnknownName),
        ({"settings": {"paper": {}}}, ConfigError),
        ({"settings": {"quick": {}, "huge": {}}}, UnknownName),
        ({"rowz": []}, UnknownName),
    ):
        with pytest.raises(error):
            plan.parse_figure_spec({**good, **change}, "x")


@pytest.mark.slow
def test_runs_that_figures_share_are_made_once_with_what_all_record(tmp_path: Path) -> None:
    one, two, three = (
        planned("fedrema_f3", "quick", tmp_path, f"record=[{entry}]").runs.jobs[-1]
        for entry in ("similarity@5", "cka", "update_variance@1")
    )
    (job,) = plan.merged_jobs([one, two, three])
    found = {each.name: each.rounds for each in job.config.recorders}
    last = job.config.protocol.rounds
    assert found == {"cka": (last,), "similarity": (5,), "update_variance": (1,)}
    kept = {"record/similarity/round": np.array([2, 5]), "positions": np.zeros(3)}
    again = plan.with_recorders(one, kept, force=True)
    assert again.config.settings.force
    assert again.config.recorders == parse(["similarity@2", "5"], again.config.protocol.rounds)


def test_a_figure_of_one_seed_runs_and_names_one(tmp_path: Path) -> None:
    for name, seeds in (("fedrema_f3", (3,)), ("pfedsim_f2", (3, 5))):  # whose bars are means over seeds
        asked = Selection(scale="quick", seeds=(3, 5), overrides=(f"runs_dir={tmp_path}",))
        made = plan.make_plan(plan.load_figure_spec(name), asked)
        assert made.runs.seeds == seeds
        assert {job.seed for job in made.missing()} == {*seeds}
        assert f"seeds={list(seeds)}".replace(" ", "") in made.command()
    for whole in ((), (0, 1)):
        one = plan.make_plan(plan.load_figure_spec("fedcollab_f3"), Selection(scale="quick", seeds=whole))
        assert one.runs.seeds == (0,)


def test_the_checksum_of_a_figures_runs_knows_no_order(tmp_path: Path) -> None:
    made = planned("fedcollab_f6", "quick", tmp_path)
    cells = made.runs.cells
    turned, fewer = (replace(made, runs=replace(made.runs, cells=some)) for some in (cells[::-1], cells[1:]))
    assert made.keys() == turned.keys() != fewer.keys()


def test_a_figures_runs_are_a_table_to_the_planner() -> None:
    table = plan.load_figure_spec("sosicfl_f7").table("quick")
    assert isinstance(table, TableSpec)
    assert [column.label for column in table.columns] == ["0.1", "0.4"]


@dataclass(frozen=True)
class Made:
    """A job whose run's numbers are 100 r + 10 c + s: row, column and seed. The last one has not finished."""

    r: int
    c: int
    s: int

    @property
    def config(self) -> int:
        return 100 * self.r + 10 * self.c + self.s

    identity = config

    @property
    def finished(self) -> bool:
        return self.config != 121

    @property
    def run(self) -> Any:
        assert self.finished
        n, rounds = self.config, (0, 2) if self.c else (0, 4)
        size = {0: 0, 11: 3}.get(n, 2)
        return SimpleNamespace(
            row={"acc": n, "ipr": None},
            rounds=[{"round": str(done), "acc_on_local": str(n + done)} for done in rounds],
            tallies={
                "tally/local/round": np.array([3, 5]),
                "tally/local/correct": np.array([[n, 0, 1], [2 * n, 0, 3]]),
                "tally/local/total": np.array([[200, 0, 4]] * 2),
            },
            arrays={"D": np.full(size, n)} if size else {},
        )


def test_a_figures_numbers_are_those_of_their_row_column_and_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows, three columns, two seeds."""
    counted = SimpleNamespace(label_counts=lambda y: [y])
    monkeypatch.setattr(arrays, "split_data", lambda config: (SimpleNamespace(y=config), counted))
    cells = [SimpleNamespace(jobs=tuple(Made(r, c, s) for s in range(2))) for r in range(2) for c in range(3)]
    spec = SimpleNamespace(
        rows=[SimpleNamespace(label=label) for label in "ab"], columns=[SimpleNamespace(label=label) for label in "xyz"]
    )
    N = np.array([[[0, 1], [10, 11], [20, 21]], [[100, 101], [110, 111], [120, np.nan]]])

    def collected(**reads: Any) -> Any:
        runs = SimpleNamespace(spec=spec, cells=cells, seeds=(0, 1))
        made: Any = SimpleNamespace(runs=runs, spec=SimpleNamespace(reads=reads))
        return arrays.collect(made)

    found = collected(scores=["acc", "ipr"], curves=["acc_on_local"], arrays=["D"], partition=True)
    assert [found[name].tolist() for name in ("rows", "columns", "seeds")] == [["a", "b"], ["x", "y", "z"], [0, 1]]
    np.testing.assert_array_equal(found["score/acc"], N)
    assert np.isnan(found["score/ipr"]).all()
    assert found["round"].tolist() == [0, 2, 4]
    scored = np.where([[True, False, True], [True, True, False], [True, True, False]], [0, 2, 4], np.nan)
    np.testing.assert_array_equal(found["curve/acc_on_local"], N[..., None] + scored[None, :, None])
    kept = {name[8:]: array.tolist() for name, array in found.items() if name.startswith("array/D/")}
    assert kept == {  # of one that a seed lacks the other's, of different sizes the first seed's
        "0/0": [[1, 1]], "0/1": [[10, 10]], "0/2": [[20, 20], [21, 21]],
        "1/0": [[100, 100], [101, 101]], "1/1": [[110, 110], [111, 111]], "1/2": [[120, 120]],
    }  # fmt: skip
    counts = {f"counts/{r}/{c}": [100 * r + 10 * c] for r in range(2) for c in range(3)}
    assert {name: array.tolist() for name, array in found.items() if name.startswith("counts")} == counts

    found = collected(clients=["acc_on_local"])
    assert found["round"].tolist() == [3, 5]
    expected = np.stack([np.stack([N / 2, N * np.nan, N * 0 + 25], -1), np.stack([N, N * np.nan, N * 0 + 75], -1)], -2)
    np.testing.assert_array_equal(found["clients/acc_on_local"], expected)
