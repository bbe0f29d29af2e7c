"""The README's "add a method": the very text, run as a method."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedbench.config import compose
from fedbench.methods import METHODS
from fedbench.runs import execution as run
from fedbench.runs.config import from_plain, resolve
from fedbench.tables import spec

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def block(language: str, marker: str) -> str:
    """The fenced block of README.md in `language` that contains `marker`."""
    found = [text for text in re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL) if marker in text]
    assert len(found) == 1, f"expected one {language} block with {marker!r}, found {len(found)}"
    return str(found[0])


def test_the_method_of_the_readme_runs_and_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "l2_fedavg.py").write_text(block("python", "class ShrinkingFedAvg"), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(METHODS._entries, "shrinking", "l2_fedavg:ShrinkingFedAvg")
    base = ["protocol.rounds=3", f"runs_dir={tmp_path}/runs", "progress=none", "hardware=cpu"]

    def losses(method: dict[str, object]) -> list[float]:
        plain = resolve(compose.compose([*base, "method=fedavg"])).plain
        result = run.execute(from_plain({**plain, "method": method}))
        return pd.read_csv(result.folder / "rounds.csv")["train_loss"].dropna().tolist()

    plain = losses({"name": "fedavg"})
    assert len(plain) == 3
    assert losses({"name": "shrinking", "strength": 0.0}) == plain  # its limit is FedAvg
    assert losses({"name": "shrinking", "strength": 1.0})[0] > plain[0]  # the penalty counts


def test_commands_of_the_readme_compose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "SPLIT.npz", train_0=[0, 1], test_0=[2])
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^(?:\$ )?python -m fedbench ((?!-)[^#\n]*)", README, re.MULTILINE)
    assert len(commands) >= 5
    for command in commands:
        overrides = [word.strip("'\"") for word in command.split()]
        resolve(compose.compose(overrides))


def test_targets_of_the_readme_exist() -> None:
    makefile = (Path(__file__).parents[1] / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"^(?:.*`)?make ([a-z0-9-]+)", README, re.MULTILINE))
    assert {"quickstart", "test", "help"} <= named
    tables = {f"reproduce-{name.replace('_', '-')}" for name in spec.names()}
    for target in named - tables:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    assert named & tables
