"""FedGen's generator, and the server's fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fedbench.config.schema import OptimizerConfig
from fedbench.core import trees
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.engine import graphs
from fedbench.engine.optim import fit
from fedbench.engine.setup import Setup
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedgen import FedGen, generate
from fedbench.models.small import LeNet5
from tests.methods.toys import FOUR, close, federation, setup, simulate


def run(method: FedGen | FedAvg, **options: object) -> tuple[Setup, Tree]:
    chosen = setup(method, federation(FOUR), cohort=0.75, rounds=3, **options)  # type: ignore[arg-type]
    return chosen, simulate(chosen).server


# ---- fit


@pytest.mark.parametrize("capturing", [False, True])
@pytest.mark.parametrize("config", [OptimizerConfig(lr=0.1, momentum=0.9), OptimizerConfig(name="adam", lr=0.05)])
def test_fit_is_torch_optim(config: OptimizerConfig, capturing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with steps that are captured, which read and write the same tensors every time."""
    replays = list[int]()

    def capture(step: Callable[[], None]) -> Callable[[], None]:
        index = len(replays)
        replays.append(0)

        def again() -> None:
            replays[index] += 1
            step()

        return again

    monkeypatch.setattr(graphs, "capture_for", lambda _: capture if capturing else None)
    start = {"a": torch.tensor([1.0, -2.0], dtype=torch.float64), "b": torch.tensor(3.0, dtype=torch.float64)}

    generator = torch.Generator().manual_seed(3)
    draws = [{"target": torch.randn(size, generator=generator, dtype=torch.float64)} for size in (2, 2, 2, 1, 2)]

    def loss(params: Tree, drawn: Tree) -> Tensor:
        return (params["a"] - drawn["target"]).square().sum() + params["b"] ** 2

    with torch.no_grad():  # as in aggregate
        found = fit(start, loss, draws, config)
    assert start["b"].item() == 3.0
    params = {k: v.clone().requires_grad_(True) for k, v in start.items()}
    leaves = list(params.values())
    stepping = (
        torch.optim.Adam(leaves, config.lr)
        if config.name == "adam"
        else torch.optim.SGD(leaves, config.lr, config.momentum)
    )
    for drawn in draws:
        stepping.zero_grad()
        loss(params, drawn).backward()
        stepping.step()
    assert close(found, params)
    assert replays == [4 - graphs.WARM] * capturing, "three steps are of one kind: the first two run as they are"
    assert not any(leaf.requires_grad for leaf in found.values())


# ---- FedGen


@pytest.mark.slow
def test_the_generator_learns_what_the_classifiers_know() -> None:
    """Features of label y come to be classified as y by the clients' classifiers."""
    method = FedGen(steps=300, lr=0.01, diversity=0.0)
    _, server = run(method)
    y = torch.arange(4).repeat(50)
    eps = torch.randn(200, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z = generate(trees.part(server, "generator"), eps, y, 4)
    said = (z @ server["head.weight"].t() + server["head.bias"]).argmax(1)
    assert float((said == y).double().mean()) > 0.95
    before = trees.part(run(FedGen(steps=0))[1], "generator")
    raw = generate(before, eps, y, 4) @ server["head.weight"].t() + server["head.bias"]
    assert float((raw.argmax(1) == y).double().mean()) < 0.5


def test_private_leaves_stay_and_the_others_are_fedavgs_without_the_terms() -> None:
    data = federation((6, 9), (1, 16, 16))
    options: dict[str, Any] = {"rounds": 2, "epochs": 1, "model": LeNet5(batch_norm=True)}
    alone = FedGen(generative_weight=0.0, latent_weight=0.0, private=("@stats",))
    chosen = setup(alone, data, **options)
    found, plain = simulate(chosen), simulate(setup(FedAvg(private=("@stats",)), data, **options))
    assert close({name: found.server[name] for name in plain.server}, plain.server)
    assert set(found.memory) == set(chosen.task.buffers)
    assert close(found.memory, plain.memory)
    assert chosen.method.common(found.server, chosen.task) is None
    refused = setup(FedGen(private=("@head",)), data, **options)
    with pytest.raises(ConfigError, match=r"^method.private: FedGen's server learns from .*; leave out @head$"):
        simulate(refused)
