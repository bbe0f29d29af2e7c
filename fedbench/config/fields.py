"""Components from a config: the domains of fields, and the classes behind names.

    mu: float = at_least(0, 0.1)
    linkage: str = one_of("single", "complete")

A domain is declared with its field and checked when the component is built. Null is exempt where the type allows it. In
a field of several values the domain holds for each value.

Data sets, partitions, models and methods are all built the same way. The YAML under conf/ gives `name:` and the fields.
The registry then imports the class and checks every key and type.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import pkgutil
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, Generic, TypeVar, cast

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedbench.core.errors import ConfigError, FedbenchError, UnknownName, unknown

DOMAIN = "domain"
SELECTS = "selects"
TINIEST = 2.0**-149  # above 0 in float32, the type of all training
LARGEST = 2**53  # up to here floats hold whole numbers exactly, and a thousand of them added up fit 64 bits


@dataclass(frozen=True)
class ValueDomain:
    """Which values a field may have."""

    rule: str  # completes "must"
    short: str  # for tables
    holds: Callable[[Any], bool]
    options: tuple[Any, ...] = ()  # of a choice

    def error(self, key: str, value: Any) -> FedbenchError:
        """Return an error line for `value`, which lies outside the domain."""
        if self.options and isinstance(value, str):
            return unknown(key, value, [str(option) for option in self.options])
        if isinstance(value, int) and abs(value) > LARGEST:
            return ConfigError(f"{key} must lie within ±{LARGEST}, got a larger number")
        return ConfigError(f"{key} must {self.rule}, got {value}")


@dataclass(frozen=True)
class Selects:
    """The rule of a field of selectors (see Task.select): what it selects from, and whether it may match nothing."""

    among: str = "leaves"  # "leaves", or "weights": all but statistics
    may_be_empty: bool = False  # groups such as @norm may have no leaves in a network


class Component:
    """Base of everything that a config builds: a frozen dataclass whose values lie in the domains of its fields.

    A setting of a method that float32 holds as 0 is refused: training would divide by it and seem to diverge.

    A `__post_init__` with rules of its own calls this one first.
    """

    section: ClassVar[str] = ""  # where in the config its fields are, for messages

    def __post_init__(self) -> None:
        """Check every field; floats must be finite in any case.

        Raises:
            ConfigError, UnknownName: a value outside its field's domain.
        """
        for each in dataclasses.fields(self):  # type: ignore[arg-type]  # subclasses are dataclasses
            domain = each.metadata.get(DOMAIN, ANY)
            value = getattr(self, each.name)
            for one in value if isinstance(value, (tuple, list)) else (value,):
                key = f"{self.section}.{each.name}".lstrip(".")
                if one is not None and not domain.holds(one):
                    raise domain.error(key, one)
                if self.section == "method" and isinstance(one, float) and 0 < abs(one) < TINIEST:
                    raise ConfigError(
                        f"{key}={one} is 0 in float32, the type in which networks train; give at least {TINIEST:.2g}"
                    )


# ---- fields with a domain


def positive(default: Any) -> Any:
    """A number above 0."""
    return _field(default, ValueDomain("be positive", "> 0", lambda value: is_number(value) and value > 0))


def at_least(least: float, default: Any) -> Any:
    """A number from `least` on."""
    holds = lambda value: is_number(value) and value >= least  # noqa: E731
    return _field(default, ValueDomain(f"be at least {least:g}", f"≥ {least:g}", holds))


def within(least: float, most: float, default: Any) -> Any:
    """A number from `least` to `most`, both included."""
    text = f"in [{least:g}, {most:g}]"
    holds = lambda value: is_number(value) and least <= value <= most  # noqa: E731
    return _field(default, ValueDomain(f"lie {text}", text, holds))


def share(default: Any, *, above: bool = False, below: bool = False) -> Any:
    """A number in [0, 1]; `above` excludes 0, `below` excludes 1."""
    text = f"{'(' if above else '['}0, 1{')' if below else ']'}"

    def holds(value: Any) -> bool:
        low = is_number(value) and (value > 0 if above else value >= 0)
        return low and (value < 1 if below else value <= 1)

    return _field(default, ValueDomain(f"lie in {text}", f"in {text}", holds))


def finite(default: Any) -> Any:
    """A finite number."""
    return _field(default, ValueDomain("be finite", "finite", is_number))


def one_of(default: Any, *others: Any) -> Any:
    """`default`, or one of the `others`."""
    options = tuple(dict.fromkeys((default, *others)))
    text = ", ".join(map(str, options))
    domain = ValueDomain(f"be one of {text}", " or ".join(map(str, options)), lambda value: value in options, options)
    return _field(default, domain)


def selectors(default: tuple[str, ...], *, among: str = "leaves", may_be_empty: bool = False) -> Any:
    """Globs and groups that choose leaves of the network, see Task.select; checked once the network is known."""
    return dataclasses.field(default=default, metadata={SELECTS: Selects(among, may_be_empty)})


def is_number(value: Any) -> bool:
    """Whether `value` is a finite number, not a truth value, and no whole number beyond `LARGEST`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) <= LARGEST if isinstance(value, int) else math.isfinite(value)


