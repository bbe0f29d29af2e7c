"""A filled table: what every cell holds, before it is judged or drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fedbench.tables.published import Published
from fedbench.tables.spec import TableSpec

PENDING = "not run yet"  # why a cell has no value that was not asked for, or not yet
SEVERAL = "one of several settings tried beside the same published value"


@dataclass(frozen=True)
class Cell:
    """One number of the table over seeds; nan values (censored) are kept and counted."""

    row: str  # label
    column: str
    metric: str  # name
    values: tuple[float, ...] = ()  # [seeds that ran]
    seeds: tuple[int, ...] = ()  # of the values
    keys: tuple[str, ...] = ()  # run keys of the values
    published: Published | None = None
    reason: str = ""  # why there is no value, or not one for every seed; "" if all ran
    baselines: tuple[str, ...] = ()  # keys of the runs that the values are relative to, if the row has some

    @property
    def mean(self) -> float:
        """Mean over seeds; nan without a value."""
        return float(np.mean(self.values)) if self.values else float("nan")

    @property
    def std(self) -> float:
        """Sample standard deviation over seeds; nan for fewer than two."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else float("nan")


@dataclass(frozen=True)
class Circumstances:
    """What a reader must know of how a table was made, and so whether its cells get verdicts (`faithful`)."""

    scale: str = "paper"
    substitute: str = ""  # data set in place of the table's own; "" if none
    changed: tuple[str, ...] = ()  # further overrides given on the command line
    varied: tuple[str, ...] = ()  # those of what the paper leaves open, which void no verdict
    trained: bool = True  # false: too short for an order of the methods to mean anything
    machine: str = ""
    commit: str = ""
    date: str = ""
    seconds: float = float("nan")  # of all runs together

    def named(self, title: str) -> str:
        """`title` with a substitute data set, a reduced scale and changed settings named in it."""
        parts = [f"on {self.substitute} instead of the paper's data"] if self.substitute else []
        parts += [] if self.scale == "paper" else [f"{self.scale} scale"]
        further = (*self.changed, *self.varied)
        parts += [f"with {' '.join(further)}"] if further else []
        return f"{title} ({'; '.join(parts)})" if parts else title

    @property
    def faithful(self) -> bool:
        """Whether the numbers may be compared with the published ones."""
        return self.scale == "paper" and not self.substitute and not self.changed


@dataclass(frozen=True)
class TableResult:
    """A table with its cells, one for every row, column and metric, in that order."""

    spec: TableSpec
    cells: tuple[Cell, ...]
    circumstances: Circumstances = field(default_factory=Circumstances)
    clients: Mapping[str, int] = field(
        default_factory=dict
    )  # column -> clients of its runs, where they are known
    # (row, column) -> what is not as in the table's other rows or today's code (fedbench.tables.staleness)
    stale: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)

    def exploratory(self, row: str, column: str) -> str:
        """Why the verdicts on a row in a column are counted apart; "" if they are not."""
        for override, reason in self.spec.exploratory.items():
            if override in self.circumstances.varied:
                return reason
        (marked,) = (each for each in self.spec.rows if each.label == row)
        if marked.exploratory and not set(marked.exploratory_but) & set(self.circumstances.varied):
            return marked.exploratory
        (place,) = (each for each in self.spec.columns if each.label == column)
        if place.exploratory:
            return place.exploratory
        return SEVERAL if self.spec.varies else ""

    def cell(self, row: str, column: str, metric: str) -> Cell:
        """The cell of these labels. Raises KeyError if there is none."""
        for cell in self.cells:
            if (cell.row, cell.column, cell.metric) == (row, column, metric):
                return cell
        raise KeyError((row, column, metric))

    @property
    def title(self) -> str:
        """The table's title, and what is not as published."""
        return self.circumstances.named(self.spec.title)
