"""The part of a table to run: a scale, and the selection of a command line."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, cast

from omegaconf import OmegaConf

from fedbench.config import schema
from fedbench.config.compose import changes_nothing, compose, key_of
from fedbench.config.fields import Component, positive, typed
from fedbench.config.messages import one_line
from fedbench.core.errors import ConfigError
from fedbench.papers.spec import ColumnSpec, RowSpec, TableSpec, content_of

LEAST_ROUNDS = 2  # so that what crosses the network between rounds is exercised


@dataclass(frozen=True)
class Scale:
    """Changes of a run's config; the defaults change nothing."""

    name: str
    rounds: float = 1.0  # factor
    epochs: int | None = None  # largest number in a round
    iterations: int | None = None  # largest number in a round, if the protocol counts iterations
    evaluations: int | None = None  # largest number, evenly spread
    seeds: int | None = None  # instead of the table's
    limit: int | None = None  # training samples of the data set
    clients: int | None = None  # largest number; a cohort that is a count shrinks with them
    trained: bool = True  # false: training is too short for a meaningful order of the methods
    partition: dict[str, Any] = field(default_factory=dict)  # name -> fields, for partitions of fixed sizes
    method: dict[str, Any] = field(default_factory=dict)  # name -> fields, for methods of fixed local work

    def __post_init__(self) -> None:
        if not 0 <= self.rounds <= 1:
            raise ConfigError(f"scale.rounds is a share of the rounds in [0, 1], got {self.rounds}")

    @property
    def words(self) -> str:
        """Return a sentence on its changes; "" if there are none."""
        limits = {
            "epochs a round": self.epochs,
            "mini-batches a round, where they are counted": self.iterations,
            "training samples": self.limit,
            "clients": self.clients,
        }
        parts = [f"{self.rounds:.0%} of the rounds but at least {LEAST_ROUNDS}"] if self.rounds < 1 else []
        parts += [f"{what} at most {most}" for what, most in limits.items() if most is not None]
        return f"Scale {self.name}: {'; '.join(parts)}." if parts else ""

    def overrides(self, plain: Mapping[str, Any]) -> list[str]:
        """Return overrides that bring the resolved config `plain` to this scale."""
        protocol, local = plain["protocol"], plain["protocol"]["local"]
        rounds = max(min(LEAST_ROUNDS, protocol["rounds"]), math.ceil(self.rounds * protocol["rounds"]))
        found = [] if rounds == protocol["rounds"] else [f"protocol.rounds={rounds}"]
        if self.evaluations is not None:
            every = max(protocol["eval_every"], math.ceil(rounds / self.evaluations))
            found += [] if every == protocol["eval_every"] else [f"protocol.eval_every={every}"]
        kind = "iterations" if local["iterations"] else "epochs"
        most = getattr(self, kind)
        if most is not None and local[kind] > most:
            found.append(f"protocol.local.{kind}={most}")
        limit = plain["dataset"].get("limit")
        if self.limit is not None and (limit is None or limit > self.limit):
            found.append(f"dataset.limit={self.limit}")
        clients = plain["partition"].get("num_clients")
        if self.clients is not None and clients and clients > self.clients:
            found.append(f"partition.num_clients={self.clients}")
            drawn = schema.parse_cohort(str(protocol["cohort"]))
            if isinstance(drawn, int):
                found.append(f"protocol.cohort={max(1, drawn * self.clients // clients)}")
        for group in ("partition", "method"):
            fields = getattr(self, group).get(plain[group]["name"], {})
            found += [f"{group}.{key}={value}" for key, value in fields.items()]
        return found


@functools.cache
def load_scale(name: str) -> Scale:
    """Return the scale in conf/scale/`name`.yaml. Raises UnknownName if there is none, or for an unknown key in it."""
    return typed(Scale, content_of("scale", name), f"scale '{name}'")


@dataclass(frozen=True)
class Selection(Component):
    """What a command line selects: a table, figures or a board, which part of it, and how its runs are made."""

    table: str = ""
    board: str = ""
    scale: str = "paper"
    rows: tuple[str, ...] = ()  # labels of the rows to run; (): all
    columns: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()  # (): 0, 1, ..., as many as the scale, the table or the figure has
    substitute: str = ""  # data set in place of the table's own
    overrides: tuple[str, ...] = ()  # overrides of every run, and of Hydra
    jobs: int = 0  # runs at once; 0: one for each core, on a GPU one
    hours: float = positive(1.0)  # hours after which `evidence` stops
    results: str = "results"
    retry: bool = False
    dry_run: bool = False
    formats: tuple[str, ...] = ()  # (): svg and png for a figure, only Markdown for a table

    def selects(self, row: RowSpec, column: ColumnSpec) -> bool:
        """Return whether the cell is selected."""
        labels = ((row.label, self.rows), (column.label, self.columns))
        return all(not chosen or label in chosen for label, chosen in labels)

    def unlike_paper(self, row: RowSpec, column: ColumnSpec) -> str:
        """Return why, by `column`, a cell would not have the paper's inputs; "" if it would."""
        changed = {key_of(text) for text in self.changed} | ({"dataset"} if self.substitute else set())
        if column.unlike_with and changed.isdisjoint(column.unlike_with):
            return ""
        return next((why for names, why in column.unlike.items() if fnmatchcase(row.label, names)), "")

    @property
    def launcher(self) -> tuple[str, ...]:
        """The overrides of Hydra, which choose where runs are made."""
        return tuple(text for text in self.overrides if text.lstrip("+~").startswith("hydra"))

    @cached_property
    def settings(self) -> tuple[str, ...]:
        """The overrides of every run that change no result, such as runs_dir=DIR."""
        kept = (text for text in self.overrides if text not in self.launcher and changes_nothing(text))
        return ("progress=none", *kept)

    @property
    def changed(self) -> tuple[str, ...]:
        """The overrides of every run that change results, such as model=lenet5."""
        return tuple(text for text in self.overrides if text not in (*self.launcher, *self.settings))


def compose_cell(
    table: TableSpec, column: ColumnSpec, row: Sequence[str], selection: Selection
) -> tuple[list[str], dict[str, Any]]:
    """Return (overrides, plain config) of a cell: table, column, row, substitute, the user's changes, scale."""
    overrides = [*table.base, *column.overrides, *row]
    if selection.substitute:
        chosen = [f"dataset={selection.substitute}", *column.substitute]
        overrides = [*_without(overrides, chosen), *chosen]
    overrides += [*selection.changed, *selection.settings]
    where = f"table {table.name}, {' '.join(overrides)}"
    try:
        config = compose(overrides)
        plain = cast("dict[str, Any]", OmegaConf.to_container(config, resolve=True, throw_on_missing=True))
    except Exception as error:
        raise ConfigError(f"{where}: {one_line(error) or error}") from error
    own = {key_of(text) for text in selection.changed}  # what the user says stands against the scale
    scaled = [text for text in load_scale(selection.scale).overrides(plain) if key_of(text) not in own]
    config.merge_with(OmegaConf.from_dotlist(scaled))
    plain = cast("dict[str, Any]", OmegaConf.to_container(config, resolve=True, throw_on_missing=True))
    return [*overrides, *scaled], plain


def _without(overrides: Sequence[str], chosen: Sequence[str]) -> list[str]:
    """Return the overrides without choices and options of groups for which `chosen` has a new choice."""
    chosen_anew = {key for text in chosen if "." not in (key := key_of(text))}
    return [text for text in overrides if key_of(text).partition(".")[0] not in chosen_anew]
