"""What a run's time goes into at a protocol's own cadence: local work, the server, evaluation."""

from __future__ import annotations

from typing import Any

from fedbench.config.compose import compose
from fedbench.data.dataset import Availability
from fedbench.engine.hardware import pick_trainer
from fedbench.engine.simulation import Simulation
from fedbench.runs.config import resolve
from fedbench.runs.execution import build

PHASES = ("train", "server", "evaluate")
CASES = {  # each paper's method and protocol, on Fashion-MNIST where it used another data set
    "FedCollab, label shift": (
        "method=fedcollab",
        "partition=label_shift",
        "model=mlp",
        "protocol=fedcollab_label_shift",
    ),
    "pFedSim": (
        "method=pfedsim",
        "partition=dir0.1",
        "partition.num_clients=100",
        "partition.min_size=40",
        "model=lenet5_bn",
        "protocol=pfedsim",
    ),
    "SosicFL": (
        "method=sosicfl",
        "partition=fold5",
        "partition.num_clients=100",
        "model=simple_cnn",
        "protocol=sosicfl_simplecnn",
    ),
    "FedReMa": ("method=fedrema", "partition=groups_s0.2", "model=fedrema_cnn", "protocol=fedrema"),
    "FedReMa, 100 clients": (
        "method=fedrema",
        "partition=groups_s0.2",
        "partition.num_clients=100",
        "partition.size=400",
        "model=fedrema_cnn",
        "protocol=fedrema",
    ),
    "FedSaC": ("method=fedsac", "partition=dir0.1", "model=lenet5", "protocol=fedsac"),
    "FedSaC, 100 clients, scored on their own samples": (
        "method=fedsac",
        "partition=dir0.5",
        "partition.num_clients=100",
        "model=lenet5",
        "protocol=fedsac",
        "protocol.test.sets=local",
        "protocol.test.fraction=0.2",
    ),
}


ROUNDS = 10  # timed at most, after one to warm up
ENOUGH = 8.0  # seconds of rounds that no further one is timed after


def images() -> Availability:
    """Whether the data set of all cases is on this machine."""
    return resolve(compose(["dataset=fashion_mnist"])).dataset.state()


def run(name: str, device: str, settings: tuple[str, ...] = ()) -> dict[str, Any]:
    """Seconds of a round's phases, and their shares of a run of the protocol's length, in percent.

    `settings` are further overrides. What happens once, before round 0, is left out.
    """
    chosen = [
        "dataset=fashion_mnist",
        *CASES[name],
        *settings,
        f"hardware.device={device}",
    ]
    protocol = resolve(compose(chosen)).protocol
    if protocol.score != "received":
        raise ValueError(f"{name} scores what it has just trained, in the time of its local work")
    run = resolve(compose([*chosen, "protocol.eval_every=1"]))
    setup = build(run)[0]
    trainer = pick_trainer(setup, run.hardware)
    try:
        simulation = Simulation(setup, trainer)
        state = simulation.begin()
        simulation.step(state)  # to warm up
        before, rounds = dict(state.seconds), 0
        while rounds < ROUNDS and sum(state.seconds.values()) - sum(before.values()) < ENOUGH:
            simulation.step(state)
            rounds += 1
    finally:
        trainer.close()
    seconds = {phase: (state.seconds[phase] - before[phase]) / rounds for phase in PHASES}
    a_round = seconds | {"evaluate": seconds["evaluate"] / protocol.eval_every}
    total = sum(a_round.values())
    return {
        "case": name,
        "rounds": rounds,
        "eval_every": protocol.eval_every,
        "seconds": {phase: round(value, 4) for phase, value in seconds.items()},
        "shares": {phase: round(100 * value / total, 1) for phase, value in a_round.items()},
    }
