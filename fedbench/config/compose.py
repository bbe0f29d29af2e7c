"""From overrides to a config, from a config to the typed, built components of one run."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fedbench.config import yaml_files
from fedbench.config.registry import Registry
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
SETTINGS = (
    "hardware",
    "runs_dir",
    "progress",
    "checkpoint",
    "wandb",
    "save_models",
    "force",
)  # change no result


def conf_dir() -> Path:
    """The folder of YAMLs: inside the installed package, or at the top of a source checkout."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / f"{CONFIG_NAME}.yaml").is_file():
            return folder
    raise ConfigError(f"no conf/ folder in or beside {package}; install fedbench-harness again")


def compose(overrides: Sequence[str] = ()) -> DictConfig:
    """The config that `python -m fedbench OVERRIDES` would run; also works inside a running job."""
    import hydra
    from hydra.core.global_hydra import GlobalHydra

    from fedbench.config import sources

    sources.register()
    outer = GlobalHydra.instance().hydra  # a job that is running must find its own Hydra again
    GlobalHydra.instance().hydra = None
    try:
        with hydra.initialize_config_dir(str(conf_dir()), job_name="fedbench", version_base="1.3"):
            return hydra.compose(CONFIG_NAME, list(overrides))
    finally:
        GlobalHydra.instance().hydra = outer


def label(group: str, config: Mapping[str, Any], component: object = None) -> str:
    """What tables and folders call the choice that `config` makes in `group`, built as `component`.

    The component's own `label` if it has one (a family's has its number), else the name with a preset's
    suffix, and a base method that is not FedAvg.
    """
    text = "_".join(str(config[key]) for key in ("name", "preset") if config.get(key))
    text = str(getattr(component, "label", text))
    base = config.get("base")
    if isinstance(base, Mapping) and (inner := label(group, base)) != "fedavg":
        text += f"({inner})"
    return text


def registry(group: str) -> Registry[Any]:
    """The registry of a config group's components."""
    module, _, attribute = REGISTRIES[group].partition(":")
    return cast("Registry[Any]", getattr(importlib.import_module(module), attribute))


def family_field(group: str, file: Path) -> str | None:
    """The field that a number behind the name of the component in `file` sets; None if it is no family."""
    if group not in REGISTRIES:
        return None
    name = cast("DictConfig", yaml_files.load(file)).get("name")
    return getattr(registry(group).get(str(name)), "family_field", None) or None
