"""FedIoT: clients without labels, captions' error by hand, and the server's classifier."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from fedbench.config.schema import OptimizerConfig
from fedbench.core import rng, trees
from fedbench.core.batch import Batch
from fedbench.engine.contract import Clock
from fedbench.engine.simulation import Simulation
from fedbench.methods.fediot import FedIoT, encoded
from fedbench.models.small import LeNet5
from tests.helpers.pair import KIND, pair, simulate, trainer
from tests.methods.toys import close, federation, setup
from tests.methods.toys import simulate as toys_simulate


def test_clients_never_look_at_labels() -> None:
    chosen = pair(FedIoT())
    for k in (0, 3):
        kind = chosen.modalities[KIND[k]]
        message = {n: leaf.double() for n, leaf in chosen.task.init(torch.Generator()).items()}
        server, _ = chosen.method.init(chosen.task, chosen.population, torch.Generator())
        view = chosen.client(k, {**message, **trees.join(decoder=trees.part(server, "decoder"))}, {}, Clock(0, 3))
        work = {n: leaf.double() for n, leaf in chosen.method.start(view).items()}
        x, y = kind.federation.gather(kind.federation.indices("train", k))
        losses = [chosen.method.loss(work, view, Batch(x, labels)) for labels in (y, (y + 1) % 4)]
        assert losses[0] == losses[1]


def test_the_decoder_begins_where_the_classifier_does() -> None:
    """With every fully connected layer in the classifier, above the convolutions' flat output."""
    net = LeNet5(classifier="linear")
    chosen = setup(FedIoT(steps=2), federation((6, 9), (1, 16, 16)), net, rounds=1, optimizer=OptimizerConfig(lr=0.1))
    assert chosen.task.boundary == "fc"
    decoder = trees.part(toys_simulate(chosen).server, "decoder")
    assert decoder["weight"].shape == (256, 16)  # 16 maps of one place each
    assert decoder["bias"].shape == (256,)


def test_the_error_of_captions_by_hand() -> None:
    chosen = pair(FedIoT())
    task = chosen.task.modalities[1]
    server, _ = chosen.method.init(chosen.task, chosen.population, torch.Generator())
    work = {n: leaf.double() for n, leaf in task.own(server).items()}
    view = chosen.client(2, work, {}, Clock(0, 3))
    x = torch.tensor([[3.0, 5.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0]], dtype=torch.float64).view(1, 1, 1, 8)
    z = task.features(work, x)
    logits = (z @ work["decoder/text.weight"].t() + work["decoder/text.bias"]).flatten()
    log = [float(value) for value in logits - math.log(float(logits.exp().sum()))]
    expected = -(2 * log[3] + log[5]) / 3
    assert float(chosen.method.loss(work, view, Batch(x, torch.tensor([0])))) == pytest.approx(expected)


def test_the_server_alone_trains_the_classifier_and_on_its_own_samples() -> None:
    chosen = pair(FedIoT(steps=0, labelled=0.25))
    state = simulate(chosen)
    drawn = chosen.task.init(torch.Generator())
    assert state.server["labelled/image.y"].shape == (round(0.25 * (7 + 12)),)
    assert state.server["labelled/text.x"].shape == (round(0.25 * (4 + 9 + 6)), 1, 1, 8)
    untouched, moved = (simulate(pair(FedIoT(steps=steps))).server["head.weight"] for steps in (0, 5))
    begin = Simulation(chosen, trainer(chosen)).begin().server
    assert close(untouched, begin["head.weight"])
    assert not close(moved, begin["head.weight"])
    assert set(drawn) <= set(state.server)


def test_the_classifier_learns_both_modalities() -> None:
    chosen = pair(FedIoT(steps=300, labelled=1.0, lr=0.02), rounds=1)
    server = simulate(chosen).server
    for kind in chosen.task.modalities:
        z, y = encoded(server, kind)
        begin = chosen.task.init(rng.torch_rng(0, "init"))
        drawn = {name: leaf.double() for name, leaf in begin.items() if name.startswith("head.")}
        before, after = (functional.cross_entropy(kind.head(head, z), y) for head in (drawn, server))
        assert float(after) < 0.9 * float(before)


def test_the_error_of_a_batch_is_the_mean_over_its_samples_by_loops() -> None:
    """Of photographs the mean square over pixels, of captions the mean over words; padding has no part."""
    chosen = pair(FedIoT())
    server, _ = chosen.method.init(chosen.task, chosen.population, torch.Generator().manual_seed(1))
    for k, kind in ((0, chosen.task.modalities[0]), (2, chosen.task.modalities[1])):
        work = {n: leaf.double() for n, leaf in kind.own(server).items()}
        view = chosen.client(k, work, {}, Clock(0, 3))
        x, y = chosen.modalities[KIND[k]].federation.gather(
            chosen.modalities[KIND[k]].federation.indices("train", k)[:3]
        )
        weight, bias = (work[f"decoder/{kind.prefix}{name}"] for name in ("weight", "bias"))
        errors = []
        for sample in x.double():
            rebuilt = weight @ kind.features(work, sample[None])[0] + bias
            given = sample.flatten().tolist()
            if k == 0:
                errors.append(sum((float(r) - g) ** 2 for r, g in zip(rebuilt, given, strict=True)) / len(given))
            else:
                words = [int(word) for word in given if word]
                errors.append(-sum(float(rebuilt.log_softmax(0)[word]) for word in words) / len(words))
        expected = sum(errors) / len(errors)
        padded = Batch(torch.cat([x, x[:2]]), torch.cat([y, y[:2]]), torch.tensor([True] * 3 + [False] * 2))
        for batch in (Batch(x, y), padded):
            assert len(batch.x) > 1
            assert float(chosen.method.loss(work, view, batch)) == pytest.approx(expected)


def test_decoders_begin_as_linear_layers_do() -> None:
    """Uniform within 1 / sqrt(width of the representation), as torch.nn.Linear."""
    chosen = pair(FedIoT())
    server, _ = chosen.method.init(chosen.task, chosen.population, torch.Generator().manual_seed(0))
    for kind in chosen.task.modalities:
        weight = server[f"decoder/{kind.prefix}weight"]
        bound = weight.shape[1] ** -0.5
        assert 0.9 * bound < float(weight.abs().max()) <= bound
        assert float(server[f"decoder/{kind.prefix}bias"].abs().max()) <= bound
