"""Try the properties of tests/properties with ever new examples: `make fuzz MINUTES=60`.

    python scripts/fuzz.py [--minutes 60] [--seed 0] [--out results/reliability]

Round after round runs all of them with Hypothesis's profile `many` and the next seed, in a process whose memory and
time are bounded, until the time is over. OUT/fuzz.json holds what each test was tried with, OUT/fuzz.md says it in a
table, OUT/fuzz-failures.txt what pytest said of a failure; all are written after each round.
"""

from __future__ import annotations

import argparse
import base64
import itertools
import resource
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedbench.core.files import write_json, write_text
from fedbench.core.version import __version__
from fedbench.results.environment import source_commit

ROOT = Path(__file__).resolve().parents[1]
MEMORY = 16 * 2**30  # bytes of address space; importing torch takes a few
PATIENCE = 3600  # seconds for a round; longer is a hang
STATISTICS = "hypothesis-statistics-"


@dataclass
class Outcome:
    """What happened to one test so far."""

    examples: Counter[str] = field(default_factory=Counter)  # passing, failing, invalid
    failed: list[int] = field(default_factory=list)  # seeds


def main(arguments: list[str]) -> int:
    """Run rounds until the time is over; returns 1 if anything failed."""
    parser = argparse.ArgumentParser(description="Try the properties with ever new examples.")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0, help="of the first round")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "reliability")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Outcome] = {}
    commit, altered = source_commit()
    began, seed = time.monotonic(), given.seed
    while (spent := time.monotonic() - began) < 60 * given.minutes:
        said = round_of(seed, found)
        if said:
            with (given.out / "fuzz-failures.txt").open("a", encoding="utf-8") as file:
                file.write(f"seed {seed}\n{said}\n")
        seed, spent = seed + 1, time.monotonic() - began
        summary = {
            "commit": commit[:12] + (" with changes" if altered else ""),
            "version": __version__,
            "seeds": [given.seed, seed - 1],
            "minutes": round(spent / 60, 1),
            "tests": {
                name: {**outcome.examples, "failed_with_seeds": outcome.failed}
                for name, outcome in sorted(found.items())
            },
        }
        write_json(given.out / "fuzz.json", summary)
        write_text(given.out / "fuzz.md", markdown(summary))
    return int(any(outcome.failed for outcome in found.values()))


def round_of(seed: int, found: dict[str, Outcome]) -> str:
    """All properties with the examples of `seed`, added to `found`; what pytest said if something failed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = ["--hypothesis-profile=many", f"--hypothesis-seed={seed}", f"--junitxml={report}"]
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            *options,
            "tests/properties",
        ]
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                preexec_fn=bounded,
                check=False,
            )
        except subprocess.TimeoutExpired:
            found.setdefault("(the whole round)", Outcome()).failed.append(seed)
            return f"no end after {PATIENCE} seconds"
        if not report.is_file():  # the process itself ended
            found.setdefault("(the whole round)", Outcome()).failed.append(seed)
            return done.stdout[-20_000:] + done.stderr[-5_000:]
        add(ET.parse(report).getroot(), seed, found)
    return done.stdout[-20_000:] if done.returncode else ""


def bounded() -> None:
    """Called in the new process."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def add(report: ET.Element, seed: int, found: dict[str, Outcome]) -> None:
    """Count a round's examples, from what Hypothesis says beside each test, and its failures."""
    for case in report.iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
            found.setdefault(name, Outcome()).failed.append(seed)
    for each in report.iter("property"):
        if each.get("name", "").startswith(STATISTICS):
            name = each.get("name", "").removeprefix(STATISTICS).rpartition("/")[2].replace(".py", "")
            outcome = found.setdefault(name, Outcome())
            for words in base64.b64decode(each.get("value", "")).decode().splitlines():
                outcome.examples += counted(words)


def counted(line: str) -> Counter[str]:
    """`- during generate phase (0.1 seconds): ..., 20 passing, 0 failing, and 3 invalid ...` as numbers."""
    words = line.replace(",", " ").split()
    kinds = ("passing", "failing", "invalid")
    return Counter({kind: int(n) for n, kind in itertools.pairwise(words) if kind in kinds and n.isdigit()})


def markdown(summary: dict[str, Any]) -> str:
    """The summary as a page."""
    tests = summary["tests"]
    tried = sum(each.get("passing", 0) + each.get("failing", 0) for each in tests.values())
    failed = sum(bool(each["failed_with_seeds"]) for each in tests.values())
    first, last = summary["seeds"]
    said = (
        f"{len(tests)} tests, {tried:,} examples, {failed} failed; {summary['minutes']} minutes on one core, seeds "
        f"{first} to {last}, commit {summary['commit']} (`make fuzz`). Invalid: drawn, but not what the test is about."
    )
    lines = ["# Properties tried with made-up examples\n", f"{said}\n"]
    lines += ["| test | examples | invalid | failed |", "|---|---|---|---|"]
    for name, each in tests.items():
        examples = each.get("passing", 0) + each.get("failing", 0)
        seeds = ", ".join(map(str, each["failed_with_seeds"]))
        lines.append(
            f"| {name} | {examples:,} | {each.get('invalid', 0):,} | {f'with seeds {seeds}' if seeds else 'no'} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
