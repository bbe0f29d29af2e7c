"""Every method by every engine on this machine's GPU against the plain loop on the CPU.

    PYTHONPATH=. python scripts/gpu.py [PRESET ...] [--device cuda] [--out gpu-check/engines.jsonl]

Without names: every preset on both toys of the conformance suite, each network, and clients of two kinds. A line a
comparison is printed, and appended to OUT: the largest difference of all that a run leaves behind, and what was logged,
as of steps that could not be captured. Ends with exit code 1 if one is wrong.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging.handlers
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from fedbench.config import groups
from fedbench.config.schema import HardwareConfig, OptimizerConfig
from fedbench.engine.hardware import pick_trainer
from fedbench.engine.setup import Setup
from fedbench.methods.fedavg import FedAvg
from fedbench.models import MODELS
from fedbench.testing.checks import everything
from fedbench.testing.toys import KINDS, Subject, federation, gap, setup, simulate
from tests.helpers.pair import UNLIKE, pair, serving

Line = dict[str, Any]
AGREE = 1e-6  # of everything that a run leaves behind, in float64
EAGER, CAPTURED = HardwareConfig(engine="stacked", graph="off"), HardwareConfig(engine="stacked")
CHUNKS = HardwareConfig(engine="stacked", graph="off", chunk=2)
LOOPED = HardwareConfig(engine="looped")
ENGINES = {"looped": LOOPED, "stacked": EAGER, "in chunks": CHUNKS, "captured": CAPTURED}
NETWORKS = {
    **{name: {"pretrained": False} for name in ("resnet18", "mobilenet_v2", "squeezenet")},
    **{name: {} for name in ("lenet5", "fedrema_cnn", "fedrema_alexnet", "simple_cnn", "cnn5")},
}


def comparisons(names: Sequence[str], device: str) -> Iterator[Line]:
    """Yield a line for each preset of `names`, or of all, by each engine; without names also for networks and kinds."""
    presets = groups.names("method")
    for dtype in (torch.float64, torch.float32):
        for name in names or presets:
            subject = Subject.of(name)
            for kind in KINDS:
                toy = functools.partial(subject.toy, kind, dtype=dtype)
                yield from compare({"name": name, "toy": kind, "dtype": str(dtype)}, toy, device)
    for name, fields in {} if names else NETWORKS.items():
        model = MODELS.build({"name": name, **fields})

        def network(device: str, model: Any = model) -> Setup:
            # Three small steps: along more of them rounding differences grow without bound in batch statistics.
            data, small = federation((16, 12), (3, 32, 32), device=device), OptimizerConfig(lr=0.001)
            return setup(FedAvg(), data, model, rounds=1, epochs=1, batch=6, optimizer=small)

        yield from compare({"name": name, "toy": "network"}, network, device)
    for name in () if names else UNLIKE:
        kinds = functools.partial(pair, serving(name))
        yield from compare({"name": name, "toy": "two kinds"}, kinds, device)


def compare(what: Line, toy: Callable[..., Setup], device: str) -> Iterator[Line]:
    """Yield one line an engine: the largest difference from the CPU's plain loop, or what went wrong."""
    for name, hardware in ENGINES.items():
        said, begin = logging.handlers.BufferingHandler(1000), time.perf_counter()
        logging.getLogger("fedbench").addHandler(said)
        try:
            apart = gap(left_by(toy(device=device), hardware), left_by(toy(device="cpu"), LOOPED))
            # In float32 a method that chooses by a comparison may choose otherwise.
            found: Line = {
                "gap": apart,
                "wrong": not apart <= AGREE and "float32" not in what.get("dtype", ""),
            }
        except Exception as error:  # noqa: BLE001 - is what is looked for
            found = {"wrong": True, "error": f"{type(error).__name__}: {error}"[:300]}
        logging.getLogger("fedbench").removeHandler(said)
        logged = sorted({record.getMessage() for record in said.buffer})
        yield {**what, "engine": name, **found, "s": round(time.perf_counter() - begin, 2), "said": logged}


def left_by(chosen: Setup, hardware: HardwareConfig) -> dict[str, torch.Tensor]:
    """Return all that a run leaves behind, on the CPU."""
    state = simulate(chosen, pick_trainer(chosen, hardware))
    return {name: leaf.cpu() for name, leaf in everything(state).items()}


def main() -> int:
    """Compare, a line each as it is found; return 1 if one says that something is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="PRESET", help="of conf/method; without: all, and networks")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--out", type=Path, default=Path("gpu-check/engines.jsonl"))
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    wrong = 0
    with given.out.open("a", encoding="utf-8", buffering=1) as file:
        for line in comparisons(given.names, given.device):
            print(text := json.dumps(line), flush=True)
            print(text, file=file)
            wrong += line["wrong"]
    print(f"{wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
