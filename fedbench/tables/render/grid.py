"""What every rendering of a table shares: the text of a cell, which cells are best and second, what is said below."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedbench.tables import significance, verdict
from fedbench.tables.agreement import Agreement, agreements
from fedbench.tables.estimate import spell
from fedbench.tables.result import Cell, TableResult
from fedbench.tables.spec import ColumnSpec, MetricSpec, RowSpec
from fedbench.tables.verdict import Verdict

DASH = "-"


@dataclass(frozen=True)
class Text:
    """A cell in words."""

    ours: str  # "92.02 ± 0.39", "> horizon", or why there is no value
    published: str  # as printed, or a dash
    difference: str  # signed, or a dash
    verdict: Verdict
    place: int  # 1: best of its column and metric, 2: second, 0: neither
    ran: bool


class Layout:
    """A table with its cells put into words."""

    def __init__(self, table: TableResult) -> None:
        self.table = table
        self._places = {
            (column.label, metric.name): _places(table, column, metric)
            for column in table.spec.columns
            for metric in table.spec.metrics
        }

    @property
    def columns(self) -> list[ColumnSpec]:
        """The columns in which something ran; all of them if nothing did."""
        ran = {cell.column for cell in self.table.cells if cell.values}
        return [column for column in self.table.spec.columns if not ran or column.label in ran]

    def text(self, row: RowSpec, column: ColumnSpec, metric: MetricSpec) -> Text:
        """The cell of a row, a column and a metric."""
        cell = self.table.cell(row.label, column.label, metric.name)
        made, seeds = self.table.circumstances, self.table.spec.published_seeds
        judged = verdict.judge(cell, made, seeds, timing=metric.timing)
        known = math.isfinite(judged.difference)
        return Text(
            ours(cell, metric),
            DASH if cell.published is None else cell.published.text,
            f"{judged.difference:+.{metric.decimals}f}" if known else DASH,
            judged,
            self._places[column.label, metric.name].get(row.label, 0),
            bool(cell.values),
        )

    def remarks(self) -> list[str]:
        """What belongs below the table, one sentence or paragraph each, without markup."""
        table, made = self.table, self.table.circumstances
        seeds = sorted({seed for cell in table.cells for seed in cell.seeds})
        beside = "; the published value, the difference and the verdict beside it" if table.spec.paper else ""
        seeds_text = ", ".join(map(str, seeds)) or "none"
        said = [
            f"Ours: mean ± sample standard deviation over seeds {seeds_text}{beside}.",
            *self._fewer(seeds),
        ]
        if table.spec.paper and made.faithful:
            said.append(
                "Reproduced: the published mean lies in our 95 % prediction interval for a table entry, or ours "
                "within two published standard deviations; from three seeds on."
            )
            said.append(self._count())
        elif table.spec.paper:
            said.append("No verdicts: this is not the paper's setting.")
        said += self._absent()
        if made.trained:
            said += [_agreement_text(each, table.spec.headline) for each in agreements(table)]
            said += self._significance()
        else:
            said.append("The runs are too short for the order of the methods to mean anything.")
        said += table.spec.notes
        said += [f"{row.label}: {row.note}" for row in table.spec.rows if row.note]
        said += [f"{column.label}: {column.note}" for column in table.spec.columns if column.note]
        spent = f", {spell(made.seconds)} of runs" if math.isfinite(made.seconds) else ""
        said.append(f"Made on {made.date}, {made.machine}{spent}, commit {made.commit or 'unknown'}.")
        return said

    def _fewer(self, seeds: list[int]) -> list[str]:
        """Which rows have only some of the table's seeds."""
        rows: dict[tuple[int, ...], list[str]] = {}
        for row in self.table.spec.rows:
            own = {seed for cell in self.table.cells if cell.row == row.label for seed in cell.seeds}
            if own and own != set(seeds):
                rows.setdefault(tuple(sorted(own)), []).append(row.label)
        each = [f"{', '.join(labels)} over {', '.join(map(str, own))}" for own, labels in rows.items()]
        return [f"Fewer seeds so far: {'; '.join(each)}."] if each else []

    def _absent(self) -> list[str]:
        """Which columns are left out, and why."""
        shown = {column.label for column in self.columns}
        return [
            f"No run of column {column.label}: {self._reason(column)}."
            for column in self.table.spec.columns
            if column.label not in shown
        ]

    def _reason(self, column: ColumnSpec) -> str:
        reasons = {cell.reason for cell in self.table.cells if cell.column == column.label}
        return "; ".join(sorted(reason.removeprefix("not run: ") for reason in reasons if reason))

    def _count(self) -> str:
        judged = [
            self.text(row, column, metric).verdict
            for row in self.table.spec.rows
            for column in self.table.spec.columns
            for metric in self.table.spec.metrics
            if self.table.cell(row.label, column.label, metric.name).published
        ]
        good = sum(each.kind == verdict.REPRODUCED for each in judged)
        bad = sum(each.kind == verdict.DIFFERS for each in judged)
        rest = len(judged) - good - bad
        what = "cells beside a published value" if self.table.spec.varies else "published values"
        return f"Of {len(judged)} {what} {good} are reproduced, {bad} differ, {rest} have no verdict."

    def _significance(self) -> list[str]:
        metric = self.table.spec.metrics[0]
        if metric.better == "neither":
            return []
        said = []
        reference = self.table.spec.headline
        pairs = significance.paired(self.table, metric, reference) if reference else []
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
        ranked = significance.ranks(self.table, metric)
        if ranked is not None:
            order = sorted(ranked.ranks.items(), key=lambda item: item[1])
            said.append(
                f"Average rank by {metric.label} over {ranked.blocks} blocks (columns and seeds): "
                + ", ".join(f"{row} {rank:.2f}" for row, rank in order)
                + f"; critical difference {ranked.critical:.2f} (Nemenyi, 5 %), Friedman p = {ranked.p:.3g}."
            )
        return said


