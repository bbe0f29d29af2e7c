"""What a command line asks of a table: which part of it, at which scale, with which overrides of its runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from fedbench.cli import making
from fedbench.core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from fedbench.tables.plan import Plan
    from fedbench.tables.spec import Scale, TableSpec, Wish


@dataclass(frozen=True)
class Request:
    """What the command line asks for, but for the overrides of the runs."""

    table: str
    scale: str = "paper"
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    substitute: str = ""
    jobs: int = 0
    results: str = "results"
    retry: bool = False
    dry_run: bool = False
    render: bool = False


def read(arguments: Sequence[str]) -> tuple[Request, list[str]]:
    """(the request, overrides of the runs and of Hydra) of a command line.

    Raises:
        ConfigError: an argument that is no KEY=VALUE, a value of the wrong type, or an override that no plan takes.
    """
    from fedbench.config.fields import typed

    own = {f.name for f in fields(Request)}
    values: dict[str, Any] = {}
    overrides = []
    for given in arguments:
        text = "dry_run=true" if given == "--dry-run" else given
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"'{text}' is no KEY=VALUE; see python -m fedbench reproduce --help")
        if key not in own:
            overrides.append(making.of_every_run(text))
        elif key in ("rows", "columns"):
            values[key] = [part.strip() for part in value.strip("[]").split(",")]
        else:
            values[key] = making.value(text, value)
    if "seeds" in values:
        values["seeds"] = making.seeds(values["seeds"])
    return typed(Request, values, "the command line"), overrides


def asked(request: Request, overrides: Sequence[str], table: TableSpec, scale: Scale) -> Wish:
    """What the request says of the runs of `table`."""
    from fedbench.tables.spec import Wish

    mine = [text for text in overrides if not text.lstrip("+~").startswith("hydra")]
    settings = tuple(text for text in mine if making.is_setting(text))
    changed = tuple(text for text in mine if not making.is_setting(text))
    settings = ("progress=none", *settings)
    chosen = table.only(request.rows, request.columns)
    rows, columns = ([each.label for each in line] for line in (chosen.rows, chosen.columns))
    return Wish(scale, request.seeds, request.substitute, changed, settings, tuple(rows), tuple(columns))


def planned(request: Request, overrides: Sequence[str]) -> tuple[Plan, Wish, Path]:
    """(what the request asks for, as it stands, the wish behind it, the folder of the filled table)."""
    from fedbench.tables import plan, spec, store

    table = spec.load(request.table)
    wish = asked(request, overrides, table, spec.load_scale(request.scale))
    folder = store.folder_of(request.results, table.name, plan.circumstances(table, wish))
    return plan.make(table, wish, store.read(folder)), wish, folder
