"""README, docs/ and results/: the example's very text is run, commands compose, paths and links are there."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from fedbench.cli import program
from fedbench.config import compose, groups
from fedbench.methods import METHODS
from fedbench.runs import execution as run
from fedbench.runs.config import from_plain, resolve
from fedbench.testing import check_method, checks
from tests.helpers.tiers import sampled

ROOT = Path(__file__).parents[1]
PAGES = {
    file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8")
    for file in [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
        *sorted(ROOT.glob("docs/**/*.md")),
        *sorted(ROOT.glob("results/*.md")),
    ]
}
README = PAGES["README.md"]
MADE = (  # by a command that the page names, or by the reader
    "results/index.html",
    "fedbench/methods/shrinking.py",
    "conf/method/shrinking.yaml",
)


def block(language: str, marker: str, page: str = README) -> str:
    """The fenced block of a page in `language` that contains `marker`."""
    found = [text for text in re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL) if marker in text]
    assert len(found) == 1, f"expected one {language} block with {marker!r}, found {len(found)}"
    return str(found[0])


@pytest.mark.slow
def test_the_method_of_the_readme_runs_and_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "l2_fedavg.py").write_text(block("python", "class Shrinking"), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(METHODS._entries, "shrinking", "l2_fedavg:Shrinking")
    plain = losses(tmp_path, {"name": "fedavg"})
    assert len(plain) == 3
    config = yaml.safe_load(block("yaml", "name: shrinking", PAGES["docs/writing-a-method.md"]))
    assert losses(tmp_path, {**config, "strength": 0.0}) == plain  # its limit is FedAvg
    assert losses(tmp_path, {**config, "strength": 1.0})[0] > plain[0]  # the penalty counts


@pytest.mark.slow
def test_the_adapter_of_the_examples_keeps_its_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    kept = (
        checks.check_no_leaf_is_dead,
        checks.check_stacked_equals_looped,
        checks.check_trees_keep_their_names_shapes_and_precision,
    )
    check_method("adapter:Adapter", kept)


def losses(tmp_path: Path, method: dict[str, object]) -> list[float]:
    """Of three rounds on a few digits."""
    small = ["dataset.limit=300", "protocol.rounds=3", "protocol.eval_every=1", "protocol.optimizer.lr=0.01"]
    base = [*small, f"runs_dir={tmp_path}/runs", "progress=none", "hardware=cpu"]
    plain = resolve(compose.compose([*base, "method=fedavg"])).plain
    result = run.execute(from_plain({**plain, "method": method}))
    return pd.read_csv(result.folder / "rounds.csv")["train_loss"].dropna().tolist()


@pytest.mark.parametrize("page", sampled(PAGES, every=3))
def test_commands_compose(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run of each `python -m fedbench`: of a sweep its first."""
    np.savez(tmp_path / "SPLIT.npz", train_0=[0, 1], test_0=[2])
    monkeypatch.chdir(tmp_path)
    of_a_run = rf"(?!(?:{'|'.join(program.COMMANDS)})\b)"
    commands = re.findall(rf"^(?:\$ )?python -m fedbench {of_a_run}([^#\n]*)", PAGES[page], re.MULTILINE)
    assert commands or page not in ("README.md", "docs/runs.md", "results/fedcollab.md")
    for command in commands:
        words = [word.strip("'\"") for word in command.split() if word != "-m"]
        words = [word for word in words if not word.startswith("hydra/sweeper") and "tag(" not in word]
        firsts = [re.sub(r"=range\((\d+),.*|,.*", r"=\1" if "range(" in word else "", word) for word in words]
        resolve(compose.compose(firsts))


