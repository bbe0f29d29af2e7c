"""Whatever somebody writes into a config: a run whose key says what was chosen, or one line of ours."""

from __future__ import annotations

import copy
import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from fedbench.config import groups, schema
from fedbench.config.compose import SETTINGS, compose
from fedbench.config.groups import REGISTRIES
from fedbench.config.schema import parse_augmentation
from fedbench.core.errors import ConfigError, FedbenchError
from fedbench.runs.config import NOT_RESULT, RunConfig, from_plain, resolve
from tests.helpers.examples import line_of, tried
from tests.helpers.presets import PRESETS, build, parameters, preset, replaced

WORDS = (
    *("auto", "all", "null", "none", "local", "global", "both", "true", "last", "best_val"),
    *("adam", "sgd", "fedavg", "crop4", "crop0", "flip", "rotate99999", "crop" + "9" * 5000),
    *("10%", "0%", "100%", "100.5%", "1e400", "1e400%", "1 client", "²", "٣", "1" * 5000, "1" * 400 + "%"),
    *("cuda:99", "@norm", "@head", "*", "[", "\udcff", ""),
)
NUMBERS = (-1, 0, 1, 2, 10**30, 10**400, -(10**400), 2**63, 1e308, 5e-324, -0.0)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 12),
    st.floats(),
    st.floats(0, 2),
    st.sampled_from(NUMBERS),
    st.sampled_from(WORDS),
    st.text(max_size=6),
)
values = st.one_of(scalars, st.lists(scalars, max_size=3), st.dictionaries(st.text(max_size=4), scalars, max_size=2))


@functools.cache
def default() -> dict[str, Any]:
    """The config of `python -m fedbench`, plain."""
    return dict(resolve(compose()).plain)


def settings_keys() -> list[tuple[str, ...]]:
    keys = [(key,) for key, value in default().items() if not isinstance(value, Mapping)]
    inner = [(group, key) for group in ("checkpoint", "wandb", "sweep") for key in default()[group]]
    return [*keys, *inner]


