"""The wheel brings its configs along, and works from any folder."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

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
    assert modules | configs <= names
    others = {name for name in names if not name.startswith(("fedbench/", "fedbench_harness-"))}
    assert others == {
        "hydra_plugins/fedbench_launchers.py",
        "hydra_plugins/fedbench_sweepers.py",
    }  # Hydra looks for plugins nowhere else


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
