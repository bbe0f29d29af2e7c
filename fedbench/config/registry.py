"""Named components: a registry maps a name to a frozen dataclass whose fields are its typed schema.

Data sets, partitions, models and methods are all built the same way: the YAML under conf/ gives
`name:` and the fields, the registry imports the class (only then) and checks every key and type.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from fedbench.core.errors import ConfigError, unknown

if TYPE_CHECKING:
    from omegaconf import DictConfig

T = TypeVar("T")

RESERVED = ("name", "preset")  # keys of a component's YAML that are not hyper-parameters


class Registry(Generic[T]):
    """Lazy, explicit map from names to dataclasses of one kind."""

    def __init__(self, kind: str, entries: Mapping[str, str]) -> None:
        """`entries` maps a name to "package.module:Class"; nothing is imported before it is used."""
        self.kind = kind
        self._entries = dict(entries)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def get(self, name: str) -> type[T]:
        """The class called `name`.

        Raises:
            UnknownName: with the nearest names.
        """
        if name not in self._entries:
            raise unknown(self.kind, name, self._entries)
        module, _, attribute = self._entries[name].partition(":")
        return cast("type[T]", getattr(importlib.import_module(module), attribute))

    def build(self, config: Mapping[str, Any]) -> T:
        """Instantiate the component that `config` describes: `name`, and its fields.

        A field whose value is itself a mapping with a `name` is left to the class (`__post_init__`).

        Raises:
            UnknownName: unknown name or unknown field, with the nearest ones.
            ConfigError: a value of the wrong type or an impossible value.
        """
        if "name" not in config:
            raise ConfigError(f"{self.kind}: the config has no 'name'; one of: {', '.join(self)}")
        cls = self.get(str(config["name"]))
        given = {key: value for key, value in config.items() if key not in RESERVED}
        return typed(cls, given, f"{self.kind} '{config['name']}'")


def typed(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """Build dataclass `cls` from `values`, checking names and types; `where` opens any message.

    Raises:
        UnknownName: a key that is no field, with the nearest fields.
        ConfigError: a field without a value, or a value of the wrong type.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    fields = [field for field in dataclasses.fields(cast("Any", cls)) if field.init]
    for key in values:
        if key not in {field.name for field in fields}:
            raise unknown(f"key of {where}", str(key), [field.name for field in fields])
    for field in fields:
        has_default = {field.default, field.default_factory} != {dataclasses.MISSING}
        if not has_default and field.name not in values:
            raise ConfigError(f"{where}: '{field.name}' must be given")
    # One level at a time: OmegaConf refuses to merge into a frozen dataclass inside another.
    hints = _hints(cast("Any", cls))
    nested = {
        key: typed(cast("type[Any]", hints[key]), value, f"{where}.{key}")
        for key, value in values.items()
        if dataclasses.is_dataclass(hints[key]) and isinstance(value, Mapping)
    }
    flat = {key: value for key, value in values.items() if key not in nested}
    try:
        merged = OmegaConf.merge(_schema(cast("Any", cls), tuple(flat)), flat)
        checked = OmegaConf.to_container(merged, resolve=True, throw_on_missing=True)
    except (OmegaConfBaseException, OverflowError) as error:  # the latter: a float of 400 digits
        reason = str(error).splitlines()[0]
        full = getattr(error, "full_key", None)
        key = f" ({full})" if full else ""
        raise ConfigError(f"{where}{key}: {reason}") from error
    return cls(**nested, **_tuples(cast("dict[str, Any]", checked), hints))


_hints = functools.cache(typing.get_type_hints)  # finding them takes longer than checking the values


@functools.cache
def _schema(cls: type[Any], keys: Sequence[str]) -> DictConfig:
    """What OmegaConf checks the values of `keys` against; making it takes longer than checking them, too."""
    from omegaconf import MISSING, OmegaConf

    hints = _hints(cast("Any", cls))
    given = dataclasses.make_dataclass(cls.__name__, [(key, hints[key], MISSING) for key in keys])
    return cast("DictConfig", OmegaConf.structured(given))


def _tuples(values: Mapping[str, Any], hints: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with the lists that are declared as tuples made tuples, so that the dataclass is hashable."""
    return {
        key: tuple(value) if isinstance(value, list) and typing.get_origin(hints[key]) is tuple else value
        for key, value in values.items()
    }