@st.composite
def altered(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """(a valid config, the same with up to three values replaced)."""
    group, name = draw(st.sampled_from(PRESETS))
    valid = {**default(), group: preset(group, name)}
    places = [(group, *keys) for keys, _ in parameters(build(group, preset(group, name)))]
    places = [*places, *settings_keys(), (group, "name"), (group, "nonsense"), ("nonsense",), (group,)]
    other = copy.deepcopy(valid)
    for _ in range(draw(st.integers(1, 3))):
        keys = draw(st.sampled_from(places))
        try:
            other = replaced(other, keys, draw(values))
        except (AttributeError, TypeError):  # what is to be altered further has been replaced
            continue
    return valid, other


def decisive(run: RunConfig) -> dict[str, Any]:
    """All that determines the result of a run, as values that are equal if and only if it is the same run."""
    found: dict[str, Any] = {"seeds": (run.seed, run.partition_seed)}
    if run.labels["method"] != "local":
        found["reference"] = run.reference_seed
    for group in (*REGISTRIES, "protocol"):
        fields = dataclasses.asdict(getattr(run, group))
        found[group] = {key: fields[key] for key in fields if key not in NOT_RESULT.get(group, ())}
        found[group] |= {"label": run.labels[group], "class": type(getattr(run, group))}
    drawn = schema.parse_cohort(run.protocol.cohort)
    found["protocol"]["cohort"] = (isinstance(drawn, int), drawn)
    return found


@pytest.mark.slow
@given(altered())
@tried(3)
def test_any_value_in_any_field(configs: tuple[dict[str, Any], dict[str, Any]]) -> None:
    valid, other = configs
    before = from_plain(valid)
    try:
        run = from_plain(other)
        key = run.key
    except FedbenchError as error:
        line_of(error)
        return
    assert re.fullmatch("[0-9a-f]{16}", key)
    assert (key == before.key) == (decisive(run) == decisive(before))
    saved = OmegaConf.create(OmegaConf.to_yaml(OmegaConf.create(dict(run.plain))))
    assert resolve(saved).key == key
    if run.local is not None:
        assert run.local.key == from_plain(run.local.plain).key


@st.composite
def overrides(draw: st.DrawFn) -> list[str]:
    """What may stand on a command line, most of it nearly right."""
    group = st.sampled_from([*REGISTRIES, "protocol", "hardware", "method/base", "experiment", "table"])
    family = st.builds(
        "{}{}".format,
        st.sampled_from(["dir", "dir_prior", "fold", "groups_s", "pathological", "quantity", "homo"]),
        st.one_of(st.integers(0, 12), st.floats(0, 2), st.sampled_from(["1e-3", "1e400", "9" * 400, "1e-999", ""])),
    )
    keys = st.one_of(
        st.sampled_from([".".join(keys) for keys in settings_keys()]),
        st.sampled_from(
            ["protocol.cohort", "protocol.rounds", "protocol.augment", "method.private", "partition.alpha"]
        ),
        st.text(max_size=8),
    )
    name = st.one_of(st.sampled_from(["fedavg", "mnist", "digits", "mlp", "paper"]), st.text(max_size=5))
    chosen = st.builds("{}={}".format, group, st.one_of(name, family))
    text = st.one_of(st.sampled_from(WORDS), st.text(max_size=6), scalars.map(str), st.just("${seed}"), st.just("???"))
    set_to = st.builds("{}{}={}".format, st.sampled_from(["", "+", "++", "~"]), keys, text)
    real = st.sampled_from(["method", "partition"]).flatmap(
        lambda group: st.sampled_from(groups.names(group)).map(lambda name: f"{group}={name}")
    )
    return draw(st.lists(st.one_of(real, chosen, set_to, st.text(max_size=10)), min_size=1, max_size=3))


@pytest.mark.slow
@given(overrides())
@example(["protocol.cohort=" + "1" * 5000])
@example(["partition=dir" + "9" * 400])
@example(["partition=quantity", "partition.beta=1" + "0" * 400])
@example(["\n"])
@tried(1)
def test_any_words_on_the_command_line(words: list[str]) -> None:
    try:
        run = resolve(compose(words))
        key = run.key
    except Exception as error:
        line_of(error)
        return
    assert resolve(OmegaConf.create(OmegaConf.to_yaml(OmegaConf.create(dict(run.plain))))).key == key


@given(st.integers(1, 10**6), st.one_of(st.text("0123456789.% al", max_size=6), st.sampled_from(WORDS)))
@tried(10)
def test_any_cohort(clients: int, text: str) -> None:
    try:
        drawn = schema.ProtocolConfig(cohort=text).cohort_size(clients)
    except ConfigError as error:
        line_of(error)
        return
    assert 1 <= drawn <= clients
    wanted = schema.parse_cohort(text)
    assert drawn == (wanted if isinstance(wanted, int) else max(1, round(wanted * clients)))
    schema.cohort_key(text)


@given(
    st.one_of(
        st.from_regex("(crop|flip|rotate)[0-9]*", fullmatch=True),
        st.text("crop fliptate0123456789", max_size=8),
        st.sampled_from(WORDS),
    )
)
@tried(10)
def test_any_augmentation(text: str) -> None:
    try:
        kind, number = parse_augmentation(text)
    except FedbenchError as error:
        line_of(error)
    else:
        assert text == (kind if kind == "flip" else text)
        assert (kind, number) == ("flip", 0) or 0 < number <= 180


def test_every_setting_is_known_to_change_no_result() -> None:
    before = from_plain(default()).key
    with pytest.raises(FedbenchError):
        from_plain({**default(), "runs_dir": ""})
    assert from_plain({**default(), "runs_dir": "elsewhere"}).key == before
    assert set(SETTINGS) <= set(default())
