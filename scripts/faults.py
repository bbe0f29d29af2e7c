"""Count what the tests of wrong values and of damaged files try.

    python scripts/faults.py [--out results/reliability]

Runs the tests that put hostile values into every field of every preset, and those that damage every file that is read
back at many places, and writes what they counted to OUT/faults.md. It is printed too. A value that is accepted outside
its field's domain, or a damaged file that gives another number, fails its test; so does this command, then.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

from fedbench.core.files import write_text

ROOT = Path(__file__).resolve().parents[1]
VALUES = "tests/config/test_domains.py::test_no_preset_takes_a_value_outside_its_domain"
DAMAGES = {  # test -> what its files are
    "tests/results/test_damaged_runs.py::test_a_run_gives_its_own_numbers_or_none": "a run's",
    "tests/results/test_checkpoint.py::test_a_flipped_bit_is_noticed_wherever_it_is": "a run's, under way",
    "tests/tables/test_damaged_tables.py::test_a_table_gives_its_own_numbers_or_none": "a table's",
    "tests/figures/test_damaged_figures.py::test_a_figure_gives_its_own_numbers_or_none": "a figure's",
    "tests/core/test_damaged_caches.py::test_prepared_arrays_heal": "prepared data's",
}
ENDS = ("refused", "healed", "no difference")


def main(arguments: list[str]) -> int:
    """Run the tests, write and print the counts; returns 1 if a test failed."""
    parser = argparse.ArgumentParser(
        description="Count what the tests of wrong values and damaged files try."
    )
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "reliability")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        command += ["-o", "junit_family=legacy"]  # which keeps what a test records
        done = subprocess.run(
            [*command, VALUES, *DAMAGES], cwd=ROOT, capture_output=True, text=True, check=False
        )
        if done.returncode:
            print(done.stdout[-3000:], done.stderr[-3000:], file=sys.stderr)
            return 1
        text = markdown([counts(case) for case in ET.parse(report).iter("testcase")])
    given.out.mkdir(parents=True, exist_ok=True)
    write_text(given.out / "faults.md", text)
    print(text)
    return 0


def counts(case: ET.Element) -> dict[str, str]:
    """What a test recorded, and its name."""
    found = {each.attrib["name"]: each.attrib["value"] for each in case.iter("property")}
    return {**found, "test": case.attrib["name"].partition("[")[0]}


def markdown(cases: list[dict[str, str]]) -> str:
    """The counts as a page."""
    values = [case for case in cases if "values" in case]
    fields, tried = (sum(int(case[name]) for case in values) for name in ("fields", "values"))
    hostile = "nan, inf, -inf, -1, 0, 10^30, 1e308 and a word in every field of every preset"
    lines = [
        "# Wrong values and damaged files",
        "",
        "Written by `python scripts/faults.py`, which runs the tests that count.",
        "",
        f"{hostile}: {len(values)} presets, {fields:,} fields, {tried:,} values, 0 accepted outside their domain.",
        "",
        "| file | tried | refused | made again | no difference | another number |",
        "|---|---|---|---|---|---|",
    ]
    total: Counter[str] = Counter()
    named = {test.rpartition("::")[2]: kind for test, kind in DAMAGES.items()}
    for case in cases:
        if "file" in case:
            ends = Counter({name: int(case.get(name, 0)) for name in ENDS})
            total += ends
            lines.append(row(f"{named[case['test']]} {case['file']}", ends))
    return "\n".join([*lines, row("all", total), ""])


def row(name: str, ends: Counter[str]) -> str:
    """A line of the table."""
    return f"| {name} | {ends.total()} | {' | '.join(str(ends[end]) for end in ENDS)} | 0 |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
