"""A filled table in words, which every rendering shares: its cells, and the lines below them."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np

from fedbench.config import groups
from fedbench.config.compose import key_of
from fedbench.core.tables import grouped
from fedbench.data.partitions.programs import AuthorsProgram
from fedbench.papers import comparisons, published, selection, verdict
from fedbench.papers.comparisons import Agreement, Bias, Match, agreements, biases
from fedbench.papers.equivalence import DIFFERENT, EQUIVALENT, INCONCLUSIVE, LEVEL, UNDECIDABLE
from fedbench.papers.recorded import LOCAL
from fedbench.papers.spec import ColumnSpec, MetricSpec, RowSpec
from fedbench.papers.store import PENDING, Cell, TableResult
from fedbench.papers.verdict import NONE, Verdict, counts, verdict_of
from fedbench.runs.progress import STALE, amount, rough_seconds

DASH = "-"


@dataclass(frozen=True)
class Text:
    """A cell in words."""

    ours: str  # "92.02 ± 0.39", "> horizon", or why there is no value
    published: str  # as printed, or a dash
    difference: str  # signed, with its 95 % interval and Hedges' g where there is a test; or a dash
    verdict: Verdict
    place: int  # 1: best of its column and metric, 2: second, 0: neither
    ran: bool
    also: tuple[str, ...] = ()  # other rows whose published value it is also equivalent to


class Layout:
    """A table with its cells put into words."""

    def __init__(self, table: TableResult) -> None:
        self.table = table
        self._places = {
            (column.label, metric.name): _places(table, column, metric)
            for column in table.spec.columns
            for metric in table.spec.metrics
        }

    @cached_property
    def columns(self) -> list[ColumnSpec]:
        """The columns with a value."""
        return [column for column in self.table.spec.columns if column.label in ran(self.table, "column")]

    @cached_property
    def rows(self) -> list[RowSpec]:
        """The rows with a value."""
        return [row for row in self.table.spec.rows if row.label in ran(self.table, "row")]

    @property
    def left_out(self) -> str:
        """The rows and columns that are not requested or have no run yet; "" if there are none."""
        spec = self.table.spec
        begun = [cell for cell in self.table.cells if not _pending(cell)]
        shown = {column.label for column in self.columns}
        known = {cell.row for cell in begun if cell.column in shown or not shown}
        rows = [row.label for row in spec.rows if row.label not in known]
        waiting = [column for column in spec.columns if column.label not in {cell.column for cell in begun}]
        parts = {label for column in waiting for label in column.mean}
        columns = [column.label for column in waiting if column.label not in parts]
        sides = (("rows", rows), ("columns", columns))
        said = "; ".join(f"{side} {', '.join(labels)}" for side, labels in sides if labels)
        return f"Left out ({PENDING}): {said}." if said else ""

    @cached_property
    def matches(self) -> list[comparisons.Match]:
        """Every cell with a verdict beside every published value of its column and metric."""
        return comparisons.matches(self.table)

    def text(self, row: RowSpec, column: ColumnSpec, metric: MetricSpec) -> Text:
        """Return the cell of a row, a column and a metric."""
        cell = self.table.cell(row.label, column.label, metric.name)
        judged, value = verdict_of(self.table, cell), ours(cell, metric)
        marked = cell.values and value != DASH and (row.label, column.label) in self.table.stale
        return Text(
            value + (STALE if marked else ""),
            DASH if cell.published is None else cell.published.text,
            difference(judged, metric),
            judged,
            self._places[column.label, metric.name].get(row.label, 0),
            bool(cell.values),
            comparisons.passes_for(self.matches, column.label, metric.name, row.label),
        )


def _pending(cell: Cell) -> bool:
    return not cell.values and cell.reason in ("", PENDING)


def ours(cell: Cell, metric: MetricSpec) -> str:
    """Return our value: mean ± std, with the number of censored seeds; or the reason why there is none."""
    finite = [value for value in cell.values if math.isfinite(value)]
    if not cell.values:
        return "diverged" if cell.diverged else cell.reason or "not run"  # why is below the table
    if not finite:
        return DASH
    text = f"{np.mean(finite):.{metric.decimals}f}"
    if len(finite) > 1:
        text += f" ± {np.std(finite, ddof=1):.{metric.decimals}f}"
    missed = len(cell.values) - len(finite)
    return f"{text} ({missed} of {len(cell.values)} censored)" if missed else text


def _places(table: TableResult, column: ColumnSpec, metric: MetricSpec) -> dict[str, int]:
    """Return 1 for the best rows and 2 for the second, as printed; nothing if an order is meaningless."""
    if metric.better == "neither" or not table.provenance.trained:
        return {}
    sign = 1 if metric.better == "higher" else -1
    ranked = [cell for cell in table.cells_below(column, metric) if math.isfinite(cell.mean) and not cell.diverged]
    means = {cell.row: sign * round(cell.mean, metric.decimals) for cell in ranked}
    levels = sorted(set(means.values()), reverse=True)[:2]
    return {row: levels.index(mean) + 1 for row, mean in means.items() if mean in levels and len(means) > 1}


def difference(judged: Verdict, metric: MetricSpec) -> str:
    """Return ours - published, its 95 % interval and Hedges' g; a dash if there is no difference."""
    if not math.isfinite(judged.difference):
        return DASH
    digits, test = metric.decimals, judged.comparison
    text = f"{judged.difference:+.{digits}f}"
    if test is None:
        return text
    text += f" [{test.low:.{digits}f}, {test.high:.{digits}f}]"
    return text if math.isnan(test.effect) else f"{text}, g {test.effect:.1f}"


