"""conf/experiment/: every sweep composes as published and at its smaller size; table and figure are right."""

from __future__ import annotations

import itertools
import math
import re
import shlex
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from fedbench.cli.program import main
from fedbench.config import compose, groups
from fedbench.config.schema import SweepConfig
from fedbench.core.errors import UnknownName
from fedbench.plots.runs import ordered, sweep_heatmap, sweep_lines
from fedbench.runs.config import resolve
from fedbench.sweeps import session
from fedbench.sweeps.jobs import JobOutcome
from fedbench.sweeps.session import fixed, folder_name, markdown, remaining, swept, table, tex, tidy, write_table

FOLDER = groups.conf_dir() / "experiment"
NAMES = sorted(file.stem for file in FOLDER.glob("*.yaml"))


def content(name: str) -> Any:
    return OmegaConf.to_container(OmegaConf.load(FOLDER / f"{name}.yaml"), resolve=False)


def smaller(name: str) -> list[str]:
    """The overrides that the file gives for a small machine."""
    (line,) = re.findall(r"^# Smaller: (.*)$", (FOLDER / f"{name}.yaml").read_text(), re.MULTILINE)
    return shlex.split(line)


def corners(name: str, extra: list[str]) -> list[list[str]]:
    """Overrides of the first and the last job."""
    params = remaining(content(name)["hydra"]["sweeper"]["params"], extra)
    parsed = OverridesParser.create().parse_overrides([*(f"{k}={v}" for k, v in params.items()), *extra])
    jobs: list[list[str]] = [[], []]
    for override in parsed:
        key = override.get_key_element()
        if override.is_sweep_override():
            values = list(override.sweep_string_iterator())
        else:
            values = [override.get_value_element_as_str()]
        jobs[0].append(f"{key}={values[0]}")
        jobs[1].append(f"{key}={values[-1]}")
    return [[f"experiment={name}", *job] for job in jobs]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_composes_and_says_what_it_mirrors(name: str) -> None:
    config = content(name)
    assert config["sweep"]["name"] == name
    assert re.search(r"(Figure|Table) \d", config["sweep"]["mirrors"])
    for key in ("x", "by"):
        swept_key = config["sweep"].get(key)
        assert swept_key is None or swept_key in config["hydra"]["sweeper"]["params"]
    for extra in ([], smaller(name)):
        session.check_figure(OmegaConf.create({**asdict(SweepConfig()), **config["sweep"]}), corners(name, extra))
        for job in corners(name, extra):
            run = resolve(compose.compose(job))
            assert run.settings.sweep.name == name


@pytest.mark.slow
def test_an_experiment_ends_in_a_table_and_a_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDBENCH_RUNS", "runs")
    command = [
        "-m",
        "experiment=fedcollab_c",
        *smaller("fedcollab_c"),
        "protocol.rounds=1",
        "method.C=0,1000",
    ]
    assert main([*command, "seed=0,1", "progress=none", "hardware.engine=looped"]) == 0
    assert "C=1000" in capsys.readouterr().out
    (folder,) = (tmp_path / "results" / "sweeps").iterdir()
    assert folder.name == "fedcollab_c-dataset=digits-protocol=quick-protocol.rounds=1"
    assert {file.name for file in folder.iterdir()} == {
        "runs.csv",
        "table.csv",
        "table.md",
        "table.tex",
        "figure.svg",
        "figure.png",
    }
    tex = (folder / "table.tex").read_text(encoding="utf-8").splitlines()
    heads = (folder / "table.md").read_text(encoding="utf-8").splitlines()[0].strip("| ").split(" | ")
    assert tex[3] == r"\caption{fedcollab\_c, FedCollab, Figure 6}"
    assert tex[4] == r"\label{tab:fedcollab-c-dataset-digits-protocol-quick-protocol.rounds-1}"
    assert tex[5:7] == [rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}", r"\toprule"]
    assert tex[7] == " & ".join(heads).replace("_", r"\_") + r" \\"
    assert tex[9].startswith(r"0 & 2 & ")
    assert r" $\pm$ " in tex[9]
    assert "" not in tex
    filled = pd.read_csv(folder / "table.csv")
    assert list(filled["method.C"]) == [0, 1000]
    assert list(filled["seeds"]) == [2, 2]
    runs = pd.read_csv(folder / "runs.csv")
    alone = runs[runs["method.C"] == 0]
    assert filled["acc"][0] == pytest.approx(alone["acc"].mean())
    assert filled["acc_std"][0] == pytest.approx(alone["acc"].std(ddof=1))
    assert list(alone["rsd"]) == [0, 0], "with C 0 every client trains alone"
    assert "<svg" in (folder / "figure.svg").read_text()


