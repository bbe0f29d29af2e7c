"""Our side of a comparison with rivals: the work they are given, and our own engines on the same rounds."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import torch
from torch import nn

from benchmarks.rival_work import Answer, Work
from fedbench.config.schema import HardwareConfig
from fedbench.engine.contract import Clock
from fedbench.engine.hardware import stacked_engine
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation
from fedbench.engine.trainer import Trainer
from fedbench.engine.workers import WorkersTrainer, available_workers
from fedbench.models.layers import Conv2d, MaxPool2


def export(setup: Setup, rounds: int, path: Path) -> None:
    """Write what a rival needs: data client by client, cohorts, settings, the network with its initial weights."""
    federation, protocol = setup.federation, setup.protocol
    server = Simulation(setup, LoopedTrainer(setup)).begin().server
    net = in_torch_s_layers(setup.task.fresh()).train().requires_grad_(True)
    net.load_state_dict({name: server[name].cpu() for name in net.state_dict()}, strict=True)
    owned = torch.cat([federation.indices("train", client) for client in range(federation.clients)])
    cohorts = [setup.draw_cohort(Clock(number, protocol.rounds)) for number in range(rounds)]
    work = Work(
        net=net,
        x=federation.x[owned].cpu(),
        y=federation.y[owned].cpu(),
        offsets=federation.sets["train"].offsets,
        test_x=federation.x[federation.global_test].cpu(),
        test_y=federation.y[federation.global_test].cpu(),
        shift=federation.offset.cpu(),
        scale=federation.inverse.cpu(),
        cohorts=torch.stack(cohorts),
        epochs=protocol.local.epochs,
        batch_size=protocol.local.batch_size,
        lr=protocol.optimizer.lr,
        momentum=protocol.optimizer.momentum,
    )
    torch.save({field.name: getattr(work, field.name) for field in dataclasses.fields(work)}, path)


def in_torch_s_layers(net: nn.Module) -> nn.Module:
    """`net` with torch's own layers in the place of fedbench's, in place, so that it unpickles without fedbench."""
    for name, child in net.named_children():
        net.add_module(name, nn.MaxPool2d(2) if isinstance(child, MaxPool2) else in_torch_s_layers(child))
        if type(child) is Conv2d:
            child.__class__ = nn.Conv2d
    return net


def ours(setup: Setup, rounds: int) -> dict[str, Answer]:
    """The engines over the same rounds: on one core and on all, or stacked on a GPU."""
    found: dict[str, Answer] = {}
    for name, trainer in _trainers(setup).items():
        try:
            found[name] = _train(setup, trainer, rounds)
        finally:
            trainer.close()
    return found


def _trainers(setup: Setup) -> dict[str, Trainer]:
    if setup.federation.device.type == "cuda":
        return {"stacked": stacked_engine(setup, HardwareConfig())}
    found: dict[str, Trainer] = {"looped": LoopedTrainer(setup)}
    if available_workers() > 1:
        found["workers"] = WorkersTrainer(setup, available_workers())
    return found


def _train(setup: Setup, trainer: Trainer, rounds: int) -> Answer:
    simulation = Simulation(setup, trainer)
    state = simulation.begin()
    seconds, steps = [], 0
    for number in range(rounds):
        steps += sum(setup.steps(int(i)) for i in setup.draw_cohort(Clock(number, setup.protocol.rounds)))
        begin = time.perf_counter()
        simulation.step(state)
        if setup.federation.device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    model = setup.method.common(state.server, setup.task)
    if model is None:
        raise AssertionError("FedAvg has a global model")
    x, y = setup.federation.gather(setup.federation.global_test)
    with torch.no_grad():
        right = int((setup.task.apply(model, x).argmax(1) == y).sum())
    return Answer(seconds, steps, right / len(y))
