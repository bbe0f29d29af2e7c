"""Which runs of a filled table have IPR and RSD against another result of Local than the one that the table shows.

A run is measured against the Local that lay beside it. Where that Local was gone and was run again for a later run, on
a machine that rounds otherwise, the table shows the new one under the same run key; what was measured before is told
by the accuracies of the clients (clients.npz), where they are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedbench.metrics import fairness
from fedbench.tables.store import place_of

LOCAL = "Local"  # why a cell is marked
TOLERANCE = 1e-3  # percentage points; accuracies are kept as float32
Arrays = Mapping[str, np.ndarray[Any, Any]]


def another_local(rows: Sequence[Mapping[str, Any]], clients: Arrays) -> frozenset[str]:
    """Keys of the runs in `rows` whose IPR or RSD is not that of their `clients` against the Local in `rows`."""
    kept = {row["key"]: clients.get(place_of(row["row"], row["column"], row["seed"])) for row in rows}
    found = set()
    for row in rows:
        own, local = kept[row["key"]], kept.get(row.get("local_key") or "")
        if own is None or local is None or not (row.get("ipr") and row.get("rsd")):
            continue
        fair = fairness(*(np.asarray(each, dtype=np.float64) / 100 for each in (own, local)))
        recorded = float(row["ipr"]), float(row["rsd"])
        if not np.allclose(recorded, (fair.ipr, fair.rsd), rtol=0, atol=TOLERANCE):
            found.add(str(row["key"]))
    return frozenset(found)
