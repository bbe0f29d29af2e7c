"""Whether the engines train what a loop by hand does, before any of them is timed."""

from __future__ import annotations

import torch

from benchmarks import contestants
from fedbench.engine.contract import Clock
from fedbench.engine.setup import Setup
from fedbench.engine.trainer import Trainer

# Largest difference of a parameter after a client's round in float64, engine against plain loop.
TOLERANCE = 1e-9


def differences(setup: Setup) -> dict[str, float]:
    """What `_difference` finds for each engine.

    In float64, as rounding grows along the steps: after ResNet-18's sixteen in float32 two right programs differ by
    more than a wrong one need to.
    """
    trainers = contestants.trainers(setup)
    try:
        return {name: _difference(setup, trainer) for name, trainer in trainers.items()}
    finally:
        contestants.close(trainers)


def _difference(setup: Setup, trainer: Trainer) -> float:
    """Largest difference of a parameter after one client's local work, engine against a loop by hand."""
    clock = Clock(0, setup.protocol.rounds)
    ids = setup.draw_cohort(clock)[:2]
    with torch.no_grad():
        server, _ = setup.method.init(setup.task, setup.population, torch.Generator().manual_seed(0))
        server = setup.federation.placed(server)
        cohort = setup.cohort(ids, clock)
        message = setup.method.send(server, cohort)
    outcome = trainer.train(ids, message, {}, clock)
    gaps = []
    for row, client in enumerate(ids.tolist()):
        model = setup.task.fresh().to(setup.federation.device, setup.federation.dtype)
        model = model.train().requires_grad_(True)
        model.load_state_dict({name: message[name][row] for name in model.state_dict()})
        optimizer = torch.optim.SGD(
            model.parameters(), lr=setup.protocol.optimizer.lr, momentum=setup.protocol.optimizer.momentum
        )
        (stage,) = setup.method.stages(setup.protocol.local, clock)
        order, _ = setup.batches(client, stage, setup.client(client, {}, {}, clock), "batches")
        owned = setup.federation.indices("train", client)
        for positions in order:
            x, y = setup.federation.gather(owned[positions.to(owned.device)])
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        for name, leaf in model.state_dict().items():
            gaps.append(float((outcome.uploads[name][row] - leaf).abs().max()))
    return max(gaps)