# What a filled table is, in words: its setting, its data, its seeds, and the commands that fill it.

PAPERS = {
    "fedcollab": "FedCollab",
    "fedsac": "FedSaC",
    "pfedsim": "pFedSim",
    "sosicfl": "SosicFL",
    "fedrema": "FedReMa",
    "flux": "FLUX",
}


def setting(table: TableResult) -> str:
    """Return `as published`, or what differs from the paper."""
    made, own = table.provenance, table.spec
    parts = ["our own"] if not own.paper or own.varies else []
    parts += [f"scale `{made.scale}`"] if made.scale != "paper" else []
    parts += [f"`{text}`" for text in (*made.changed, *made.varied)]
    return ", ".join(parts) or "as published"


def data(table: TableResult) -> str:
    """Return the data sets of the runs, each with its number of columns."""
    columns = [column for column in table.spec.columns if column.label in ran(table, "column")]
    if all(row.study.endswith("_cost") for row in table.spec.rows):
        return "none"  # operations and parameters are counted from shapes
    own = dict.fromkeys(name for column in columns for name in table.spec.datasets(column))
    substitute = table.provenance.substitute
    named = f"{substitute} instead" if substitute else ", ".join(own)
    every = len(table.spec.columns)
    return named if len(columns) == every else f"{named}, {len(columns)} of {every} columns"


def headings(table: TableResult, column: ColumnSpec) -> tuple[str, str]:
    """Return a column's group and label; on other data than the paper's, these data and those that they replace."""
    if not table.provenance.substitute:
        return column.group, column.label
    own = column.label if not column.group or column.group in column.label else f"{column.group}, {column.label}"
    return table.provenance.substitute, f"in place of {own}"


def ran(table: TableResult, side: str) -> set[str]:
    """Return labels of the rows ("row") or columns ("column") with a value."""
    return {getattr(cell, side) for cell in table.cells if cell.values}


def seeds(table: TableResult) -> dict[tuple[str, str], tuple[int, ...]]:
    """Return the seeds of which a row has values in a column, in any metric, by (row, column)."""
    found = grouped(((cell.row, cell.column), seed) for cell in table.cells if cell.values for seed in cell.seeds)
    return {place: tuple(sorted({*own})) for place, own in found.items()}


