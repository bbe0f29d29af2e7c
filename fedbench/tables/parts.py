"""What a table is made of: its metrics, rows and columns, and what was found."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any


@dataclass(frozen=True)
class MetricSpec:
    """One number of a cell: how it is measured on a finished run (fedbench.tables.measures)."""

    name: str  # as in published.csv: acc, ipr, rsd, acc_global, ...
    label: str = "Acc %"
    better: str = "higher"  # higher | lower | neither: which end is printed bold and ranks first
    decimals: int = 2
    timing: bool = False  # seconds: they depend on the machine, so they get no verdict
    measure: dict[str, Any] = field(default_factory=lambda: {"name": "result"})  # the protocol's accuracy

    def measured(self, row: RowSpec, column: ColumnSpec) -> dict[str, Any]:
        """How it is measured in a cell: `measure`, and what the column's and the row's own say otherwise."""
        own = [line.measures.get(self.name) or {} for line in (column, row)]
        return {**self.measure, **own[0], **own[1]}


@dataclass(frozen=True)
class RowSpec:
    """A row: usually a method."""

    label: str
    overrides: tuple[str, ...] = ()  # of the run's config, after the column's
    published: dict[str, str] = field(default_factory=dict)  # filter; method: the label by default
    baseline: tuple[str, ...] = ()  # overrides instead of `overrides`: the run that a ratio is taken to
    study: str = ""  # what fills the cell instead of a training run (fedbench.tables.studies)
    measures: dict[str, Any] = field(default_factory=dict)  # metric -> a measure of this row's own
    unsupported: str = ""  # why the row cannot be run
    # Why its verdicts are counted apart: its setting was chosen after seeing outcomes.
    exploratory: str | None = None
    exploratory_but: tuple[
        str, ...
    ] = ()  # overrides of the command line with which that choice decides nothing
    note: str = ""


@dataclass(frozen=True)
class ColumnSpec:
    """A column: usually a data set and a partition."""

    label: str
    group: str = ""  # heading over several columns
    overrides: tuple[str, ...] = ()
    published: dict[str, str] = field(default_factory=dict)  # filter: dataset, partition, setting
    # Further overrides when another data set takes the place of the column's; a choice among them, as model=lenet5,
    # drops the earlier options of its group.
    substitute: tuple[str, ...] = ()
    measures: dict[str, Any] = field(default_factory=dict)  # metric -> a measure of this column's own
    rows: dict[str, Any] = field(default_factory=dict)  # label of rows, or a glob -> further overrides there
    unsupported: str = ""
    exploratory: str | None = None  # as a row's
    note: str = ""

    def own(self, row: str) -> tuple[str, ...]:
        """The overrides that only the row labelled `row` has in this column (after the row's)."""
        return tuple(text for names, texts in self.rows.items() if fnmatchcase(row, names) for text in texts)


@dataclass(frozen=True)
class Finding:
    """What came out, in words; said only below a table that was made so."""

    text: str
    changed: tuple[
        str, ...
    ] = ()  # overrides of the command line with which it holds; none: the paper's setting
