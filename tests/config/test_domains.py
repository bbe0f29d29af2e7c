"""Every parameter has a domain, and no component is built with a value outside it: tried value by value."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from fedbench.config import groups
from fedbench.config.fields import DOMAIN, SELECTS, Component, at_least
from fedbench.config.schema import LocalConfig, SettingsConfig, added
from fedbench.core.errors import ConfigError, FedbenchError, UnknownName
from fedbench.methods.fedprox import FedProx
from fedbench.methods.ifca import IFCA
from fedbench.models.small import MLP
from tests.helpers.presets import PRESETS, SCHEMAS, build, parameters, preset, replaced
from tests.helpers.tiers import sampled

HOSTILE = (math.nan, math.inf, -math.inf, -1, 0, 10**30, 1e308, "nonsense")
FREE_TEXT = {  # fields whose value is any text: names and places that are looked up when needed, or read by a parser
    *("name", "model", "root", "path", "weights", "device", "scratch", "classes", "augment", "cohort", "metrics"),
    *("runs_dir", "folder", "project", "entity", "tags", "mirrors", "x", "by", "y"),
    *("architecture", "called", "record", "uri", "experiment"),
    *("target", "client", "split", "categories", "drop"),
}


CASES = pytest.mark.parametrize(
    ("group", "name"), sampled(PRESETS, every=8), ids=[f"{group}/{name}" for group, name in PRESETS]
)


def at(component: Any, keys: tuple[str, ...]) -> Any:
    return functools.reduce(getattr, keys, component)


@CASES
def test_no_preset_takes_a_value_outside_its_domain(group: str, name: str) -> None:
    config = preset(group, name)
    for keys, hint in parameters(build(group, config)):
        for value in HOSTILE:
            given = [value] if typing.get_origin(hint) is tuple else value
            made = built_or_refused(group, replaced(config, keys, given), keys[-1])
            if made is not None:
                Component.__post_init__(at(made, keys[:-1]))
                found = at(made, keys)
                assert not isinstance(found, float) or math.isfinite(found), f"{keys}={value}"


def built_or_refused(group: str, config: Mapping[str, Any], key: str) -> Component | None:
    """The component; None where it is refused in one line that names `key`."""
    with contextlib.suppress(ConfigError, UnknownName):
        return build(group, config)
    with pytest.raises(FedbenchError, match=key) as caught:
        build(group, config)
    assert "\n" not in str(caught.value)
    return None


def fields_of(cls: type) -> Iterator[tuple[type, Any, Any]]:
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        if isinstance(hints[field.name], type) and issubclass(hints[field.name], Component):
            yield from fields_of(hints[field.name])
        else:
            yield cls, field, hints[field.name]


CLASSES = sorted(
    {
        *(groups.registry(group).get(name) for group in groups.REGISTRIES for name in groups.registry(group)),
        *(*SCHEMAS.values(), SettingsConfig),
    },
    key=str,
)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_parameter_says_its_domain(cls: type) -> None:
    for owner, field, hint in fields_of(cls):
        kinds = {hint, *typing.get_args(hint)}
        if kinds <= {bool} or hint is Any or field.name in FREE_TEXT:
            continue
        declared = field.metadata.get(DOMAIN) or field.metadata.get(SELECTS)
        assert declared or not field.init, f"{owner.__name__}.{field.name}"
        if DOMAIN in field.metadata and field.default is not None:
            values = field.default if isinstance(field.default, tuple) else (field.default,)
            assert all(map(declared.holds, values)), f"{owner.__name__}.{field.name}: its default lies outside"


def test_a_refusal_names_the_key_the_rule_and_the_value() -> None:
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (FedProx, {"mu": -1}, "method.mu must be at least 0, got -1"),
        (FedProx, {"mu": math.nan}, "method.mu must be at least 0, got nan"),
        (IFCA, {"k": 0}, "method.k must be at least 1, got 0"),
        (IFCA, {"k": True}, "method.k must be at least 1, got True"),
        (MLP, {"hidden": (20, 0)}, "model.hidden must be at least 1, got 0"),
        (LocalConfig, {"batch_size": 0}, "protocol.local.batch_size must be at least 1, got 0"),
        (SettingsConfig, {"seed": -2}, "seed must be at least 0, got -2"),
    ]
    for cls, values, message in cases:
        with pytest.raises(ConfigError) as caught:
            cls(**values)
        assert str(caught.value) == message


def test_a_refusal_of_a_method_inside_names_its_key() -> None:
    inside = {"name": "fedcollab", "base": {"name": "oracle", "base": {"name": "fedprox", "mu": -1.0}}}
    with pytest.raises(ConfigError, match=r"method\.base\.base\.mu must be at least 0, got -1"):
        groups.registry("method").build(inside)


def test_null_stays_null_where_it_is_allowed() -> None:
    method = groups.registry("method").build({"name": "perfedavg", "beta": None})
    assert method.beta is None
    with pytest.raises(ConfigError, match="mu"):
        groups.registry("method").build({"name": "fedprox", "mu": None})


def test_an_added_field_keeps_its_domain() -> None:
    @dataclasses.dataclass(frozen=True)
    class Later(Component):
        section = "later"
        depth: int = added(at_least(1, 3))

    assert Later().depth == 3
    with pytest.raises(ConfigError, match=r"later\.depth must be at least 1, got 0"):
        Later(depth=0)


@CASES
def test_a_list_is_a_tuple_wherever_a_field_takes_one(group: str, name: str) -> None:
    """Also where it may be null: components are hashed."""
    config = preset(group, name)
    for keys, hint in parameters(build(group, config)):
        inner = next((each for each in (hint, *typing.get_args(hint)) if typing.get_origin(each) is tuple), None)
        if inner is not None and at(build(group, config), keys) in (None, ()):
            with contextlib.suppress(FedbenchError):  # some take few values: it need not be built
                built = build(group, replaced(config, keys, [{float: 0.5, int: 1}.get(typing.get_args(inner)[0], "a")]))
                assert isinstance(at(built, keys), tuple)
                hash(built)
