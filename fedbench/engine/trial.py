"""Some steps before the run, so that whatever a method refuses or cannot train on is refused before training."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fedbench.core import rng, trees
from fedbench.core.errors import ConfigError, UnknownName
from fedbench.engine.contract import Client, Clock, Stage
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.method import Method
from fedbench.engine.setup import BatchSource, Drawn, Setup, drawn
from fedbench.engine.trainer import by_modality
from fedbench.models.layers import BatchNorm


@torch.no_grad()
def check_hooks(setup: Setup) -> None:
    """Let the smallest client of each modality take a step, and the server aggregate; all of it is discarded.

    A method inside another is tried by itself too. Failures for other reasons than the config are left to the run,
    because a method may need its preparation first.

    Raises:
        ConfigError, UnknownName: a hook refuses the config.
    """
    try:
        _step(setup, Clock(0, setup.protocol.rounds), setup.population.sizes, _one_step)
    except (ConfigError, UnknownName):
        raise
    except Exception:  # noqa: BLE001 - the run tells it, with its round and client
        pass
    for field in dataclasses.fields(setup.method):
        if isinstance(inner := getattr(setup.method, field.name), Method):
            parts = tuple(replace(part, method=inner) for part in setup.parts)
            # A method that cannot serve several modalities is inside each of them.
            for each in parts if "modalities" in inner.unfit and parts else [replace(setup, method=inner, parts=parts)]:
                check_hooks(each)


@torch.no_grad()
def check_cuts(setup: Setup) -> None:
    """Refuse a mini-batch if a method takes such small parts of it that batch normalisation gets a single value.

    The normalised value then does not depend on the sample, and torch refuses it without a mask. The client with the
    shortest last batch takes a step on it, in the first round and in the second, because methods begin differently.

    Raises:
        ConfigError: names the method and the batch.
    """
    if not setup.task.buffers:
        return
    local, sizes = setup.protocol.local, setup.population.sizes
    shortest = torch.where(sizes % local.batch_size > 0, sizes % local.batch_size, local.batch_size)
    lasts = torch.full_like(sizes, local.batch_size) if local.drop_last else shortest
    for number in range(2):
        with _normalised() as counts, suppress(Exception):  # the run tells it, unless it is what is looked for
            _step(setup, Clock(number, setup.protocol.rounds), lasts, _shortest)
        if 1 in counts:
            short = f"of a mini-batch of {int(lasts.min())} (protocol.local.batch_size={local.batch_size})"
            raise ConfigError(
                f"{type(setup.method).__name__} trains on parts {short}, and batch normalisation gets a single value; "
                "use a model without it, another batch size, protocol.local.drop_last=true, or a partition "
                "with larger clients"
            )


@contextmanager
def _normalised() -> Iterator[list[int]]:
    """Yield the number of values of a channel in each batch normalisation that this thread trains, as they come."""
    counts, here = list[int](), threading.get_ident()

    def count(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if isinstance(module, BatchNorm) and module.training and threading.get_ident() == here:
            x: Tensor = inputs[0]
            samples = len(x) if module.mask is None else int(module.mask.sum())
            counts.append(samples * math.prod(x.shape[2:]))

    hook = nn.modules.module.register_module_forward_pre_hook(count)
    try:
        yield counts
    finally:
        hook.remove()


def _step(setup: Setup, clock: Clock, order: Tensor, source: BatchSource) -> None:
    """Train the first client of each modality by `order` [N] on the batches of `source`, and discard it."""
    smallest, modality_of = order.argsort(), setup.task.modality_of(setup.everyone)
    ids = (
        torch.stack([smallest[modality_of[smallest] == modality][0] for modality in modality_of.unique()]).sort().values
    )
    server, memory = setup.method.init(setup.task, setup.population, rng.torch_rng(setup.seed, "init"))
    server, memory = (setup.federation.placed(tree) for tree in (server, trees.take(memory, ids)))
    cohort = setup.cohort(ids, clock)
    trainer = by_modality(setup, [LoopedTrainer(replace(modality, source=source)) for modality in setup.modalities])
    outcome = trainer.train(ids, setup.method.send(server, cohort), trees.clone(memory), clock)
    setup.method.aggregate(server, outcome.uploads, cohort)


def _one_step(setup: Setup, client: int, stage: Stage, view: Client, purpose: str) -> Drawn:
    order, noise = drawn(setup, client, stage, view, purpose)
    return order.cut(0, 1), {name: leaf[:1] for name, leaf in noise.items()}


def _shortest(setup: Setup, client: int, stage: Stage, view: Client, purpose: str) -> Drawn:
    order, noise = drawn(setup, client, stage, view, purpose)
    place = order.sizes.index(min(order.sizes)) if len(order) else 0
    return order.cut(place, place + 1), {name: leaf[place : place + 1] for name, leaf in noise.items()}
