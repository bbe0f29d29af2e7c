"""FedCollab on its authors' partition, client by client beside the history that they publish.

    python scripts/by_client.py [RESULTS]

Reads the filled tables fedcollab_t1 and fedcollab_t3 with partition=fedcollab_label_shift_seed0 below RESULTS (default:
results) and writes RESULTS/clients/fedcollab.md. Nothing is trained.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedbench.core.files import write_text
from fedbench.tables import store
from fedbench.tables.render.by_client import LABELS, PARTITION, Arrays, text
from fedbench.tables.result import Circumstances

TABLES = ("fedcollab_t1", "fedcollab_t3")
COLUMN = "Label shift"
SEEDS = 100  # looked for


def collect(results: Path) -> Arrays:
    """What the tables hold of each row; see `Arrays`."""
    found = {}
    for table in TABLES:
        folder = store.folder_of(results, table, Circumstances(varied=(PARTITION,)))
        clients, points = store.load_clients(folder), store.load_curves(folder)
        for key, label in LABELS.items():
            seeds = [seed for seed in range(SEEDS) if store.place_of(label, COLUMN, seed) in clients]
            if not seeds:
                continue
            curves = [curve(points, label, seed) for seed in seeds]
            found[f"{key} seeds"] = np.array(seeds, dtype=np.float64)
            accuracies = [clients[store.place_of(label, COLUMN, seed)] for seed in seeds]
            found[f"{key} clients"] = np.array(accuracies, dtype=np.float64)
            found[f"{key} rounds"] = np.array([list(each.values()) for each in curves])
            found["rounds"] = np.array(list(curves[0]), dtype=np.float64)
    return found


def curve(points: Sequence[Mapping[str, str]], label: str, seed: int) -> dict[int, float]:
    """Round -> mean accuracy of a run, of the rounds that are kept but that before the first."""
    own = [
        point
        for point in points
        if (point["row"], point["column"], point["seed"]) == (label, COLUMN, str(seed))
    ]
    return {int(point["round"]): float(point["acc_on_local"]) for point in own if point["round"] != "0"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the comparison; returns the exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    results = Path(given[0] if given else "results")
    if not (found := collect(results)):
        print(
            f"no filled table of {PARTITION} below {results}; first: make reproduce-fedcollab-t1 {PARTITION} "
            "columns=1 rows=1,2,3",
            file=sys.stderr,
        )
        return 2
    page = results / "clients" / "fedcollab.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    write_text(page, text(found))
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