ANY = ValueDomain("be finite", "", lambda value: not isinstance(value, float) or math.isfinite(value))


def _field(default: Any, domain: ValueDomain) -> Any:
    metadata: Mapping[str, Any] = {DOMAIN: domain}
    return dataclasses.field(default=default, metadata=metadata)


T = TypeVar("T")

WANTED = {
    "to Float": "a number",
    "to Integer": "a whole number",
    "valid bool": "true or false",
    "field of type 'float'": "a number",
    "field of type 'int'": "a whole number",
    "field of type 'bool'": "true or false",
    "field of type 'str'": "a text",
    "not Optional": "a list such as [], not null",
}  # by words of OmegaConf
OWN = __name__.partition(".")[0]
RESERVED = ("name", "preset")  # keys of a component's YAML that are not hyper-parameters


class Registry(Generic[T]):
    """Lazy map from names to dataclasses of one kind, of this package and of other packages' entry points."""

    def __init__(self, kind: str, entries: Mapping[str, str], package: str = "") -> None:
        """`entries` maps a name to "package.module:Class"; nothing is imported before it is used.

        `package` is the one that users add classes to, in whose `__init__.py` the entries stand. If it is
        "fedbench.data.datasets", the entry points "fedbench.datasets" of other packages count as well.
        """
        self.kind = kind
        self.group = f"{OWN}.{package.rpartition('.')[2]}" if package else ""
        line = f"a line in {package.replace('.', '/')}/__init__.py"
        self.line = package and f"{line}, or in another package an entry point in {self.group}"
        self._entries = dict(entries)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self._entries, *(each.name for each in outside(self.group))}))

    def __contains__(self, name: object) -> bool:
        return name in set(self)

    def get(self, name: str) -> type[T]:
        """The class called `name`.

        Raises:
            UnknownName: with the nearest names, and where a new one is added.
            ConfigError: two packages have one, or another package's cannot be imported.
        """
        theirs = [each for each in outside(self.group) if each.name == name]
        if len(owners := [OWN] * (name in self._entries) + [owner(each) for each in theirs]) > 1:
            raise taken_twice(self.kind, name, owners)
        if theirs:
            return cast("type[T]", _loaded(theirs[0], self.kind))
        if name not in self._entries:
            new = self.line and f"; a new one takes {self.line}"
            raise UnknownName(f"{unknown(self.kind, name, self)}{new}")
        return cast("type[T]", pkgutil.resolve_name(self._entries[name]))

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


# ---- what other packages bring


