"""Every YAML under conf/method keeps the promises of fedbench.testing: a new method is covered by being there.

`make test` runs the checks that say most for their time on every second method, and all checks on a few methods; `make
test-full` runs all on every preset.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from omegaconf import OmegaConf

from fedbench.config import compose, groups
from fedbench.engine.method import Method
from fedbench.engine.setup import Setup
from fedbench.engine.stacked import StackedTrainer
from fedbench.methods import METHODS
from fedbench.methods.apfl import APFL
from fedbench.methods.fedamp import FedAMP
from fedbench.methods.fedas import FedAS
from fedbench.methods.feddbe import FedDBE
from fedbench.methods.feddyn import FedDyn
from fedbench.methods.fedntd import FedNTD
from fedbench.methods.fedphp import FedPHP
from fedbench.methods.fedrod import FedRoD
from fedbench.methods.moon import Moon
from fedbench.methods.perfedavg import PerFedAvg
from fedbench.methods.pfedme import PFedMe
from fedbench.methods.scaffold import Scaffold
from fedbench.models.small import LeNet5
from fedbench.testing import CHECKS, ESSENTIAL, checks, parametrize_with_checks
from fedbench.testing.toys import federation, gap, setup, simulate
from tests.helpers.tiers import sampled

FILES = sorted((groups.conf_dir() / "method").glob("*.yaml"))


def name_in(preset: str) -> str:
    config: Any = OmegaConf.to_container(compose.compose([f"method={preset}"]).method)
    return str(config["name"])


PRESETS = [file.stem for file in FILES if file.stem in METHODS]
VARIANTS = [file.stem for file in FILES if file.stem not in METHODS]
FEW = ["ditto", "fedavg", "ifca"]  # of each kind of machinery
# They differ from another method in few lines.
TWINS = [
    *("fedadagrad", "fedrc", "fedsa_lora", "fedsac_multimodal", "fedyogi", "ffa_lora", "floco", "floco_plus"),
    "sosicfl_plus",
]
FIRST = [
    *ESSENTIAL,
    checks.check_is_a_documented_value,
    checks.check_client_hooks_leave_their_arguments_alone,
    checks.check_a_client_is_sent_the_same_in_whatever_company,
    checks.check_trees_keep_their_names_shapes_and_precision,
    checks.check_collaboration_is_row_stochastic,
]
REST = [check for check in CHECKS if check not in FIRST]
DEAR = [checks.check_stacked_equals_looped]  # two runs a toy; of every eighth method, and of FEW, it always runs
CHEAP = [check for check in FIRST if check not in DEAR]
OWN = [preset for preset in PRESETS if preset not in TWINS]
CORE = sorted({*OWN[::8], *FEW})
OTHERS = [preset for preset in OWN if preset not in CORE][::2]


def test_every_method_has_a_preset_of_its_name_and_every_variant_a_method() -> None:
    assert set(PRESETS) == set(METHODS)
    assert all(name_in(preset) == preset for preset in ("fedavg", "fedcluster", "sosicfl_plus"))
    assert {name_in(variant) for variant in VARIANTS} <= set(METHODS)


@parametrize_with_checks(CORE, FIRST)
def test_method(check: Callable[[], None]) -> None:
    check()


@parametrize_with_checks(OTHERS, CHEAP)
def test_other_method(check: Callable[[], None]) -> None:
    check()


@parametrize_with_checks(FEW, REST)
def test_method_in_full(check: Callable[[], None]) -> None:
    check()


@pytest.mark.slow
@parametrize_with_checks([preset for preset in CORE if preset not in FEW], REST)
def test_method_in_full_if_not_of_the_few(check: Callable[[], None]) -> None:
    check()


@pytest.mark.slow
@parametrize_with_checks(OTHERS, [*DEAR, *REST])
def test_other_method_in_full(check: Callable[[], None]) -> None:
    check()


@pytest.mark.slow
@parametrize_with_checks([preset for preset in PRESETS if preset not in (*CORE, *OTHERS)] + VARIANTS)
def test_any_other_preset(check: Callable[[], None]) -> None:
    check()


OPTIONS = [  # that no preset shows
    *(PerFedAvg(order=order, alpha=0.1) for order in ("full", "hessian_free")),
    *(PFedMe(beta=0.5), PFedMe(restart=True, uniform=True), PFedMe(weight_decay=0.1, scored="w")),
    *(APFL(alpha_lr=0.1), FedAMP(from_round=1), FedRoD(generic_stays=True), FedDBE(mu=0.3, private=("@head",))),
    *(
        Scaffold(option=1, weighted=True),
        FedDyn(weighted=True),
        Moon(mu=3.0),
        FedNTD(),
        FedPHP(transfer="mmd", lam=0.5),
    ),
    *(FedAS(fisher_batch=rows) for rows in (3, 16)),
]


@pytest.mark.parametrize("method", sampled(OPTIONS, every=6), ids=repr)
def test_options_are_the_same_stacked(method: Method) -> None:
    """Clients of one, two and five steps, of whom two train at once; batch normalisation knows who is padded."""

    def chosen() -> Setup:
        data = federation((2, 7, 19), (1, 16, 16))
        return setup(method, data, LeNet5(batch_norm=True), rounds=2, epochs=1, batch=4)

    here, there = chosen(), chosen()
    looped, other = simulate(here), simulate(there, StackedTrainer(there, 2))
    assert gap({**looped.server, **looped.memory}, {**other.server, **other.memory}) < 1e-7
