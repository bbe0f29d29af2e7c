"""Every YAML under conf/ composes, builds its component, and hides no field of it."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedbench.config import compose, groups
from fedbench.config.groups import REGISTRIES
from fedbench.runs.config import SCHEMAS, RunConfig, from_plain, resolve
from tests.helpers.tiers import sampled, tiered

CONF = groups.conf_dir()
GROUPS = (*REGISTRIES, *SCHEMAS)
FILES = sorted(
    file.relative_to(CONF).with_suffix("").as_posix() for group in GROUPS for file in CONF.glob(f"{group}/*.yaml")
)
ELSEWHERE = ("table", "figure", "scale", "experiment", "leaderboard", "hydra")  # tested in tests of their own
PARTIAL = {"model/auto"}  # points at another file's component and leaves its fields to their defaults


@functools.cache
def resolved(*overrides: str) -> RunConfig:
    return resolve(compose.compose(overrides))


def chosen(group: str, name: str) -> RunConfig:
    """The run with `name` in `group`; a network by a method that serves clients of several kinds too."""
    return resolved(f"{group}={name}", *(["method=local"] if group == "model" else []))


def options(group: str) -> list[str]:
    return [name.removeprefix(f"{group}/") for name in FILES if name.startswith(f"{group}/")]


def test_no_file_escapes_these_tests() -> None:
    found = [Path(folder, name).relative_to(CONF) for folder, _, names in os.walk(CONF) for name in names]
    assert {file.suffix for file in found} == {".yaml"}
    assert len([file for file in found if file.parts[0] not in ELSEWHERE]) == len(FILES) + 1  # and config.yaml
    assert sorted({name.partition("/")[0] for name in FILES}) == sorted(GROUPS)


def hidden_fields(component: Any, given: Mapping[str, Any]) -> list[str]:
    """Fields that the YAML leaves out: a user could neither see nor override them."""
    hidden = []
    if isinstance(component, Mapping):  # of components
        return [f"{key}.{name}" for key in component for name in hidden_fields(component[key], given[key])]
    for field in dataclasses.fields(component):
        if field.init and field.name not in {"name", *given}:
            hidden.append(field.name)
        elif field.init and isinstance(given.get(field.name), Mapping):
            nested = hidden_fields(getattr(component, field.name), given[field.name])
            hidden += [f"{field.name}.{name}" for name in nested]
    return hidden


@pytest.mark.parametrize("file", sampled(FILES, every=3))
def test_composes_and_builds(file: str) -> None:
    group, _, name = file.partition("/")
    run = chosen(group, name)
    component, given = getattr(run, group), run.plain[group]
    cls = groups.registry(group).get(given["name"]) if group in REGISTRIES else SCHEMAS[group]
    assert type(component) is cls
    if file in PARTIAL:
        return
    called = "file" if given["name"] == "file" else name  # a split from a file is called by its content
    assert run.labels[group].startswith(called), "tables call a choice as the command line does"
    assert hidden_fields(component, given) == []
    assert run.key == from_plain(run.plain).key


@pytest.mark.parametrize("file", [name for name in FILES if name.startswith(("dataset/", "partition/"))])
def test_data_sets_and_partitions_have_the_defaults_that_their_files_say(file: str) -> None:
    group, _, name = file.partition("/")
    assert (CONF / f"{file}.yaml").read_text(encoding="utf-8").startswith("# ")
    run = resolved(f"{group}={name}")
    component = getattr(run, group)
    preset = run.plain[group]["name"] != name
    assert preset or component == groups.registry(group).build({"name": name})
    family = getattr(component, "family_field", None)
    assert not family or isinstance(getattr(component, family), int | float)


@pytest.mark.parametrize("group", REGISTRIES)
def test_every_registered_component_has_a_file(group: str) -> None:
    named = {chosen(group, name).plain[group]["name"] for name in options(group)}
    assert sorted(named) == list(groups.registry(group))


BASES = [name for name in options("method") if name not in ("fedcollab", "flux")]  # FLUX groups clients after rounds


@pytest.mark.parametrize("base", tiered(BASES, quick=["fedavg", "ditto"]))
def test_every_method_composes_inside_fedcollab(base: str) -> None:
    late = base in ("sosicfl_code", "floco", "floco_plus")  # which prepare late: see tests/methods/test_sosicfl.py
    early = "start_round=0" if late else None
    run = resolved("method=fedcollab", f"method/base={base}", *([f"method.base.{early}"] if early else []))
    alone = resolved(f"method={base}", *([f"method.{early}"] if early else []))
    assert run.plain["method"]["base"] == alone.plain["method"]
    assert run.labels["method"] == ("fedcollab" if base == "fedavg" else f"fedcollab({base})")


def test_defaults_are_fedcollab_on_digits() -> None:
    run = resolved()
    chosen = {group: run.labels[group] for group in ("dataset", "partition", "method")}
    assert chosen == {"dataset": "digits", "partition": "dir0.1", "method": "fedcollab"}
