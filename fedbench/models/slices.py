"""Some stages of a network as a pure function of its leaves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from fedbench.core.trees import Tree
from fedbench.models.norm import BatchNorm


class Slice:
    """Some stages of a network as a function of its leaves.

    As torch.func.functional_call, but where each leaf goes is looked up once: for a small network that look-up costs
    as much as the forward pass.
    """

    def __init__(self, net: nn.Module) -> None:
        self.net = net
        self.norms = [module for module in net.modules() if isinstance(module, BatchNorm)]
        self.slots: list[tuple[dict[str, Any], str, str, Tensor]] = []
        for path, module in net.named_modules():
            for store in (module._parameters, module._buffers):
                for key, placeholder in store.items():
                    if placeholder is not None:
                        self.slots.append((store, key, f"{path}.{key}" if path else key, placeholder))

    @contextmanager
    def bound(self, model: Tree, mask: Tensor | None) -> Iterator[nn.Module]:
        """The network with `model`'s leaves in place, batch normalisation told of padding by `mask`."""
        for store, key, name, _ in self.slots:
            store[key] = model[name]
        for norm in self.norms:
            norm.mask = mask
        try:
            yield self.net
        finally:
            for store, key, _, placeholder in self.slots:
                store[key] = placeholder
            for norm in self.norms:
                norm.mask = None
