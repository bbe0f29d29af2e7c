"""Layers that several networks share, written so that they run under vmap, for many networks at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedbench.core.errors import ConfigError

# Batch normalisation that knows padding and keeps its statistics as plain leaves.
#
# torch's layer counts batches in an integer buffer and cannot leave samples out; without padding this one equals it.


class BatchNorm(nn.Module):
    """Batch normalisation over every axis but the second (Ioffe & Szegedy 2015); x [B, C, ...]."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, momentum: float = 0.1, eps: float = 1e-5) -> None:
        super().__init__()
        self.momentum = momentum
        self.eps = eps
        self.mask: Tensor | None = None  # bool [B], set by Task.apply for the time of a call
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise by the batch's statistics in training, updating the running ones in place; else by the running."""
        if self.training and self.mask is not None:
            return self._masked(x, self.mask)
        leaves = (self.running_mean, self.running_var, self.weight, self.bias)
        return functional.batch_norm(x, *leaves, self.training, self.momentum, self.eps)

    def _masked(self, x: Tensor, mask: Tensor) -> Tensor:
        axes = [0, *range(2, x.dim())]
        shape = (1, -1, *[1] * (x.dim() - 2))
        real = mask.to(x.dtype).view(-1, *[1] * (x.dim() - 1))
        count = real.sum() * (x[0, 0].numel())
        mean = (x * real).sum(axes) / count
        centred = x - mean.view(shape)
        variance = (centred.square() * real).sum(axes) / count
        self.running_mean.mul_(1 - self.momentum).add_(self.momentum * mean.detach())
        unbiased = variance.detach() * count / (count - 1)
        self.running_var.mul_(1 - self.momentum).add_(self.momentum * unbiased)
        scale = self.weight * (variance + self.eps).rsqrt()
        return centred * scale.view(shape) + self.bias.view(shape)


def replace_batch_norm(module: nn.Module) -> nn.Module:
    """Replace every torch batch-norm layer of `module` by `BatchNorm` with the same values.

    Raises:
        ConfigError: a layer without weights or without statistics, for which ours has no form.
    """
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
            if not (child.affine and child.track_running_stats):
                raise ConfigError(f"batch norm '{name}': only affine=True with track_running_stats=True is supported")
            ours = BatchNorm(child.num_features, 0.1 if child.momentum is None else child.momentum, child.eps)
            ours.load_state_dict({k: v for k, v in child.state_dict().items() if k != "num_batches_tracked"})
            setattr(module, name, ours)
        else:
            replace_batch_norm(child)
    return module


