"""From overrides to a config, and what its choices are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

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

    Hydra's own part is left out, which would take most of the time: overrides of it (`hydra/launcher=joblib`) are
    parsed, but only `hydra.searchpath` changes what comes out.

    Raises:
        HydraException, OmegaConfBaseException, ConfigError: an override that has no place, or a file that is none.
    """
    from hydra import version
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.defaults_list import create_defaults_list
    from hydra._internal.utils import create_config_search_path
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.types import RunMode
    from omegaconf import OmegaConf

    from fedbench.config import sources

    sources.register()
    version.setbase("1.3")
    search_path = create_config_search_path(str(groups.conf_dir()))
    loader, files = ConfigLoaderImpl(search_path), cast("Any", sources.OfRuns(search_path))
    given = OverridesParser.create().parse_overrides(list(overrides))
    loader.validate_sweep_overrides_legal(given, RunMode.RUN, from_shell=False)
    loader._process_config_searchpath(groups.CONFIG_NAME, given, files)
    given = [override for override in given if not override.is_hydra_override()]
    defaults = create_defaults_list(files, groups.CONFIG_NAME, given, prepend_hydra=False, skip_missing=False)
    config = loader._compose_config_from_defaults_list(defaults.defaults, files)
    OmegaConf.set_struct(config, True)
    loader._apply_overrides_to_config(defaults.config_overrides, config)
    return config


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
