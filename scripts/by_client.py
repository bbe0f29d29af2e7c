"""FedCollab on its authors' partition, client by client beside the history that they publish.

    python scripts/by_client.py [RESULTS]

Reads the filled tables fedcollab_t1 and fedcollab_t3 with partition=fedcollab_label_shift_seed0 below RESULTS (default:
results) and writes RESULTS/clients/fedcollab.md. Nothing is trained.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedbench.core.files import write_text
from fedbench.tables import store
from fedbench.tables.render.by_client import LABELS, PARTITION, Arrays, text

TABLES = ("fedcollab_t1", "fedcollab_t3")


def collect(results: Path) -> Arrays:
    """What the tables hold of each row; see `Arrays`."""
    found = {}
    for table in TABLES:
        folder = results / "tables" / f"{table}-{PARTITION}"
        clients, points = store.load_clients(folder), store.load_curves(folder)
        for key, label in LABELS.items():
            names = {name.split(store.SEPARATOR)[2]: name for name in clients if name.startswith(f"{label}|")}
            if not names:
                continue
            seeds = sorted(names, key=int)
            curves = [
                {
                    int(point["round"]): float(point["acc_on_local"])
                    for point in points
                    if _is(point, label, seed)
                }
                for seed in seeds
            ]
            found[f"{key} seeds"] = np.array(list(map(float, seeds)))
            found[f"{key} clients"] = np.array([clients[names[seed]] for seed in seeds], dtype=np.float64)
            found[f"{key} rounds"] = np.array([list(curve.values())[1:] for curve in curves])
            found["rounds"] = np.array(list(curves[0])[1:], dtype=np.float64)  # the first is before round 1
    return found


def _is(point: dict[str, str], label: str, seed: str) -> bool:
    return (point["row"], point["seed"]) == (label, seed)


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
