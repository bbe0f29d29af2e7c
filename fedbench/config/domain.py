"""Domains: which values a field of a component may have. Said where the field is, checked when it is built, in `check`.

    mu: float = at_least(0, 0.1)
    linkage: str = one_of("single", "complete")

A field that may be null has its domain for every other value; a field of several values has it for each of them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from fedbench.core.errors import ConfigError, FedbenchError, unknown

DOMAIN = "domain"
SELECTS = "selects"
LARGEST = 2**53  # up to here floats hold whole numbers exactly, and a thousand of them added up fit 64 bits


@dataclass(frozen=True)
class Domain:
    """Which values a field may have."""

    rule: str  # completes "must"
    short: str  # for tables
    holds: Callable[[Any], bool]
    options: tuple[Any, ...] = ()  # of a choice

    def error(self, key: str, value: Any) -> FedbenchError:
        """One line on `value`, which lies outside."""
        if self.options and isinstance(value, str):
            return unknown(key, value, [str(option) for option in self.options])
        if isinstance(value, int) and abs(value) > LARGEST:
            return ConfigError(f"{key} must lie within ±{LARGEST}, got a larger number")
        return ConfigError(f"{key} must {self.rule}, got {value}")


@dataclass(frozen=True)
class Selects:
    """Of a field of selectors (see Task.select): among which leaves, and whether it may find none."""

    among: str = "leaves"  # "leaves", or "weights": all but statistics
    may_be_empty: bool = False  # groups such as @norm may have no leaves in a network


class Component:
    """Base of everything that a config builds: a frozen dataclass whose values lie in their fields' domains.

    A `__post_init__` with rules of its own calls this one first.
    """

    section: ClassVar[str] = ""  # where in the config its fields are, for messages

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ConfigError, UnknownName: a value outside its field's domain.
        """
        check(self)


def check(component: Component) -> None:
    """Refuse a component with a value outside its field's domain; floats must be finite in any case."""
    for each in dataclasses.fields(component):  # type: ignore[arg-type]  # subclasses are dataclasses
        domain = each.metadata.get(DOMAIN, ANY)
        value = getattr(component, each.name)
        for one in value if isinstance(value, (tuple, list)) else (value,):
            if one is not None and not domain.holds(one):
                raise domain.error(f"{component.section}.{each.name}".lstrip("."), one)


# ---- fields with a domain


def positive(default: Any) -> Any:
    """A number above 0."""
    return _field(default, Domain("be positive", "> 0", lambda value: is_number(value) and value > 0))


def at_least(least: float, default: Any) -> Any:
    """A number from `least` on."""
    holds = lambda value: is_number(value) and value >= least  # noqa: E731
    return _field(default, Domain(f"be at least {least:g}", f"≥ {least:g}", holds))


def within(least: float, most: float, default: Any) -> Any:
    """A number from `least` to `most`, both among them."""
    text = f"in [{least:g}, {most:g}]"
    holds = lambda value: is_number(value) and least <= value <= most  # noqa: E731
    return _field(default, Domain(f"lie {text}", text, holds))


def share(default: Any, *, above: bool = False, below: bool = False) -> Any:
    """A number in [0, 1]; `above` 0, `below` 1: without that end."""
    text = f"{'(' if above else '['}0, 1{')' if below else ']'}"

    def holds(value: Any) -> bool:
        low = is_number(value) and (value > 0 if above else value >= 0)
        return low and (value < 1 if below else value <= 1)

    return _field(default, Domain(f"lie in {text}", f"in {text}", holds))


def finite(default: Any) -> Any:
    """Any number but nan and the infinities."""
    return _field(default, Domain("be finite", "finite", is_number))


def one_of(default: Any, *others: Any) -> Any:
    """`default`, or one of the `others`."""
    options = tuple(dict.fromkeys((default, *others)))
    text = ", ".join(map(str, options))
    domain = Domain(
        f"be one of {text}", " or ".join(map(str, options)), lambda value: value in options, options
    )
    return _field(default, domain)


def selectors(default: tuple[str, ...], *, among: str = "leaves", may_be_empty: bool = False) -> Any:
    """Globs and groups that choose leaves of the network, see Task.select; checked once the network is known."""
    return field(default=default, metadata={SELECTS: Selects(among, may_be_empty)})


def is_number(value: Any) -> bool:
    """Whether `value` is a finite number (and no truth value), and no whole number beyond `LARGEST`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) <= LARGEST if isinstance(value, int) else math.isfinite(value)


ANY = Domain("be finite", "", lambda value: not isinstance(value, float) or math.isfinite(value))


def _field(default: Any, domain: Domain) -> Any:
    metadata: Mapping[str, Any] = {DOMAIN: domain}
    return field(default=default, metadata=metadata)
