"""What a method may use before round 0, and that what crosses the network there is counted."""

from __future__ import annotations

import functools
import itertools
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedbench.core import rng, trees
from fedbench.core.cache import Arrays
from fedbench.engine import preparation as preparation_module
from fedbench.engine.contract import Clock, Meter
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.preparation import EnginePreparation, shared_key
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import State
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedcollab import fedcollab
from fedbench.methods.fedcollab.distances import DiscriminatorConfig, Distances, train_discriminators
from fedbench.methods.fedcollab.solver import solve
from fedbench.testing.checks import everything
from fedbench.testing.toys import federation, simulate
from tests.methods.toys import SIZES, gap, initial, setup

PARAMETERS = 16 * 7 + 7 + 7 * 4 + 4


def made(chosen: Setup | None = None) -> EnginePreparation:
    chosen = chosen or setup(FedAvg(), cohort=2)
    return EnginePreparation(chosen, LoopedTrainer(chosen), Clock(0, chosen.protocol.rounds))


def message(preparation: EnginePreparation) -> trees.Tree:
    return trees.expand(initial(preparation.setup), len(SIZES))


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


def test_everyone_is_a_cohort_of_round_zero_with_fresh_randomness() -> None:
    preparation = made()
    first, again = preparation.everyone, preparation.everyone
    assert first.ids.tolist() == [0, 1, 2, 3, 4]
    assert first.clock == Clock(0, 2)
    drawn = torch.rand(3, generator=rng.torch_rng(preparation.seed, "server", 0)).tolist()
    assert [torch.rand(3, generator=each.generator).tolist() for each in (first, again)] == [drawn, drawn]


def shared(preparation: EnginePreparation, *given: object, value: float = 3.0) -> tuple[np.ndarray, list[bool]]:
    """(what `once` returns, whether it was made)."""
    asked: list[bool] = []

    def make(meter: Meter) -> Arrays:
        asked.append(True)
        meter.sent({"a": torch.zeros(2, 5)})
        preparation_module.time.perf_counter()  # makes a second pass where `seconds` is the clock
        return {"found": np.array([value, 1 / 3])}

    return preparation.once(train_discriminators, given, make)["found"], asked


def test_what_a_run_made_is_not_made_again_and_counts_as_if_it_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDBENCH_CACHE", str(tmp_path))
    seconds = itertools.count()
    monkeypatch.setattr(preparation_module, "time", SimpleNamespace(perf_counter=lambda: next(seconds)))
    first, again = made(), made()
    x = torch.arange(6.0)
    before, after = shared(first, x, "setting"), shared(again, x.clone(), "setting", value=9.0)
    assert (before[1], after[1]) == ([True], [])
    assert np.array_equal(before[0], after[0])
    after[0][0] = 7  # its own
    assert first.meter == again.meter == Meter(down=40)
    assert first.seconds == 0
    assert again.seconds == 2 - 1, "the run that made it took two seconds, reading it one"


def test_what_depends_on_other_things_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBENCH_CACHE", str(tmp_path))
    x = torch.arange(6.0)
    for given in ((x, 0), (x, 1), (x + 1e-6, 0), (x.view(2, 3), 0), (x.double(), 0)):
        assert shared(made(), *given)[1] == [True]
    assert shared(made(), x, 0)[1] == []
    assert shared_key(train_discriminators, (x,)) != shared_key(solve, (x,))


def test_damage_is_healed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBENCH_CACHE", str(tmp_path))
    expected = shared(made(), "setting")[0]
    (file,) = tmp_path.rglob("found.npy")
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    found, asked = shared(made(), "setting")
    assert asked == [True]
    assert np.array_equal(found, expected)
    assert shared(made(), "setting")[1] == []


@pytest.mark.slow
def test_bases_on_the_same_samples_and_seed_share_their_discriminators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDBENCH_CACHE", str(tmp_path))
    trained: list[bool] = []

    @functools.wraps(train_discriminators)  # its code is what the cache asks for
    def train(*args: Any, **options: Any) -> Distances:
        trained.append(True)
        time.sleep(0.3)
        return train_discriminators(*args, **options)

    monkeypatch.setattr(fedcollab, "train_discriminators", train)

    def run(seed: int = 0, rounds: int = 20, **fields: Any) -> State:
        asked = DiscriminatorConfig(hidden=5, rounds=rounds)
        chosen = setup(
            fedcollab.FedCollab(C=0.1, restarts=3, discriminator=asked, **fields),
            federation((9, 13, 8)),
            seed=seed,
        )
        return simulate(chosen)

    made_, read = run(), run()
    assert len(trained) == 1
    assert gap(everything(made_), everything(read)) == 0
    assert made_.arrays["distances"].tobytes() == read.arrays["distances"].tobytes()
    assert (made_.bytes_up, made_.bytes_down) == (read.bytes_up, read.bytes_down)
    assert min(made_.seconds["prepare"], read.seconds["prepare"]) > 0.3
    run(base={"name": "ditto"}, quantities=False)
    assert len(trained) == 1
    run(seed=1)
    run(rounds=30)
    run(inputs="normalised")
    assert len(trained) == 4