def commands(table: TableResult) -> Iterator[str]:
    """Yield `make reproduce-TABLE ...` for all rows that have the same seeds in the same columns."""
    columns = grouped(((row, own), column) for (row, column), own in seeds(table).items())
    alike = grouped(((own, tuple(found)), row) for (row, own), found in columns.items())
    for (own, labels), rows in sorted(alike.items(), reverse=True):
        places = _numbers("columns", table.spec.columns, {*labels})
        chosen = [*places, *_numbers("rows", table.spec.rows, {*rows}), *_seeds_text(table, own)]
        yield " ".join([f"make reproduce-{table.spec.name.replace('_', '-')}", *_made(table), *chosen])


def command(table: TableResult, row: str, column: str, own: tuple[int, ...]) -> str:
    """Return `python -m fedbench reproduce ...` for one cell with its seeds, or the table's if it has none."""
    chosen = [*_numbers("rows", table.spec.rows, {row}), *_numbers("columns", table.spec.columns, {column})]
    chosen += _seeds_text(table, own) if own else []
    return shlex.join(["python", "-m", "fedbench", "reproduce", f"table={table.spec.name}", *_made(table), *chosen])


def _made(table: TableResult) -> list[str]:
    made = table.provenance
    words = [f"substitute={made.substitute}"] if made.substitute else []
    words += [f"scale={made.scale}"] if made.scale != "paper" else []
    return [*words, *made.changed, *made.varied]


def _seeds_text(table: TableResult, own: tuple[int, ...]) -> list[str]:
    """Return `seeds=5`, or a list of seeds; nothing for the table's default."""
    if own == tuple(range(selection.load_scale(table.provenance.scale).seeds or table.spec.seeds)):
        return []
    count = len(own) if own == tuple(range(len(own))) else f"[{','.join(map(str, own))}]"
    return [f"seeds={count}"]


def _numbers(key: str, lines: Sequence[Any], chosen: set[str]) -> list[str]:
    """Return `key=1,3`, the numbers of the chosen lines; nothing for all of them."""
    places = [str(number) for number, line in enumerate(lines, 1) if line.label in chosen]
    return [] if len(places) == len(lines) else [f"{key}={','.join(places)}"]


# What is said of a table's verdicts: the rule and its margins, how many of which kind, and what they are worth.

SIGNS = {EQUIVALENT: "≈", DIFFERENT: "≠", INCONCLUSIVE: "?", UNDECIDABLE: "∅"}
JUDGED_KINDS = tuple(SIGNS)


def sentences(layout: Layout) -> Iterator[str]:
    """Yield sentences on the verdicts; nothing for a table without published values."""
    table = layout.table
    if not table.spec.paper:
        return
    if not table.provenance.is_paper_setting:
        why = "the table's YAML says TODO" if table.provenance.todo else "this is not the paper's setting"
        yield f"A cell shows ours, the published value and the difference. No verdicts: {why}."
        return
    yield (
        "A cell shows ours, the published value, and the difference with its 95 % interval and Hedges' g. "
        "≈ equivalent: the 90 % interval of the difference lies inside the margin. ≠ different: the 95 % interval lies "
        "outside it. ? inconclusive: neither; the number is how many of our seeds would decide. ∅ undecidable: "
        "neither, and no outcome of so few seeds could be equivalent; the number is how many seeds could be (`both`: "
        "on both sides). docs/verdicts.md defines the test."
    )
    yield f"Margins: {'; '.join(_margin(table, metric) for metric in table.spec.metrics if not metric.timing)}."
    yield from _partitions(table)
    yield from _count_notes(table)
    yield from _not_run(table)
    yield from _leaning(table)
    yield from _worth(layout)


