"""FedPer, FedBN, LG-FedAvg, FedBABU: limits, whose normalisation is shared, what is tuned."""

from __future__ import annotations

import pytest

from fedbench.core import trees
from fedbench.engine.contract import Clock
from fedbench.engine.method import Method
from fedbench.engine.simulation import State
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedbabu import FedBABU
from fedbench.methods.fedbn import FedBN
from fedbench.methods.fedpac import FedPAC
from fedbench.methods.fedper import FedPer
from fedbench.methods.fedrep import FedRep
from fedbench.methods.fedrod import FedRoD
from fedbench.methods.lg_fedavg import LGFedAvg
from fedbench.methods.local import Local
from fedbench.models.small import LeNet5
from tests.helpers.tiers import sampled
from tests.methods.toys import (
    ONE_STEP,
    adapted,
    close,
    cross_entropy,
    descend,
    federation,
    gap,
    initial,
    logits,
    models,
    samples,
    setup,
    simulate,
)

# ---- who owns what


@pytest.mark.parametrize("method", sampled([FedPer, LGFedAvg, FedBN], every=3))
def test_sharing_all_is_fedavg_and_nothing_is_local(method: type[FedAvg]) -> None:
    everything, nothing = setup(method(private=()), cohort=0.8), setup(method(private=("*",)), cohort=0.8)
    assert close(simulate(everything).server, simulate(setup(FedAvg(), cohort=0.8)).server, 0)
    assert close(simulate(nothing).memory, simulate(setup(Local(), cohort=0.8)).memory, 0)


def batch_norm(method: Method) -> tuple[set[str], set[str], State]:
    """Names of batch normalisation's (affine parameters, statistics) of a network, and a run on it."""
    data = federation((6, 12), (1, 16, 16))
    chosen = setup(method, data, LeNet5(batch_norm=True), rounds=1, epochs=1)
    norm = set(chosen.task.groups["@norm"])
    return norm - chosen.task.buffers, set(chosen.task.buffers), simulate(chosen)


def test_fedbn_keeps_affine_parameters_and_statistics() -> None:
    affine, statistics, state = batch_norm(FedBN())
    assert len(affine) == len(statistics) == 4
    assert set(state.memory) == affine | statistics
    assert not set(state.server) & (affine | statistics)
    for name in affine | statistics:
        assert gap({"": state.memory[name][0]}, {"": state.memory[name][1]}) > 1e-4, name


@pytest.mark.parametrize("method", [FedPer(), FedRep(), FedBABU(), FedRoD(), FedPAC()])
def test_batch_norm_below_the_head_is_shared(method: Method) -> None:
    affine, statistics, state = batch_norm(method)
    kept = {name.rpartition("/")[2] for name in state.memory}
    sent = {name.rpartition("/")[2] for name in state.server}
    assert not kept & (affine | statistics)
    assert affine | statistics <= sent


def test_fedpers_statistics_are_the_clients_average() -> None:
    """After one round, of the statistics that FedAvg's clients arrive at (the head's privacy changes no local work)."""
    _, statistics, state = batch_norm(FedPer())
    fedavg = batch_norm(FedAvg())[2]
    assert all(close(state.server[name], fedavg.server[name], 1e-12) for name in statistics)


# ---- FedBABU


def test_fedbabus_head_is_frozen_until_it_is_tuned() -> None:
    chosen = setup(FedBABU(tune_epochs=2), federation((5, 15)), **ONE_STEP)
    w = initial(chosen)
    state = simulate(chosen)
    each = []
    for k in (0, 1):
        x, y = samples(chosen, k)
        each.append(descend(lambda v, x=x, y=y: cross_entropy(logits(v, x), y), w, 0.2, ["fc"]))
    mean = {name: 0.25 * each[0][name] + 0.75 * each[1][name] for name in w}
    common = chosen.method.common(state.server, chosen.task)
    assert common is not None
    assert close(common, mean)
    assert close(trees.row(models(chosen, state), 0), mean)
    tuned = adapted(chosen, state)
    for k in (0, 1):
        expected = mean
        x, y = samples(chosen, k)
        for _ in range(2):
            expected = descend(lambda v, x=x, y=y: cross_entropy(logits(v, x), y), expected, 0.2)
        assert close(trees.row(tuned, k), expected)


def test_fedbabu_without_a_frozen_part_or_tuning_is_fedavg() -> None:
    chosen = setup(FedBABU(private=(), tune_epochs=0))
    common = chosen.method.common(simulate(chosen).server, chosen.task)
    assert common is not None
    assert close(common, simulate(setup(FedAvg())).server, 0)
    assert chosen.method.adapt(chosen.protocol.local, Clock(0, 1)) == ()
