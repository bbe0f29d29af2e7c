"""FedCollab on its authors' partition, client by client beside the history that they publish.

    python scripts/by_client.py [--out results/clients] [--redraw] [--set KEY=VALUE ...]

Reads the finished runs of fedcollab_t1 and fedcollab_t3 with partition=fedcollab_label_shift_seed0 and trains nothing;
to make them: make reproduce-fedcollab-t1 partition=fedcollab_label_shift_seed0 columns=1 rows=1,2,3. The numbers go to
OUT/fedcollab.npz, the comparison to OUT/fedcollab.md; --redraw writes that again from the numbers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedbench.config.compose import compose
from fedbench.core.files import as_npz, write_bytes, write_text
from fedbench.core.sealed import Sealed
from fedbench.results.run_files import CLIENTS, ROUNDS, files_of, numeric_rows
from fedbench.runs.config import resolve
from fedbench.runs.places import folder_of
from fedbench.tables import spec
from fedbench.tables.render.by_client import LABELS, PARTITION, Arrays, text

TABLES = ("fedcollab_t1", "fedcollab_t3")


def collect(changes: Sequence[str]) -> Arrays:
    """What the finished runs of each row hold; see `Arrays`."""
    found = {}
    for table in map(spec.load, TABLES):
        rows = {row.label: row for row in table.rows}
        for key in (key for key, label in LABELS.items() if label in rows):
            chosen = [
                *table.base,
                *table.columns[0].overrides,
                *rows[LABELS[key]].overrides,
                PARTITION,
                *changes,
            ]
            runs = {
                seed: folder_of(resolve(compose([*chosen, f"seed={seed}"]))) for seed in range(table.seeds)
            }
            done = {seed: files_of(run.path) for seed, run in runs.items() if run.status() == "finished"}
            if done:
                found[f"{key} seeds"] = np.array(list(done), dtype=np.float64)
                found[f"{key} clients"] = np.array([column(each, CLIENTS, "acc") for each in done.values()])
                curves = [column(each, ROUNDS, "acc_on_local") for each in done.values()]
                found[f"{key} rounds"] = np.array(curves)[:, 1:]  # the first line is before round 1
    return found


def column(files: Sealed, name: str, key: str) -> list[float]:
    """A column of one of a run's files."""
    return [float(line[key]) for line in numeric_rows(files, name, key)]


def main(given: Sequence[str] | None = None) -> int:
    """Write the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("results/clients"))
    parser.add_argument("--redraw", action="store_true", help="from OUT/fedcollab.npz, without any run")
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="KEY=VALUE", help="overrides, as runs_dir=DIR"
    )
    asked = parser.parse_args(given)
    numbers = asked.out / "fedcollab.npz"
    if not asked.redraw:
        if not (found := collect(asked.set)):
            parser.error(
                f"no finished run; first: make reproduce-fedcollab-t1 {PARTITION} columns=1 rows=1,2,3"
            )
        asked.out.mkdir(parents=True, exist_ok=True)
        write_bytes(numbers, as_npz(found))
    elif not numbers.is_file():
        parser.error(f"{numbers} is not there; run this without --redraw")
    with np.load(numbers) as stored:
        write_text(asked.out / "fedcollab.md", text(dict(stored)))
    print(asked.out / "fedcollab.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
