"""From overrides to a config, and what its choices are called."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.config import groups

if TYPE_CHECKING:
    from omegaconf import DictConfig


SETTINGS = (
    "hardware",
    "runs_dir",
    "progress",
    "checkpoint",
    "wandb",
    "tensorboard",
    "mlflow",
    "save_models",
    "record",
    "force",
    "stale",
)
PRECISION = "hardware.precision"


def is_setting(key: str) -> bool:
    """Whether what stands at `key` of a run's config changes no result."""
    return key != PRECISION and key.partition(".")[0] in SETTINGS


def compose(overrides: Sequence[str] = ()) -> DictConfig:
    """The config that `python -m fedbench OVERRIDES` would run; also works inside a running job.

    It is the caller's own. Composing takes a tenth of a second, so what was composed is kept while no file changes.
    """
    return copy.deepcopy(_composed(tuple(overrides), groups.conf_dir(), _stamp(groups.conf_dir())))


def _stamp(folder: Path) -> tuple[int, int]:
    """Of the YAML files in `folder`: how many there are, and when the last was written."""
    times = [file.stat().st_mtime_ns for file in folder.rglob("*.yaml")]
    return len(times), max(times)


@functools.lru_cache(maxsize=1024)
def _composed(overrides: tuple[str, ...], folder: Path, _: tuple[int, int]) -> DictConfig:
    import hydra
    from hydra.core.global_hydra import GlobalHydra

    from fedbench.config import sources

    sources.register()
    outer = GlobalHydra.instance().hydra  # a job that is running must find its own Hydra again
    GlobalHydra.instance().hydra = None
    try:
        with hydra.initialize_config_dir(str(folder), job_name="fedbench", version_base="1.3"):
            return hydra.compose(groups.CONFIG_NAME, list(overrides))
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
