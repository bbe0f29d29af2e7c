"""Note that today's code gives the numbers of an earlier commit's, so that what that commit made is not marked.

    python scripts/same_numbers.py COMMIT "why the numbers are the same"

Compares the hashes of every method, model, partition and the engine at COMMIT with today's and appends a line to
fedbench/runs/same_numbers.csv for each that differs. Say so only of a change that moves or renames code, or that tests
hold to the bit; the reason is read by whoever doubts a number.
"""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from fedbench.runs.fingerprint import SAME_NUMBERS

ROOT = Path(__file__).resolve().parents[1]
HASHES = """
import json, sys
from fedbench.config.compose import compose
from fedbench.config.groups import conf_dir
from fedbench.runs import fingerprint
from fedbench.runs.config import resolve
fingerprint.SAME_NUMBERS = fingerprint.Path(sys.argv[1])
found = {}
for group in ("method", "model", "partition"):
    for file in sorted((conf_dir() / group).glob("*.yaml")):
        extra = ["partition.path=x.npz"] if file.stem == "file" else []
        extra += ["method=local"] if group == "model" else []  # which takes clients of several kinds
        try:
            run = resolve(compose([f"{group}={file.stem}", *extra]))
        except Exception:  # a file of weights or indices that is not here
            continue
        for part in fingerprint.code_of(run).split():
            name, _, value = part.partition(":")
            if name in (group, "engine"):
                found[f"{name} {file.stem if name == group else ''}"] = value
print(json.dumps(found))
"""


def hashes(folder: Path) -> dict[str, str]:
    """Hash of each component of the source in `folder`, by "part name"; nothing is taken as equal."""
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as none:
        none.write("part,old,new,reason\n")
        none.flush()
        done = subprocess.run(
            [sys.executable, "-c", HASHES, none.name], cwd=folder, capture_output=True, text=True, check=True
        )
    return {str(key): str(value) for key, value in json.loads(done.stdout).items()}


def main(arguments: list[str]) -> int:
    """Append what differs; returns the exit code."""
    if len(arguments) != 2 or not arguments[1].strip():
        print(__doc__, file=sys.stderr)
        return 2
    commit, reason = arguments
    with tempfile.TemporaryDirectory() as earlier:
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(earlier, filter="data")
        old, new = hashes(Path(earlier)), hashes(ROOT)
    pairs = {(key.split()[0], old[key], new[key]) for key in old.keys() & new.keys() if old[key] != new[key]}
    with SAME_NUMBERS.open("a", encoding="utf-8", newline="") as handle:
        csv.writer(handle, lineterminator="\n").writerows((*pair, reason) for pair in sorted(pairs))
    print(f"{SAME_NUMBERS}: {len(pairs)} lines added")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
