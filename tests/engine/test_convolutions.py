"""The way of each convolution is chosen by its time on the device, and changes nothing but that."""

from __future__ import annotations

import copy
import dataclasses
from types import SimpleNamespace

import pytest
import torch

from fedbench.engine import timing
from fedbench.engine.stacked import StackedTrainer
from fedbench.methods.fedavg import FedAvg
from fedbench.models.layers import CHANNELS_LAST, LOWERINGS, NATIVE, PATCHES, Conv2d
from fedbench.models.small import LeNet5
from fedbench.testing.toys import federation, gap, models, setup, simulate
from tests.helpers.tiers import sampled


def lowerings(chosen) -> list[str]:
    return [m.lowering for m in chosen.task._nets[True].modules() if isinstance(m, Conv2d)]


def lenet():
    """A run whose network is no other toy's: ways are chosen for it."""
    chosen = setup(FedAvg(), federation((9, 6, 1), (1, 16, 16)), LeNet5(batch_norm=True))
    return dataclasses.replace(chosen, task=copy.copy(chosen.task))


def test_layers_are_found_with_what_they_are_given() -> None:
    found = [(name, shape) for name, _, shape in timing.layers(lenet().task, 8)]
    assert found == [("conv.0", (8, 1, 16, 16)), ("conv.4", (8, 6, 6, 6))]


def test_the_fastest_way_is_chosen_only_where_it_is_clearly_so(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = lenet()
    on_gpu = SimpleNamespace(
        federation=SimpleNamespace(device=torch.device("cuda")), task=chosen.task, protocol=chosen.protocol
    )
    asked = []

    def timed(layer, shape, device) -> dict[str, float]:
        asked.append(shape)
        quick = {PATCHES: 0.5} if shape[2] == 1 else {CHANNELS_LAST: 0.99}
        return {**dict.fromkeys(LOWERINGS, 1.0), **quick}

    monkeypatch.setattr(timing, "timed", timed)
    timing.choose(on_gpu, 3)
    assert asked == [(3, 8, 1, 16, 16), (3, 8, 6, 6, 6)]
    assert lowerings(chosen) == [PATCHES, NATIVE]


@pytest.mark.parametrize("lowering", sampled(LOWERINGS[1:], every=3))
def test_clients_train_alike_whichever_way_is_taken(lowering: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = lenet()
    state = simulate(expected, StackedTrainer(expected, 2))
    chosen = dataclasses.replace(expected, task=lenet().task)
    for name, _, _ in timing.layers(chosen.task, 8):
        chosen.task.set_lowering(name, lowering)
    found = simulate(chosen, StackedTrainer(chosen, 2))
    assert gap(found.server, state.server) < 1e-9
    assert gap(models(chosen, found), models(expected, state)) < 1e-9
