"""What is to be known of fedbench on this machine's GPU, each line written as it is found.

    PYTHONPATH=. python scripts/gpu.py [PART ...] [--names ...] [--minutes 9] [--device cuda] [--out gpu-check]

`engines`: every method by every engine against the plain loop on the CPU, with what is logged of steps that could not
be captured. `bench`: scripts/bench.py. `tables`: cells of two tables at full length. `seeds`: five seeds as one
program, one after the other and in five processes. `convolutions`: each way of computing them in whole steps.
`capture`: steps replayed from a CUDA graph against steps launched one by one. A part appends to OUT/PART.jsonl.
docs/speed.md has the rules by which results are read, and what a machine without a package index needs.
"""

from __future__ import annotations

import argparse
import csv
import functools
import json
import logging.handlers
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from benchmarks import rounds as timing
from benchmarks import seeds as five

from fedbench.config import groups
from fedbench.config.schema import HardwareConfig
from fedbench.engine import hardware as lowerings
from fedbench.engine.hardware import pick_trainer
from fedbench.engine.setup import Setup
from fedbench.methods.fedavg import FedAvg
from fedbench.models import MODELS
from fedbench.models.layers import LOWERINGS
from fedbench.testing.checks import everything
from fedbench.testing.toys import KINDS, Subject, federation, gap, setup, simulate
from tests.helpers.pair import UNLIKE, pair, serving

Line = dict[str, Any]
AGREE = 1e-6  # of everything that a run leaves behind, in float64
WARM, REPEATS = 3, 5  # rounds
EAGER, CAPTURED = HardwareConfig(engine="stacked", graph="off"), HardwareConfig(engine="stacked")
CHUNKS = HardwareConfig(engine="stacked", graph="off", chunk=2)
LOOPED = HardwareConfig(engine="looped")
ENGINES = {"looped": LOOPED, "stacked": EAGER, "in chunks": CHUNKS, "captured": CAPTURED}
NETWORKS = {
    **dict.fromkeys(("resnet18", "mobilenet_v2", "squeezenet"), {"pretrained": False}),
    **dict.fromkeys(("lenet5", "fedrema_alexnet", "simple_cnn", "cnn5"), {}),
}
CELLS = {  # what the papers' claims rest on, the most informative first
    ("fedcollab_t1", "Label shift"): ("Local", "FedAvg", "FedAvg+FedCollab", "Ditto+FedCollab"),
    ("fedrema_t1", "Fashion-MNIST"): ("FedReMa", "FedAvg", "Local"),
}


def engines(given: argparse.Namespace) -> Iterator[Line]:
    """Every preset on both toys of the conformance suite, networks, and clients of two kinds."""
    presets = sorted(file.stem for file in (groups.conf_dir() / "method").glob("*.yaml"))
    for dtype in (torch.float64, torch.float32):
        for name in given.names or presets:
            subject = Subject.of(name)
            for kind in KINDS:
                toy = functools.partial(subject.toy, kind, dtype=dtype)
                yield from compare({"name": name, "toy": kind, "dtype": str(dtype)}, toy, given.device)
    for name, fields in {} if given.names else NETWORKS.items():
        model = MODELS.build({"name": name, **fields})

        def network(device: str, model: Any = model) -> Setup:
            return setup(FedAvg(), federation((9, 6), (3, 32, 32), device=device), model, epochs=1)

        yield from compare({"name": name, "toy": "network"}, network, given.device)
    for name in () if given.names else UNLIKE:
        kinds = functools.partial(pair, serving(name))
        yield from compare({"name": name, "toy": "two kinds"}, kinds, given.device)


def compare(what: Line, toy: Callable[..., Setup], device: str) -> Iterator[Line]:
    """One line an engine: the largest difference from the CPU's plain loop, or what went wrong."""
    for name, hardware in ENGINES.items():
        said, begin = logging.handlers.BufferingHandler(1000), time.perf_counter()
        logging.getLogger("fedbench").addHandler(said)
        try:
            apart = gap(left_by(toy(device=device), hardware), left_by(toy(device="cpu"), LOOPED))
            # In float32 a method that chooses by a comparison may choose otherwise.
            found: Line = {"gap": apart, "wrong": apart > AGREE and "float32" not in what.get("dtype", "")}
        except Exception as error:  # noqa: BLE001 - is what is looked for
            found = {"wrong": True, "error": f"{type(error).__name__}: {error}"[:300]}
        logging.getLogger("fedbench").removeHandler(said)
        logged = sorted({record.getMessage() for record in said.buffer})
        yield {**what, "engine": name, **found, "s": round(time.perf_counter() - begin, 2), "said": logged}


def left_by(chosen: Setup, hardware: HardwareConfig) -> dict[str, torch.Tensor]:
    """All that a run leaves behind, on the CPU."""
    state = simulate(chosen, pick_trainer(chosen, hardware))
    return {name: leaf.cpu() for name, leaf in everything(state).items()}


