"""SCALE: time and memory of a round against the number of clients and the cohort.

Every case runs in a process of its own, so that one's memory is not another's. Results go to OUT/scale/MACHINE.json,
with a table and a figure beside it.
"""

from __future__ import annotations

import multiprocessing
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import scale_cases
from benchmarks.scale_render import figure, markdown
from fedbench.core.files import replacing, write_json, write_text

CLIENTS = (100, 1000, 10_000, 100_000, 1_000_000)  # stateless, a cohort of 100
COHORTS = (10, 30, 100, 300)  # of 100,000 clients
STATEFUL = (100, 1000, 10_000)  # a cohort of 100


def run(header: dict[str, Any], out: Path, *, quick: bool) -> None:
    """All cases, stored as they come; `quick`: no more than 10,000 clients."""
    device = header["device"]
    clients = [n for n in CLIENTS if not quick or n <= 10_000]
    cohorts = [(min(clients[-1], 100_000), each) for each in COHORTS]
    result: dict[str, Any] = dict(header) | {"by_clients": [], "by_cohort": [], "stateful": []}
    folder = out / "scale"
    for n in clients:
        take(result, folder, "by_clients", scale_cases.rounds, n, 100, "fedavg", "auto", device)
    for n, cohort in cohorts:
        take(result, folder, "by_cohort", scale_cases.rounds, n, cohort, "fedavg", "auto", device)
    for n in STATEFUL[: 2 if quick else None]:
        for kind in ("device", "file"):
            take(result, folder, "stateful", scale_cases.rounds, n, 100, "ditto", kind, device)


def take(
    result: dict[str, Any], folder: Path, part: str, case: Callable[..., dict[str, Any]], *given: Any
) -> None:
    """Run a case, add its row to `part` and store everything so far."""
    load = os.getloadavg()[0]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        row = pool.apply(case, given) | {"load_before": round(load, 2)}
    print(part, row, flush=True)
    result[part].append(row)
    name = re.sub(r"[^a-z0-9]+", "-", f"{result['machine']} {result['device']}".lower()).strip("-")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{name}.json", result)
    write_text(folder / f"{name}.md", markdown(result))
    if result["by_cohort"]:
        with replacing(folder / f"{name}.svg") as temporary:
            figure(result).savefig(temporary, format="svg", bbox_inches="tight", metadata={"Date": None})
