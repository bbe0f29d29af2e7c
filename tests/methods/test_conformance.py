"""Every YAML under conf/method keeps the promises of fedbench.testing: a new method is covered by being there.

All checks run on one preset a method. On twins and on the authors' variants `make test` runs the two that other
settings may break, `make test-full` all checks on every variant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from omegaconf import OmegaConf

from fedbench.config import compose, groups
from fedbench.methods import METHODS
from fedbench.testing import CHECKS, ESSENTIAL, parametrize_with_checks

FILES = sorted((groups.conf_dir() / "method").glob("*.yaml"))


def name_in(preset: str) -> str:
    config: Any = OmegaConf.to_container(compose.compose([f"method={preset}"]).method)
    return str(config["name"])


PRESETS = [file.stem for file in FILES if file.stem in METHODS]
VARIANTS = [file.stem for file in FILES if file.stem not in METHODS]
TWINS = ["fedadagrad", "fedrc", "fedyogi", "floco", "floco_plus"]  # they differ from another method in few lines
AUTHORS = [variant for variant in VARIANTS if variant.endswith("_code")]


def test_every_method_has_a_preset_of_its_name_and_every_variant_a_method() -> None:
    assert set(PRESETS) == set(METHODS)
    assert all(name_in(preset) == preset for preset in ("fedavg", "fedcluster", "sosicfl_plus"))
    assert {name_in(variant) for variant in VARIANTS} <= set(METHODS)


@parametrize_with_checks([preset for preset in PRESETS if preset not in TWINS])
def test_method(check: Callable[[], None]) -> None:
    check()


@parametrize_with_checks(TWINS, ESSENTIAL)
def test_twin(check: Callable[[], None]) -> None:
    check()


@pytest.mark.slow
@parametrize_with_checks(TWINS, [check for check in CHECKS if check not in ESSENTIAL])
def test_twin_in_full(check: Callable[[], None]) -> None:
    check()


@parametrize_with_checks(AUTHORS, ESSENTIAL)
def test_variant(check: Callable[[], None]) -> None:
    check()


@pytest.mark.slow
@parametrize_with_checks([variant for variant in VARIANTS if variant not in AUTHORS], ESSENTIAL)
def test_other_variant(check: Callable[[], None]) -> None:
    check()


@pytest.mark.slow
@parametrize_with_checks(VARIANTS, [check for check in CHECKS if check not in ESSENTIAL])
def test_variant_in_full(check: Callable[[], None]) -> None:
    check()