def outcomes() -> list[JobOutcome]:
    return [
        JobOutcome({"method.C": c, "method.rho": rho, "seed": s}, {"acc": float(s) + 10 * float(c) + float(rho)})
        for c in ("10", "2")
        for rho in ("0.5", "1")
        for s in ("0", "2")
    ]


def test_table_is_mean_and_sample_deviation_over_seeds() -> None:
    assert swept(outcomes()) == ["method.C", "method.rho"]
    assert swept(outcomes(), ["seed"]) == ["method.C", "method.rho", "seed"]
    filled = table(tidy(outcomes(), ["method.C", "method.rho"]), ["method.C", "method.rho"], "acc")
    assert list(filled["acc"]) == [101.5, 102, 21.5, 22]
    assert list(filled["acc_std"]) == [pytest.approx(math.sqrt(2))] * 4
    assert list(filled["seeds"]) == [2] * 4


def test_a_run_that_appears_twice_counts_once() -> None:
    runs = [JobOutcome({"seed": s}, {"key": s, "data": "d", "acc": 10.0 * int(s)}) for s in ("0", "0", "2")]
    filled = table(tidy(runs, []), [], "acc")
    assert filled["seeds"].tolist() == [2]
    assert filled["acc_std"].tolist() == [pytest.approx(math.sqrt(200))]
    other = [JobOutcome({"method.mu": mu}, {"key": "a", "data": "d", "acc": 1.0}) for mu in ("0", "0.0")]
    assert tidy(other, ["method.mu"])["method.mu"].tolist() == ["0", "0.0"], "each swept value keeps its line"


def test_scores_of_unseen_clients_are_columns() -> None:
    row = {"acc": 1.0, "unseen": 2, "unseen_note": "", "acc_unseen_1": 61.0, "auroc_unseen_1": 72.0}
    heads = markdown(table(tidy([JobOutcome({}, row)], []), [], "acc"), [], {}).splitlines()[0].strip("| ").split(" | ")
    assert heads == ["seeds", "acc", "acc_unseen_1", "auroc_unseen_1"]


def test_a_folder_is_named_after_what_all_its_runs_have() -> None:
    """A partition kept, or another reference, is another sweep; seeds that vary within it are not."""

    def named(**changed: str) -> str:
        runs = [JobOutcome({**each.overrides, **changed}) for each in outcomes()]
        return folder_name("mine", runs, swept(runs))

    assert named() == "mine"
    assert named(partition_seed="3") == "mine-partition_seed=3"
    assert named(reference_seed="5", dataset="digits") == "mine-reference_seed=5-dataset=digits"
    assert named(hardware="{precision:tf32}") == "mine-hardware=_precision_tf32_", "which changes results"
    assert named(**{"hardware.precision": "float32"}) == named(hardware="cpu") == "mine"
    varied = [JobOutcome({**each.overrides, "partition_seed": s}) for s in "01" for each in outcomes()]
    assert folder_name("mine", varied, swept(varied)) == "mine"
    long = "1" * 40  # which fits, and with another value does not
    assert named(**{"method.name": long}) == f"mine-method.name={long}"
    assert len({named(**{"method.name": long, "method.mu": mu}) for mu in ("1", "2")}) == 2


