"""FedAvg in plain PyTorch, which every engine is compared with."""

from __future__ import annotations

import copy

import torch
from torch import nn

from fedbench.config.schema import OptimizerConfig
from fedbench.core import rng
from fedbench.engine import schedule
from fedbench.engine.contract import Clock, Stage
from fedbench.engine.setup import Setup
from fedbench.models.task import Model


def torch_optimizer(config: OptimizerConfig, net: nn.Module) -> torch.optim.Optimizer:
    if config.name == "adam":
        return torch.optim.Adam(net.parameters(), lr=config.lr, weight_decay=config.weight_decay)
    return torch.optim.SGD(net.parameters(), lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay)


def plain_fedavg(chosen: Setup, model: Model) -> dict[str, torch.Tensor]:
    """FedAvg as one would write it by hand; the server's state_dict after all rounds, buffers averaged too."""
    data, protocol = chosen.federation, chosen.protocol
    net = model.build(data.shape, data.classes).to(data.dtype)
    start = chosen.task.init(rng.torch_rng(chosen.seed, "init"))
    net.load_state_dict(start, strict=False)
    for t in range(protocol.rounds):
        clients = chosen.draw_cohort(Clock(t, protocol.rounds)).tolist()
        total = sum(data.size(k) for k in clients)
        average: dict[str, torch.Tensor] = {}
        for k in clients:
            local = copy.deepcopy(net).train()
            optimizer = torch_optimizer(protocol.optimizer, local)
            x, y = data.gather(data.indices("train", k))
            keyed = rng.torch_rng(chosen.seed, "batches", t, data.ids[k], 0)
            for rows in schedule.batches(data.size(k), protocol.local, Stage(), keyed):
                optimizer.zero_grad()
                nn.functional.cross_entropy(local(x[rows]), y[rows]).backward()
                if protocol.optimizer.clip is not None:
                    nn.utils.clip_grad_norm_(local.parameters(), protocol.optimizer.clip)
                optimizer.step()
            for name, leaf in local.state_dict().items():
                if not name.endswith("num_batches_tracked"):
                    average[name] = average.get(name, 0) + leaf.double() * data.size(k) / total
        net.load_state_dict({n: v.to(data.dtype) for n, v in average.items()}, strict=False)
    return {n: v for n, v in net.state_dict().items() if not n.endswith("num_batches_tracked")}
