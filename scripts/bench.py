"""How fast fedbench trains, as ratios taken in one process on one machine.

    python scripts/bench.py [--only W1 W2 ...] [--quick] [--device auto] [--repeats 3] [--out runs/bench]
    python scripts/bench.py --only FLOOR KERNELS PROCESSES TF32 [--steps FedSaC W1 ...] [--minutes 4]

W1-W4 are rounds of local training (scripts/benchmarks/rounds.py), W5 is the server side alone. PHASES tells where the
time of a run goes. Six have to be asked for: FLOOR measures a step of each paper against what the machine can do,
KERNELS what these steps have a GPU do, PROCESSES several runs at once on a GPU, TF32 a paper's cell in float32 and in
TF32, SCALE rounds against the number of clients and the cohort, MANY what clients cost besides training. Results go to
OUT/MACHINE.json with a page beside it, those of the last two to OUT/scale and OUT/many. The first four store each case
as soon as it is measured, and begin none after `--minutes`.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one thread a process; before torch is imported

import torch
from benchmarks import floor, precision, processes, rounds, scale, server
from benchmarks.render import markdown
from benchmarks.rounds import STEPS, WORKLOADS

from fedbench.core.files import as_json, write_bytes, write_text
from fedbench.engine.hardware import set_precision
from fedbench.runs.fingerprint import machine, versions

Result = dict[str, Any]
EachT = TypeVar("EachT")
ASKED = ("FLOOR", "KERNELS", "PROCESSES", "TF32", "SCALE", "MANY")  # parts that run only if they are asked for
OWN_PAGES = ("SCALE", "MANY")


def local_training(name: str, result: Result, given: argparse.Namespace) -> None:
    """Rounds of local training."""
    row = rounds.run(WORKLOADS[name], torch.device(given.device), given.repeats, quick=given.quick)
    if given.device == "cpu":
        row["two_processes"] = rounds.two_processes(name, given.repeats)
    put(result, "rounds", row)


def server_side(_name: str, result: Result, given: argparse.Namespace) -> None:
    """The server side."""
    sizes = (20, 100) if given.quick else (20, 100, 1000)
    result["server"] = [server.run(n, torch.device(given.device)) for n in sizes]
    result["discriminators"] = server.discriminators(given.device)
    result |= {f"server_{key}": result[key] for key in ("load_before", "commit")}


def floored(_name: str, result: Result, given: argparse.Namespace) -> None:
    """A step of each paper against the machine's rates."""
    device = torch.device(given.device)
    measured = floor.rates(device, quick=given.quick)
    for name in in_time(given.steps, given):
        row = floor.run(STEPS[name], device, measured, given.repeats, quick=given.quick)
        put(result, "floor", row | {"rates": measured})
        store(result, given.out)


def kernels(_name: str, result: Result, given: argparse.Namespace) -> None:
    """What the steps that FLOOR has timed launch on a GPU, and which kernels take the time."""
    rows = {row["workload"]: row for row in result.get("floor", []) if given.device != "cpu"}
    for name in in_time([each for each in given.steps if each in rows], given):
        for way, used in floor.profiles(STEPS[name], torch.device(given.device)).items():
            rows[name]["ways"][way] |= used
        store(result, given.out)


def several_runs(_name: str, result: Result, given: argparse.Namespace) -> None:
    """Runs at once in as many processes."""
    for name in in_time(processes.SETTINGS, given):
        for row in processes.run(name, given.device, given.repeats):
            put(result, "processes", row)
            store(result, given.out)


def both_precisions(_name: str, result: Result, given: argparse.Namespace) -> None:
    """A paper's cell in float32 and in TF32."""
    if given.device == "cpu" or (cell := precision.cell()) is None:
        print("left out: it takes a GPU, and data: python -m fedbench prepare cifar10")
        return
    earlier = next((row["pairs"] for row in result.get("tf32", []) if row["workload"] == cell), [])
    pairs: list[Result] = [*earlier]
    for seed in in_time(sorted({*range(precision.SEEDS)} - {each["seed"] for each in earlier}), given):
        pairs.append(precision.both(cell, seed, given.device))
        put(result, "tf32", {"workload": cell, "pairs": pairs})
        store(result, given.out)


