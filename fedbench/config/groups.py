"""The folder of YAMLs, its config groups and their options, read without composing a run."""

from __future__ import annotations

import copy
import functools
import importlib.util
import io
import itertools
import os
import pkgutil
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedbench.config.fields import OWN, Registry, outside, owner, taken_twice
from fedbench.config.schema import HardwareConfig, ProtocolConfig
from fedbench.core.errors import ConfigError, FedbenchError, UnknownName, unknown

CONFIG_NAME = "config"
REGISTRIES = {  # config group -> where its registry is; imported when a component is first built
    "dataset": "fedbench.data.datasets:DATASETS",
    "partition": "fedbench.data.partitions:PARTITIONS",
    "model": "fedbench.models:MODELS",
    "method": "fedbench.methods:METHODS",
}
SCHEMAS: dict[str, type[Any]] = {"protocol": ProtocolConfig, "hardware": HardwareConfig}
MEMBER = re.compile(r"(?P<family>[A-Za-z]\w*?)(?P<number>(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?)")  # of a family's option
HIDDEN = ("name", "preset", "defaults")  # keys of a YAML that are no parameters
TUNE = "tune"  # key of a method's YAML that no run sees: what the trials of a leaderboard choose among


@functools.cache
def conf_dir() -> Path:
    """The folder of YAMLs: inside the installed package, or at the top of a source checkout."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / f"{CONFIG_NAME}.yaml").is_file():
            return folder
    raise ConfigError(f"no conf/ folder in or beside {package}; install fedbench-harness again")


@functools.cache
def conf_dirs_of_others() -> Mapping[Path, str]:
    """Return the conf/ folders of packages with an entry point of fedbench, and the name each is installed under.

    They are looked for without importing a package.
    """
    found = {}
    for point in (each for group in REGISTRIES for each in outside(f"{OWN}.{group}s")):
        with suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(point.module.partition(".")[0])
            for place in (spec and spec.submodule_search_locations) or ():
                if (folder := Path(place) / "conf").is_dir():
                    found[folder] = owner(point)
    return found


def conf_dirs(group: str) -> Mapping[Path, str]:
    """Return the folders that may hold YAMLs of `group`, and the package of each; fedbench's own is the last."""
    others = conf_dirs_of_others() if group in REGISTRIES or group in SCHEMAS else {}
    return {**others, conf_dir(): OWN}


def conf_state() -> tuple[tuple[str, int], ...]:
    """Return every YAML's name and time of change; cached readings are valid while this stays the same."""
    found, folders = [], [str(folder) for folder in (*conf_dirs_of_others(), conf_dir())]
    while folders:
        with os.scandir(folders.pop()) as entries:  # several times as fast as Path.rglob, and each compose asks
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.name.endswith(".yaml"):
                    found.append((entry.path, entry.stat().st_mtime_ns))
    return tuple(sorted(found))


def load_yaml(path: Path) -> DictConfig:
    """Return a new copy of a YAML's content; equal content is parsed once in a process, which takes milliseconds.

    Raises:
        ConfigError: in one line what is wrong with the file.
    """
    return copy.deepcopy(_parsed_yaml(path, path.read_bytes()))


@functools.lru_cache(maxsize=1024)
def _parsed_yaml(path: Path, content: bytes) -> DictConfig:
    try:
        return cast("DictConfig", OmegaConf.load(io.StringIO(content.decode())))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 at byte {error.start}; save it as UTF-8") from error
    except RecursionError as error:
        raise ConfigError(f"{path} is nested too deeply, or refers to itself") from error
    except (yaml.YAMLError, OmegaConfBaseException, ValueError, OSError) as error:  # the last: a number alone
        raise ConfigError(f"{path} cannot be read: {' '.join(str(error).split())}") from error


def load_option(path: Path) -> DictConfig:
    """Return the content of a YAML of an option as a run gets it, without what is declared for leaderboards."""
    config = load_yaml(path)
    config.pop(TUNE, None)
    return config


def registry(group: str) -> Registry[Any]:
    """The registry of a config group's components."""
    return cast("Registry[Any]", pkgutil.resolve_name(REGISTRIES[group]))


def family_field(group: str, file: Path) -> str | None:
    """Return the field that a number after the name of the component in `file` sets; None if it is no family."""
    if group not in REGISTRIES:
        return None
    name = load_option(file).get("name")
    if name is None:  # a preset of another file's component
        return None
    return getattr(registry(group).get(name), "family_field", None) or None


def member(group: str, name: str) -> tuple[Path, str, int | float] | None:
    """Return (file of the family, its field, the number) if `name` is that of a family's member, such as dir0.1."""
    match = MEMBER.fullmatch(name)
    if match is None or (file := find(group, match["family"])) is None:
        return None
    field, text = family_field(group, file), match["number"]
    return None if field is None else (file, field, int(text) if text.isdigit() else float(text))


def names(group: str) -> list[str]:
    """The YAMLs of a config group."""
    return sorted({file.stem for folder in conf_dirs(group) for file in (folder / group).glob("*.yaml")})


def plain_option(group: str, name: str) -> dict[str, Any]:
    """The content of conf/<group>/<name>.yaml with its defaults list resolved, as Hydra does.

    Composing would need a whole run with its other components.
    """
    return copy.deepcopy(_resolved(conf_state(), group, name))


