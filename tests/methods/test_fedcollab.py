"""What FedCollab gives its discriminators."""

from __future__ import annotations

import numpy as np
import torch

from fedbench.core import rng
from fedbench.engine.contract import Clock, Meter
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.simulation import EnginePreparation
from fedbench.methods.fedcollab.distances import DiscriminatorConfig, train_discriminators
from fedbench.methods.fedcollab.fedcollab import FedCollab
from tests.methods.toys import federation, setup


def test_discriminators_see_the_inputs_that_are_named() -> None:
    config = DiscriminatorConfig(hidden=8, rounds=50, lr=0.5)
    found = {}
    for inputs in ("unit", "normalised"):
        method = FedCollab(inputs=inputs, discriminator=config)
        chosen = setup(method, federation((16, 24, 32)))
        preparation = EnginePreparation(chosen, LoopedTrainer(chosen), Clock(0, chosen.protocol.rounds))
        population = preparation.population
        state = method.init(preparation.task, population, rng.torch_rng(0, "init"))
        with torch.no_grad():
            method.prepare(preparation, *state)
        seen = preparation.samples(unit=inputs == "unit")
        parts = torch.arange(len(seen.y)).split(population.sizes.long().tolist())
        expected = train_discriminators(
            seen.x.flatten(1),
            seen.y,
            preparation.task.classes,
            parts,
            config,
            preparation.seed,
            meter=Meter(),
        )
        found[inputs] = preparation.arrays["distances"]
        assert np.array_equal(found[inputs], expected.matrix)
    assert not np.array_equal(found["unit"], found["normalised"])