@functools.cache
def outside(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of other packages in `group`, such as "fedbench.methods"; read once a process."""
    return tuple(_installed().select(group=group)) if group else ()


_installed = functools.cache(entry_points)  # every package is looked at, which takes a moment


def owner(point: EntryPoint) -> str:
    """Return the name under which the package of an entry point is installed."""
    return point.dist.name if point.dist is not None else point.value


def taken_twice(kind: str, name: str, owners: Iterable[str]) -> ConfigError:
    """Return the error for a name that several packages have."""
    return ConfigError(f"{kind} '{name}' is in both {' and '.join(owners)}: uninstall one, or rename it there")


def _loaded(point: EntryPoint, kind: str) -> type[Component]:
    """Return the class of an entry point."""
    try:
        found = point.load()
    except (Exception, SystemExit) as error:  # whatever the package's own code raises
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"{kind} '{point.name}' of {owner(point)}: {point.value} does not import: {reason}"
        ) from error
    if not (isinstance(found, type) and issubclass(found, Component)):
        raise ConfigError(f"{kind} '{point.name}' of {owner(point)}: {point.value} is not the class of a {kind}")
    return found


def typed(cls: type[T], values: object, where: str) -> T:
    """Build dataclass `cls` from the mapping `values`, checking names and types; `where` opens any message.

    Raises:
        UnknownName: a key that is no field, with the nearest fields.
        ConfigError: a field without a value, or a value of the wrong type.
    """
    fields = [field for field in dataclasses.fields(cast("Any", cls)) if field.init]
    if not isinstance(values, Mapping):
        keys = ", ".join(field.name for field in fields)
        example = "" if " " in where else f"; for example {where}.{fields[0].name}={values}"
        raise ConfigError(f"{where} is {values!r}; it must be a mapping of some of {keys}{example}")
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
        key: typed(cast("type[Any]", hints[key]), value, f"{where}.{key}".removeprefix("the config."))
        for key, value in values.items()
        if dataclasses.is_dataclass(hint := hints[key]) and not isinstance(value, cast("type[Any]", hint))
    }
    flat = _converted(cls, {key: value for key, value in values.items() if key not in nested}, where)
    for key, value in flat.items():
        if isinstance(value, list) and _holds_a_tuple(hints[key]):  # so that the dataclass is hashable
            flat[key] = tuple(value)
    return cls(**nested, **flat)


def _converted(cls: type[Any], values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return `values` with their fields' types; OmegaConf, which is slow, only converts values such as 1 for 1.0."""
    hints = _hints(cast("Any", cls))
    others = {key: value for key, value in values.items() if not _is_plainly(value, hints[key])}
    if not others:
        return dict(values)
    try:
        merged = OmegaConf.merge(_schema(cast("Any", cls), tuple(others)), others)
        checked = OmegaConf.to_container(merged, resolve=True, throw_on_missing=True)
    except (OmegaConfBaseException, OverflowError) as error:  # the latter: a float of 400 digits
        for key, value in others.items():
            section = getattr(cls, "section", None)  # of what a command line sets
            if section is not None and _holds_a_tuple(hints[key]) and isinstance(value, (str, int, float)):
                name = f"{section}.{key}".lstrip(".")
                raise ConfigError(f"{name} is a list; write {name}=[{str(value).strip('[]')}]") from error
        reason = str(error).splitlines()[0].replace("'None'", "null")
        full = getattr(error, "full_key", None)
        key = f" ({full})" if full else ""
        wanted = next((f"; give {text}" for words, text in WANTED.items() if words in reason), "")
        raise ConfigError(f"{where}{key}: {reason}{wanted}") from error
    return {**values, **cast("dict[str, Any]", checked)}


def _is_plainly(value: object, hint: Any) -> bool:
    """Whether `value` has the type `hint` and is no text that means a missing value."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_is_plainly(value, each) for each in inner)
    if origin is tuple and inner[1:] == (...,):
        return isinstance(value, (list, tuple)) and all(_is_plainly(each, inner[0]) for each in value)
    return type(value) is hint and value != "???"


def _holds_a_tuple(hint: Any) -> bool:
    """Whether a list at a field of type `hint` means a tuple: tuple[...], or tuple[...] or null."""
    return any(typing.get_origin(each) is tuple for each in (hint, *typing.get_args(hint)))


_hints = functools.cache(typing.get_type_hints)  # finding them takes longer than checking the values


@functools.cache
def _schema(cls: type[Any], keys: Sequence[str]) -> DictConfig:
    """Return the schema of `keys` for OmegaConf; it is cached, because making it takes longer than checking values."""
    hints = _hints(cast("Any", cls))
    given = dataclasses.make_dataclass(cls.__name__, [(key, hints[key], MISSING) for key in keys])
    return cast("DictConfig", OmegaConf.structured(given))
