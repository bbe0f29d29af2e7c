"""Studies: counts by hand, measures on models whose similarity is known, seconds that add up."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import nn

from fedbench.config import compose
from fedbench.core.errors import ConfigError
from fedbench.engine.setup import Setup
from fedbench.models.layers import GlobalMean
from fedbench.runs.config import RunConfig, resolve
from fedbench.runs.execution import build
from fedbench.tables.studies import (
    STUDIES,
    ClassifierSimilarity,
    StatisticsSimilarity,
    Trained,
    UpdateSimilarity,
    multiply_adds,
)

TINY = ("dataset=synthetic", "dataset.train=300", "dataset.test=100", "protocol=quick", "protocol.rounds=2")
GROUPS = (*TINY, "method=local", "partition=label_groups", "model=lenet5_bn", "protocol.local.batch_size=30")


def config(*overrides: str) -> RunConfig:
    return resolve(compose.compose(overrides))


def run(name: str, *overrides: str) -> dict[str, float]:
    return STUDIES.build({"name": name}).run(config(*overrides))


@pytest.mark.parametrize("name", list(STUDIES))
def test_every_study_builds(name: str) -> None:
    assert STUDIES.build({"name": name}) is not None


# ---- costs


def test_multiply_adds_by_hand() -> None:
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), GlobalMean(), nn.Linear(3, 5))
    convolution = 3 * 2 * 9 * 4 * 4  # weights, at 4 x 4 places of a 6 x 6 image
    assert multiply_adds(net, (2, 6, 6)) == convolution + 4 * 3 * 16 + 3 * (16 + 1) + 15
    assert not [module for module in net.modules() if module._forward_hooks]


@pytest.mark.slow
def test_costs_are_those_that_fedcollab_prints() -> None:
    """Table 5, which counts ten labels; the parameters by hand for twenty."""
    images = (
        "dataset=synthetic",
        "dataset.channels=3",
        "dataset.size=32",
        "dataset.train=60",
        "dataset.test=20",
    )
    networks = (*images, "model=resnet18", "model.pretrained=false", "method=fedcollab")
    assert run("discriminator_cost", *networks) == {"macs": 104_600, "params": 105_001}
    assert run("model_cost", *networks) == {"macs": 37_220_352, "params": 11_181_642}
    twenty = run("model_cost", *networks, "dataset.classes=20")
    assert twenty["params"] == 11_181_642 + 513 * 10


def test_a_discriminator_needs_its_method() -> None:
    with pytest.raises(ConfigError, match="fedcollab"):
        run("discriminator_cost", *TINY, "method=fedavg")


# ---- similarity


def test_data_similarity_is_the_share_of_samples_with_common_labels() -> None:
    found = run("data_similarity", *GROUPS)
    assert found == pytest.approx({"i and i'": 1.0, "i and j": 0.5, "j and k": 1 / 3, "i and k": 0.0}, abs=0.05)


@pytest.mark.slow
def test_similarities_follow_the_data() -> None:
    longer = [*GROUPS, "protocol.rounds=6", "dataset.difficulty=0.5"]
    for name in ("cs", "mdb"):
        found = run(name, *longer)
        assert found["i and i'"] > found["i and j"] > found["i and k"]
        assert all(-1 <= value <= 1 for value in found.values())
    ldb = run("ldb", *longer)
    assert ldb["i and i'"] > ldb["i and k"]  # another's model is worse where the labels are others
    assert ldb["i and k"] < 0


def models(after: dict[str, torch.Tensor], before: dict[str, torch.Tensor]) -> Trained:
    return Trained(cast("Setup", build(config(*GROUPS))), before, after)


def test_measures_by_hand() -> None:
    head = torch.tensor([[[1.0, 0.0], [0.0, 2.0]], [[3.0, 0.0], [1.0, 0.0]]])  # [N, K, d]
    trained = models({"head.weight": head}, {"head.weight": torch.zeros_like(head)})
    assert float(ClassifierSimilarity().of(trained, 0, 1)) == pytest.approx(0.5)  # of cosines 1 and 0
    moved: dict[str, Any] = {"head.weight": torch.tensor([[[1.0, 1.0]], [[2.0, 1.0]]])}
    start = {"head.weight": torch.tensor([[[0.0, 1.0]], [[2.0, 0.0]]])}
    assert float(UpdateSimilarity().of(models(moved, start), 0, 1)) == pytest.approx(0.0)  # (1, 0) and (0, 1)
    norm = next(name for name in trained.setup.task.buffers if name.endswith("running_mean"))
    variance = norm.removesuffix("mean") + "var"
    statistics = {norm: torch.tensor([[0.0], [3.0]]), variance: torch.tensor([[1.0], [25.0]])}
    assert float(StatisticsSimilarity().of(models(statistics, {}), 0, 1)) == pytest.approx(1 / 5)  # 3, 4: 5


def test_similarity_needs_four_clients_alone() -> None:
    with pytest.raises(ConfigError, match="trained alone"):
        run("cs", *GROUPS, "method=fedavg")
    with pytest.raises(ConfigError, match="batch normalisation"):
        run("wdb", *GROUPS, "model=lenet5")


# ---- seconds


def test_seconds_of_fedsac_and_of_a_sample() -> None:
    found = run("fedsac_phases", *TINY, "partition=homo", "partition.num_clients=3", "model=lenet5", "method=fedsac")
    assert set(found) == {"training", "similarity", "complementarity", "optimization"}
    assert min(found.values()) > 0
    sample = run("local_seconds", *TINY, "partition=homo", "partition.num_clients=3", "model=lenet5", "method=fedavg")
    assert 0 < sample["seconds_per_sample"] < 0.1
    with pytest.raises(ConfigError, match="fedsac"):
        run("fedsac_phases", *TINY, "method=fedavg")
