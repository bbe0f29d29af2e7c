"""FedIoT: clients without labels, captions' error by hand, and the server's classifier."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from fedbench.core import rng, trees
from fedbench.core.batch import Batch
from fedbench.engine.contract import Clock
from fedbench.engine.simulation import Simulation
from fedbench.methods.fediot import FedIoT, encoded
from tests.helpers.pair import KIND, pair, simulate, trainer
from tests.methods.toys import close


def test_clients_never_look_at_labels() -> None:
    chosen = pair(FedIoT())
    for k in (0, 3):
        kind = chosen.kinds[KIND[k]]
        message = {n: leaf.double() for n, leaf in chosen.task.init(torch.Generator()).items()}
        server, _ = chosen.method.init(chosen.task, chosen.population, torch.Generator())
        view = chosen.client(k, {**message, **trees.join(decoder=trees.part(server, "decoder"))}, {}, Clock(0, 3))
        work = {n: leaf.double() for n, leaf in chosen.method.start(view).items()}
        x, y = kind.federation.gather(kind.federation.indices("train", k))
        losses = [chosen.method.loss(work, view, Batch(x, labels)) for labels in (y, (y + 1) % 4)]
        assert losses[0] == losses[1]


def test_the_error_of_captions_by_hand() -> None:
    chosen = pair(FedIoT())
    task = chosen.task.kinds[1]
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
    for kind in chosen.task.kinds:
        z, y = encoded(server, kind)
        begin = chosen.task.init(rng.torch_rng(0, "init"))
        drawn = {name: leaf.double() for name, leaf in begin.items() if name.startswith("head.")}
        before, after = (functional.cross_entropy(kind.head(head, z), y) for head in (drawn, server))
        assert float(after) < 0.9 * float(before)
