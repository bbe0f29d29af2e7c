"""What is said of a table's verdicts: the rule and its margins, how many of which kind, and what they are worth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from fedbench.config import groups
from fedbench.tables import margins
from fedbench.tables.bias import Bias
from fedbench.tables.equivalence import DIFFERENT, EQUIVALENT, INCONCLUSIVE, LEAST_SEEDS
from fedbench.tables.parts import MetricSpec
from fedbench.tables.render.grid import Layout
from fedbench.tables.result import TableResult
from fedbench.tables.specificity import Match
from fedbench.tables.verdict import KINDS, NONE, counts, judge

SIGNS = {EQUIVALENT: "≈", DIFFERENT: "≠", INCONCLUSIVE: "?"}


def sentences(layout: Layout) -> Iterator[str]:
    """One each; nothing for a table that mirrors no published one."""
    table = layout.table
    if not table.spec.paper:
        return
    if not table.circumstances.faithful:
        yield "Beside ours the published value and the difference. No verdicts: this is not the paper's setting."
        return
    yield (
        "Beside ours the published value, and in brackets behind the difference its 95 % interval and effect size "
        "(Hedges' g). Equivalent (≈): the 90 % interval of the difference lies inside the margin, an equivalence test "
        "at 5 %. Different (≠): the 95 % interval lies wholly outside it. Inconclusive (?): neither; a number behind "
        "it is how many seeds of ours would decide. See docs/verdicts.md."
    )
    yield f"Margins: {'; '.join(_margin(table, metric) for metric in table.spec.metrics if not metric.timing)}."
    yield from _partitions(table)
    yield from _counts(table)
    if any(
        len(cell.values) < LEAST_SEEDS and judge(table, cell).kind == INCONCLUSIVE for cell in table.cells
    ):
        yield f"Values of one seed are inconclusive: a test needs {LEAST_SEEDS}."
    yield from _leaning(layout)
    yield from _worth(layout)


def counted(found: Counter[str]) -> str:
    """How many verdicts of which kind, in words."""
    words = [f"{found[kind]} {kind}" for kind in KINDS if kind != NONE]
    return f"{', '.join(words)}, {found[NONE]} without a verdict"


def _margin(table: TableResult, metric: MetricSpec) -> str:
    own = table.spec.margins.get(metric.name)
    sizes = {margins.width(metric.name, table.spec.margins, 100, n) for n in table.clients.values() or [None]}
    if own is None and metric.name == "ipr":
        words = f"one client ({', '.join(f'{size:g}' for size in sorted(filter(None, sizes))) or 'unknown'})"
    else:
        relative = (own or margins.default(metric.name)).relative
        words = f"{sizes.pop():g}{' % of the published value' if relative else ''}"
    return f"{metric.label} {words}{f' ({own.why})' if own else ''}"


def _partitions(table: TableResult) -> Iterator[str]:
    """Over what the intervals are: training seeds alone, or the draw of the partition as well."""
    made = (*table.circumstances.varied, *table.circumstances.changed)
    kept = {
        column.label: [text for text in (*table.spec.base, *column.overrides, *made) if _keeps(text)]
        for column in table.spec.columns
    }
    for texts, labels in groupby(kept, key=lambda label: kept[label]):
        where = "" if len({*map(tuple, kept.values())}) == 1 else f"{', '.join(labels)}: "
        if texts:
            yield (
                f"{where}One partition for all seeds ({' '.join(texts)}): intervals and verdicts are over training "
                "seeds on this partition and say nothing of another."
            )
        else:
            yield (
                f"{where}Each seed draws its own partition: intervals hold the draw and the training. If the paper "
                "kept one partition, a difference may be that draw's, which its spread does not show."
            )


def _keeps(override: str) -> bool:
    """Whether every seed has the same partition under `override`: a fixed seed, or a split from a file."""
    key, _, value = override.partition("=")
    file = groups.conf_dir() / "partition" / f"{value}.yaml"
    if key != "partition" or not file.is_file():
        return key == "partition_seed"
    return value == "file" or "file" in (groups.load_yaml(file).get("defaults") or ())


def _counts(table: TableResult) -> Iterator[str]:
    what = "cells beside a published value" if table.spec.varies else "published values"
    found, apart = counts(table), counts(table, exploratory=True)
    if found:
        yield f"Of {found.total()} {what}: {counted(found)}."
    if apart:
        yield f"Exploratory, counted apart: of {apart.total()} {what}: {counted(apart)}."
    reasons: dict[str, dict[str, None]] = {}
    for column in table.spec.columns:
        for row in table.spec.rows:
            if reason := table.exploratory(row.label, column.label):
                label = column.label if reason == column.exploratory else row.label
                reasons.setdefault(reason, {})[label] = None
    for reason, labels in reasons.items():
        named = "all rows" if [*labels] == [row.label for row in table.spec.rows] else ", ".join(labels)
        yield f"Exploratory (†), {named}: {reason}."


def _leaning(layout: Layout) -> Iterator[str]:
    """The joint tests, a sentence a column and group."""
    digits = {metric.name: (metric.label, metric.decimals) for metric in layout.table.spec.metrics}
    found = sorted(layout.biases, key=lambda each: (each.column, each.group))
    for (column, group), metrics in groupby(found, key=lambda each: (each.column, each.group)):
        told = "; ".join(_bias(each, *digits[each.metric]) for each in metrics)
        yield f"Does a group lean to one side? {column}, {group}, mean difference over rows: {told} (bias.csv)."


def _bias(each: Bias, label: str, decimals: int) -> str:
    interval = f"[{each.low:.{decimals}f}, {each.high:.{decimals}f}]"
    side = f"{each.below} of {each.rows} rows below"
    return f"{label} {each.difference:+.{decimals}f} {interval}, p = {each.p:.2g} by Holm, {side}"


def _worth(layout: Layout) -> Iterator[str]:
    """For how many other published rows the rows pass."""
    labels = {metric.name: metric.label for metric in layout.table.spec.metrics}
    for column in layout.table.spec.columns:
        here = [each for each in layout.matches if each.column == column.label]
        told = [
            _passing(labels[metric], list(each))
            for metric, each in groupby(here, key=lambda each: each.metric)
        ]
        if len({each.published for each in here}) > 1:
            yield (
                f"What a verdict is worth, {column.label}, each row against the published values of all rows "
                f"(specificity.csv): {'; '.join(told)}."
            )


def _passing(label: str, found: Sequence[Match]) -> str:
    own = {each.row for each in found if each.row == each.published and each.outcome == EQUIVALENT}
    others = [each for each in found if each.row != each.published]
    also = [each for each in others if each.outcome == EQUIVALENT]
    passing = sum(each.row in own for each in also)
    mean = f", which pass for {passing / len(own):.1f} other rows on average" if own else ""
    different = sum(each.outcome == DIFFERENT for each in others)
    return (
        f"{label} {len(own)} of {len({each.row for each in found})} rows are equivalent to their own{mean}, and of "
        f"{len(others)} pairs of different rows {len(also)} are equivalent, {different} different"
    )