@functools.lru_cache(maxsize=1024)
def _resolved(state: object, group: str, name: str) -> dict[str, Any]:
    config = cast("dict[str, Any]", OmegaConf.to_container(load_option(file_of(group, name))))
    merged = OmegaConf.create({})
    for entry in config.pop("defaults", ["_self_"]):
        if entry == "_self_":
            merged.merge_with(config)
        elif isinstance(entry, Mapping):
            merged.merge_with({key: _resolved(state, group, value) for key, value in entry.items()})
        else:
            merged.merge_with(_resolved(state, group, str(entry)))
    return cast("dict[str, Any]", OmegaConf.to_container(merged, resolve=False))


def tune(method: str) -> Mapping[str, Any]:
    """Return `tune` of conf/method/`method`.yaml as written; for a preset without one, that of its base YAML."""
    config = load_yaml(file_of("method", method))
    if TUNE in config:
        return cast("Mapping[str, Any]", config[TUNE])
    above = [entry for entry in config.get("defaults", ()) if isinstance(entry, str) and entry != "_self_"]
    return tune(above[0]) if above else {}


def about(group: str, name: str) -> str:
    """The comment that opens the YAML."""
    lines = file_of(group, name).read_text(encoding="utf-8").splitlines()
    opening = itertools.takewhile(lambda line: line.startswith("#"), lines)
    return " ".join(line.lstrip("# ").rstrip() for line in opening)


def file_of(group: str, name: str) -> Path:
    """conf/<group>/<name>.yaml.

    Raises:
        UnknownName: there is none.
        ConfigError: two packages have one.
    """
    if (file := find(group, name)) is None:
        text = without_yaml(group, name)
        raise UnknownName(text) if text else unknown(group, name, names(group))
    return file


def find(group: str, name: str) -> Path | None:
    """conf/<group>/<name>.yaml, of whichever package; None if there is none.

    Raises:
        ConfigError: two packages have one, or the `name` in it, which names the runs, is not the file's.
    """
    files = {folder / group / f"{name}.yaml": package for folder, package in conf_dirs(group).items()}
    found = {file: package for file, package in files.items() if file.is_file()}
    if len(found) > 1:
        raise taken_twice(group, name, found.values())
    file = next(iter(found), None)
    if file is not None and group in SCHEMAS and load_yaml(file).get("name") != name:
        raise ConfigError(f"{file} needs the line 'name: {name}'; it names the runs")
    return file


def without_yaml(group: str, name: str) -> str:
    """Return the error text for another package's class `name` that has no YAML; "" if there is no such class."""
    points = outside(f"{OWN}.{group}s") if group in REGISTRIES else ()
    if (point := next((each for each in points if each.name == name), None)) is None:
        return ""
    file = f"{point.module.partition('.')[0]}/conf/{group}/{name}.yaml"
    return f"{group} '{name}' of {owner(point)} has a class and no YAML: its package needs {file}"


def troubles(group: str) -> dict[str, str]:
    """Return the faults of other packages' components by name: one line each, which names the package."""
    names = {file.stem for folder in conf_dirs_of_others() for file in (folder / group).glob("*.yaml")}
    names |= {each.name for each in outside(f"{OWN}.{group}s")}
    return {name: text for name in sorted(names) if (text := _trouble(group, name))}


def _trouble(group: str, name: str) -> str:
    try:
        file, used = file_of(group, name), str(plain_option(group, name).get("name"))
        if used not in registry(group):
            return f"{file} has no class: its package needs the entry point {used} in {OWN}.{group}s"
        registry(group).get(used)
    except FedbenchError as error:
        return str(error)
    return ""


def different(config: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of `config` that differ from `usual`."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        plain = usual.get(key)
        if isinstance(value, Mapping) and isinstance(plain, Mapping):
            found[key] = different(value, plain)
        elif value != (list(plain) if isinstance(plain, tuple) else plain):
            found[key] = value
    return found


def parameters(config: Mapping[str, Any], prefix: str = "", hidden: Sequence[Any] = (None, [], "")) -> str:
    """Return `key=value` of everything that is set; a nested component shows its name, `hidden` values are left out."""
    words = []
    for key, value in config.items():
        if key in HIDDEN or value in hidden:
            continue
        if isinstance(value, Mapping) and key in ("optimizer", "schedule"):  # no component: its name is one of its keys
            name = [f"{prefix}{key}.name={value['name']}"] if "name" in value else []
            words += [*name, parameters(value, f"{prefix}{key}.", hidden)]
        elif isinstance(value, Mapping):
            words.append(f"{key}={value['name']}" if "name" in value else parameters(value, f"{prefix}{key}.", hidden))
        else:
            words.append(f"{prefix}{key}={_plain(value)}")
    return ", ".join(word for word in words if word)


def changed(group: str, plain: Mapping[str, Any]) -> str:
    """Return where a run's config of `group` differs from its preset, such as `rounds=3, optimizer.lr=0.5`, or ""."""
    preset = "_".join(str(plain[key]) for key in ("name", "preset") if plain.get(key))
    if preset not in names(group):
        return ""
    return parameters(different(plain, plain_option(group, preset)), hidden=())


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_plain, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
