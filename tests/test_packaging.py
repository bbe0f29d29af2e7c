"""The wheel brings its configs along, and works from any folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedbench import __version__
from fedbench.config import groups

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def test_wheel_holds_every_module_and_config(wheel: Path) -> None:
    assert wheel.name == f"fedbench_harness-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    modules = {file.relative_to(ROOT).as_posix() for file in (ROOT / "fedbench").rglob("*.py")}
    configs = {f"fedbench/{file.relative_to(ROOT).as_posix()}" for file in (ROOT / "conf").rglob("*.yaml")}
    assert len(configs) > 5
    assert modules | configs | {"fedbench/py.typed"} <= names
    others = {name for name in names if not name.startswith(("fedbench/", "fedbench_harness-"))}
    assert others == {
        "hydra_plugins/fedbench_launchers.py",
        "hydra_plugins/fedbench_sweepers.py",
    }  # Hydra looks for plugins nowhere else


@pytest.mark.slow
def test_wheel_finds_its_own_configs(wheel: Path, tmp_path: Path) -> None:
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    code = (
        "from fedbench.config import groups; from fedbench.cli.program import main; print(groups.conf_dir());"
        "main(['--cfg', 'job', 'protocol=quick'])"
    )
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=elsewhere,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    first, *rest = done.stdout.splitlines()
    assert first == str(site / "fedbench" / "conf")
    assert "  rounds: 20" in rest
    assert list(elsewhere.iterdir()) == []


def test_checkout_uses_its_top_level_configs() -> None:
    assert groups.conf_dir() == ROOT / "conf"


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def test_the_version_is_cited_and_heads_the_changelog() -> None:
    assert read("CITATION.cff")["version"] == __version__
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == __version__


def test_workflows_run_on_every_python_that_the_package_names() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    named = re.findall(r"Programming Language :: Python :: ([\d.]+)", project)
    matrix = read(".github/workflows/tests.yml")["jobs"]["test"]["strategy"]["matrix"]
    assert matrix == {"python": named, "dependencies": ["lowest-direct", "highest"]}
    assert re.findall(r'requires-python = ">=(.*),<3.13"', project) == named[:1]


def test_hooks_before_a_commit_are_those_of_make_lint() -> None:
    command = ["make", "-n", "lint", "VENV=.venv", f"PYTHON={sys.executable}"]
    shown = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    linted = {line.split()[0] for line in shown.stdout.splitlines() if line.startswith(".venv/bin/")}
    (repo,) = read(".pre-commit-config.yaml")["repos"]
    hooks = {hook["entry"].split()[0] for hook in repo["hooks"]}
    assert hooks == {f".venv/bin/{tool}" for tool in ("ruff", "mypy", "lint-imports")}
    assert hooks <= linted


def test_the_first_issue_form_asks_for_the_published_number_and_the_run() -> None:
    forms = [read(file.relative_to(ROOT).as_posix()) for file in sorted(ROOT.glob(".github/ISSUE_TEMPLATE/[0-9]*.yml"))]
    for form in forms:
        assert {"name", "description", "body"} <= set(form)
        fields = [field["id"] for field in form["body"]]
        assert len(set(fields)) == len(fields)
    assert [field["id"] for field in forms[0]["body"] if field.get("validations")] == [
        "published", "command", "row", "environment",
    ]  # fmt: skip
