"""What a run's time goes into at a protocol's own cadence: local work, the server, evaluation."""

from __future__ import annotations

import tempfile
from typing import Any

import pandas as pd

from fedbench.compose import compose, resolve
from fedbench.run import execute

ROUNDS = 3  # run of each; the first warms up
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
        "model=fedrema_cnn",
        "protocol=fedrema",
    ),
    "FedSaC": ("method=fedsac", "partition=dir0.1", "model=lenet5", "protocol=fedsac"),
    "FedSaC, 100 clients": (
        "method=fedsac",
        "partition=dir0.5",
        "partition.num_clients=100",
        "model=lenet5",
        "protocol=fedsac",
    ),
}


def run(name: str, device: str, settings: tuple[str, ...] = ()) -> dict[str, Any]:
    """Seconds of a round's phases, and their shares of a run of the protocol's length, in percent.

    `settings` are further overrides. What happens once, before round 0, is left out.
    """
    overrides = ["dataset=fashion_mnist", *CASES[name], *settings]
    protocol = resolve(compose(overrides)).protocol
    if protocol.score != "received":
        raise ValueError(f"{name} scores what it has just trained, in the time of its local work")
    with tempfile.TemporaryDirectory() as folder:
        timed = [f"protocol.rounds={ROUNDS}", "protocol.eval_every=1", f"runs_dir={folder}", "progress=none"]
        done = execute(resolve(compose([*overrides, *timed, f"hardware.device={device}"])))
        spent = pd.read_csv(done.folder / "rounds.csv").set_index("round")
    phases = {phase: f"seconds_{phase}" for phase in ("train", "server", "evaluate")}
    seconds = {
        phase: float(spent[column].iloc[-1] - spent[column].loc[1]) / (ROUNDS - 1)
        for phase, column in phases.items()
    }
    a_round = seconds | {"evaluate": seconds["evaluate"] / protocol.eval_every}
    total = sum(a_round.values())
    return {
        "case": name,
        "eval_every": protocol.eval_every,
        "seconds": {phase: round(value, 4) for phase, value in seconds.items()},
        "shares": {phase: round(100 * value / total, 1) for phase, value in a_round.items()},
    }
