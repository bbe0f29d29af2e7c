"""FedGen and the server's fit: limits, losses by loops, what is learned and what is sent."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fedbench.config.schema import OptimizerConfig
from fedbench.core import trees
from fedbench.core.batch import Batch
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Clock
from fedbench.engine.optim import fit
from fedbench.engine.setup import Setup
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedgen import FedGen, generate
from tests.methods.toys import FOUR, close, cross_entropy, federation, gap, logits, setup, simulate


def run(method: FedGen | FedAvg, **options: object) -> tuple[Setup, Tree]:
    chosen = setup(method, federation(FOUR), cohort=0.75, rounds=3, **options)  # type: ignore[arg-type]
    return chosen, simulate(chosen).server


def model_of(server: Tree) -> Tree:
    return {k: v for k, v in server.items() if not k.startswith("generator/")}


# ---- fit


@pytest.mark.parametrize("config", [OptimizerConfig(lr=0.1, momentum=0.9), OptimizerConfig(name="adam", lr=0.05)])
def test_fit_is_torch_optim(config: OptimizerConfig) -> None:
    start = {"a": torch.tensor([1.0, -2.0], dtype=torch.float64), "b": torch.tensor(3.0, dtype=torch.float64)}

    def loss(params: Tree, generator: torch.Generator) -> Tensor:
        target = torch.randn(2, generator=generator, dtype=torch.float64)
        return (params["a"] - target).square().sum() + params["b"] ** 2

    with torch.no_grad():  # as in aggregate
        found = fit(start, loss, 5, config, torch.Generator().manual_seed(3))
    assert start["b"].item() == 3.0
    params = {k: v.clone().requires_grad_(True) for k, v in start.items()}
    leaves = list(params.values())
    stepping = (
        torch.optim.Adam(leaves, config.lr)
        if config.name == "adam"
        else torch.optim.SGD(leaves, config.lr, config.momentum)
    )
    generator = torch.Generator().manual_seed(3)
    for _ in range(5):
        stepping.zero_grad()
        loss(params, generator).backward()
        stepping.step()
    assert close(found, params)
    assert not any(leaf.requires_grad for leaf in found.values())


# ---- FedGen


def test_without_generated_features_it_is_fedavg() -> None:
    fedavg = run(FedAvg())[1]
    assert close(model_of(run(FedGen(generative_weight=0.0, latent_weight=0.0))[1]), fedavg)
    for method in (FedGen(latent_weight=0.0), FedGen(generative_weight=0.0), FedGen(decay=0.0)):
        # decay^0 = 1: the first round alone hears of the generator
        assert gap(model_of(run(method)[1]), fedavg) > 1e-4


def second_client(clock: Clock) -> tuple[FedGen, Tree, Client, Tree]:
    """(A FedGen with every term, server, the second client at `clock`, the noise of its last step)."""
    method = FedGen(generative_weight=2.0, latent_weight=3.0, decay=0.5, hidden=5, noise=3, batch=4)
    chosen, server = run(method)
    message = trees.row(method.send(server, chosen.cohort(torch.arange(4), clock)), 1)
    client = chosen.client(1, message, {}, clock)
    drawn = method.draw(torch.Generator().manual_seed(0), clock.round, client)
    return method, server, client, trees.row(drawn, clock.round - 1)


def test_its_paper_s_local_loss_by_loops() -> None:
    """F_k + decay^t (alpha mean CE of generated features + beta mean KL of what they and the sample say)."""
    method, server, client, noise = second_client(Clock(2, 3))
    x, y = client.data.x[:6], client.data.y[:6]
    work = model_of(server)
    made = trees.part(server, "generator")

    def features_of(eps: Tensor, label: int) -> Tensor:
        given = torch.cat([eps, torch.eye(4, dtype=torch.float64)[label]])
        hidden = torch.relu(made["0.weight"] @ given + made["0.bias"])
        return made["1.weight"] @ hidden + made["1.bias"]

    def say(z: Tensor) -> Tensor:
        return (work["head.weight"] @ z + work["head.bias"]).log_softmax(0)

    known = [-say(features_of(noise["eps"][i], int(noise["y"][i])))[noise["y"][i]] for i in range(4)]
    own = logits(work, x).log_softmax(1)
    apart = []
    for i in range(6):
        target = say(features_of(noise["own"][i % 4], int(y[i])))
        apart.append((target.exp() * (target - own[i])).sum())
    expected = cross_entropy(logits(work, x), y) + 0.25 * (2 * sum(known) / 4 + 3 * sum(apart) / 6)
    assert float(method.loss(work, client, Batch(x, y, None, noise))) == pytest.approx(float(expected))
    padded = Batch(torch.cat([x, x[:2]]), torch.cat([y, y[:2]]), torch.tensor([True] * 6 + [False] * 2), noise)
    assert float(method.loss(work, client, padded)) == pytest.approx(float(expected))


def test_labels_are_drawn_from_all_clients_labels() -> None:
    chosen = setup(FedGen(batch=500), federation((10, 30), labels=[[0], [2]]))
    clock = Clock(0, 2)
    server = chosen.method.init(chosen.task, chosen.population, torch.Generator())[0]
    message = trees.row(chosen.method.send(server, chosen.cohort(torch.arange(2), clock)), 0)
    assert close(message["labels"].double(), torch.tensor([0.25, 0, 0.75, 0]), 1e-7)
    noise = chosen.method.draw(torch.Generator().manual_seed(0), 4, chosen.client(0, message, {}, clock))
    assert noise["y"].unique().tolist() == [0, 2]
    assert float((noise["y"] == 0).double().mean()) == pytest.approx(0.25, abs=0.04)
    assert float(noise["eps"].std()) == pytest.approx(1, abs=0.02)


def test_the_generator_s_loss_by_loops() -> None:
    """Eq. 4: the cross-entropy of the mean of the clients' logits, and the diversity term."""
    method = FedGen(hidden=5, noise=3, diversity=2.0)
    chosen, server = run(method)
    uploads = trees.stack([chosen.task.init(torch.Generator().manual_seed(k)) for k in range(3)])
    made = trees.map_leaves(torch.Tensor.float, trees.part(server, "generator"))
    eps, y = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 3, 3, 2])
    z = generate(made, eps, y, 4)
    total = 0.0
    for i in range(5):
        mean = sum(uploads["head.weight"][k] @ z[i] + uploads["head.bias"][k] for k in range(3)) / 3
        total -= float(mean.log_softmax(0)[y[i]]) / 5
    spread = sum(
        float((eps[i] - eps[j]).square().mean() * (z[i] - z[j]).abs().mean()) for i in range(5) for j in range(5)
    )
    expected = total + 2 * math.exp(-spread / 25)
    assert float(method.ensemble_loss(made, uploads, chosen.task, eps, y)) == pytest.approx(expected, rel=1e-5)


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


