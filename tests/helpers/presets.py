"""Every preset as a plain mapping, and its fields, for tests that put other values into them."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from fedbench.config import groups
from fedbench.config.fields import Component, typed
from fedbench.config.schema import HardwareConfig, ProtocolConfig

SCHEMAS = {"protocol": ProtocolConfig, "hardware": HardwareConfig}
PRESETS = [
    (group, name)
    for group in (*groups.REGISTRIES, *SCHEMAS)
    for name in groups.names(group)
    if (group, name) != ("model", "auto")  # points at another file's component
]


def build(group: str, config: Mapping[str, Any]) -> Component:
    if group in SCHEMAS:
        return typing.cast("Component", typed(SCHEMAS[group], config, group))
    return typing.cast("Component", groups.registry(group).build(config))


@functools.cache
def preset(group: str, name: str) -> dict[str, Any]:
    """What the file says; what depends on the rest of a config is left to its default."""

    def fixed(config: Mapping[str, Any]) -> dict[str, Any]:
        return {
            key: fixed(value) if isinstance(value, Mapping) else value
            for key, value in config.items()
            if not str(value).startswith("${") and key != "defaults"
        }

    return fixed(groups.plain_option(group, name))


def parameters(component: Component) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(keys from the component down, type) of every field that a config may set, nested ones too."""
    hints = typing.get_type_hints(type(component))
    for field in dataclasses.fields(component):  # type: ignore[arg-type]
        value = getattr(component, field.name)
        if isinstance(value, Component):
            yield from (((field.name, *keys), hint) for keys, hint in parameters(value))
        elif field.init:
            yield (field.name,), hints[field.name]


def replaced(config: Mapping[str, Any], keys: tuple[str, ...], value: Any) -> dict[str, Any]:
    first, *rest = keys
    return {**config, first: replaced(config.get(first, {}), tuple(rest), value) if rest else value}
