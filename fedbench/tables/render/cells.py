"""A table as CSV: one line a cell, everything about it."""

from __future__ import annotations

import csv
import io
import math

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
    "low",
    "high",
    "effect",
    "margin",
    "verdict",
    "seeds_needed",
    "exploratory",
    "also_passes_for",
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
                text = layout.text(row, column, metric)
                judged, test = text.verdict, text.verdict.comparison
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
                    "low": "" if test is None else repr(test.low),
                    "high": "" if test is None else repr(test.high),
                    "effect": "" if test is None else repr(test.effect),
                    "margin": "" if test is None else repr(test.margin),
                    "verdict": judged.text,
                    "seeds_needed": "" if math.isnan(judged.seeds) else f"{judged.seeds:g}",
                    "exploratory": judged.exploratory,
                    "also_passes_for": ", ".join(text.also),
                    "reason": cell.reason,
                    "keys": " ".join(cell.keys),
                }
                writer.writerow(line)
    return out.getvalue()
