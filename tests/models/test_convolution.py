"""Convolutions with a client axis: every lowering gives what torch's own rule gives, forward and backward."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedbench.models.layers import LOWERINGS, NATIVE, Conv2d, replace_convolutions

CLIENTS, BATCH = 3, 4
SHAPES = [  # inputs, outputs, kernel, stride, padding, side
    (3, 6, 5, 1, 0, 12),
    (2, 4, 3, 1, 1, 7),
    (3, 8, 7, 2, 3, 16),
    (4, 6, 1, 2, 0, 9),
    (2, 3, 3, 2, 1, 8),
    (1, 2, (3, 1), (1, 2), (1, 0), 6),
    (2, 1, 3, 1, 0, 6),
]


def layer(shape: tuple, lowering: str = NATIVE) -> Conv2d:
    inputs, outputs, kernel, stride, padding, _ = shape
    net = replace_convolutions(nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, padding)))[0]
    net.lowering = lowering
    return net.double()


def leaves(shape: tuple) -> tuple[dict[str, Tensor], Tensor]:
    """Weights and inputs of each client."""
    generator = torch.Generator().manual_seed(0)
    net = layer(shape)
    stacked = {
        name: torch.randn(CLIENTS, *leaf.shape, generator=generator, dtype=torch.float64)
        for name, leaf in net.named_parameters()
    }
    side = shape[-1]
    return stacked, torch.randn(CLIENTS, BATCH, shape[0], side, side, generator=generator, dtype=torch.float64)


def slopes(net: Conv2d, model: dict[str, Tensor], x: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    def loss(model: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(net, model, (x,)).sin().sum()

    return vmap(grad(loss, argnums=(0, 1)))(model, x)


def outputs(net: Conv2d, model: dict[str, Tensor], x: Tensor) -> Tensor:
    return vmap(lambda model, x: functional_call(net, model, (x,)))(model, x)


def close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and float((a - b).abs().max()) < 1e-10


@pytest.mark.parametrize("lowering", [each for each in LOWERINGS if each != NATIVE])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_lowering_gives_torchs_outputs_and_gradients(shape: tuple, lowering: str) -> None:
    model, x = leaves(shape)
    found, expected = (slopes(layer(shape, name), model, x) for name in (lowering, NATIVE))
    assert all(close(found[0][name], expected[0][name]) for name in model)
    assert close(found[1], expected[1])
    assert close(outputs(layer(shape, lowering), model, x), outputs(layer(shape), model, x))


@pytest.mark.parametrize("lowering", [each for each in LOWERINGS if each != NATIVE])
def test_a_lowering_takes_what_all_clients_share_and_is_differentiated_twice(lowering: str) -> None:
    shape = SHAPES[1]
    model, x = leaves(shape)
    shared = {name: leaf[0] for name, leaf in model.items()}

    def second(name: str) -> tuple[dict[str, Tensor], Tensor]:
        net = layer(shape, name)

        def once(model: dict[str, Tensor], x: Tensor) -> Tensor:
            inner = grad(lambda m, x: functional_call(net, m, (x,)).sin().sum(), argnums=(0, 1))(model, x)
            return inner[0]["weight"].square().sum() + inner[1].cos().sum()

        return vmap(grad(once, argnums=(0, 1)), in_dims=(None, 0))(shared, x)

    found, expected = second(lowering), second(NATIVE)
    assert close(found[0]["weight"], expected[0]["weight"])
    assert close(found[1], expected[1])


@pytest.mark.parametrize("lowering", [each for each in LOWERINGS if each != NATIVE])
@pytest.mark.parametrize("bias", [True, False])
def test_a_lowering_serves_any_axis_any_one_gradient_and_a_single_network(lowering: str, bias: bool) -> None:
    """Clients last, slopes over weights or images alone, those of slopes, and torch.func without a client axis."""
    nets = []
    for name in (lowering, NATIVE):
        net = replace_convolutions(nn.Sequential(nn.Conv2d(2, 3, (3, 2), (2, 1), (1, 0), bias=bias)))[0].double()
        net.lowering = name
        nets.append(net)
    draw = torch.Generator().manual_seed(0)
    shapes = {name: leaf.shape for name, leaf in nets[0].named_parameters()}
    model = {name: torch.randn(*shape, CLIENTS, generator=draw, dtype=torch.float64) for name, shape in shapes.items()}
    x = torch.randn(BATCH, CLIENTS, 2, 7, 6, generator=draw, dtype=torch.float64)
    alone = {name: leaf[..., 0] for name, leaf in model.items()}, x[:, 0]
    found: list[list[Tensor]] = []
    for net in nets:

        def loss(model: dict[str, Tensor], x: Tensor, net: Conv2d = net) -> Tensor:
            return functional_call(net, model, (x,)).sin().sum()

        def steep(model: dict[str, Tensor], x: Tensor, loss: Callable[..., Tensor] = loss) -> Tensor:
            return grad(loss)(model, x)["weight"].square().sum()

        def bright(model: dict[str, Tensor], x: Tensor, loss: Callable[..., Tensor] = loss) -> Tensor:
            return grad(loss, argnums=1)(model, x).square().sum()

        found.append([])
        for function in (loss, steep, bright):
            for over in (0, 1):
                slope = grad(function, argnums=over)
                for each in (slope(*alone), vmap(slope, in_dims=(-1, 1))(model, x)):
                    found[-1] += list(each.values()) if over == 0 else [each]
        found[-1].append(vmap(lambda m, x, net=net: functional_call(net, m, (x,)), in_dims=(-1, 1))(model, x))
    assert all(close(ours, theirs) for ours, theirs in zip(*found, strict=True))


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_channels_of_what_comes_out_do_not_lie_last(shape: tuple, lowering: str) -> None:
    """A GPU's batch normalisation asks whether they do, which torch cannot answer under vmap (seen on an H200)."""
    net, (model, x) = layer(shape, lowering), leaves(shape)
    strides: list[tuple[int, ...]] = []

    def forward(model: dict[str, Tensor], x: Tensor) -> Tensor:
        out = functional_call(net, model, (x,))
        strides.append(out.stride())
        return out

    vmap(forward)(model, x)
    _, channel, row, column = strides[0]
    assert channel > row > column
