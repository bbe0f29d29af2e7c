"""How fast fedbench trains, as ratios taken in one process on one machine.

    python scripts/bench.py [--only W1 W2 ...] [--quick] [--device auto] [--repeats 3] [--out runs/bench]
    python scripts/bench.py --rivals [--only W1 W2] ...

W1-W4 are rounds of local training (scripts/benchmarks/workloads.py): each engine, a plain PyTorch loop and one model on
the merged batches take turns, several times over, and medians are compared. Before anything is timed every engine's
result is compared with the plain loop's. W5 is the server side alone, W6 five seeds as one program. Results go to
OUT/MACHINE.json. PROFILE and PHASES tell where the time of a round goes, by operator and by phase.

With --rivals, pfl and Flower train W1 and W2 instead, each in an environment of its own that is made once
(scripts/benchmarks/rivals.py). `--only SCALE` measures rounds against N and the cohort
(scripts/benchmarks/scale.py).
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one thread a process; before torch is imported

import torch
from benchmarks import cores, hotspots, phases, rivals, rounds, scale, seeds, server
from benchmarks.printed import show
from benchmarks.render import markdown
from benchmarks.workloads import WORKLOADS

from fedbench.core.files import write_json
from fedbench.engine.hardware import set_precision
from fedbench.runs.environment import machine, versions

Result = dict[str, Any]


def main() -> int:
    """Run the chosen parts, print and store what came out."""
    given = arguments()
    torch.set_num_threads(1)
    set_precision(tf32=False)  # for everyone alike
    circumstances: Result = {
        "machine": machine(),
        "device": given.device,
        "date": dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%d"),
        "load_before": os.getloadavg()[0],
        **versions(),
    }
    if SCALE in given.only:
        scale.run(circumstances, given.out, quick=given.quick)
    result = circumstances | earlier(circumstances, given.out)
    parts = dict.fromkeys(rivals.COMPARED, against_rivals) if given.rivals else PARTS
    for name in [name for name in given.only if name in parts]:
        print(f"{name}: {WORKLOADS[name].what if name in WORKLOADS else parts[name].__doc__}", flush=True)
        parts[name](name, result, given)
        store(result, given.out)
    show(result)
    return 0


def arguments() -> argparse.Namespace:
    """The command line; `device` resolved."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=[*PARTS, SCALE], default=list(PARTS))
    parser.add_argument(
        "--quick", action="store_true", help="fewer clients a round where a CPU takes minutes"
    )
    parser.add_argument(
        "--rivals", action="store_true", help="compare with pfl and Flower instead (downloads gigabytes once)"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    given = parser.parse_args()
    if given.device == "auto":
        given.device = "cuda" if torch.cuda.is_available() else "cpu"
    return given


def local_training(name: str, result: Result, given: argparse.Namespace) -> None:
    """Rounds of local training."""
    row = rounds.run(WORKLOADS[name], torch.device(given.device), given.repeats, quick=given.quick)
    if given.device == "cpu":
        row["two_processes"] = cores.scaling(name, 2, given.repeats)
        row["workers_start"] = cores.start_seconds(name)
    put(result, "rounds", row)


def server_side(_name: str, result: Result, given: argparse.Namespace) -> None:
    """The server side."""
    result["server"] = server.run((20, 100, 1000), torch.device(given.device))
    result["discriminators"] = server.discriminators(given.device)
    result |= {f"server_{key}": result[key] for key in ("load_before", "commit")}


def together(_name: str, result: Result, given: argparse.Namespace) -> None:
    """Five seeds as one program."""
    found = seeds.run(WORKLOADS["W1"], torch.device(given.device), given.repeats, quick=given.quick)
    result["seeds"] = found | {key: result[key] for key in ("load_before", "commit", "date")}


def profiled(_name: str, result: Result, given: argparse.Namespace) -> None:
    """Where the time of a round goes."""
    result["profile"] = [hotspots.run(WORKLOADS[name], torch.device(given.device)) for name in ("W1", "W2")]


def phased(_name: str, result: Result, given: argparse.Namespace) -> None:
    """Shares of local work, server and evaluation at the papers' protocols."""
    images = phases.images()
    if not images.ready:
        print(f"left out, as Fashion-MNIST is not here: {images.how}")
        return
    found: list[Result] = []
    result["phases"] = {"cases": found, **{key: result[key] for key in ("load_before", "commit", "date")}}
    for name in phases.CASES:
        found.append(phases.run(name, given.device))
        store(result, given.out)


def against_rivals(name: str, result: Result, given: argparse.Namespace) -> None:
    """The same work by pfl and Flower."""
    put(result, "rivals", rivals.compare(name, torch.device(given.device), given.repeats))


SCALE = "SCALE"
PARTS: dict[str, Callable[[str, Result, argparse.Namespace], None]] = {
    **dict.fromkeys(WORKLOADS, local_training),
    "W5": server_side,
    "W6": together,
    "PROFILE": profiled,
    "PHASES": phased,
}
KEPT = (  # what one part run again leaves in place
    "rounds",
    "server",
    "discriminators",
    "server_load_before",
    "server_commit",
    "seeds",
    "profile",
    "phases",
    "rivals",
)


def put(result: Result, key: str, row: Result) -> None:
    """Put a workload's row, with its circumstances, in the place of its earlier one."""
    row |= {key: result[key] for key in ("load_before", "commit", "date")}
    others = [each for each in result.get(key, []) if each["workload"] != row["workload"]]
    result[key] = sorted([*others, row], key=lambda each: str(each["workload"]))


def place(result: dict[str, Any], out: Path) -> Path:
    """The file of this machine and device."""
    name = re.sub(r"[^a-z0-9]+", "-", f"{result['machine']} {result['device']}".lower()).strip("-")
    return out / f"{name}.json"


def earlier(result: dict[str, Any], out: Path) -> dict[str, Any]:
    """What this machine's file holds of workloads run before, so that one can be run again alone."""
    path = place(result, out)
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {"rounds": [], **{key: kept[key] for key in KEPT if key in kept}}


def store(result: dict[str, Any], out: Path) -> None:
    """Write what there is so far, and its table beside it."""
    out.mkdir(parents=True, exist_ok=True)
    path = place(result, out)
    write_json(path, result)
    path.with_suffix(".md").write_text(markdown(result), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