def ours(cell: Cell, metric: MetricSpec) -> str:
    """Our value: mean ± std, with the number of seeds that never got there; or the reason for having none."""
    finite = [value for value in cell.values if math.isfinite(value)]
    if not cell.values:
        return cell.reason or "not run"
    if not finite:
        return DASH
    digits = metric.decimals
    mean = sum(finite) / len(finite)
    text = f"{mean:.{digits}f}"
    if len(finite) > 1:
        spread = math.sqrt(sum((value - mean) ** 2 for value in finite) / (len(finite) - 1))
        text += f" ± {spread:.{digits}f}"
    missed = len(cell.values) - len(finite)
    return f"{text} ({missed} of {len(cell.values)} censored)" if missed else text


def _places(table: TableResult, column: ColumnSpec, metric: MetricSpec) -> dict[str, int]:
    """1 for the best rows, 2 for the second, as they are printed; nothing where no end is better."""
    if metric.better == "neither":
        return {}
    sign = 1 if metric.better == "higher" else -1
    means = {
        row.label: sign * round(table.cell(row.label, column.label, metric.name).mean, metric.decimals)
        for row in table.spec.rows
        if math.isfinite(table.cell(row.label, column.label, metric.name).mean)
    }
    levels = sorted(set(means.values()), reverse=True)[:2]
    return {row: levels.index(mean) + 1 for row, mean in means.items() if mean in levels and len(means) > 1}


def _agreement_text(each: Agreement, headline: str) -> str:
    text = f"{each.column}, {each.metric}: order of {each.rows} rows against the paper's, Kendall's tau "
    text += "undefined" if math.isnan(each.tau) else f"{each.tau:.2f}"
    if each.headline is not None and each.headline_published:
        holds = "holds" if each.headline else f"does not hold, best is {', '.join(each.best_ours)}"
        text += f"; the paper's claim that {headline} is best {holds}"
    return text + "."
