"""Fixtures shared by the test files."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fedbench.config import groups
from fedbench.config.registry import Registry
from fedbench.core.errors import ConfigError
from tests.helpers import examples
from tests.helpers.runner import FakeRunner

examples.register()


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test depends on what the user's cache holds, or leaves anything there; workers share one."""
    base = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
        patch.setenv("FEDBENCH_CACHE", str(shared / "cache"))
        yield


@dataclass(frozen=True)
class ToyData:
    model: str = "net"
    root: str | None = None
    classes: int = 10


@dataclass(frozen=True)
class ToyPartition:
    family_field: ClassVar[str] = "alpha"
    name: ClassVar[str] = "dir"
    alpha: float = 1.0
    min_size: int = 10

    @property
    def label(self) -> str:
        return f"{self.name}{self.alpha:g}"

    def __post_init__(self) -> None:
        if self.alpha <= 0:
            raise ConfigError(f"alpha must be positive, got {self.alpha}")


@dataclass(frozen=True)
class ToyGroups(ToyPartition):
    name: ClassVar[str] = "groups_s"


@dataclass(frozen=True)
class ToyFold:
    family_field: ClassVar[str] = "folds"
    folds: int = 2

    @property
    def label(self) -> str:
        return f"fold{self.folds}"


@dataclass(frozen=True)
class ToyNet:
    width: int = 200
    classifier: str = "own"


@dataclass(frozen=True)
class ToyAverage:
    pass


@dataclass(frozen=True)
class ToyProx:
    mu: float = 0.1


@dataclass(frozen=True)
class ToyCollab:
    base: dict[str, Any] = field(default_factory=dict)
    restarts: int = 100


TOY = {
    "dataset": {"digits": ToyData},
    "partition": {"dir": ToyPartition, "groups_s": ToyGroups, "fold": ToyFold, "label_shift": ToyAverage},
    "model": {"net": ToyNet},
    "method": {"fedavg": ToyAverage, "fedprox": ToyProx, "fedcollab": ToyCollab},
}
YAMLS = {
    "dataset/digits": "name: digits\nmodel: net\nroot: null\nclasses: 10\n",
    "partition/label_shift": "name: label_shift\n",
    "partition/dir": "name: dir\nalpha: 1.0\nmin_size: 10\n",
    "partition/groups_s": "name: groups_s\nalpha: 1.0\nmin_size: 10\n",
    "partition/fold": "name: fold\nfolds: 2\n",
    "model/net": "name: net\nwidth: 200\n",
    "method/fedavg": "name: fedavg\n",
    "method/fedprox": "name: fedprox\nmu: 0.1\n",
    "method/fedprox_code": "defaults:\n  - fedprox\n  - _self_\n\npreset: code\nmu: 0.2\n",
    "method/fedcollab": "defaults:\n  - base: fedavg\n  - _self_\n\nname: fedcollab\nrestarts: 100\n",
}


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A conf/ folder whose four component groups are the toys above; the rest of it is the real one."""
    folder = tmp_path / "conf"
    real = groups.conf_dir()
    texts = {
        file.relative_to(real).with_suffix("").as_posix(): file.read_text() for file in real.rglob("*.yaml")
    }
    kept = {
        name: text for name, text in texts.items() if name.split("/")[0] not in TOY or name == "model/auto"
    }
    for name, text in {**kept, **YAMLS}.items():
        file = folder / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    toys = types.ModuleType("toys")
    for cls in {cls for group in TOY.values() for cls in group.values()}:
        setattr(toys, cls.__name__, cls)
    monkeypatch.setitem(sys.modules, "toys", toys)
    registries: dict[str, Registry[Any]] = {
        group: Registry(group, {name: f"toys:{cls.__name__}" for name, cls in entries.items()})
        for group, entries in TOY.items()
    }
    monkeypatch.setattr(groups, "registry", registries.__getitem__)
    monkeypatch.setattr(groups, "conf_dir", lambda: folder)
    return folder


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> FakeRunner:
    """Replaces the runner behind the command line."""
    runner = FakeRunner()
    module = types.ModuleType("fedbench.runs.execution")
    module.execute = runner.execute  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fedbench.runs.execution", module)
    return runner
