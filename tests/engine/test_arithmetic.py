"""What a step takes is counted, not guessed; what a device gives for it follows from its peaks."""

from __future__ import annotations

import pytest
import torch

from fedbench.core.errors import UnknownName
from fedbench.engine.pick import arithmetic
from fedbench.engine.pick.arithmetic import DEVICES, Peaks, StepWork
from fedbench.methods.ditto import Ditto
from fedbench.methods.fedavg import FedAvg
from fedbench.testing.toys import BATCH, federation, setup

FIRST, LAST = 16 * 7, 7 * 4  # weights of the toy's two layers


def of(method: FedAvg | Ditto, epochs: int = 2) -> StepWork:
    return StepWork.of(setup(method, federation((3 * BATCH, BATCH)), epochs=epochs))


def test_products_of_a_step_are_those_of_its_layers() -> None:
    """Forward both layers; backward both weights, and the second layer's input."""
    assert of(FedAvg()).flops == 2 * BATCH * (2 * FIRST + 3 * LAST)
    assert of(FedAvg(), epochs=5).flops == of(FedAvg()).flops


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_products_of_a_convolution_are_those_of_its_groups(groups: int) -> None:
    """Forward, and as many for each of the gradients of its weights and its input."""
    layer, x = torch.nn.Conv2d(6, 12, 3, groups=groups), torch.zeros(5, 6, 8, 8, requires_grad=True)
    forward = 2 * 5 * (12 * 6 // groups * 9) * 6 * 6
    assert arithmetic._flops(lambda: layer(x).sum().backward()) == (3 * forward,)
    assert arithmetic._flops(lambda: layer(x.detach()).sum().backward()) == (2 * forward,)


def test_a_second_model_is_a_second_step() -> None:
    """Ditto's two stages are two steps, each with the operations of one."""
    plain, both = of(FedAvg()), of(Ditto(lam=1.0))
    assert both.flops == plain.flops
    assert both.kernels > plain.kernels, "the pull towards the global model"
    assert 0 < plain.kernels < plain.operations


def test_a_step_takes_what_its_slowest_part_takes() -> None:
    work = StepWork(flops=1e9, bytes=1e6, operations=100.0, kernels=50.0)
    device = Peaks(float32=1e12, tf32=1e13, bandwidth=1e10, memory=1e10)
    host = {flag: work.host_seconds(captured=flag) for flag in (True, False)}
    assert host[True] < host[False]
    products = 1e9 / (arithmetic.ARITHMETIC_SHARE * 1e12)
    assert work.device_seconds(2, device) == pytest.approx(2 * products)
    assert work.seconds(2, device, captured=True) == pytest.approx(2 * products)
    moved = StepWork(flops=0.0, bytes=1e6, operations=100.0, kernels=50.0)
    assert moved.device_seconds(1, device) == pytest.approx(1e6 / (arithmetic.BANDWIDTH_SHARE * 1e10))
    assert moved.seconds(1, DEVICES["h200"], captured=False) == host[False], "the host is the slowest"


def test_devices_are_known_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    named = {"NVIDIA H200": "h200", "NVIDIA A100-SXM4-80GB": "a100", "NVIDIA GeForce RTX 4090": "rtx4090"}
    for name, key in named.items():
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _, name=name: name)
        assert arithmetic.found_peaks(torch.device("cuda")) is DEVICES[key]
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "something new")
    assert arithmetic.found_peaks(torch.device("cuda")) is None
    assert arithmetic.found_peaks(torch.device("cpu")) is None
    with pytest.raises(UnknownName, match="h200"):
        arithmetic.peaks("h20")
