"""The folder of YAMLs, the config groups in it and what each offers, read without composing a run."""

from __future__ import annotations

import copy
import functools
import importlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fedbench.config.fields import Registry
from fedbench.config.schema import HardwareConfig, ProtocolConfig
from fedbench.core.errors import ConfigError, unknown

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
HIDDEN = ("name", "preset", "defaults")  # keys of a YAML that are no parameters


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
    return copy.deepcopy(_parsed_yaml(path, path.read_bytes()))


@functools.lru_cache(maxsize=1024)
def _parsed_yaml(path: Path, content: bytes) -> DictConfig:
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


def names(group: str) -> list[str]:
    """The YAMLs of a config group."""
    return sorted(file.stem for file in (conf_dir() / group).glob("*.yaml"))


def load(group: str, name: str) -> dict[str, Any]:
    """The content of conf/<group>/<name>.yaml with its defaults list resolved, as Hydra does.

    Composing would need a run around each, and the components that it takes.
    """
    from omegaconf import OmegaConf

    config = cast("dict[str, Any]", OmegaConf.to_container(load_yaml(file_of(group, name))))
    merged = OmegaConf.create({})
    for entry in config.pop("defaults", ["_self_"]):
        if entry == "_self_":
            merged.merge_with(config)
        elif isinstance(entry, Mapping):
            merged.merge_with({key: load(group, value) for key, value in entry.items()})
        else:
            merged.merge_with(load(group, str(entry)))
    return cast("dict[str, Any]", OmegaConf.to_container(merged, resolve=False))


def about(group: str, name: str) -> str:
    """The comment that opens the YAML."""
    lines = []
    for line in file_of(group, name).read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# ").rstrip())
    return " ".join(lines)


def file_of(group: str, name: str) -> Path:
    """conf/<group>/<name>.yaml.

    Raises:
        UnknownName: there is none.
    """
    file = conf_dir() / group / f"{name}.yaml"
    if not file.is_file():
        raise unknown(group, name, names(group))
    return file


def different(config: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `config` that are not those of `usual`."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        plain = usual.get(key)
        if isinstance(value, Mapping) and isinstance(plain, Mapping):
            found[key] = different(value, plain)
        elif value != (list(plain) if isinstance(plain, tuple) else plain):
            found[key] = value
    return found


def parameters(config: Mapping[str, Any], prefix: str = "") -> str:
    """`key=value` of everything that is set; a component inside by its name, empty values left out."""
    words = []
    for key, value in config.items():
        if key in HIDDEN or value in (None, [], ""):
            continue
        if isinstance(value, Mapping):
            words.append(f"{key}={value['name']}" if "name" in value else parameters(value, f"{prefix}{key}."))
        else:
            words.append(f"{prefix}{key}={_plain(value)}")
    return ", ".join(word for word in words if word)


def changed(group: str, plain: Mapping[str, Any]) -> str:
    """`rounds=3, optimizer.lr=0.5`: where a run's config of `group` is not as the preset it names; "" if nowhere."""
    preset = "_".join(str(plain[key]) for key in ("name", "preset") if plain.get(key))
    if preset not in names(group):
        return ""
    return parameters(different(plain, load(group, preset)))


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_plain, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
