"""Every value of every preset is stated with its source, in docs/settings.csv or docs/readings.csv.

A value that changes in a YAML fails here until its line says what it is now, and where that comes from.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers import grids, stated
from tests.helpers.stated import Statement
from tests.helpers.tiers import sampled

SETTINGS, READINGS = stated.settings(), stated.readings()
FILES = [
    (group, file.stem)
    for group in (*stated.COMPONENTS, "experiment")
    for file in sorted((stated.CONF / group).glob("*.yaml"))
]
GRIDS = [(group, file.stem) for group in stated.GRIDS for file in sorted((stated.CONF / group).glob("*.yaml"))]


def by_preset(statements: list[Statement]) -> dict[str, list[tuple[Statement, str]]]:
    """The statements with the place that each names, by group and option."""
    found: dict[str, list[tuple[Statement, str]]] = {}
    for statement in statements:
        for place in statement.places:
            found.setdefault(place.partition(" ")[0], []).append((statement, place))
    return found


STATED = by_preset([*SETTINGS, *READINGS])


@pytest.mark.parametrize("preset", sampled(STATED, every=3))
def test_what_is_stated_is_what_the_preset_has(preset: str) -> None:
    assert preset.partition("=")[0] in stated.GROUPS, f"{preset}: no group of presets"
    for statement, place in STATED[preset]:
        for where, value in values(statement, place):
            assert value == statement.value, (
                f"{where}: {statement.key} is {value}, and {statement.value} by {statement.line}; "
                "correct one of them, and the source with it"
            )


def values(statement: Statement, place: str) -> list[tuple[str, Any]]:
    """Where a statement applies, and what its key has there."""
    group = place.partition("=")[0]
    if group in stated.GRIDS:
        found = grids.matches(place)
        assert found, f"{statement.line}: nothing is called '{place}'"
        return [(place, grids.grid(group, name)[where].get(statement.key, "not set")) for name, where in found]
    return [(place, stated.applied(place.split())[statement.key])]


@pytest.mark.parametrize(("group", "option"), FILES)
def test_every_value_of_a_preset_is_stated(group: str, option: str) -> None:
    preset = f"{group}={option}"
    known = {each.key for each, place in STATED.get(preset, []) if place == preset}
    missing = {key: value for key, value in stated.own_values(group, option).items() if key not in known}
    assert missing == {}, f"{preset}: say in docs/settings.csv where these come from"


@pytest.mark.parametrize(("group", "name"), [(group, name) for group, name in FILES if name.endswith("_code")])
def test_where_the_authors_code_differs_is_a_reading(group: str, name: str) -> None:
    base = stated.parent(group, name).get("inherits")
    if base is None:  # a partition of its own, which the tables' readings name
        return
    before = stated.applied([f"{group}={base}"])
    own = stated.own_values(group, name)
    differs = {key for key, value in own.items() if key in before and before[key] != value}
    assert differs <= {each.key for each in READINGS if f"{group}={name}" in each.places}


@pytest.mark.parametrize(("group", "name"), GRIDS)
def test_every_value_of_a_table_or_figure_is_stated(group: str, name: str) -> None:
    known = {
        (where, statement.key)
        for statement, place in STATED.get(f"{group}={name}", [])
        for _, where in grids.matches(place)
    }
    missing = [
        (*where, f"{key}: {value}")
        for where, found in grids.grid(group, name).items()
        for key, value in found.items()
        if (where, key) not in known and not grids.says(where, value)
    ]
    assert missing == [], f"{group}={name}: say in docs/settings.csv where these come from"


def test_no_value_has_two_sources() -> None:
    seen: dict[tuple[str, Any, str], str] = {}
    for statement in SETTINGS:
        for place in statement.places:
            group = place.partition("=")[0]
            spots = grids.matches(place) if group in stated.GRIDS else [(place, "")]
            for name, where in spots:
                other = seen.setdefault((f"{group}={name}", where, statement.key), statement.line)
                assert other is statement.line, f"{statement.key} twice: {other}; {statement.line}"


def test_every_line_has_a_source_and_a_place() -> None:
    for row in stated.read("settings.csv"):
        assert all(row[column] for column in ("source", "place", "preset", "settings")), row
    for row in stated.read("readings.csv"):
        assert all(row[column] for column in ("paper", "about", "the_text", "default", "why")), row