class MaxPool2(nn.Module):
    """Maximum over squares of 2 x 2: [..., H, W] -> [..., H // 2, W // 2].

    It comes before the activation, which then has a quarter of the values. The maximum of ReLUs is the ReLU of the
    maximum, because ReLU does not decrease; value and gradient are the same to the bit. (A leaky ReLU may round two
    negative values to one; then the gradient may go to the other.)
    """

    def forward(self, x: Tensor) -> Tensor:
        """Reduce; on a CPU without gradients by maxima of slices, which is faster than torch's pooling there."""
        if torch.is_grad_enabled() or x.device.type != "cpu":
            return functional.max_pool2d(x, 2)
        height, width = (2 * (size // 2) for size in x.shape[-2:])
        rows = torch.maximum(x[..., 0:height:2, :], x[..., 1:height:2, :])
        return torch.maximum(rows[..., 0:width:2], rows[..., 1:width:2])


class GlobalMean(nn.Module):
    """Mean over the map: [B, C, H, W] -> [B, C]; adaptive average pooling to one place, flattened."""

    def forward(self, x: Tensor) -> Tensor:
        """Reduce."""
        return x.mean((2, 3))


class Places(nn.Module):
    """The vectors at the places of a map: [B, C, H, W] -> [B, H W, C], or [B, C] where the map has one place."""

    def forward(self, x: Tensor) -> Tensor:
        """Rearrange."""
        vectors = x.flatten(2).transpose(1, 2)
        return vectors.squeeze(1) if vectors.shape[1] == 1 else vectors


class PlacesMean(nn.Module):
    """Mean over places: [B, P, K] -> [B, K]; [B, K] is left as it is."""

    def forward(self, x: Tensor) -> Tensor:
        """Reduce."""
        return x.mean(1) if x.dim() == 3 else x


# Convolutions of many networks at once: the programs that a client axis can be turned into.
#
# torch's own rule under vmap is one grouped convolution, a group a client, forward and backward. A GPU's library is
# slow at some shapes of it. The same sums can be had from images whose channels lie last, or as one batched product of
# weights with patches. Which is fastest depends on layer and device (fedbench.engine.hardware times them).

NATIVE, GROUPED, CHANNELS_LAST, PATCHES = LOWERINGS = ("native", "grouped", "channels_last", "patches")
Pair = tuple[int, int]


class Conv2d(nn.Conv2d):
    """torch's layer with a choice, `lowering`, of how it computes under vmap; "native" leaves it to torch."""

    lowering: str = NATIVE

    def forward(self, x: Tensor) -> Tensor:
        """Convolve x [B, I, H, W]."""
        # torch has no public way to ask whether vmap is at work; a single network keeps torch's own program.
        if self.lowering == NATIVE or not torch._C._are_functorch_transforms_active():
            return super().forward(x)
        padding = (int(self.padding[0]), int(self.padding[1]))
        out: Tensor = _Forward.apply(x, self.weight, self.stride, padding, self.lowering)
        return out if self.bias is None else out + self.bias.view(-1, 1, 1)


def replace_convolutions(module: nn.Module) -> nn.Module:
    """Replace every plain torch convolution within `module` by `Conv2d`, with the same leaves and names."""
    for child in module.modules():
        if type(child) is nn.Conv2d and _is_plain(child):
            child.__class__ = Conv2d
    return module


def _is_plain(layer: nn.Conv2d) -> bool:
    counted = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return counted and layer.groups == 1 and layer.dilation == (1, 1)


class _Forward(torch.autograd.Function):
    """x [B, I, H, W] and w [O, I, k, l] to [B, O, H', W']; with a client axis before both under vmap."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, stride: Pair, padding: Pair, _: str) -> Tensor:
        return functional.conv2d(x, w, None, stride, padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], _: object) -> None:
        x, w, *ctx.options = inputs
        ctx.save_for_backward(x, w)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        dx, dw = _Backward.apply(grad, x, w, *ctx.options, *ctx.needs_input_grad[:2])
        return dx, dw, None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, x: Tensor, w: Tensor, stride: Pair, padding: Pair, lowering: str
    ) -> tuple[Tensor, int]:
        x, w = _clients_first(info.batch_size, in_dims, x, w)
        if lowering == PATCHES:
            out = _by_patches(x, w, stride, padding)
        else:
            images, filters, groups = _grouped(x, w, lowering)
            out = functional.conv2d(images, filters, None, stride, padding, groups=groups).unflatten(1, (groups, -1))
        # Laid out plainly, by a copy where channels lie last: CUDA's batch norm asks, and under vmap torch cannot tell.
        return out.flatten(1).view(out.shape), int(lowering != PATCHES)


class _Backward(torch.autograd.Function):
    """Gradients over x and over w; an empty tensor for a gradient that nobody needs."""

    @staticmethod
    def forward(
        grad: Tensor, x: Tensor, w: Tensor, stride: Pair, padding: Pair, _: str, to_x: bool, to_w: bool
    ) -> tuple[Tensor, Tensor]:
        return _gradients(grad, x, w, stride, padding, 1, to_x, to_w)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], _: object) -> None:
        grad, x, w, *ctx.options, ctx.to_x, ctx.to_w = inputs
        ctx.save_for_backward(grad, x, w)

    @staticmethod
    def backward(ctx: Any, ddx: Tensor, ddw: Tensor) -> tuple[Tensor | None, ...]:
        """Of second order: both gradients are linear in each of grad, x and w."""
        grad, x, w = ctx.saved_tensors
        over_grad, over_x, over_w = torch.zeros_like(grad), None, None
        if ctx.to_x:
            over_grad = over_grad + _Forward.apply(ddx, w, *ctx.options)
            over_w = _Backward.apply(grad, ddx, w, *ctx.options, False, True)[1]
        if ctx.to_w:
            over_grad = over_grad + _Forward.apply(x, ddw, *ctx.options)
            over_x = _Backward.apply(grad, x, ddw, *ctx.options, True, False)[0]
        return over_grad, over_x, over_w, None, None, None, None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: Any,
        grad: Tensor,
        x: Tensor,
        w: Tensor,
        stride: Pair,
        padding: Pair,
        lowering: str,
        to_x: bool,
        to_w: bool,
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        grad, x, w = _clients_first(info.batch_size, in_dims, grad, x, w)
        if lowering == PATCHES:
            none = grad.new_empty(len(grad), 0)
            dx = _over_images(grad, x, w, stride, padding) if to_x else none
            return (dx, _over_weights(grad, x, w, stride, padding) if to_w else none), (0, 0)
        images, filters, groups = _grouped(x, w, lowering)
        slopes = _merged(grad, lowering)
        dx, dw = _gradients(slopes, images, filters, stride, padding, groups, to_x, to_w)
        dx = dx.unflatten(1, (groups, -1)) if to_x else dx.expand(1, groups, 0)
        return (dx, dw.unflatten(0, (groups, -1)) if to_w else dw.expand(groups, 0)), (1, 0)


def _gradients(
    grad: Tensor, x: Tensor, w: Tensor, stride: Pair, padding: Pair, groups: int, to_x: bool, to_w: bool
) -> tuple[Tensor, Tensor]:
    mask = [to_x, to_w, False]
    dx, dw, _ = torch.ops.aten.convolution_backward(
        grad, x, w, None, stride, padding, (1, 1), False, (0, 0), groups, mask
    )
    return dx if to_x else x.new_empty(0), dw if to_w else w.new_empty(0)


def _clients_first(clients: int, in_dims: tuple[int | None, ...], *leaves: Tensor) -> list[Tensor]:
    """Return each leaf with the client axis first; leaves that all clients share are expanded."""
    return [
        leaf.expand(clients, *leaf.shape) if axis is None else leaf.movedim(axis, 0)
        for leaf, axis in zip(leaves, in_dims, strict=False)
    ]


def _merged(x: Tensor, lowering: str) -> Tensor:
    """Return the images x [C, B, I, H, W] in the layout of one grouped convolution [B, C I, H, W]."""
    if lowering == CHANNELS_LAST:
        return x.permute(1, 3, 4, 0, 2).flatten(3).permute(0, 3, 1, 2)
    return x.transpose(0, 1).flatten(1, 2)


def _grouped(x: Tensor, w: Tensor, lowering: str) -> tuple[Tensor, Tensor, int]:
    """(images, weights [C O, I, k, l], groups) of one grouped convolution."""
    filters = w.flatten(0, 1)
    if lowering == CHANNELS_LAST:
        filters = filters.contiguous(memory_format=torch.channels_last)
    return _merged(x, lowering), filters, len(x)


def _patches(x: Tensor, kernel: Pair, stride: Pair) -> Tensor:
    """The patches of x [C, B, I, H, W] at every place, [C, B H' W', I k l]: a strided view, copied once."""
    view = x.unfold(3, kernel[0], stride[0]).unfold(4, kernel[1], stride[1])  # [C, B, I, H', W', k, l]
    return view.permute(0, 1, 3, 4, 2, 5, 6).flatten(4).flatten(1, 3)


def _by_patches(x: Tensor, w: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """[C, B, O, H', W']."""
    x = _padded(x, padding)
    kernel = (w.shape[-2], w.shape[-1])
    height, width = ((size - k) // s + 1 for size, k, s in zip(x.shape[-2:], kernel, stride, strict=True))
    out = torch.bmm(_patches(x, kernel, stride), w.flatten(2).transpose(1, 2))
    return out.view(len(x), x.shape[1], height, width, -1).permute(0, 1, 4, 2, 3)


def _over_weights(grad: Tensor, x: Tensor, w: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """[C, O, I, k, l]."""
    slopes = grad.permute(0, 2, 1, 3, 4).flatten(2)  # [C, O, B H' W']
    found = _patches(_padded(x, padding), (w.shape[-2], w.shape[-1]), stride)
    return torch.bmm(slopes, found).view(w.shape)


def _over_images(grad: Tensor, x: Tensor, w: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """[C, B, I, H, W]: the slopes, with zeros between them for a stride above 1, convolved with the flipped w."""
    sizes = [size + 2 * p - k + 1 for size, p, k in zip(x.shape[-2:], padding, w.shape[-2:], strict=True)]
    if stride != (1, 1):
        spread = grad.new_zeros(*grad.shape[:3], *sizes)
        spread[..., :: stride[0], :: stride[1]] = grad
        grad = spread
    around = [k - 1 - p for k, p in zip(w.shape[-2:], padding, strict=True)]
    turned = w.flip(3, 4).transpose(1, 2)
    return _by_patches(_padded(grad, (around[0], around[1])), turned, (1, 1), (0, 0))


def _padded(x: Tensor, padding: Pair) -> Tensor:
    """Return x with zeros around it; a negative number cuts."""
    pad: Callable[..., Tensor] = functional.pad
    return x if padding == (0, 0) else pad(x, (padding[1], padding[1], padding[0], padding[0]))