def test_a_table_names_what_was_set_beside_the_swept_keys() -> None:
    beside = {"dataset": "digits", "seed": "3", "runs_dir": "elsewhere", "sweep.name": "mine"}
    runs = [JobOutcome({**each.overrides, **beside}, each.row) for each in outcomes()]
    keys = swept(runs)
    same = fixed(runs, keys)
    assert same == {"dataset": "digits", "seed": "3"}
    lines = table(tidy(runs, keys), keys, "acc")
    assert markdown(lines, keys, same).endswith("22.00 ± 1.41 |\n\nall runs: `seed=3`, `dataset=digits`\n")
    assert markdown(lines, keys, {}).endswith("± 1.41 |\n")


def test_a_score_that_is_the_accuracy_is_told_once() -> None:
    def headings(score: float) -> list[str]:
        runs = [
            JobOutcome(each.overrides, {**(each.row or {}), "score": score + each.row["acc"]})
            for each in outcomes()
            if each.row
        ]
        return (
            markdown(table(tidy(runs, ["method.C"]), ["method.C"], "acc"), ["method.C"], {})
            .splitlines()[0]
            .split(" | ")
        )

    assert "score" not in headings(0)
    assert headings(1)[2:4] == ["score", "acc |"]


def test_figures_show_the_means_in_order_of_size() -> None:
    runs = tidy(outcomes(), ["method.C", "method.rho"]).assign(panel="")
    (axis,) = sweep_lines(runs, "method.C", "method.rho", "acc", "title").axes
    assert [label.get_text() for label in axis.get_xticklabels()] == ["2", "10"]
    assert list(axis.containers[0].lines[0].get_ydata()) == [21.5, 101.5]  # rho 0.5
    numeric = runs.astype({"method.C": int, "method.rho": float})  # as read from a file
    for each in (runs, numeric):
        image = sweep_heatmap(each, "method.C", "method.rho", "acc", "title").axes[0].images[0]
        assert image.get_array().tolist() == [[21.5, 101.5], [22, 102]]
    assert ordered(["homo", "dir0.1", "homo"]) == ["homo", "dir0.1"]
    (line,) = axis.containers[0].lines[:1]
    assert line.get_linestyle() == "-", "numbers are joined"


