"""SGD, Adam and AdamW on lists of tensors, in place, with or without a leading client axis.

On one client it equals torch.optim (tested). torch.optim has no gradient clipping by client, and cannot continue with
only those clients of a stack that still have batches. torch has no public name for its operations on lists
(`_foreach_*`), which launch once for all leaves.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import lr_scheduler

from fedbench.config.schema import OptimizerConfig, ScheduleConfig
from fedbench.core import trees
from fedbench.core.trees import Tree, sent
from fedbench.engine import graphs
from fedbench.engine.contract import Clock

KEPT = "optimizer"  # namespace, in a client's memory, of what its optimisers keep from round to round


def kept_leaves(config: OptimizerConfig, params: Tree) -> Tree:
    """Return the initial state that an optimiser over one client's `params` keeps between rounds; {} for none.

    Leaves: MOMENT/NAME like params[NAME]; for Adam also count [], the number of steps.
    """
    if config.state == "fresh":
        return {}
    leaves = {
        f"{moment}/{name}": torch.zeros_like(leaf)
        for moment in range(_moments(config))
        for name, leaf in params.items()
    }
    if config.name != "sgd":
        leaves["count"] = torch.zeros((), dtype=torch.float64)
    return leaves


def _moments(config: OptimizerConfig) -> int:
    return {"sgd": 1 if config.momentum else 0, "adam": 2, "adamw": 2}[config.name]


# Schedules of the learning rate: what it is multiplied by, as torch's own schedulers do.


class _Rate(torch.optim.Optimizer):
    """A learning rate of 1 for torch's schedulers to change. An optimiser of tensors would import torch's compiler."""

    def __init__(self) -> None:
        self.param_groups = [{"lr": 1.0}]

    def step(self, closure: Any = None) -> None:  # type: ignore[override] # its overloads return a loss
        """Do nothing, because there are no parameters."""


@functools.lru_cache(maxsize=128)
def factors(schedule: ScheduleConfig, total: int) -> Tensor:
    """Return the factors of the learning rate at each of the `total` rounds or steps of a run, float64 [total]."""
    warmup = min(schedule.warmup, total)
    rest = total - warmup

    def driven(make: Callable[[_Rate], lr_scheduler.LRScheduler], count: int) -> list[float]:
        rate, found = _Rate(), list[float]()
        scheduler = make(rate)
        for _ in range(count):
            found.append(rate.param_groups[0]["lr"])
            rate.step()
            scheduler.step()
        return found

    rising = driven(lambda rate: lr_scheduler.LinearLR(rate, 1 / (schedule.warmup + 1), 1, schedule.warmup), warmup)
    if schedule.name == "step":
        after = driven(lambda rate: lr_scheduler.StepLR(rate, schedule.every or 1, schedule.gamma), rest)
    elif schedule.name == "cosine":
        after = driven(lambda rate: lr_scheduler.CosineAnnealingLR(rate, max(1, rest), schedule.final), rest)
    else:
        after = [1.0] * rest
    return torch.tensor(rising + after, dtype=torch.float64)


def round_factors(schedule: ScheduleConfig, clock: Clock, steps: int) -> Tensor:
    """`factors` at each of a client's `steps` local steps in the round of `clock`, float64 [steps].

    Training in a method's preparation may come after the last round; it has the rates of the last round.
    """
    number = min(clock.round, clock.rounds - 1)
    if schedule.by == "round":
        return factors(schedule, clock.rounds)[number].expand(steps)
    return factors(schedule, clock.rounds * steps)[number * steps : (number + 1) * steps]


# A step of a stage's optimiser.


class Optimizer:
    """State of one stage's optimiser over `params`; `axes` is 1 if their first axis is the client."""

    def __init__(self, config: OptimizerConfig, params: Tree, axes: int = 0, kept: Tree | None = None) -> None:
        """Continue from `kept` (see `kept_leaves`), which it changes in place; without it, begin."""
        self.config = config
        # Of the next step. A schedule sets it; beside a client axis to the active clients' [A], float64.
        self.lr: float | Tensor = config.lr
        self.params = list(params.values())
        self.axes = axes
        # Steps so far; beside a client axis, where steps are captured, on the device; [C] where they differ.
        self.count: int | Tensor = (
            torch.zeros((), dtype=torch.float64, device=self.params[0].device) if axes and params else 0
        )
        if kept:
            self.count = kept.get("count", self.count)
            self.moments = [[kept[f"{k}/{name}"] for name in params] for k in range(_moments(config))]
        else:
            self.moments = [[torch.zeros_like(p) for p in self.params] for _ in range(_moments(config))]

    @torch.no_grad()
    def step(self, grads: list[Tensor], active: int | None = None) -> None:
        """Make one update in place; with a client axis, only of the first `active` clients.

        The clients of a stack are ordered so that those still active come first and took every step so far.
        """
        if not self.params:  # a stage whose selector matches no leaf of this network
            return
        params, moments, count, lr = self.params, self.moments, self.count, self.lr
        if active is not None:
            params = [p[:active] for p in params]
            moments = [[m[:active] for m in each] for each in moments]
            count = count[:active] if isinstance(count, Tensor) and count.dim() else count
        count += 1
        if isinstance(count, int):
            self.count = count
        if self.config.clip is not None:
            grads = clip(grads, self.config.clip, self.axes)
        if self.config.weight_decay and self.config.name == "adamw":  # of the weights alone, before the step
            torch._foreach_mul_(params, _factor(1 - lr * self.config.weight_decay, params))
        elif self.config.weight_decay:
            grads = list(torch._foreach_add(grads, params, alpha=self.config.weight_decay))
        if self.config.name != "sgd":
            # Kingma & Ba (2015), beta = (0.9, 0.999), eps = 1e-8, as torch.optim.Adam and AdamW compute it.
            first, second = moments
            torch._foreach_lerp_(first, grads, 0.1)
            torch._foreach_mul_(second, 0.999)
            torch._foreach_addcmul_(second, grads, grads, value=0.001)
            denominators = list(torch._foreach_sqrt(second))
            torch._foreach_div_(denominators, _factor((1 - 0.999**count) ** 0.5, params))
            torch._foreach_add_(denominators, 1e-8)
            still = not isinstance(lr, Tensor) and not lr  # a schedule has rounded the rate to 0
            torch._foreach_mul_(denominators, _factor(-math.inf if still else (1 - 0.9**count) / -lr, params))
            torch._foreach_addcdiv_(params, first, denominators)
            return
        if moments:
            torch._foreach_mul_(moments[0], self.config.momentum)
            torch._foreach_add_(moments[0], grads)
            grads = moments[0]
        if isinstance(lr, Tensor):
            torch._foreach_addcmul_(params, grads, _factor(-lr, params))
        else:
            torch._foreach_add_(params, grads, alpha=-lr)


