"""FedReMa as its authors' code trains: one optimiser for all rounds, classifiers overwritten in turn, whole batches."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedbench.config import compose
from fedbench.config.schema import LocalConfig, OptimizerConfig
from fedbench.core import trees
from fedbench.core.errors import ConfigError
from fedbench.engine import schedule
from fedbench.engine.contract import Stage
from fedbench.methods.fedrema import FedReMa, overwritten_in_turn
from fedbench.models.small import FedReMaAlexNet
from fedbench.runs.config import resolve
from tests.methods.toys import close, federation, gap, initial, models, samples, setup, simulate

SGD = OptimizerConfig(lr=0.1, momentum=0.9, weight_decay=0.01, clip=0.5)


def test_momentum_goes_on_as_in_one_torch_optimiser() -> None:
    """A lone client mixes with nobody, so that its rounds are one long training."""
    chosen = setup(FedReMa(keep_momentum=True), federation((9,)), rounds=3, epochs=2, batch=50, optimizer=SGD)
    x, y = samples(chosen, 0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 7), nn.ReLU(), nn.Linear(7, 4)).double()
    leaves = dict(zip(("fc.0.weight", "fc.0.bias", "head.weight", "head.bias"), net.parameters(), strict=True))
    with torch.no_grad():
        for name, leaf in leaves.items():
            leaf.copy_(initial(chosen)[name])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    for _ in range(6):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
    found = trees.row(models(chosen, simulate(chosen)), 0)
    assert close(found, {name: leaf.detach() for name, leaf in leaves.items()})
    restarted = setup(FedReMa(), federation((9,)), rounds=3, epochs=2, batch=50, optimizer=SGD)
    assert gap(found, trees.row(models(restarted, simulate(restarted)), 0)) > 1e-4


def test_momentum_is_for_sgd_on_all_leaves() -> None:
    with pytest.raises(ConfigError, match="alternate=false"):
        FedReMa(keep_momentum=True, alternate=True)
    adam = setup(FedReMa(keep_momentum=True), federation((9,)), optimizer=OptimizerConfig(name="adam"))
    with pytest.raises(ConfigError, match=r"optimizer\.name=sgd"):
        simulate(adam)


def test_overwritten_classifiers_are_mixed_again() -> None:
    """The code's loop: a client's mixture is written over its model before the next one is made."""
    generator = torch.Generator().manual_seed(0)
    W = torch.rand(4, 4, generator=generator, dtype=torch.float64)
    W /= W.sum(1, keepdim=True)
    heads = list(torch.rand(4, 3, generator=generator, dtype=torch.float64))
    before = torch.stack(heads)
    for client in range(4):
        heads[client] = sum(w * head for w, head in zip(W[client], heads, strict=True))  # type: ignore[assignment]
    assert close(overwritten_in_turn(W) @ before, torch.stack(heads))
    assert close(overwritten_in_turn(W).sum(1), torch.ones(4, dtype=torch.float64))
    chosen = [setup(FedReMa(in_turn=turn), federation((6, 13, 8)), rounds=1) for turn in (False, True)]
    assert gap(*(models(each, simulate(each)) for each in chosen)) > 1e-6


def test_short_batches_are_left_out() -> None:
    local = LocalConfig(epochs=2, batch_size=8, drop_last=True)
    order = schedule.batches(21, local, Stage(), torch.Generator().manual_seed(0))
    assert [len(batch) for batch in order] == [8] * 4
    assert schedule.steps(21, local) == 4
    assert schedule.all_steps(torch.tensor([21.0, 8.0]), local).tolist() == [4.0, 2.0]
    few = LocalConfig(iterations=3, batch_size=8, drop_last=True)
    assert [len(batch) for batch in schedule.batches(9, few, Stage(), torch.Generator())] == [8] * 3
    with pytest.raises(ConfigError, match="drop_last=true leaves nothing of a client with 7"):
        schedule.steps(7, local)


def test_alexnet_of_the_code_is_linear_between_its_pools() -> None:
    """conv3 to conv5, and the three linear layers, are one affine map each."""
    task = FedReMaAlexNet(activations="code").task((3, 32, 32), 10)
    assert sum(isinstance(module, nn.ReLU) for module in task.fresh().modules()) == 3
    text = FedReMaAlexNet().task((3, 32, 32), 10)
    assert sum(isinstance(module, nn.ReLU) for module in text.fresh().modules()) == 7
    model = task.init(torch.Generator().manual_seed(0))
    a, b = torch.randn(2, 1, 2304, generator=torch.Generator().manual_seed(1)).unbind()
    whole = task.apply(model, (a + b) / 2, since="fc")
    assert close(whole, (task.apply(model, a, since="fc") + task.apply(model, b, since="fc")) / 2, 1e-5)
    assert sum(leaf.numel() for leaf in model.values()) == 3_868_746


def test_the_code_s_protocol() -> None:
    run = resolve(compose.compose(["method=fedrema_code", "protocol=fedrema_code", "model=fedrema_alexnet_code"]))
    assert (run.protocol.local.drop_last, run.protocol.test.pool, run.protocol.score) == (
        True,
        True,
        "received",
    )
    assert (run.protocol.rounds, run.protocol.local.batch_size) == (500, 100)
    assert run.labels["model"] == "fedrema_alexnet_code"
