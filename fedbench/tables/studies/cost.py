"""Operations and parameters of networks, counted (FedCollab, Table 5).

Multiply-adds (MACs) of one forward pass of one sample: the weights of convolutions and linear layers, each as often as
it is used, without biases and activations. The paper's number for ResNet-18, 37,220,352, is met to the last digit when
a value in batch normalisation counts four, and a mean over n places n + 1, as a common profiler has it; so do we.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from fedbench.core.errors import ConfigError
from fedbench.methods.fedcollab import network
from fedbench.methods.fedcollab.fedcollab import FedCollab
from fedbench.models.layers import GlobalMean
from fedbench.runs.config import RunConfig
from fedbench.runs.fingerprint import load
from fedbench.tables.studies.base import Study


@dataclass(frozen=True)
class ModelCost(Study):
    """Of the model that clients train."""

    def run(self, config: RunConfig) -> dict[str, float]:
        """`macs` and `params` (statistics of batch normalisation are no parameters)."""
        data = config.model.view(load(config.dataset))
        net = config.model.build(data.shape, data.classes)
        params = sum(leaf.numel() for leaf in net.parameters())
        return {"macs": float(multiply_adds(net, data.shape)), "params": float(params)}


@dataclass(frozen=True)
class DiscriminatorCost(Study):
    """Of FedCollab's client discriminator, which sees the features of the model before its classifier, and a label."""

    def run(self, config: RunConfig) -> dict[str, float]:
        """`macs` and `params`."""
        if not isinstance(config.method, FedCollab):
            raise ConfigError("the study 'discriminator_cost' needs method=fedcollab")
        data = config.model.view(load(config.dataset))
        task = config.model.task(data.shape, data.classes)
        model = task.init(torch.Generator().manual_seed(0))
        width = task.features(model, torch.zeros(1, *data.shape)).numel()
        hidden = config.method.discriminator.hidden
        leaves = network.initial(width, data.classes, hidden, torch.Generator().manual_seed(0))
        macs = sum(leaves[name].numel() for name in ("Wx", "Wy", "w2"))
        return {"macs": float(macs), "params": float(sum(leaf.numel() for leaf in leaves.values()))}


def multiply_adds(net: nn.Module, shape: tuple[int, ...]) -> int:
    """Of `net` for one input of `shape`, counted while it runs."""
    counted: list[int] = []

    def count(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        counted.append(operations(module, inputs[0], output))

    hooks = [module.register_forward_hook(count) for module in net.modules()]
    training = net.training
    with torch.no_grad():
        net.eval()(torch.zeros(1, *shape))
    net.train(training)
    for hook in hooks:
        hook.remove()
    return sum(counted)


def operations(module: nn.Module, x: torch.Tensor, output: torch.Tensor) -> int:
    """Of one layer for one sample; 0 for what holds other layers or does not count."""
    if isinstance(module, nn.Conv2d):
        return module.weight.numel() * output[0, 0].numel()
    if isinstance(module, nn.Linear):
        return module.weight.numel() * output[0, ..., 0].numel()
    if isinstance(module, nn.BatchNorm2d):
        return 4 * x.numel()
    if isinstance(module, GlobalMean):
        return x.numel() + output.numel()
    return 0
