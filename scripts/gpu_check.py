"""All that is to be known of fedbench on this machine's GPU, within a given time.

    python scripts/gpu_check.py [--out gpu-check] [--minutes 25] [--device cuda] [--parts engines bench tables]

Three parts, each a process with a deadline, each writing what it finds as it comes: `engines` compares every method by
every engine with the CPU, `bench` runs scripts/bench.py, `tables` runs cells of FedCollab's and FedReMa's Table 1 at
full length. After each, OUT/report.md and OUT/report.json say what agrees and within what, ratios, what was left out
and why. A part that ends early leaves its time to the next; the same command goes on with the tables.

It runs from a checkout, or from a folder that `make gpu-bundle` made. On a CPU (`--device cpu`) the benchmark and the
tables are cut down to what minutes hold.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

from checks import machine, report
from checks.record import Deadline, Lines

SHARES = {"engines": 0.2, "bench": 0.5, "tables": 1.0}  # of the time that is left when a part begins
GRACE = 30.0  # seconds to save what is under way after the deadline
BENCH = ("W1", "W4", "W1C", "W2", "W3", "W6", "W5", "PHASES")  # the targets' workloads first
SCRIPTS = Path(__file__).resolve().parent


def main() -> int:
    """Run the parts one after the other; 0 if none found anything wrong."""
    given = arguments()
    if given.inside:
        return inside(given)
    given.out = given.out.resolve()
    given.out.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **machine.from_bundle(), "PYTHONUNBUFFERED": "1"}
    whole, ended = Deadline(60 * given.minutes), {}
    for part in given.parts:
        last = part == given.parts[-1]
        seconds = whole.left * (1.0 if last else SHARES[part])
        print(f"== {part}: {seconds / 60:.1f} minutes", flush=True)
        ended[part] = supervise(command(part, seconds, given), environment, seconds)
        wrong = report.write(given.out, ended, given.minutes)
    print(f"report: {given.out / 'report.md'}")
    return int(wrong)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("gpu-check"))
    parser.add_argument("--minutes", type=float, default=25.0, help="for all parts together")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--parts", nargs="+", choices=list(SHARES), default=list(SHARES))
    parser.add_argument("--inside", choices=list(SHARES), help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=0.0, help=argparse.SUPPRESS)
    return parser.parse_args()


def command(part: str, seconds: float, given: argparse.Namespace) -> list[str]:
    """The process that is a part."""
    if part == "bench":
        out = ["--out", str(given.out / "bench"), "--device", given.device]
        chosen = BENCH if given.device == "cuda" else ["W2", "W1", "--quick", "--repeats", "1"]
        return [sys.executable, str(SCRIPTS / "bench.py"), *out, "--only", *chosen]
    here = ["--out", str(given.out), "--device", given.device]
    return [sys.executable, __file__, "--inside", part, "--seconds", str(seconds), *here]


def supervise(words: list[str], environment: dict[str, str], seconds: float) -> dict[str, object]:
    """Run a part until its deadline, then ask it to save, then end it: how it ended."""
    begin = time.monotonic()
    process = subprocess.Popen(words, env=environment)
    try:
        code, why = process.wait(max(1.0, seconds)), ""
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        try:
            code, why = process.wait(GRACE), "deadline"
        except subprocess.TimeoutExpired:
            process.kill()
            code, why = process.wait(), "deadline; it did not end by itself"
    return {"code": code, "why": why or f"exit {code}", "seconds": round(time.monotonic() - begin, 1)}


def inside(given: argparse.Namespace) -> int:
    """One part, in a process that has its packages."""
    import torch

    from fedbench.core.signals import Stopped
    from fedbench.runs.environment import machine as named
    from fedbench.runs.environment import versions

    torch.set_num_threads(1)
    gpu = given.device == "cuda"
    device = torch.device(given.device)
    about = {
        "machine": named(),
        "device": torch.cuda.get_device_name() if gpu else "cpu",
        "cuda": torch.version.cuda if gpu else "",
        "cudnn": torch.backends.cudnn.version() if gpu else "",
        "system": platform.platform(),
        "lacking": machine.lacking(),
        **versions(),
    }
    (given.out / "machine.json").write_text(json.dumps(about, indent=1), encoding="utf-8")
    deadline, lines = Deadline(given.seconds), Lines(given.out / f"{given.inside}.jsonl")
    if given.inside == "engines":
        from checks import engines

        lines.path.unlink(missing_ok=True)
        engines.run(device, deadline, lines)
        return 0
    from checks import cells

    try:
        cells.run(given.device, "paper" if gpu else "smoke", deadline, lines)
    except Stopped as stop:
        lines.add(stopped=stop.where)
    return 0


if __name__ == "__main__":
    sys.exit(main())