def headings(file: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    found = re.findall(r"^#+ (.*)", file.read_text(encoding="utf-8"), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", each).lower() for each in found)
    return {re.sub(r"[^\w\- ]", "", each).strip().replace(" ", "-") for each in plain}


@pytest.mark.parametrize("page", PAGES)
def test_what_is_named_is_there(page: str) -> None:
    """Links, paths of the repository, modules to run, targets of make."""
    text, here = PAGES[page], (ROOT / page).parent
    for link, _, heading in (link.partition("#") for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link):
        target = here / link if link else ROOT / page
        assert target.exists(), link
        assert not heading or heading in headings(target), (link, heading)
    for path in re.findall(r"(?<![\w/.])((?:conf|docs|examples|fedbench|results|scripts|tests)/[\w./=+-]*)", text):
        known = path.startswith("results/tables/NAME") or path in MADE or "NAME" in path
        assert known or any((root / path).exists() for root in (ROOT, here)), path
    assert not re.findall(r"python -m (fedbench\.\w+)", text), "every command is python -m fedbench COMMAND"
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^(?:.*`)?make ([a-z0-9-]+)", text, re.MULTILINE):
        name = re.sub("^(reproduce|figure)-", "", target).replace("-", "_")
        made = name in (*groups.names("table"), *groups.names("figure"))
        assert made or re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_quickstart_is_the_readme_s_command() -> None:
    """The one whose output README shows."""
    makefile = re.sub(r"\\\n\s*", "", (ROOT / "Makefile").read_text(encoding="utf-8"))
    found = re.search(r"^quickstart:.*\n\t\$\(BIN\)/(.*)", makefile, re.MULTILINE)
    assert found is not None
    assert found[1] in README


@pytest.mark.slow
def test_without_cuda_torch_is_first_taken_from_its_index_alone() -> None:
    """In the release that the package asks for: the second call of pip then leaves it as it is."""
    dry = subprocess.run(
        ["make", "-n", "install", "CPU=1", "VENV=x"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    first, second = (line for line in dry.stdout.splitlines() if "pip install" in line)
    wanted = re.search(r'"(torch>=[\d.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert wanted is not None
    assert first.endswith(f"--index-url https://download.pytorch.org/whl/cpu '{wanted[1]}' torchvision")
    assert "index-url" not in second


def test_its_number_of_methods_is_that_of_the_registry() -> None:
    assert f"any of {len(list(METHODS))} federated-learning methods" in README


@pytest.mark.parametrize("page", PAGES)
def test_lines_can_be_read(page: str) -> None:
    """Prose is wrapped; a row of a table, or a command, may be longer."""
    prose = re.sub(r"```.*?```", "", PAGES[page], flags=re.DOTALL)
    assert [line for line in prose.splitlines() if len(line) > 125 and not line.startswith(("|", "["))] == []


def test_leaf_files_become_the_data_of_the_board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "leaf" / "data" / "femnist" / "data" / "all_data"
    folder.mkdir(parents=True)
    image = [1.0] * 783 + [0.0]
    for number, (writer, labels) in enumerate({"f0001_41": [3, 61], "f0000_14": [7]}.items()):
        data = {"users": [writer], "user_data": {writer: {"x": [image] * len(labels), "y": labels}}}
        (folder / f"all_data_{number}.json").write_text(json.dumps(data), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "results" / "leaderboard.md").read_text(encoding="utf-8")
    *_, code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(code, {})
    (name,) = re.findall(r"dataset\.path=(\S+\.npz)", (ROOT / "conf" / "leaderboard" / "v2.yaml").read_text("utf-8"))
    made = np.load(name)
    assert made["x"].shape == (3, 28, 28)
    assert made["x"].dtype == np.uint8
    assert made["x"][0, 0, 0] == 0
    assert made["x"][0, 27, 27] == 255
    assert made["y"].tolist() == [3, 61, 7]
    assert made["client"].tolist() == ["f0001_41", "f0001_41", "f0000_14"]


def test_the_page_of_leaderboards_computes_its_table_of_tuning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "results" / "leaderboard.md").read_text(encoding="utf-8")
    code, *_ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(ROOT)
    for board in ("v1", "v2"):
        exec(code.replace("v1", board), {})
    number = re.compile(r"\d+ of \d+|\d+\.\d+")
    lines = page.partition("| | label skew |")[2].partition("\n\n")[0].splitlines()[2:]
    columns = zip(*(number.findall(line) for line in lines), strict=True)
    assert [each for column in columns for each in column] == number.findall(capsys.readouterr().out)