def bench(given: argparse.Namespace) -> Iterator[Line]:
    """The benchmark, the workloads of the targets first; its page lies under OUT/bench."""
    for name in given.names or ("W1", "W4", "W2", "W3", "W5", "PHASES"):
        command = [
            "scripts/bench.py",
            "--device",
            given.device,
            "--out",
            f"{given.out}/bench",
            "--only",
            name,
        ]
        yield {"workload": name, **child([*command, *(["--quick", "--repeats=1"] if small(given) else [])])}


def tables(given: argparse.Namespace) -> Iterator[Line]:
    """Cells of two tables, drawn under OUT/results; a run that is stopped goes on when the same is asked again."""
    own = [f"hardware.device={given.device}", f"results={given.out}/results", f"runs_dir={given.out}/runs"]
    own += ["jobs=1", f"scale={'smoke' if small(given) else 'paper'}"]
    for (table, column), row in ((key, row) for key, rows in CELLS.items() for row in rows):
        if row in (given.names or [row]):
            wanted = [f"table={table}", f"rows={row}", f"columns={column}"]
            found = child(["-m", "fedbench", "reproduce", *wanted, *own])
            for file in (given.out / "results" / "tables").glob(f"{table}*/rows.csv"):
                lines = csv.DictReader(file.read_text(encoding="utf-8").splitlines())
                cells = [each for each in lines if each["row"] == row]
                found |= {metric: [each[metric] for each in cells] for metric in ("acc", "ipr", "rsd")}
            yield {"table": table, "row": row, "column": column, **found}


def child(command: list[str]) -> Line:
    """Run a program of ours; how it ended, and its seconds. When the time is over it is asked to save and end."""
    begin = time.perf_counter()
    with subprocess.Popen([sys.executable, *command]) as process:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            process.terminate()
            raise
    return {"wrong": code != 0, "s": round(time.perf_counter() - begin, 1)}


def seeds(given: argparse.Namespace) -> Iterator[Line]:
    """Five seeds in three ways."""
    for name in given.names or ("W1", "W2", "W3"):
        yield five.run(name, torch.device(given.device), 1 if small(given) else REPEATS, quick=small(given))


def convolutions(given: argparse.Namespace) -> Iterator[Line]:
    """Milliseconds a client-step with every layer computed in one way, and as fedbench chooses layer by layer."""
    for name in given.names or ("W1", "W3"):
        for way in ("chosen", *LOWERINGS):
            chosen = workload(name, given)
            trainer = pick_trainer(chosen, CAPTURED)
            layers = lowerings.layers(chosen.task, chosen.protocol.local.batch_size)
            for layer, *_ in () if way == "chosen" else layers:
                chosen.task.set_lowering(layer, way)
            yield {"workload": name, "way": way, **step_of(chosen, {"ms": trainer})}


def capture(given: argparse.Namespace) -> Iterator[Line]:
    """Milliseconds a client-step launched one by one, and replayed."""
    for name in given.names or ("W1", "W2", "W3", "W4"):
        chosen = workload(name, given)
        ways = {"eager": pick_trainer(chosen, EAGER), "captured": pick_trainer(chosen, CAPTURED)}
        found = step_of(chosen, ways)
        yield {"workload": name, **found, "ratio": round(found["eager"] / found["captured"], 2)}


def workload(name: str, given: argparse.Namespace) -> Setup:
    """The benchmark's workload, small on a CPU."""
    return timing.WORKLOADS[name].setup(torch.device(given.device), quick=small(given))


def step_of(chosen: Setup, trainers: Mapping[str, Any]) -> Line:
    """Median milliseconds of a client-step, rounds of all taking turns; the first warm up and are captured."""
    device = chosen.federation.device
    contestants = timing.contestants(chosen, trainers)
    taken: dict[str, list[float]] = {name: [] for name in trainers}
    for repeat in range(WARM + REPEATS if device.type == "cuda" else 1):
        for name in trainers:
            seconds, steps = timing.timed(contestants[name](repeat), device)
            taken[name].append(1000 * seconds / steps)
    return {name: round(statistics.median(each[WARM:] or each), 4) for name, each in taken.items()}


def small(given: argparse.Namespace) -> bool:
    """Whether to do what a CPU does in minutes: a trial of this script."""
    return given.device == "cpu"


PARTS = {each.__name__: each for each in (engines, bench, tables, seeds, convolutions, capture)}


def main() -> int:
    """Run the parts one after the other until the time is over; 1 if a line says that something is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", default=list(PARTS), help=", ".join(PARTS))
    parser.add_argument("--names", nargs="+", default=[], help="only these presets, workloads or rows")
    parser.add_argument("--minutes", type=float, default=9.0, help="for all parts together")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--out", type=Path, default=Path("gpu-check"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 60 * given.minutes)
    wrong = 0
    try:
        for part in given.parts:
            with (given.out / f"{part}.jsonl").open("a", encoding="utf-8", buffering=1) as file:
                for line in PARTS[part](given):
                    print(part, text := json.dumps(line), flush=True)
                    print(text, file=file)
                    wrong += line.get("wrong", False)
    except KeyboardInterrupt:
        print("the time is over", flush=True)
    print(f"{wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