def _factor(value: float | Tensor, params: list[Tensor]) -> Any:
    """Return a number of the step, or one for each client [C], in the form that scales leaves like `params`."""
    if not isinstance(value, Tensor):
        return value
    value = value.to(params[0].dtype)
    return [value.view(-1, *[1] * (p.dim() - 1)) for p in params] if value.dim() else value


def clip(grads: list[Tensor], limit: float, axes: int) -> list[Tensor]:
    """Scale each client's gradient to norm `limit` at most, as torch.nn.utils.clip_grad_norm_ does."""
    squares = [g.square().reshape(*g.shape[:axes], -1).sum(-1) for g in grads]
    norms = torch.stack(squares).sum(0).sqrt()
    scale = (limit / (norms + 1e-6)).clamp(max=1.0)
    return [g * scale.view(*scale.shape, *[1] * (g.dim() - axes)) for g in grads]


# Learning on the server: gradient steps on a tree, for methods that train something between rounds.


def fit(params: Tree, loss: Callable[[Tree, Tree], Tensor], draws: Iterable[Tree], optimizer: OptimizerConfig) -> Tree:
    """Make an optimiser step on `loss(params, drawn)` for each of `draws`, from `params`, which stay unchanged.

    What differs from step to step, such as rows or noise, is in `draws`. On a GPU a step is captured and replayed, so
    `loss` may depend on nothing else that changes. The optimiser's state lives for these steps only.
    """
    params = trees.clone(params)
    leaves = list(params.values())
    device = leaves[0].device
    capture = graphs.capture_for(device)
    counting = {} if capture is None else kept_leaves(replace(optimizer, state="kept"), params)  # Adam's on the device
    stepping = Optimizer(optimizer, params, kept=trees.map_leaves(lambda leaf: sent(leaf, device), counting))

    def step(drawn: Tree) -> None:
        with torch.enable_grad():
            for leaf in leaves:
                leaf.requires_grad_(True)
            grads = torch.autograd.grad(loss(params, drawn), leaves)
        for leaf in leaves:
            leaf.requires_grad_(False)
        stepping.step(list(grads))

    replays, inputs = graphs.Replays("learning on the server"), dict[Hashable, Tree]()
    for drawn in draws:
        given = trees.map_leaves(lambda leaf: sent(leaf, device), drawn)
        if capture is None:
            step(given)
            continue
        kind = tuple(leaf.shape for leaf in given.values())
        if kind not in inputs:
            inputs[kind] = trees.clone(given)
        trees.copy_all(inputs[kind], given)
        one = partial(step, inputs[kind])
        replays.run(kind, one, partial(capture, one))
    return params
