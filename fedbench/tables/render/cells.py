"""A table as CSV: one line a cell, everything about it."""

from __future__ import annotations

import csv
import io

from fedbench.tables.render.grid import Layout
from fedbench.tables.result import TableResult

COLUMNS = (
    "row",
    "column",
    "metric",
    "mean",
    "std",
    "n",
    "seeds",
    "values",
    "published_mean",
    "published_std",
    "difference",
    "verdict",
    "reason",
    "keys",
)


def render(table: TableResult) -> str:
    """The lines, with a header; numbers with all their digits, lists separated by spaces."""
    layout, out = Layout(table), io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in table.spec.rows:
        for column in table.spec.columns:
            for metric in table.spec.metrics:
                cell = table.cell(row.label, column.label, metric.name)
                judged = layout.text(row, column, metric).verdict
                published = cell.published
                line = {
                    "row": row.label,
                    "column": column.label,
                    "metric": metric.name,
                    "mean": repr(cell.mean),
                    "std": repr(cell.std),
                    "n": len(cell.values),
                    "seeds": " ".join(map(str, cell.seeds)),
                    "values": " ".join(map(repr, cell.values)),
                    "published_mean": "" if published is None else f"{published.bound}{published.mean}",
                    "published_std": "" if published is None or published.std is None else published.std,
                    "difference": repr(judged.difference),
                    "verdict": judged.text,
                    "reason": cell.reason,
                    "keys": " ".join(cell.keys),
                }
                writer.writerow(line)
    return out.getvalue()