def test_the_generator_is_sent_and_not_returned() -> None:
    chosen = setup(FedGen(hidden=5, noise=3), federation(FOUR), rounds=1)
    state = simulate(chosen)
    model = sum(v.numel() for v in model_of(state.server).values())
    generator = 5 * (3 + 4) + 5 + 7 * 5 + 7
    assert state.bytes_up == 4 * 8 * model
    assert state.bytes_down == 4 * 8 * (model + generator + 4)
    common = chosen.method.common(state.server, chosen.task)
    assert common is not None
    assert close(common, model_of(state.server))


def test_gradients_of_its_local_loss_are_finite_differences_but_for_the_teacher() -> None:
    """The teacher g(G(y_i, eps)) of the KL term is held as it is; all else moves with the weights."""
    method, server, client, noise = second_client(Clock(1, 3))
    x, y = client.data.x[:6], client.data.y[:6]
    start, made = model_of(server), trees.part(server, "generator")
    own = generate(made, noise["own"][torch.arange(6) % 4], y, 4)
    teacher = (own @ start["head.weight"].t() + start["head.bias"]).softmax(1)
    z = generate(made, noise["eps"], noise["y"], 4)

    def literal(work: Tree) -> Tensor:
        said = logits(work, x)
        known = cross_entropy(z @ work["head.weight"].t() + work["head.bias"], noise["y"])
        apart = (teacher * (teacher.log() - said.log_softmax(1))).sum(1).mean()
        return cross_entropy(said, y) + 0.5 * (2 * known + 3 * apart)

    moving = {k: v.clone().requires_grad_(True) for k, v in start.items()}
    method.loss(moving, client, Batch(x, y, None, noise)).backward()
    for name, leaf in start.items():
        slope = torch.empty(leaf.numel(), dtype=leaf.dtype)
        for i in range(leaf.numel()):
            ends = []
            for side in (1e-6, -1e-6):
                moved = {k: v.clone() for k, v in start.items()}
                moved[name].view(-1)[i] += side
                ends.append(literal(moved))
            slope[i] = (ends[0] - ends[1]) / 2e-6
        assert moving[name].grad is not None
        assert close(moving[name].grad.flatten(), slope, 1e-7)
