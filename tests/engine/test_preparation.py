"""What a method may use before round 0, and that what crosses the network there is counted."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedbench.core import rng, trees
from fedbench.engine.contract import Clock, Meter
from fedbench.engine.preparation import Preparing
from fedbench.engine.setup import Setup
from fedbench.engine.train.looped import LoopedTrainer
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedcollab.discriminators import DiscriminatorConfig, train_discriminators
from fedbench.methods.fedcollab.fedcollab import FedCollab
from tests.methods.toys import SIZES, federation, gap, initial, setup

PARAMETERS = 16 * 7 + 7 + 7 * 4 + 4


def made(chosen: Setup | None = None) -> Preparing:
    chosen = chosen or setup(FedAvg(), cohort=2)
    return Preparing(chosen, LoopedTrainer(chosen))


def message(preparation: Preparing) -> trees.Tree:
    return trees.expand(initial(preparation.setup), len(SIZES))


def test_a_round_trains_everyone_and_counts_message_and_uploads() -> None:
    preparation = made()
    uploads = preparation.round(message(preparation), {})
    trained = LoopedTrainer(preparation.setup).train(
        torch.arange(5), message(preparation), {}, Clock(0, preparation.setup.protocol.rounds)
    )
    assert gap(uploads, trained.uploads) == 0
    assert preparation.meter == Meter(up=5 * 8 * PARAMETERS, down=5 * 8 * PARAMETERS)


def test_rounds_alone_go_on_from_each_other_and_send_once() -> None:
    preparation, expected = made(), message(made())
    for t in range(3):
        trainer = LoopedTrainer(preparation.setup)
        expected = trainer.train(torch.arange(5), expected, {}, Clock(t, 2)).uploads
    with torch.no_grad():  # as in Method.prepare
        uploads = preparation.round(message(preparation), {}, rounds=3)
    assert gap(uploads, expected) == 0
    assert preparation.meter == Meter(up=5 * 8 * PARAMETERS, down=5 * 8 * PARAMETERS)


def test_what_is_not_sent_is_not_counted() -> None:
    preparation = made()
    whole = made().round(message(preparation), {})
    sent = preparation.round(message(preparation), {}, sends=lambda own: {"mean": own["head.weight"].mean(0)})
    assert gap(sent, {"mean": whole["head.weight"].mean(1)}) < 1e-15
    assert preparation.meter == Meter(up=5 * 8 * 7, down=5 * 8 * PARAMETERS)


def test_statistics_are_counted_as_they_are_sent() -> None:
    preparation = made()
    counts = preparation.population.label_counts.to(torch.int32)
    assert preparation.received({"counts": counts})["counts"] is counts
    assert preparation.meter == Meter(up=5 * 4 * 4)


@pytest.mark.parametrize("unit", [False, True])
def test_samples_are_everyones_in_order(unit: bool) -> None:
    preparation = made()
    found = preparation.samples(unit=unit)
    data = preparation.setup.federation
    each = [data.all_of(client) for client in range(5)]
    assert found.y.tolist() == torch.cat([batch.y for batch in each]).tolist()
    x = torch.cat([batch.x for batch in each])
    assert torch.allclose(found.x, x * 0.25 + 0.5 if unit else x)
    assert preparation.meter == Meter(), "looking at them on the server's side is the method's to count"


def test_fedcollabs_discriminators_see_the_inputs_that_are_named() -> None:
    config = DiscriminatorConfig(hidden=8, rounds=50, lr=0.5)
    found = {}
    for inputs in ("unit", "normalised"):
        method = FedCollab(inputs=inputs, discriminator=config)
        preparation = made(setup(method, federation((16, 24, 32))))
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


def test_everyone_is_a_cohort_of_round_zero_with_fresh_randomness() -> None:
    preparation = made()
    first, again = preparation.everyone, preparation.everyone
    assert first.ids.tolist() == [0, 1, 2, 3, 4]
    assert first.clock == Clock(0, 2)
    drawn = torch.rand(3, generator=rng.torch_rng(preparation.seed, "server", 0)).tolist()
    assert [torch.rand(3, generator=each.generator).tolist() for each in (first, again)] == [drawn, drawn]
