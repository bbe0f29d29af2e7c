"""What all tables together ask of a device: seconds of each by arithmetic, their sum, and its largest terms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fedbench.core.errors import FedbenchError
from fedbench.engine.pick.arithmetic import Peaks
from fedbench.runs.beginning import common_key
from fedbench.runs.config import RunConfig, from_plain, run_key
from fedbench.tables.cell_config import Wish, compose_cell
from fedbench.tables.demand import Demand
from fedbench.tables.published import published
from fedbench.tables.spec import TableSpec


@dataclass
class Needed:
    """The runs of a table that no table before it has: all seeds of each configuration together."""

    table: str
    seeds: int
    values: int  # published, that it is for; none of a table that varies another
    demands: dict[str, tuple[Demand, ...]] = field(
        default_factory=dict
    )  # by what is run, of each kind of client
    shared: int = 0  # configurations that another table, or cell, has too
    studies: int = 0  # rows that train no federation
    unknown: dict[str, str] = field(default_factory=dict)  # why a configuration cannot be counted

    @property
    def parts(self) -> list[Demand]:
        """Of all its configurations and kinds of client."""
        return [part for parts in self.demands.values() for part in parts]

    @property
    def runs(self) -> int:
        """Of all seeds."""
        return self.seeds * len(self.demands)

    def seconds(self, device: Peaks, *, captured: bool) -> float:
        """On `device`."""
        return sum(part.seconds(device, self.seeds, captured=captured).total for part in self.parts)

    @property
    def cohort_steps(self) -> float:
        """Of programs of all seeds."""
        return sum(part.cohort_steps for part in self.parts)

    @property
    def petaflop(self) -> float:
        """Of local training."""
        return sum(part.client_steps * self.seeds * part.work.flops for part in self.parts) / 1e15

    @property
    def memory(self) -> float:
        """Largest of any of them, bytes."""
        return max((part.memory(self.seeds) for part in self.parts), default=0)


def needed(tables: Sequence[TableSpec], wish: Wish) -> list[Needed]:
    """What each table adds to those before it: a configuration is trained once, and so are its Local and beginning."""
    seen: set[str] = set()
    kept: dict[str, int] = {}  # rounds of the beginning in the cache, by what has it in common
    found = []
    for table in tables:
        of = (table.paper, table.table)
        values = 0 if table.varies else sum((each.paper, each.table) == of for each in published())
        here = Needed(table.name, len(wish.seeds) or wish.scale.seeds or table.seeds, values)
        here.studies = sum(bool(row.study) for row in table.rows)
        for where, run in _runs(table, wish):
            for label, each in ((where, run), (f"{where} (Local)", run.local)):
                if each is None:
                    continue
                if (key := run_key(each)) in seen:
                    here.shared += label == where
                    continue
                seen.add(key)
                try:
                    whole, done = Demand.of(each), _begun(each, kept)
                    here.demands[label] = tuple(part.after(done) for part in whole)
                except FedbenchError as error:
                    here.unknown[label] = str(error)
        found.append(here)
    return found


def _begun(run: RunConfig, kept: dict[str, int]) -> int:
    """Rounds that `run` need not train; what it keeps itself is put into `kept`. See fedbench.runs.beginning."""
    rounds, _ = run.method.beginning(run.protocol.rounds)
    if not rounds:
        return 0
    key = common_key(run)
    before = kept.get(key, 0)
    kept[key] = max(before, rounds)
    return before if before <= rounds else 0


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
