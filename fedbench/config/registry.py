"""Named components: a registry maps a name to a frozen dataclass whose fields are its typed schema.

Data sets, partitions, models and methods are all built the same way: the YAML under conf/ gives
`name:` and the fields, the registry imports the class (only then) and checks every key and type.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from fedbench.core.errors import ConfigError, UnknownName, unknown

if TYPE_CHECKING:
    from omegaconf import DictConfig

T = TypeVar("T")

RESERVED = ("name", "preset")  # keys of a component's YAML that are not hyper-parameters


class Registry(Generic[T]):
    """Lazy, explicit map from names to dataclasses of one kind."""

    def __init__(self, kind: str, entries: Mapping[str, str], package: str = "") -> None:
        """`entries` maps a name to "package.module:Class"; nothing is imported before it is used.

        `package` is the one that users add classes to, in whose `__init__.py` the entries stand.
        """
        self.kind = kind
        self.line = f"a line in {package.replace('.', '/')}/__init__.py" if package else ""
        self._entries = dict(entries)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def get(self, name: str) -> type[T]:
        """The class called `name`.

        Raises:
            UnknownName: with the nearest names, and where a new one is added.
        """
        if name not in self._entries:
            new = self.line and f"; a new one takes {self.line}"
            raise UnknownName(f"{unknown(self.kind, name, self._entries)}{new}")
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


def typed(cls: type[T], values: object, where: str) -> T:
    """Build dataclass `cls` from the mapping `values`, checking names and types; `where` opens any message.

    Raises:
        UnknownName: a key that is no field, with the nearest fields.
        ConfigError: a field without a value, or a value of the wrong type.
    """
    fields = [field for field in dataclasses.fields(cast("Any", cls)) if field.init]
    if not isinstance(values, Mapping):
        keys = ", ".join(field.name for field in fields)
        raise ConfigError(f"{where} is {values!r}; it must be a mapping of some of {keys}")
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
    return cls(**nested, **_tuples(_converted(cls, flat, where), hints))


def _converted(cls: type[Any], values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """`values` as the types of their fields; OmegaConf, which takes its time, where they are of others: 1 for 1.0."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    hints = _hints(cast("Any", cls))
    if all(_is_plainly(value, hints[key]) for key, value in values.items()):
        return dict(values)
    try:
        merged = OmegaConf.merge(_schema(cast("Any", cls), tuple(values)), values)
        checked = OmegaConf.to_container(merged, resolve=True, throw_on_missing=True)
    except (OmegaConfBaseException, OverflowError) as error:  # the latter: a float of 400 digits
        reason = str(error).splitlines()[0]
        full = getattr(error, "full_key", None)
        key = f" ({full})" if full else ""
        raise ConfigError(f"{where}{key}: {reason}") from error
    return cast("dict[str, Any]", checked)


def _is_plainly(value: object, hint: Any) -> bool:
    """Whether `value` is of the type `hint`, and no text that stands for another value."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_is_plainly(value, each) for each in inner)
    if origin is tuple and inner[1:] == (...,):
        return isinstance(value, (list, tuple)) and all(_is_plainly(each, inner[0]) for each in value)
    return type(value) is hint and not (isinstance(value, str) and ("${" in value or value == "???"))


_hints = functools.cache(typing.get_type_hints)  # finding them takes longer than checking the values


@functools.cache
def _schema(cls: type[Any], keys: Sequence[str]) -> DictConfig:
    """What OmegaConf checks the values of `keys` against; making it takes longer than checking them."""
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