def _margin(table: TableResult, metric: MetricSpec) -> str:
    sizes = {published.width(metric.name, 100, n) for n in table.clients.values() or [None]}
    if metric.name == "ipr":
        words = f"one client ({', '.join(f'{size:g}' for size in sorted(filter(None, sizes))) or 'unknown'})"
    else:
        words = f"{sizes.pop():g}{' % of the published value' if published.is_relative(metric.name) else ''}"
    return f"{metric.label} {words}"


def _partitions(table: TableResult) -> Iterator[str]:
    """Say what the intervals cover: only training seeds, or the draw of the partition too."""
    made = (*table.provenance.varied, *table.provenance.changed)
    filled, kept = ran(table, "column"), {}
    for column in table.spec.columns:
        last = {key_of(text): text for text in (*table.spec.base, *column.overrides, *made)}
        if column.label in filled:
            kept[column.label] = [text for text in last.values() if _keeps(text, last.get("partition.draw"))]
    for texts, labels in groupby(kept, key=lambda label: kept[label]):
        where = "" if len({*map(tuple, kept.values())}) == 1 else f"{', '.join(labels)}: "
        if texts:
            yield (
                f"{where}All seeds share one partition ({' '.join(texts)}). Intervals and verdicts hold for this "
                "partition only."
            )
        else:
            yield (
                f"{where}Each seed draws its own partition, so intervals cover the draw and the training. If the "
                "paper used one partition, its spread does not cover the draw, and the draw may cause a difference."
            )


def _keeps(override: str, draw: str | None) -> bool:
    """Return whether every seed has the same partition under `override`: a fixed seed, an authors' draw, or a file.

    `draw` is the override of partition.draw, which may let each seed draw its own.
    """
    key, value = key_of(override), override.partition("=")[2]
    if key != "partition":
        return key == "partition_seed" and value != "null"
    file, family = groups.find("partition", value), groups.member("partition", value)
    file = family[0] if file is None and family is not None else file
    fields = {} if file is None else groups.plain_option("partition", file.stem)
    if "draw" in fields and draw != "partition.draw=null":
        return issubclass(groups.registry("partition").get(str(fields["name"])), AuthorsProgram)
    return "path" in fields


def _count_notes(table: TableResult) -> Iterator[str]:
    what = "cells beside a published value" if table.spec.varies else "published values"
    for exploratory, before in ((False, "Of"), (True, "Exploratory values, counted separately: of")):
        if found := counts(table, exploratory=exploratory):
            words = ", ".join(f"{found[kind]} {kind}" for kind in JUDGED_KINDS)
            yield f"{before} {found.total()} {what}: {words}, {found[NONE]} without a verdict."
    reasons: dict[str, dict[str, None]] = {}
    for column in table.spec.columns:
        for row in table.spec.rows:
            if reason := table.exploratory(row.label, column.label):
                label = column.label if reason == column.exploratory else row.label
                reasons.setdefault(reason, {})[label] = None
    for reason, labels in reasons.items():
        named = "all rows" if [*labels] == [row.label for row in table.spec.rows] else ", ".join(labels)
        yield f"Exploratory (†), {named}: {reason}."


def _not_run(table: TableResult) -> Iterator[str]:
    """Say how many values without runs could be equivalent by no outcome."""
    waiting = [cell for cell in table.cells if cell.published and not cell.values]
    found = [cell for cell in waiting if verdict.undecidable(table, cell, table.spec.seeds)]
    by_metric = Counter(table.spec.metric(cell.metric).label for cell in found)
    if found:
        told = ", ".join(f"{count} {label}" for label, count in by_metric.items())
        yield (
            f"{len(waiting)} published values were not run. {len(found)} of them would be undecidable with "
            f"{table.spec.seeds} seeds ({told})."
        )


def _leaning(table: TableResult) -> Iterator[str]:
    """Yield the joint tests, a sentence for each column and group."""
    digits = {metric.name: (metric.label, metric.decimals) for metric in table.spec.metrics}
    found = sorted(biases(table), key=lambda each: (each.column, each.group))
    for (column, group), metrics in groupby(found, key=lambda each: (each.column, each.group)):
        told = "; ".join(_bias(each, *digits[each.metric]) for each in metrics)
        yield f"Bias of a group of rows, {column}, {group}: mean difference {told}."


