"""What is composed is what Hydra composes, but for its own part; and the caller's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hydra
import pytest
from omegaconf import DictConfig, OmegaConf

from fedbench.config import compose, groups, sources
from tests.helpers.presets import PRESETS
from tests.helpers.tiers import sampled, tiered

EXPERIMENTS = [f"experiment={file.stem}" for file in sorted(groups.conf_dir().glob("experiment/*.yaml"))]
TELLING = [
    "",
    "method=fedcollab method/base=fedcollab method/base/base=ifca",
    "partition=dir0.3 partition.alpha=2 seed=3",
    "model=lenet5 dataset=fashion_mnist wandb.tags=[a,b] runs_dir=there",
    "+new.key=3 ~partition_seed ++method.mu=3",
    "experiment=fedcollab_c method.C=3 hydra/launcher=joblib hydra.sweep.dir=there",
    "method=fedavg method/base=ditto",  # refused, as all below
    "method=fedavgg",
    "methd=fedavg",
    "method=fedavg,ditto",
    "seed=range(3)",
    "protocol.round=3",
    "+method@second=ditto",
    "method=[",
]
PRESET = "method=fedsac_multimodal"


def of_hydra(overrides: list[str]) -> DictConfig:
    sources.register()
    with hydra.initialize_config_dir(str(groups.conf_dir()), job_name="fedbench", version_base="1.3"):
        return hydra.compose(groups.CONFIG_NAME, overrides)


def told(function: Any, overrides: list[str]) -> tuple[Any, ...]:
    """The config as text, its keys in order; or what was raised."""
    try:
        config = function(overrides)
    except Exception as error:
        return type(error), str(error), str(error.__cause__)
    return OmegaConf.to_yaml(config), OmegaConf.is_struct(config)


@pytest.mark.parametrize(
    "overrides",
    [*sampled(TELLING, every=3), *tiered([*(f"{group}={name}" for group, name in PRESETS), *EXPERIMENTS], [PRESET])],
)
def test_it_is_what_hydra_composes_but_for_hydra_s_own_part(overrides: str) -> None:
    listed = overrides.split()
    assert told(compose.compose, listed) == told(of_hydra, listed)


def test_folders_that_the_user_adds_are_searched(tmp_path: Path) -> None:
    (tmp_path / "method").mkdir()
    (tmp_path / "method" / "mine.yaml").write_text("name: fedprox\nmu: 0.7\n")
    config = compose.compose([f"hydra.searchpath=[file://{tmp_path}]", "method=mine"])
    assert config.method == {"name": "fedprox", "mu": 0.7}


def test_a_config_is_the_caller_s_own_and_follows_its_files(toy: Path) -> None:
    first = compose.compose(["method=fedprox"])
    first.method.mu = 9
    assert compose.compose(["method=fedprox"]).method.mu == 0.1
    (toy / "method" / "fedprox.yaml").write_text("name: fedprox\nmu: 0.3\n")
    assert compose.compose(["method=fedprox"]).method.mu == 0.3


@pytest.mark.slow
def test_what_a_method_declares_for_leaderboards_is_no_part_of_a_run(toy: Path) -> None:
    before = compose.compose(["method=fedprox"]), compose.compose(["method=fedcollab", "method/base=fedprox"])
    file = toy / "method" / "fedprox.yaml"
    file.write_text(file.read_text() + "tune: {mu: [0.1, 1.0]}\n")
    (toy / "method" / "fedprox_strong.yaml").write_text("defaults: [fedprox, _self_]\npreset: strong\nmu: 1.0\n")
    after = compose.compose(["method=fedprox"]), compose.compose(["method=fedcollab", "method/base=fedprox"])
    assert after == before
    assert of_hydra(["method=fedprox"]) == after[0]
    assert groups.plain_option("method", "fedprox") == after[0].method
    assert "tune" not in compose.compose(["method=fedprox_strong"]).method
    assert dict(groups.tune("fedprox")) == dict(groups.tune("fedprox_strong")) == {"mu": [0.1, 1.0]}
    assert groups.tune("fedcollab") == {}
