"""What other code made is marked where runs stand side by side: on the console, in files, in Python, by commands."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import fedbench
from fedbench.cli import program
from fedbench.cli.program import main
from fedbench.config import groups
from fedbench.core.errors import ConfigError
from fedbench.runs import execution
from fedbench.runs.folder import CONFIG, files_of
from fedbench.runs.progress import STALE
from tests.helpers.codes import edit
from tests.helpers.tiers import sampled

SHORT = ["dataset=digits", "dataset.limit=300", "model=mlp", "protocol.rounds=1", "progress=none"]
SAID = f"{STALE} made by other code than today's (method changed since); stale=rerun makes it again\n"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_codes: None) -> None:
    """A folder of one's own."""
    monkeypatch.chdir(tmp_path)


def swept(*more: str) -> int:
    return main(["-m", *SHORT, "method=local,fedavg", "seed=0,1", "sweep.name=mine", *more])


def files() -> tuple[str, pd.DataFrame, pd.DataFrame]:
    """table.md, table.csv and runs.csv of the sweep."""
    (folder,) = Path("results/sweeps").iterdir()
    tables = (pd.read_csv(folder / f"{name}.csv", keep_default_na=False) for name in ("table", "runs"))
    return (folder / "table.md").read_text(encoding="utf-8"), *tables


@pytest.mark.slow
def test_a_sweep_marks_the_lines_that_other_code_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert swept() == 0
    assert STALE not in capsys.readouterr().out
    assert STALE not in files()[0]
    edit(monkeypatch, "method")
    assert swept("method=fedavg,fedprox") == 0
    said = capsys.readouterr().out
    fedavg, fedprox = (next(x for x in said.splitlines() if name in x) for name in ("fedavg", "fedprox"))
    assert fedavg.count(STALE) == 3 + ("pooled" in said)  # accuracy, IPR and RSD; the pooled one if it differs
    assert STALE not in fedprox
    assert SAID in said
    text, table, runs = files()
    assert text.endswith(f"\n\n{SAID}")
    old, new = (next(x for x in text.splitlines() if name in x) for name in ("fedavg", "fedprox"))
    assert STALE in old
    assert STALE not in new
    assert table["code_changed"].tolist() == ["method", ""]
    assert runs["code_changed"].tolist() == ["method", "method", "", ""]
    assert swept("method=fedavg,fedprox", "stale=rerun") == 0
    assert STALE not in capsys.readouterr().out
    assert STALE not in files()[0]


@pytest.mark.slow
def test_python_tells_by_a_column_and_an_attribute(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fedbench.run(*SHORT, method="fedavg")
    assert before.code_changed == ()
    edit(monkeypatch, "engine")
    after = fedbench.run(*SHORT, method="fedavg")
    assert after.code_changed == ("engine",)
    assert "made by other code: engine changed" in repr(after)
    found = fedbench.sweep(*SHORT, method=["fedavg", "fedprox"])
    assert found["code_changed"].tolist() == ["engine", ""]
    loaded = fedbench.load("runs").set_index("method")["code_changed"]
    assert loaded.to_dict() == {"fedavg": "engine", "fedprox": "", "local": "engine"}


def test_commands_that_read_runs_mark_them(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run = fedbench.run(*SHORT, method="local")
    edit(monkeypatch, "method")
    assert program.main(["collect", "runs", "--out", "runs.csv"]) == 0
    assert f"1 of 1 run, see code_changed: {SAID}" in capsys.readouterr().err
    assert pd.read_csv("runs.csv")["code_changed"].tolist() == ["method"]
    assert program.main(["tta", str(run.folder), "--reference", "1"]) == 0
    said = capsys.readouterr().out
    assert f"seed 0{STALE} " in said
    assert said.endswith(SAID)


@pytest.mark.parametrize(("part", "there"), sampled([("method", ["method"]), ("dataset", [])], every=2))
def test_a_run_whose_settings_its_method_no_longer_takes_is_marked(
    monkeypatch: pytest.MonkeyPatch, part: str, there: list[str]
) -> None:
    """As one with a choice that was dropped since; where its data set is refused, its code may be today's."""
    run = fedbench.run(*SHORT, method="local")

    def refuse(self: object, **values: object) -> None:
        raise ConfigError("no longer")

    values = groups.load_yaml(run.folder / "config.yaml")[part]
    monkeypatch.setattr(groups.registry(part).get(values["name"]), "__init__", refuse)
    assert execution.changed_since(run.folder) == there


def test_a_setting_that_is_gone_hides_no_other_code(monkeypatch: pytest.MonkeyPatch) -> None:
    run = fedbench.run(*SHORT, method="local")
    saved = files_of(run.folder)
    saved.write({CONFIG: saved.read(CONFIG) + b"ranks: 1\n"})
    edit(monkeypatch, "method")
    assert execution.changed_since(run.folder) == ["method"]


@pytest.mark.slow
def test_a_sweep_of_other_runs_with_the_same_name_is_moved_aside(capsys: pytest.CaptureFixture[str]) -> None:
    assert swept("seed=0") == 0
    assert swept("method=local,fedavg,fedprox", "seed=0") == 0
    assert "held another sweep" not in capsys.readouterr().out, "it holds the same runs, and more"
    assert swept("dataset.limit=200", "method=local", "seed=0") == 0
    assert "held another sweep; it is in results/sweeps/mine-before-1 now" in capsys.readouterr().out
    assert "fedprox" in Path("results/sweeps/mine-before-1/runs.csv").read_text(encoding="utf-8")
    assert "fedprox" not in Path("results/sweeps/mine/runs.csv").read_text(encoding="utf-8")
    Path("results/sweeps/mine/runs.csv").write_text("", encoding="utf-8")
    assert swept("dataset.limit=200", "method=local", "seed=0") == 0
    assert "it is in results/sweeps/mine-before-2 now" in capsys.readouterr().out, "it cannot be read"
