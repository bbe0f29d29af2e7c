"""FedDBE: a limit, and what crosses the network."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from fedbench.config.schema import LocalConfig
from fedbench.core.batch import Batch
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Clock, Stage
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.feddbe import FedDBE
from tests.methods.toys import (
    close,
    federation,
    gap,
    setup,
    simulate,
)

LR, SIZES = 0.2, (5, 9)


@dataclass(frozen=True)
class Unbiased(FedDBE):
    """FedDBE whose biases stay zero."""

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        return tuple(replace(stage, fixed=("running", "bias")) for stage in super().stages(local, clock))

    def step(self, work: Tree, client: Client, batch: Batch) -> Tree:
        return {name: leaf for name, leaf in super().step(work, client, batch).items() if name != "bias"}


@pytest.mark.slow
def test_without_bias_and_pull_feddbe_is_fedavg() -> None:
    fedavg = simulate(setup(FedAvg(), rounds=3, cohort=0.8)).server
    assert close(simulate(setup(Unbiased(kappa=0.0), rounds=3, cohort=0.8)).server, fedavg)
    assert gap(simulate(setup(Unbiased(kappa=5.0), rounds=3, cohort=0.8)).server, fedavg) > 1e-3
    assert gap(simulate(setup(FedDBE(kappa=0.0), rounds=3, cohort=0.8)).server, fedavg) > 1e-3


def test_the_mean_crosses_once_and_biases_never() -> None:
    chosen = setup(FedDBE(), federation(SIZES), rounds=2)
    state = simulate(chosen)
    model = 8 * sum(leaf.numel() for leaf in state.server.values())
    assert state.prepared == (2 * 7 * 8, 2 * model + 2 * 7 * 8)
    assert (state.bytes_up, state.bytes_down) == (state.prepared[0] + 4 * model, state.prepared[1] + 4 * model)