def _bias(each: Bias, label: str, decimals: int) -> str:
    interval = f"[{each.low:.{decimals}f}, {each.high:.{decimals}f}]"
    side = f"{each.below} of {each.rows} rows below"
    return f"{label} {each.difference:+.{decimals}f} {interval}, p = {each.p:.2g} by Holm, {side}"


def _worth(layout: Layout) -> Iterator[str]:
    """Say how many other published rows our rows match."""
    labels = {metric.name: metric.label for metric in layout.table.spec.metrics}
    for column in layout.table.spec.columns:
        here = [each for each in layout.matches if each.column == column.label]
        told = [_passing(labels[metric], list(each)) for metric, each in groupby(here, key=lambda each: each.metric)]
        if len({each.published for each in here}) > 1:
            yield (f"Specificity, {column.label}, each row against the published values of all rows. {' '.join(told)}")


def _passing(label: str, found: Sequence[Match]) -> str:
    own = {each.row for each in found if each.row == each.published and each.outcome == EQUIVALENT}
    others = [each for each in found if each.row != each.published]
    also = [each for each in others if each.outcome == EQUIVALENT]
    passing = sum(each.row in own for each in also)
    mean = f"; each of them also matches {passing / len(own):.1f} other rows on average" if own else ""
    different = sum(each.outcome == DIFFERENT for each in others)
    return (
        f"{label}: {len(own)} of {len({each.row for each in found})} rows match their own published value{mean}. Of "
        f"{len(others)} pairs of different rows {len(also)} are equivalent, {different} different."
    )


def notes(layout: Layout) -> list[str]:
    """Return the sentences below a table, in the order in which they are read."""
    table = layout.table
    own, made = table.spec, table.provenance
    changed = filter(None, [selection.load_scale(made.scale).words])
    said = [*_seed_notes(table), *fewer_clients(table), *changed, *_stale(table), *sentences(layout), *absent(layout)]
    if not made.trained:
        return [*said, "The runs are too short to compare methods.", _made_on(table)]
    said += [_agreement(table, each) for each in agreements(table)]
    said += _significance(table)
    said += own.notes
    if made.scale == "paper" and not made.substitute:
        said += [finding.text for finding in own.findings if finding.changed == made.changed]
    return [*said, _made_on(table)]


def _made_on(table: TableResult) -> str:
    made = table.provenance
    spent = f", {rough_seconds(made.seconds)} of runs" if made.seconds > 0 else ""
    return f"Made on {made.date}, {made.machine}{spent}, commit {made.commit or 'unknown'}."


def _seed_notes(table: TableResult) -> Iterator[str]:
    """Say which seeds the values cover, and which rows, columns or cells have only some of them."""
    every = tuple(sorted({seed for cell in table.cells for seed in cell.seeds}))
    yield f"Ours: mean ± sample standard deviation over seeds {', '.join(map(str, every)) or 'none'}."
    places = seeds(table)
    named: dict[tuple[int, ...], dict[str, None]] = {}
    for (row, column), own in places.items():
        alike = ((row, 0), (column, 1))  # the whole row, or the whole column, has these seeds
        whole = next((name for name, side in alike if {v for k, v in places.items() if k[side] == name} == {own}), "")
        if own != every:
            named.setdefault(own, {})[whole or f"{row} / {column}"] = None
    each = [f"{', '.join(labels)} over {', '.join(map(str, own))}" for own, labels in named.items()]
    if each:
        yield f"Fewer seeds so far: {'; '.join(each)}."


def fewer_clients(table: TableResult) -> Iterator[str]:
    """Yield which cells are over fewer than all clients, and how many."""
    if table.fewer:
        told = (f"{row} / {column} {scored} of {every}" for (row, column), (scored, every) in table.fewer.items())
        yield (
            "Some clients were never scored (no test sample, or never drawn). Number of clients in a mean, in the seed "
            f"with the fewest: {', '.join(told)}."
        )


