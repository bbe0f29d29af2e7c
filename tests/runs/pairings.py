"""Small data sets in their real on-disk formats, and one step of training on any of them."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedbench.config import compose, groups
from fedbench.core import rng, trees
from fedbench.engine.contract import Clock
from fedbench.engine.looped import LoopedTrainer
from fedbench.runs import building
from fedbench.runs.config import from_plain, resolve
from tests.helpers.labelled_formats import write_labelled
from tests.models.scratch import VISION

CONF = groups.conf_dir()
CLASSES = {
    "captioned": 20,
    "cifar10": 10,
    "cifar100": 100,
    "cinic10": 10,
    "cub": 200,
    "digits": 10,
    "domainnet": 20,
    "emnist": 62,
    "fashion_mnist": 10,
    "mnist": 10,
    "synthetic": 10,
    "tiny_imagenet": 200,
}


def options(group: str) -> list[str]:
    return sorted(file.stem for file in (CONF / group).glob("*.yaml"))


@functools.cache
def option(group: str, name: str) -> dict[str, Any]:
    """The config of one choice, as the command line composes it."""
    run = resolve(compose.compose([f"{group}={name}"]))
    return dict(run.plain[group])


@functools.cache
def small_set(name: str) -> dict[str, Any]:
    """The config of a data set, written with 60 samples of each of the first ten labels, few of each other one."""
    chosen = option("dataset", name)
    if name in ("digits", "synthetic", "captioned"):  # which are small
        return chosen
    counts = np.full(CLASSES[name], 12 if CLASSES[name] <= 100 else 6)
    counts[:10] = 60
    draw = np.random.default_rng(0)
    labels = np.arange(len(counts))
    train, test = (draw.permutation(labels.repeat(part)) for part in (counts - counts // 5, counts // 5))
    root = Path(os.environ["FEDBENCH_DATA"])
    return {**chosen, **write_labelled(name, root, train, test)}


@functools.cache
def surroundings() -> dict[str, Any]:
    """The rest of a config."""
    return dict(resolve(compose.compose(["hardware=cpu", "method=fedavg"])).plain)


def trains(
    dataset: str,
    partition: dict[str, Any],
    model: dict[str, Any],
    dataset_options: dict[str, Any] | None = None,
    **protocol: Any,
) -> None:
    """Compose, build, and train two clients for a step; their test sets are scored."""
    base = option("protocol", "quick")
    plain = {
        **surroundings(),
        "dataset": small_set(dataset) | (dataset_options or {}),
        "partition": partition,
        "model": model,
        "protocol": {**base, "local": {"iterations": 1, "batch_size": 13}, **protocol},
    }
    run = from_plain(plain)
    data, split = building.split_data(run)
    setup, made = building.set_up(run, data, split), run.model.dealt(split)[0]
    server, memory = setup.method.init(setup.task, setup.population, rng.torch_rng(0, "init"))
    ids = torch.tensor([0, len(made) - 1])
    clock = Clock(0, 1)
    with torch.no_grad():
        message = setup.method.send(server, setup.cohort(ids, clock))
    outcome = LoopedTrainer(setup).train(ids, message, trees.take(memory, ids), clock, ("local",))
    assert torch.isfinite(outcome.loss).all()
    assert outcome.counts["local"][1].sum(1).tolist() == [len(made.test[int(i)]) for i in ids]
    before = trees.stack([server, server])
    assert any(not torch.equal(before[name], leaf) for name, leaf in outcome.uploads.items())


SMALLEST = {"name": "mlp", "hidden": [8]}


def from_scratch(model: str) -> dict[str, Any]:
    return {**option("model", model), **({"pretrained": False} if model in VISION else {})}
