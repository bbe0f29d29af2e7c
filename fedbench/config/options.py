"""What a config group offers, read from its YAMLs without composing a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from fedbench.config import groups
from fedbench.core.errors import unknown

HIDDEN = ("name", "preset", "defaults")  # keys of a YAML that are no parameters


def names(group: str) -> list[str]:
    """The YAMLs of a config group."""
    return sorted(file.stem for file in (groups.conf_dir() / group).glob("*.yaml"))


def load(group: str, name: str) -> dict[str, Any]:
    """The content of conf/<group>/<name>.yaml with its defaults list resolved, as Hydra does.

    Composing would need a run around each, and the components that it takes.
    """
    from omegaconf import OmegaConf

    config = cast("dict[str, Any]", OmegaConf.to_container(groups.load_yaml(file_of(group, name))))
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
    file = groups.conf_dir() / group / f"{name}.yaml"
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
            words.append(
                f"{key}={value['name']}" if "name" in value else parameters(value, f"{prefix}{key}.")
            )
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
