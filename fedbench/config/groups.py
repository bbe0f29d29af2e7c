"""The folder of YAMLs, and the groups of components in it."""

from __future__ import annotations

import copy
import functools
import importlib
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

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


def conf_dir() -> Path:
    """The folder of YAMLs: inside the installed package, or at the top of a source checkout."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / f"{CONFIG_NAME}.yaml").is_file():
            return folder
    raise ConfigError(f"no conf/ folder in or beside {package}; install fedbench-harness again")


def conf_state() -> tuple[tuple[str, int], ...]:
    """Return every YAML's name and time of change: what is read of them holds until this differs."""
    return tuple(sorted((str(file), file.stat().st_mtime_ns) for file in conf_dir().rglob("*.yaml")))


def load_yaml(path: Path) -> DictConfig:
    """Return the content of a YAML, the caller's own; the same content is parsed once a process, in milliseconds.

    Raises:
        ConfigError: in one line what is wrong with the file.
    """
    return copy.deepcopy(_parsed(path, path.read_bytes()))


@functools.lru_cache(maxsize=1024)
def _parsed(path: Path, content: bytes) -> DictConfig:
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        return cast("DictConfig", OmegaConf.load(io.StringIO(content.decode())))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 at byte {error.start}; save it as UTF-8") from error
    except RecursionError as error:
        raise ConfigError(f"{path} is nested too deeply, or refers to itself") from error
    except (yaml.YAMLError, OmegaConfBaseException, ValueError, OSError) as error:  # the last: a number alone
        raise ConfigError(f"{path} cannot be read: {' '.join(str(error).split())}") from error


def registry(group: str) -> Registry[Any]:
    """The registry of a config group's components."""
    module, _, attribute = REGISTRIES[group].partition(":")
    return cast("Registry[Any]", getattr(importlib.import_module(module), attribute))


def family_field(group: str, file: Path) -> str | None:
    """The field that a number behind the name of the component in `file` sets; None if it is no family."""
    if group not in REGISTRIES:
        return None
    name = load_yaml(file).get("name")
    if name is None:  # a preset of another file's component
        return None
    return getattr(registry(group).get(name), "family_field", None) or None