def test_curves_pool_seeds_alone_and_go_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first seed is scored at two rounds, the second at one between them as well."""

    def made(path: Path) -> Any:
        score, rounds = float(path.name), (1, 5) if int(path.name) % 2 else (1, 3, 5)
        return SimpleNamespace(rounds=[{"round": f"{done}", "acc": f"{score + done}"} for done in rounds])

    monkeypatch.setattr(session, "Run", made)
    swept = itertools.product("12", ("0.5", "1"), ("mlp", "cnn"), "10")
    lines = [dict(zip(("method.C", "method.rho", "model", "seed"), each, strict=True)) for each in swept]
    runs = pd.DataFrame([{**line, "path": f"{10 * i + 1 - i % 2}"} for i, line in enumerate(lines)])
    figure = session.draw(
        SweepConfig(figure="curves", x="method.C", y="acc"), runs, ["method.C", "method.rho", "model"]
    )
    panels = {axis.get_title(): axis for axis in figure.axes}
    assert list(panels) == [f"method.rho={rho} model={model}" for rho in ("0.5", "1") for model in ("mlp", "cnn")]
    for place, axis in enumerate(panels.values()):
        for line, start in zip(axis.lines, (20 * place, 20 * (place + 4)), strict=True):
            assert line.get_xdata().tolist() == [1, 3, 5]
            assert line.get_ydata().tolist() == [start + 6.5, start + 13, start + 10.5]
    with pytest.raises(UnknownName, match=r"unknown sweep\.y 'ac'; nearest: acc"):
        session.draw(SweepConfig(figure="curves", y="ac"), runs, ["method.C"])
    rounds = [{"round": "1", "acc_on_val": "1", "acc_on_local": "2", "train_loss": "3"}]
    monkeypatch.setattr(session, "Run", lambda _: SimpleNamespace(rounds=rounds))
    (line, *_) = session.draw(SweepConfig(figure="curves"), runs, ["method.C"]).axes[0].lines
    assert line.get_ydata().tolist() == [2], "of the test samples"


def test_curves_of_each_seed_have_a_panel_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = [{"round": "1", "acc": "10"}]
    monkeypatch.setattr(session, "Run", lambda _: SimpleNamespace(rounds=rounds))
    outcomes = [JobOutcome({"method": name, "seed": seed}) for name in "ab" for seed in "01"]
    config = SweepConfig(figure="curves", x="method", by="seed", y="acc")
    runs = pd.DataFrame([{**each.overrides, "path": ""} for each in outcomes])
    drawn = session.draw(config, runs, session.swept(outcomes, (config.x, config.by)))
    assert [axis.get_title() for axis in drawn.axes] == ["seed=0", "seed=1"]


def test_the_words_of_a_sweep_s_figure_are_no_formula(tmp_path: Path) -> None:
    plain = {"sweep": {"name": "a$b$c", "folder": str(tmp_path), "y": "acc"}}
    runs = [JobOutcome({"dataset.path": path}, {"acc": 1.0}, plain=plain) for path in ("$x$", "$5_$")]
    text = (write_table(runs) / "figure.svg").read_text(encoding="utf-8")
    assert all(f">{words}</text>" in text for words in ("a$b$c", "$x$", "$5_$"))


@pytest.mark.parametrize("axis", ["method.C", "seed", "method"])
def test_an_axis_of_a_single_value_is_drawn(axis: str, tmp_path: Path) -> None:
    """As of an experiment whose values the command line narrows to one."""
    plain = {"sweep": {"name": "mine", "folder": str(tmp_path), "x": axis, "y": "acc"}}
    one = {"method": "fedcollab", "method.C": "5"}
    seeds = [JobOutcome({**one, "seed": s}, {"seed": int(s), "acc": float(s)}, plain=plain) for s in "02"]
    folder = write_table(seeds)
    assert (folder / "figure.svg").is_file()
    assert pd.read_csv(folder / "table.csv")["seeds"].sum() == 2


def test_a_list_at_the_beginning_of_a_line_is_no_option_of_latex() -> None:
    """Else LaTeX stops: Missing number, treated as zero."""
    key = "protocol.augment"
    runs = [JobOutcome({key: value}, {"acc": 1.0}) for value in ("[]", "[flip]")]
    lines = tex(table(tidy(runs, [key]), [key], "acc"), [key], {}, "mine", "mine").splitlines()
    assert lines[8:11] == [r"\midrule", r"{[}] & 1 & 1.00 \\", r"{[}flip] & 1 & 1.00 \\"]


def test_categories_are_dots_with_their_spread_and_every_run() -> None:
    runs = pd.DataFrame({"method": ["fedavg", "fedavg", "ditto"], "model": ["mlp"] * 3, "acc": [1.0, 3.0, 5.0]})
    (axis,) = sweep_lines(runs.assign(panel=""), "method", "model", "acc", "title").axes
    assert [label.get_text() for label in axis.get_xticklabels()] == ["fedavg", "ditto"]
    means, (low, high) = axis.containers[0].lines[0], axis.containers[0].lines[1]
    assert means.get_linestyle() == "None"
    assert list(means.get_ydata()) == [2.0, 5.0]
    assert high.get_ydata()[0] - low.get_ydata()[0] == pytest.approx(2 * 2**0.5), "one standard deviation each way"
    assert [list(line.get_ydata()) for line in axis.lines if line.get_marker() == "."] == [[1.0, 3.0, 5.0]]


def test_categories_of_several_lines_stand_beside_each_other() -> None:
    runs = pd.DataFrame({"method": ["a", "a"], "rho": ["1", "2"], "acc": [1.0, 3.0]})
    (axis,) = sweep_lines(runs.assign(panel=""), "method", "rho", "acc", "title").axes
    assert len({float(each.lines[0].get_xdata()[0]) for each in axis.containers}) == 2
