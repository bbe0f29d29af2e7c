"""FedRep's budget, and where models with a head and a body part a network."""

from __future__ import annotations

import pytest
import torch

from fedbench.config.schema import LocalConfig
from fedbench.core import trees
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.engine import schedule
from fedbench.engine.contract import Clock
from fedbench.engine.method import Method
from fedbench.methods.fedbabu import FedBABU
from fedbench.methods.fedcp import FedCP
from fedbench.methods.fedpac import FedPAC
from fedbench.methods.fedper import FedPer
from fedbench.methods.fedproto import FedProto
from fedbench.methods.fedrema import FedReMa
from fedbench.methods.fedrep import FedRep
from fedbench.methods.fedrod import FedRoD
from fedbench.methods.gpfl import GPFL
from fedbench.methods.knnper import KNNPer
from fedbench.methods.lg_fedavg import LGFedAvg
from fedbench.methods.moon import Moon
from fedbench.methods.pfedsim import PFedSim
from fedbench.models.small import MLP, LeNet5
from tests.helpers.tiers import sampled
from tests.methods.toys import (
    close,
    federation,
    gap,
    models,
    setup,
    simulate,
)

# ---- FedRep


@pytest.mark.parametrize(
    ("method", "local", "head", "body"),
    [
        (FedRep(), {"epochs": 5}, (4, None), (1, None)),  # pFedSim: the body in the last epoch only
        (FedRep(), {"epochs": 1}, (1, None), (1, None)),
        (FedRep(head_epochs=10), {"epochs": 5}, (10, None), (1, None)),  # the paper
        (FedRep(head_iterations=80), {"iterations": 200}, (None, 80), (None, 120)),
        (FedRep(head_iterations=80, whole_body=True), {"iterations": 200}, (None, 80), (None, 200)),  # pFedGraph
        (FedRep(head_iterations=80, whole_body=True), {"iterations": 20}, (None, 80), (None, 20)),
        (FedRep(), {"iterations": 10}, (None, 4), (None, 6)),
        (FedRep(), {"iterations": 1}, (None, 0), (None, 1)),
    ],
)
def test_fedreps_budget(
    method: FedRep,
    local: dict[str, int],
    head: tuple[int | None, int | None],
    body: tuple[int | None, int | None],
) -> None:
    config = LocalConfig(**{"epochs": None, **local})
    found = [schedule.local_work(stage, config) for stage in method.stages(config, Clock(0, 1))]
    assert found == [head, body]


def test_fedrep_refuses_a_head_that_takes_everything() -> None:
    with pytest.raises(ConfigError, match="leaves none"):
        simulate(setup(FedRep(head_iterations=5), iterations=5))
    with pytest.raises(ConfigError, match="counts only where the protocol counts iterations"):
        simulate(setup(FedRep(whole_body=True), epochs=5))


# model.classifier: selectors, features and every method with a body and a head part the network at one place.

SHAPE = (1, 16, 16)
METHODS: list[Method] = [
    FedBABU(tune_epochs=1),
    FedCP(),
    FedPAC(),
    FedPer(),
    FedProto(),
    FedReMa(),
    FedRep(),
    FedRoD(),
    GPFL(),
    KNNPer(),
    LGFedAvg(),
    Moon(),
    PFedSim(rho=0.0),
]


def final(method: Method, classifier: str) -> Tree:
    chosen = setup(method, federation((6, 9, 8), SHAPE), LeNet5(classifier=classifier), rounds=2, epochs=2, batch=8)
    return models(chosen, simulate(chosen))


@pytest.mark.parametrize(("split", "stage", "width"), [("own", "head", 84), ("last", "head", 84), ("linear", "fc", 16)])
def test_selectors_and_features_agree(split: str, stage: str, width: int) -> None:
    task = LeNet5(batch_norm=True, classifier=split).task(SHAPE, 4)
    names = sorted(task.parameters | task.buffers)
    head = [name for name in names if name.startswith("head.") or (stage == "fc" and name.startswith("fc."))]
    assert (task.boundary, task.select(names, ["@head"])) == (stage, head)
    assert task.select(names, ["@body"]) == [name for name in names if name not in head]
    every = [name for name in names if name.startswith(("fc.", "head."))]
    assert task.select(names, ["@classifier"]) == (every if split == "own" else head)
    model, x = task.init(torch.Generator().manual_seed(0)), torch.rand(3, *SHAPE)
    z = task.features(model, x)
    assert z.shape == (3, width)
    only_head = {name: model[name] for name in head}
    assert torch.equal(task.head(only_head, z), task.apply(model, x))


@pytest.mark.parametrize("method", sampled(METHODS, every=6), ids=lambda method: type(method).__name__)
def test_every_method_obeys(method: Method) -> None:
    last, linear = final(method, "last"), final(method, "linear")
    shared = set(last) & set(linear)
    assert shared
    assert any(last[k].shape != linear[k].shape or gap({k: last[k]}, {k: linear[k]}) > 1e-6 for k in shared)
    own = "linear" if isinstance(method, FedReMa) else "last"
    assert close(final(method, "own"), {"last": last, "linear": linear}[own])


def test_the_split_is_where_a_selector_would_put_it() -> None:
    assert close(final(FedPer(), "linear"), final(FedPer(private=("@classifier",)), "own"))
    assert close(final(FedReMa(), "last"), final(FedReMa(classifier=("@head",)), "own"))


def test_fedpac_keeps_all_linear_layers_apart() -> None:
    received = final(FedPAC(), "linear")
    assert close(trees.row(received, 0)["conv.0.weight"], trees.row(received, 1)["conv.0.weight"])
    assert not close(received["fc.0.weight"][0], received["fc.0.weight"][1], 1e-6)


def test_a_network_without_a_body_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model.classifier=linear: .* choose another model"):
        MLP(classifier="linear").task(SHAPE, 4)