def phased(_name: str, result: Result, given: argparse.Namespace) -> None:
    """Shares of local work, server and evaluation at the papers' protocols."""
    if not server.has_images():
        print("left out: python -m fedbench prepare fashion_mnist")
        return
    found: list[Result] = []
    result["phases"] = {"cases": found, **conditions(result)}
    for name in list(server.CASES)[: 1 if given.quick else None]:
        found.append(server.phases(name, given.device))
        store(result, given.out)


def at_scale(_name: str, result: Result, given: argparse.Namespace) -> None:
    """Rounds against the number of clients and the cohort."""
    for found in scale.run(given.device, quick=given.quick):
        keep(result, given.out / "scale", found, scale.markdown({**result, **found}))


def many_clients(_name: str, result: Result, given: argparse.Namespace) -> None:
    """What many clients cost besides training."""
    for found in scale.registries(quick=given.quick):
        keep(result, given.out / "many", {"rows": found}, scale.rows_table(found) + "\n")


def keep(result: Result, folder: Path, found: Result, page: str) -> None:
    """Write what a part has found so far into a folder of its own, and its page beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = place(result, folder)
    write_bytes(path, as_json({**conditions(result), "machine": result["machine"], **found}))
    write_text(path.with_suffix(".md"), page)


PARTS: dict[str, Callable[[str, Result, argparse.Namespace], None]] = {
    **dict.fromkeys(WORKLOADS, local_training),
    "W5": server_side,
    "PHASES": phased,
    "FLOOR": floored,
    "KERNELS": kernels,
    "PROCESSES": several_runs,
    "TF32": both_precisions,
    "SCALE": at_scale,
    "MANY": many_clients,
}


def in_time(each: Iterable[EachT], given: argparse.Namespace) -> Iterator[EachT]:
    """Yield one after the other, until the time that was given is over."""
    for one in each:
        if time.monotonic() > given.until:
            print(f"{given.minutes:g} minutes are over: left out from {one} on", flush=True)
            return
        yield one


def conditions(result: Result) -> Result:
    """What a part was measured under."""
    return {key: result[key] for key in ("load_before", "commit", "date")}


def put(result: Result, key: str, row: Result) -> None:
    """Put a workload's row, with its conditions, in the place of its earlier one."""
    others = [each for each in result.get(key, []) if each["workload"] != row["workload"]]
    result[key] = sorted([*others, row | conditions(result)], key=lambda each: str(each["workload"]))


def place(result: Result, out: Path) -> Path:
    """The file of this machine and device."""
    name = re.sub(r"[^a-z0-9]+", "-", f"{result['machine']} {result['device']}".lower()).strip("-")
    return out / f"{name}.json"


def begun(device: str, out: Path) -> Result:
    """What this machine's file holds of parts run before, so that one can be run again alone, under today's head."""
    now = {
        "machine": machine(),
        "device": device,
        "date": dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%d"),
        "load_before": os.getloadavg()[0],
        **versions(),
    }
    path = place(now, out)
    earlier = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {"rounds": [], **earlier, **now}


def store(result: Result, out: Path) -> None:
    """Write what there is so far, and its page beside it."""
    path = place(result, out)
    write_bytes(path, as_json(result))
    write_text(path.with_suffix(".md"), markdown(result))


def main() -> int:
    """Run the chosen parts, print and store what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = [name for name in PARTS if name not in ASKED]
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=default)
    parser.add_argument("--steps", nargs="+", choices=list(STEPS), default=list(STEPS), help="of FLOOR")
    parser.add_argument("--minutes", type=float, default=math.inf, help="after which no case begins")
    parser.add_argument("--quick", action="store_true", help="less, where a CPU takes minutes")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    given = parser.parse_args()
    given.until = time.monotonic() + 60 * given.minutes
    if given.device == "auto":
        given.device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)
    set_precision(tf32=False)  # for everyone alike
    given.out.mkdir(parents=True, exist_ok=True)
    result = begun(given.device, given.out)
    for name in given.only:
        print(f"{name}: {WORKLOADS[name].what if name in WORKLOADS else PARTS[name].__doc__}", flush=True)
        PARTS[name](name, result, given)
        if name not in OWN_PAGES:
            store(result, given.out)
    print(markdown(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
