"""TF32: a paper's cell in float32 and in TensorFloat-32, seed by seed."""

from __future__ import annotations

import tempfile
import time
from typing import Any

from fedbench import run
from fedbench.config.compose import compose
from fedbench.runs.config import resolve

SEEDS = 3
PRECISIONS = ("float32", "tf32")
CELLS = {  # the first whose data set is on this machine is run
    "FedAvg in FedSaC's Table 1, CIFAR-10, dir0.1": (
        *("method=fedavg", "dataset=cifar10", "partition=dir_fedsac0.1", "model=lenet5", "protocol=fedsac"),
    ),
    "FedAvg in FedReMa's Table 1, MNIST, 100 rounds": (
        *("method=fedavg", "dataset=mnist", "dataset.mean=[0.5]", "dataset.std=[0.5]", "partition=groups_fedrema0.2"),
        *("model=fedrema_cnn", "protocol=fedrema", "partition_seed=0", "protocol.rounds=100"),
    ),
}


def cell() -> str | None:
    """The cell whose data set is there, if any is."""
    return next((name for name, chosen in CELLS.items() if resolve(compose([*chosen])).dataset.state().ready), None)


def both(name: str, seed: int, device: str) -> dict[str, Any]:
    """The score in percent and the seconds of the cell's run with `seed`, by the precision; no run is kept."""
    found: dict[str, Any] = {"seed": seed}
    for precision in PRECISIONS:
        with tempfile.TemporaryDirectory(prefix="fedbench-tf32-") as folder:
            hardware = (f"hardware.device={device}", "hardware.engine=stacked", f"hardware.precision={precision}")
            begin = time.perf_counter()
            made = run(*CELLS[name], *hardware, f"seed={seed}", f"runs_dir={folder}")
            found[precision] = {"acc": made.row["score"], "seconds": time.perf_counter() - begin}
    return found
