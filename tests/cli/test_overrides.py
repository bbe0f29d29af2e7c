"""What overrides make: every part of a run, families of options, bases, labels, and the key."""

from __future__ import annotations

import copy
import dataclasses
import functools
from pathlib import Path
from typing import Any

import pytest

from fedbench.config import compose, groups, schema
from fedbench.core.errors import ConfigError
from fedbench.methods.pfedme import PFedMe
from fedbench.runs.config import RunConfig, from_plain, resolve
from tests.helpers.tiers import sampled

pytestmark = pytest.mark.usefixtures("elsewhere")


def resolved(*overrides: str) -> RunConfig:
    return resolve(compose.compose(overrides))


@pytest.mark.slow
def test_defaults_build_every_part(toy: Path) -> None:
    run = resolved()
    assert type(run.dataset).__name__ == "ToyData"
    assert type(run.model).__name__ == "ToyNet"  # model=auto takes the data set's
    assert run.protocol.rounds == 20
    assert run.protocol.optimizer.lr == 0.1
    assert run.protocol.local.batch_size == 32
    assert run.hardware.device == "auto"
    assert run.settings.runs_dir == "runs"
    assert run.settings.checkpoint.seconds == 20
    assert run.seed == 0
    assert "hydra" not in run.plain


@pytest.mark.slow
def test_runs_dir_from_the_environment(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBENCH_RUNS", "/somewhere")
    assert resolved().settings.runs_dir == "/somewhere"


@pytest.mark.slow
def test_what_was_taken_literally_stays_text(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also beside a value that is converted, as the rate given as a whole number."""
    monkeypatch.setenv("FEDBENCH_RUNS", "x${seed}")
    assert resolved("seed=3", "checkpoint.seconds=1", "reference_lr=1").settings.runs_dir == "x${seed}"
    assert resolved("seed=3", r"runs_dir='y\${seed}'").settings.runs_dir == "y${seed}"
    assert resolved("seed=3", "runs_dir='z${seed}'").settings.runs_dir == "z3"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["seed=1", "seed=2"], ["seed=1 is not used: seed=2 stands behind it"]),
        (
            ["seed=2", "+method.mu=1", "seed=2", "method.mu=1"],
            ["+method.mu=1 is not used: method.mu=1 stands behind it"],
        ),
        (["-m", "-m", "seed=1,2", "method=local"], []),
    ],
)
def test_a_key_that_is_given_twice_is_told(given: list[str], told: list[str], caplog: pytest.LogCaptureFixture) -> None:
    compose.tell_of_doubles(given)
    assert caplog.messages == told


@pytest.mark.parametrize(
    ("option", "field", "value"),
    sampled(
        [("dir0.1", "alpha", 0.1), ("dir10", "alpha", 10), ("groups_s0.2", "alpha", 0.2), ("fold5", "folds", 5)],
        every=4,
    ),
)
def test_family_number_goes_into_its_field(toy: Path, option: str, field: str, value: float) -> None:
    run = resolved(f"partition={option}")
    assert getattr(run.partition, field) == value
    assert run.labels["partition"] == option


@pytest.mark.slow
def test_family_takes_overrides_and_defaults_lists(toy: Path) -> None:
    run = resolved("partition=dir0.1", "partition.min_size=1")
    assert (run.partition.alpha, run.partition.min_size) == (0.1, 1)  # type: ignore[attr-defined]
    config = toy / "config.yaml"
    config.write_text(config.read_text().replace("partition: dir #", "partition: dir0.3 #"))
    assert resolved().partition.alpha == 0.3  # type: ignore[attr-defined]


@pytest.mark.slow
def test_impossible_family_value_is_a_config_error(toy: Path) -> None:
    with pytest.raises(ConfigError, match="alpha must be positive"):
        resolved("partition=dir0")


@pytest.mark.slow
def test_any_method_can_be_a_base(toy: Path) -> None:
    assert resolved().method.base["name"] == "fedavg"  # type: ignore[attr-defined]
    run = resolved("method=fedcollab", "method/base=fedprox", "method.base.mu=0.7")
    assert run.method.base == {"name": "fedprox", "mu": 0.7}  # type: ignore[attr-defined]
    twice = resolved("method/base=fedcollab", "method/base/base=fedprox")
    assert twice.method.base["base"] == {"name": "fedprox", "mu": 0.1}  # type: ignore[attr-defined]


@pytest.mark.slow
def test_labels(toy: Path) -> None:
    assert resolved("method=fedprox_code").labels["method"] == "fedprox_code"
    run = resolved("method/base=fedprox_code", "partition=dir0.1")
    assert run.labels["method"] == "fedcollab(fedprox_code)"
    assert run.labels["partition"] == "dir0.1"
    assert run.labels["model"] == "net"
    assert changed(run, partition__alpha=0.5).labels["partition"] == "dir0.5"
    assert changed(run, method__base={"name": "fedavg"}).labels["method"] == "fedcollab"


@pytest.mark.slow
def test_what_is_not_as_the_protocol_s_preset_names_adam_and_its_step(toy: Path) -> None:
    """Else two runs with other steps would be one line."""
    run = resolved("protocol.optimizer.name=adam", "protocol.optimizer.lr=0.01")
    assert groups.changed("protocol", run.plain["protocol"]) == "optimizer.name=adam, optimizer.lr=0.01"


def test_what_a_protocol_s_preset_has_and_a_run_has_not_is_named() -> None:
    own = groups.plain_option("protocol", "fedsac")
    assert groups.changed("protocol", {**own, "augment": []}) == "augment=[]"
    clipped = groups.plain_option("protocol", "fedrema")
    unclipped = {**clipped, "optimizer": {**clipped["optimizer"], "clip": None}}
    assert groups.changed("protocol", unclipped) == "optimizer.clip=null"


def changed(run: RunConfig, **changes: object) -> RunConfig:
    """`run` with other values; a double underscore stands for a dot."""
    plain: dict[str, Any] = copy.deepcopy(dict(run.plain))
    for name, value in changes.items():
        *groups, key = name.split("__")
        functools.reduce(lambda node, group: node[group], groups, plain)[key] = value
    return from_plain(plain)


def test_key_ignores_what_changes_no_result(toy: Path) -> None:
    run = resolved()
    same = [
        changed(run, hardware__device="cpu"),
        changed(run, runs_dir="/x", force=True, progress="none", save_models=True),
        changed(run, wandb__enabled=True, checkpoint__rounds=1),
        changed(run, dataset__root="/data"),
        changed(run, model={"name": "net"}),
        changed(run, model={"name": "net", "width": 200}),
    ]
    assert {other.key for other in same} == {run.key}


def test_key_tells_results_apart(toy: Path) -> None:
    run = resolved()
    different = [
        run,
        changed(run, seed=1),
        changed(run, dataset__classes=9),
        changed(run, partition={"name": "dir", "alpha": 0.1}),
        changed(run, partition={"name": "dir", "alpha": 0.2}),
        changed(run, model={"name": "net", "width": 10}),
        changed(run, method__restarts=99),
        changed(run, method__base={"name": "fedprox"}),
        changed(run, method__base={"name": "fedprox", "mu": 0.3}),
        changed(run, method={"name": "fedprox"}),
        changed(run, method={"name": "fedprox", "preset": "code"}),
        changed(run, protocol__local__epochs=2),
        changed(run, protocol__report="best_test"),
    ]
    assert len({other.key for other in different}) == len(different)


@pytest.mark.slow
def test_key_leaves_out_an_added_field_at_its_default(toy: Path) -> None:
    """What was run before the field came still stands; any other value of it is another run."""
    earlier = dataclasses.make_dataclass("PFedMe", ["lam", "inner_steps", "personal_lr", "beta"])
    outer = dataclasses.make_dataclass("Outer", ["base"])  # nested, as inside FedCollab
    methods = (earlier(3.0, 5, 0.01, 1.0), PFedMe(lam=3.0, restart=False), PFedMe(lam=3.0, restart=True))
    run = resolved()
    for around in (lambda method: method, outer):
        then, now, other = (dataclasses.replace(run, method=around(method)).key for method in methods)
        assert then == now != other


@pytest.mark.slow
def test_key_goes_on_counting_a_retired_field(toy: Path) -> None:
    """What was run while the field was there still stands, nested or not; another value of it was another run."""
    earlier = dataclasses.make_dataclass("Method", ["mu", "split"])
    now = schema.retired(split="even")(dataclasses.make_dataclass("Method", ["mu"]))
    outer = dataclasses.make_dataclass("Outer", ["base"])
    run = resolved()
    for around in (lambda method: method, outer):
        key, same, other = (
            dataclasses.replace(run, method=around(method)).key
            for method in (earlier(0.1, "even"), now(0.1), earlier(0.1, "odd"))
        )
        assert key == same != other


@pytest.mark.slow
def test_key_is_stable_over_the_order_of_keys(toy: Path) -> None:
    run = resolved()
    backwards = {key: run.plain[key] for key in reversed(list(run.plain))}
    backwards["protocol"] = {key: run.plain["protocol"][key] for key in reversed(list(run.plain["protocol"]))}
    assert from_plain(backwards).key == run.key


@pytest.mark.parametrize("key", ["protocol.rounds", "method.name", "partition.alpha", "hardware.device"])
def test_a_key_is_not_taken_away(key: str) -> None:
    """What stays would be a default of the code, which neither the YAML nor the label of the run names."""
    with pytest.raises(ConfigError, match=rf"^~{key} would set {key} to a value that is shown nowhere; write"):
        compose.compose(["method=fedavg", "partition=dir0.1", f"~{key}"])


def test_a_list_of_networks_takes_the_place_of_the_named_ones() -> None:
    """docs/methods.md shows it."""
    listed = "+model.kinds=[{name:mlp,hidden:[64]},{name:cnn,channels:[8],hidden:[64],padding:2}]"
    run = resolve(compose.compose(["method=fml", "model=mixed", "~model.kinds", listed]))
    assert list(run.model.networks) == ["net1", "net2"]
    with pytest.raises(ConfigError, match=r"^~model\.kinds would set model\.kinds to a value that is shown nowhere"):
        compose.compose(["method=fml", "model=mixed", "~model.kinds"])
