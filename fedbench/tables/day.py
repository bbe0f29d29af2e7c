"""What all tables together ask of a device: seconds of each by arithmetic, their sum, and its largest terms."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedbench.core.errors import FedbenchError
from fedbench.engine.pick.arithmetic import ARITHMETIC_SHARE, BANDWIDTH_SHARE, Peaks
from fedbench.runs.config import RunConfig, from_plain, run_key
from fedbench.tables.cell_config import Wish, compose_cell
from fedbench.tables.demand import Demand, Seconds
from fedbench.tables.estimate import spell
from fedbench.tables.spec import TableSpec

if TYPE_CHECKING:
    from rich.table import Table

LARGEST = 8  # terms that are named


@dataclass
class Needed:
    """The runs of a table that no table before it has: all seeds of each configuration together."""

    table: str
    seeds: int
    demands: dict[str, Demand] = field(default_factory=dict)  # by what is run
    shared: int = 0  # configurations that another table, or cell, has too
    unknown: dict[str, str] = field(default_factory=dict)  # why a configuration cannot be counted

    def seconds(self, device: Peaks, *, captured: bool) -> float:
        """On `device`."""
        return sum(
            each.seconds(device, self.seeds, captured=captured).total for each in self.demands.values()
        )

    @property
    def cohort_steps(self) -> float:
        """Of programs of all seeds."""
        return sum(each.cohort_steps for each in self.demands.values())

    @property
    def petaflop(self) -> float:
        """Of local training."""
        return sum(each.client_steps * self.seeds * each.work.flops for each in self.demands.values()) / 1e15

    @property
    def memory(self) -> float:
        """Largest of any of them, bytes."""
        return max((each.memory(self.seeds) for each in self.demands.values()), default=0)


def needed(tables: Sequence[TableSpec], wish: Wish) -> list[Needed]:
    """What each table adds to those before it: a configuration is trained once, and so is its Local."""
    seen: set[str] = set()
    found = []
    for table in tables:
        here = Needed(table.name, len(wish.seeds) or wish.scale.seeds or table.seeds)
        for where, run in _runs(table, wish):
            for label, each in ((where, run), (f"{where} (Local)", run.local)):
                if each is None:
                    continue
                if (key := run_key(each)) in seen:
                    here.shared += label == where
                    continue
                seen.add(key)
                try:
                    here.demands[label] = Demand.of(each)
                except FedbenchError as error:
                    here.unknown[label] = str(error)
        found.append(here)
    return found


def _runs(table: TableSpec, wish: Wish) -> Iterator[tuple[str, RunConfig]]:
    """(label, seed 0's run) of every cell that trains, and of the baselines that ratios are taken to."""
    for row in table.rows:
        for column in table.columns:
            if row.unsupported or column.unsupported or row.study or not wish.wants(row, column):
                continue
            where = f"{row.label} / {column.label}"
            for label, overrides in (
                (where, (*row.overrides, *column.own(row.label))),
                (f"{where} (baseline)", row.baseline),
            ):
                if overrides or label == where:
                    _, plain = compose_cell(table, column, overrides, wish)
                    yield label, from_plain(plain)


def drawn(found: Sequence[Needed], device: Peaks, name: str) -> list[Table | str]:
    """The tables' demands, their sum, its parts and largest terms, and how they would shrink."""
    from rich.table import Table

    shown = Table(title=f"Every table on one {name}, modelled", title_justify="left")
    for column in ("table", "seeds", "runs", "shared", "cohort steps", "PFLOP", "GiB", "eager", "captured"):
        shown.add_column(column, justify="left" if column == "table" else "right")
    for each in found:
        spent = (spell(each.seconds(device, captured=captured)) for captured in (False, True))
        count = each.seeds * len(each.demands)
        shown.add_row(
            *(each.table, str(each.seeds), str(count), str(each.seeds * each.shared)),
            *(f"{each.cohort_steps:,.0f}", f"{each.petaflop:,.1f}", f"{each.memory / 2**30:.1f}", *spent),
        )
    eager, captured = (sum(each.seconds(device, captured=flag) for each in found) for flag in (False, True))
    shown.add_section()
    shown.add_row(
        *("all", "", str(sum(each.seeds * len(each.demands) for each in found)), ""),
        *(f"{sum(each.cohort_steps for each in found):,.0f}", f"{sum(each.petaflop for each in found):,.1f}"),
        *("", spell(eager), spell(captured)),
    )
    lines: list[Table | str] = [shown, *_parts(found, device), *_largest(found, device)]
    unknown = {f"{each.table}: {label}": why for each in found for label, why in each.unknown.items()}
    return lines + [f"not counted: {label}: {why}" for label, why in unknown.items()]


def _parts(found: Sequence[Needed], device: Peaks) -> list[str]:
    """Where the captured seconds are, and what changes them."""
    all_ = [each.seconds(device, n.seeds, captured=True) for n in found for each in n.demands.values()]
    parts = {name: sum(getattr(each, name) for each in all_) for name in Seconds.__dataclass_fields__}
    bound = sum(
        each.seconds(device, n.seeds, captured=True).training
        for n in found
        for each in n.demands.values()
        if each.bound_by_arithmetic(device, n.seeds)
    )
    saved = bound * (1 - device.float32 / device.tf32)
    apart = sum(
        n.seeds * each.seconds(device, 1, captured=True).total for n in found for each in n.demands.values()
    )
    together = sum(each.total for each in all_)
    return [
        "captured: " + ", ".join(f"{name} {spell(value)}" for name, value in parts.items()),
        f"training bound by arithmetic: {spell(bound)}; in TensorFloat-32 up to {spell(saved)} less, other numbers",
        f"seeds apart instead of as rows: {spell(apart)} in place of {spell(together)}",
        f"assumed: {ARITHMETIC_SHARE:.0%} of the peak operations, {BANDWIDTH_SHARE:.0%} of the bandwidth",
    ]


def _largest(found: Sequence[Needed], device: Peaks) -> list[str]:
    """The most expensive rows and columns."""
    terms: dict[str, float] = defaultdict(float)
    for each in found:
        for label, demand in each.demands.items():
            column = label.partition(" / ")[2].partition(" (")[0]
            terms[f"{each.table}, {column}"] += demand.seconds(device, each.seeds, captured=True).total
    order = sorted(terms, key=lambda name: terms[name], reverse=True)[:LARGEST]
    return ["largest terms, captured:", *(f"  {name}: {spell(terms[name])}" for name in order)]
