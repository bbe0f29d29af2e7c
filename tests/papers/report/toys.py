"""Filled tables to look at: one with every kind of verdict, one with labels that try to become HTML."""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from fedbench.papers import spec, store
from fedbench.papers.store import Cell, Provenance, TableResult

TAG = "<b>bold</b><img src=x onerror=\"document.title='owned'\">"
CLOSE = "</script><script>document.title='owned'</script>"


def judged_table() -> TableResult:
    """FedCollab's Table 1, three rows: equivalent, above, below, without verdict, alone and missing all occur."""
    table = spec.load_spec("fedcollab_t1").only(rows=["Local", "FedAvg", "FedProx"], columns=["1", "3"])
    shift = {"Local": 0.0, "FedAvg": 5.0, "FedProx": -5.0}
    last = table.columns[-1].label
    cells = []
    for row in table.rows:
        for column in table.columns:
            for metric in table.metrics:
                published = table.published(row, column, metric)
                mean = (published.mean if published else 50.0) + shift[row.label]
                values: tuple[float, ...] = (mean - 0.1, mean, mean + 0.1)
                if metric.name == "rsd":
                    values = (mean, math.nan, mean)
                keys = tuple(f"{row.label}{seed}" for seed in range(3))
                cell = Cell(row.label, column.label, metric.name, values, (0, 1, 2), keys, published)
                if column.label == last:
                    reason = "not run: data missing (get it)"
                    cell = Cell(row.label, last, metric.name, published=published, reason=reason)
                cells.append(cell)
    made = Provenance(machine="here", commit="abc", date="2026-01-01", seconds=60.0)
    return TableResult(table, tuple(cells), made, {table.columns[0].label: 20})


def hostile_table() -> TableResult:
    """A table of our own whose labels and overrides are HTML."""
    table = spec.parse_spec(
        {
            "name": "hostile",
            "title": f"Title {TAG}",
            "paper": "",
            "table": "",
            "notes": [CLOSE],
            "metrics": [{"name": "acc", "label": TAG}],
            "columns": [{"label": CLOSE, "group": TAG, "overrides": ["dataset=digits", f"x={TAG}"]}],
            "rows": [{"label": TAG, "overrides": [f"method={CLOSE}"]}],
        }
    )
    cell = Cell(TAG, CLOSE, "acc", (50.0,), (0,), (CLOSE,), reason=f"seed 1: {TAG}")
    return TableResult(table, (cell,), Provenance(machine=TAG))


def points(row: str, column: str) -> list[dict[str, object]]:
    """Two seeds, two rounds."""
    return [
        {"row": row, "column": column, "seed": seed, "round": number, "acc_on_local": 10.0 * number + seed}
        for seed in (0, 1)
        for number in (1, 2)
    ]


def run(row: str, seed: int, **more: object) -> dict[str, object]:
    """A result row as rows.csv has it: 2 rounds, 1.5 seconds, 3 MB."""
    made = {"row": row, "key": f"{row}{seed}", "seed": seed, "rounds": 2, "seconds_total": 1.5}
    sent = {"bytes_up": 1e6, "bytes_down": 2e6, "test_set": "local", "average": "client"}
    return {**made, **sent, "local_key": f"Local{seed}", "partition_hash": f"hash{seed}", **more}


def stored(root: Path) -> Path:
    """Both tables on disk below `root`, with curves, matrices and clients."""
    judged, hostile = judged_table(), hostile_table()
    label = judged.spec.columns[0].label
    folder = root / "tables" / "fedcollab_t1"
    runs = [run(row, seed, column=label, clients=20) for row in ("Local", "FedAvg", "FedProx") for seed in (0, 1)]
    runs[-1]["partition_hash"] = "another"
    curves = [curve for row in ("Local", "FedAvg") for curve in points(row, label)]
    W = np.kron(np.eye(2), np.full((2, 2), 0.5))[:, [0, 2, 1, 3]][[0, 2, 1, 3]]
    clients = {"Local": [50.0, 60.0, 70.0, 80.0], "FedAvg": [55.0, 60.0, 68.0, 90.0], "FedProx": [1.0] * 4}
    scores = {f"{row}|{label}|{s}": np.array(each) + s for row, each in clients.items() for s in (0, 1)}
    store.save_table(folder, judged, runs, curves, {f"FedAvg|{label}|0": W}, scores)
    (folder / "table.md").write_text("# here")
    other = root / "tables" / "hostile"
    store.save_table(other, hostile, [], points(TAG, CLOSE), {f"{TAG}|{CLOSE}|0": np.eye(2)})
    return root


def drawn(file: Path, folder: str = "fedcollab_t1") -> tuple[str, dict[str, Any]]:
    """The HTML of a table, as the page at `file` shows it when it is opened, and what its script knows of it."""
    text = file.read_text(encoding="utf-8")
    (found,) = re.findall(
        rf'<script type="application/octet-stream" id="{re.escape(folder)}-drawn">(.*?)</script>', text
    )
    packed = json.loads(gzip.decompress(base64.b64decode(found)))
    return packed["html"], packed["content"]