def _stale(table: TableResult) -> Iterator[str]:
    """Yield which cells other code made, or have another Local, and how to make them again."""
    again = "The command with stale=rerun makes them again."
    if parts := sorted({part for parts in table.stale.values() for part in parts} - {LOCAL}):
        rows = dict.fromkeys(row for (row, _), own in table.stale.items() if {*own} - {LOCAL})
        yield (
            f"Made by other code than today's ({STALE}); the code of {', '.join(parts)} has changed: "
            f"{', '.join(rows)}. {again}"
        )
    if apart := dict.fromkeys(row for (row, _), own in table.stale.items() if LOCAL in own):
        yield (
            f"IPR and RSD refer to another run of Local than the one above ({STALE}), made on a machine that rounds "
            f"differently: {', '.join(apart)}. {again}"
        )


def absent(layout: Layout, *, cells: bool = False) -> Iterator[str]:
    """Yield which rows and columns are left out and why, and drawn cells where a seed diverged (`cells`: or none ran).

    A row that is left out only because its columns are is not named.
    """
    if layout.left_out:
        yield layout.left_out
    columns, rows = ({line.label for line in lines} for lines in (layout.columns, layout.rows))
    found: dict[str, dict[str, dict[str, None]]] = {}
    for cell in layout.table.cells:
        if (cell.values and not cell.diverged) or _pending(cell):
            continue
        if cell.column not in columns:
            side, label = "No run of column", cell.column
        elif cell.row not in rows:
            side, label = "No run of row", cell.row
        elif cells or cell.diverged:
            side, label = f"{'Fewer seeds' if cell.values else 'No run'} of cell", f"{cell.row} / {cell.column}"
        else:
            continue
        found.setdefault(side, {}).setdefault(label, {})[cell.reason.removeprefix("not run: ")] = None
    for side, named in sorted(found.items()):
        alike = grouped(("; ".join(sorted(reasons)), label) for label, reasons in named.items())
        for reason, labels in alike.items():
            yield f"{side}{'s' if len(labels) > 1 else ''} {', '.join(labels)}: {reason}."


def _significance(table: TableResult) -> Iterator[str]:
    metric, reference = table.spec.metrics[0], table.spec.headline
    pairs = comparisons.paired(table, metric, reference) if reference and metric.better != "neither" else []
    alike: dict[str, list[str]] = {}
    for column in dict.fromkeys(each.column for each in pairs):
        here = [each for each in pairs if each.column == column]
        told = {
            "above": [each.row for each in here if each.low > 0 and each.p < LEVEL],
            "below": [each.row for each in here if each.high < 0 and each.p < LEVEL],
        }
        words = "; ".join(f"{side} {', '.join(rows)}" for side, rows in told.items() if rows)
        said = f"{reference} is {words or 'not significantly different from any'} ({amount(len(here), 'comparison')})"
        alike.setdefault(said, []).append(column)
    for said, columns in alike.items():
        yield f"{', '.join(columns)}, paired over seeds, 5 % with Holm's adjustment: {said}."


def _agreement(table: TableResult, each: Agreement) -> str:
    text = f"{each.column}, {each.metric}: Kendall's tau between the paper's order of {each.rows} rows and ours is "
    text += "undefined" if math.isnan(each.tau) else f"{each.tau:.2f}"
    if each.headline is not None and each.headline_published:
        headline = table.spec.headline
        said = f"the paper's claim that {headline} is best holds"
        if not each.headline:
            said = f"the paper's claim that {headline} is best does not hold, best is {', '.join(each.best_ours)}"
        elif each.rows < each.published:
            said = f"{headline} is best of the {each.rows} rows that were run ({each.published} in the paper)"
        text += f"; {said}"
    return text + "."
