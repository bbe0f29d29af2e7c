"""The folder of YAMLs, and the groups of components in it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fedbench.config import yaml_files
from fedbench.config.registry import Registry
from fedbench.config.schema import HardwareConfig, ProtocolConfig
from fedbench.core.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

CONFIG_NAME = "config"
REGISTRIES = {  # config group -> where its registry is; imported when a component is first built
    "dataset": "fedbench.data.datasets:DATASETS",
    "partition": "fedbench.data.partitions:PARTITIONS",
    "model": "fedbench.models:MODELS",
    "method": "fedbench.methods:METHODS",
}
SCHEMAS: dict[str, type[Any]] = {"protocol": ProtocolConfig, "hardware": HardwareConfig}
NOT_OF_RUNS = ("figure", "scale", "table")  # folders of YAMLs that other commands read


def conf_dir() -> Path:
    """The folder of YAMLs: inside the installed package, or at the top of a source checkout."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / f"{CONFIG_NAME}.yaml").is_file():
            return folder
    raise ConfigError(f"no conf/ folder in or beside {package}; install fedbench-harness again")


def registry(group: str) -> Registry[Any]:
    """The registry of a config group's components."""
    module, _, attribute = REGISTRIES[group].partition(":")
    return cast("Registry[Any]", getattr(importlib.import_module(module), attribute))


def family_field(group: str, file: Path) -> str | None:
    """The field that a number behind the name of the component in `file` sets; None if it is no family."""
    if group not in REGISTRIES:
        return None
    name = cast("DictConfig", yaml_files.load(file)).get("name")
    if name is None:  # a preset of another file's component
        return None
    return getattr(registry(group).get(name), "family_field", None) or None
