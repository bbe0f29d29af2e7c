"""What is said below a table, one sentence or paragraph each, without markup."""

from __future__ import annotations

import math
from collections.abc import Iterator

from fedbench.results.units import STALE
from fedbench.tables import scale, significance
from fedbench.tables.agreement import Agreement, agreements
from fedbench.tables.estimate import spell
from fedbench.tables.parts import ColumnSpec
from fedbench.tables.reference import LOCAL
from fedbench.tables.render import judgement
from fedbench.tables.render.grid import Layout
from fedbench.tables.result import PENDING, TableResult


def remarks(layout: Layout) -> list[str]:
    """All of them, in the order in which they are read."""
    table = layout.table
    spec, made = table.spec, table.circumstances
    said = [*_seeds(table), *_scale(table), *_stale(table), *judgement.sentences(layout), *_absent(layout)]
    if made.trained:
        said += [_agreement(each, spec.headline) for each in agreements(table)]
        said += _significance(table)
    else:
        said.append("The runs are too short for the order of the methods to mean anything.")
    said += spec.notes
    if made.scale == "paper" and not made.substitute:
        said += [finding.text for finding in spec.findings if finding.changed == made.changed]
    said += [f"{row.label}: {row.note}" for row in layout.rows if row.note]
    said += [f"{column.label}: {column.note}" for column in layout.columns if column.note]
    spent = f", {spell(made.seconds)} of runs" if math.isfinite(made.seconds) else ""
    said.append(f"Made on {made.date}, {made.machine}{spent}, commit {made.commit or 'unknown'}.")
    return said


def _seeds(table: TableResult) -> Iterator[str]:
    """Over which seeds the values are, and which rows have only some of them."""
    seeds = sorted({seed for cell in table.cells for seed in cell.seeds})
    words = ", ".join(map(str, seeds)) or "none"
    yield f"Ours: mean ± sample standard deviation over seeds {words}."
    rows: dict[tuple[int, ...], list[str]] = {}
    for row in table.spec.rows:
        own = {seed for cell in table.cells if cell.row == row.label for seed in cell.seeds}
        if own and own != set(seeds):
            rows.setdefault(tuple(sorted(own)), []).append(row.label)
    each = [f"{', '.join(labels)} over {', '.join(map(str, own))}" for own, labels in rows.items()]
    if each:
        yield f"Fewer seeds so far: {'; '.join(each)}."


def _scale(table: TableResult) -> Iterator[str]:
    """What the scale changes, in its own words."""
    if words := scale.load(table.circumstances.scale).words:
        yield words


def _stale(table: TableResult) -> Iterator[str]:
    """Which cells other code made, or have another Local, and how to make them again."""
    again = "The command with stale=rerun makes them again."
    if parts := sorted({part for parts in table.stale.values() for part in parts} - {LOCAL}):
        rows = dict.fromkeys(row for (row, _), own in table.stale.items() if {*own} - {LOCAL})
        yield (
            f"Made by other code than today's ({STALE}), as the code of {', '.join(parts)} has changed since: "
            f"{', '.join(rows)}. {again}"
        )
    if apart := dict.fromkeys(row for (row, _), own in table.stale.items() if LOCAL in own):
        yield (
            f"IPR and RSD against another result of Local than the one above ({STALE}), which was run again since on "
            f"a machine that rounds otherwise: {', '.join(apart)}. {again}"
        )


def _absent(layout: Layout) -> list[str]:
    """Which rows and columns are left out, and why."""
    shown = {column.label for column in layout.columns}
    reasons = {
        column.label: _reason(layout.table, column)
        for column in layout.table.spec.columns
        if column.label not in shown
    }
    said = [f"No run of column {label}: {reason}." for label, reason in reasons.items() if reason]
    return [*filter(None, [layout.left_out]), *said]


def _reason(table: TableResult, column: ColumnSpec) -> str:
    reasons = {cell.reason for cell in table.cells if cell.column == column.label} - {"", PENDING}
    return "; ".join(sorted(reason.removeprefix("not run: ") for reason in reasons))


def _significance(table: TableResult) -> list[str]:
    metric = table.spec.metrics[0]
    if metric.better == "neither":
        return []
    said = []
    reference = table.spec.headline
    pairs = significance.paired(table, metric, reference) if reference else []
    for column in dict.fromkeys(each.column for each in pairs):
        here = [each for each in pairs if each.column == column]
        told = {
            "above": [each.row for each in here if each.low > 0 and each.p < significance.LEVEL],
            "below": [each.row for each in here if each.high < 0 and each.p < significance.LEVEL],
        }
        words = "; ".join(f"{side} {', '.join(rows)}" for side, rows in told.items() if rows)
        said.append(
            f"{column}, paired over seeds, 5 % with Holm's adjustment: {reference} is {words or 'not told apart'}"
            f" ({len(here)} comparisons, all in significance.csv)."
        )
    ranked = significance.ranks(table, metric)
    if ranked is not None:
        order = sorted(ranked.ranks.items(), key=lambda item: item[1])
        said.append(
            f"Average rank by {metric.label} over {ranked.blocks} blocks (columns and seeds): "
            + ", ".join(f"{row} {rank:.2f}" for row, rank in order)
            + f"; critical difference {ranked.critical:.2f} (Nemenyi, 5 %), Friedman p = {ranked.p:.3g}."
        )
    return said


def _agreement(each: Agreement, headline: str) -> str:
    text = f"{each.column}, {each.metric}: order of {each.rows} rows against the paper's, Kendall's tau "
    text += "undefined" if math.isnan(each.tau) else f"{each.tau:.2f}"
    if each.headline is not None and each.headline_published:
        holds = "holds" if each.headline else f"does not hold, best is {', '.join(each.best_ours)}"
        text += f"; the paper's claim that {headline} is best {holds}"
    return text + "."
