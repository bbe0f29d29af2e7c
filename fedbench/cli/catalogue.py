"""The tables behind `python -m fedbench list`: what can be chosen, with what it is and what it needs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial

from fedbench.cli.components import components, methods, presets
from fedbench.cli.listing import Listing
from fedbench.config import groups
from fedbench.core.errors import unknown


def listing(kind: str) -> Listing:
    """The table called `kind`.

    Raises:
        UnknownName: no such table.
    """
    if kind not in KINDS:
        raise unknown("list", kind, KINDS)
    return KINDS[kind]()


def _datasets() -> Listing:
    rows = []
    for name in groups.names("dataset"):
        source = groups.registry("dataset").build(groups.load("dataset", name))
        state = source.state()
        ready = "ready" if state.prepared else "ready, read at first use"
        rows.append(
            {
                "data set": name,
                "content": groups.about("dataset", name),
                "state": ready if state.ready else "missing",
                "where": state.where or "-",
                "how to get it": state.how,
            }
        )
    columns = ("data set", "state", "where", "content", "how to get it")
    return Listing("Data sets", columns, rows, here=("state", "where"))


def _tables() -> Listing:
    from fedbench.tables import spec

    rows = []
    for name in spec.names():
        table = spec.load(name)
        published = sum(
            table.published(row, column, metric) is not None
            for row in table.rows
            for column in table.columns
            for metric in table.metrics
        )
        used = dict.fromkeys(
            text.partition("=")[2]
            for column in table.columns
            for text in (*table.base, *column.overrides)
            if text.startswith("dataset=")
        )
        ready = [d for d in used if groups.registry("dataset").build(groups.load("dataset", d)).state().ready]
        unsupported = sum(
            bool(row.unsupported or column.unsupported) for row in table.rows for column in table.columns
        )
        size = f"{len(table.rows)} × {len(table.columns)}"
        rows.append(
            {
                "table": name,
                "content": table.title,
                "rows × columns": size + (f", {unsupported} cannot be run" if unsupported else ""),
                "published values": str(published),
                "seeds": str(table.seeds),
                "data": ", ".join(used),
                "ready": ", ".join(ready) or "-",
            }
        )
    columns = ("table", "content", "rows × columns", "published values", "seeds", "data", "ready")
    return Listing("Tables: make reproduce-NAME, - for _", columns, rows, here=("ready",))


def _figures() -> Listing:
    from fedbench.figures.plan import ordered_specs

    rows = [
        {"figure": s.name, "mirrors": s.mirrors, "shows": s.title, "scales": ", ".join(s.settings)}
        for s in ordered_specs()
    ]
    return Listing("Figures of the papers", ("figure", "mirrors", "shows", "scales"), rows)


def _recorders() -> Listing:
    from fedbench.recorders import RECORDERS

    found = [(name, RECORDERS.get(name)) for name in RECORDERS]
    rows = [
        {
            "recorder": name,
            "keeps": (inspect.getdoc(cls) or "").partition("\n\n")[0].replace("\n", " "),
            "by default": "after every round" if cls.always else "after the last round",
        }
        for name, cls in found
    ]
    return Listing("What a run can record besides its scores", ("recorder", "keeps", "by default"), rows)


KINDS: dict[str, Callable[[], Listing]] = {
    "methods": methods,
    "presets": presets,
    "datasets": _datasets,
    "partitions": partial(
        components, "partition", "Partitions; a number behind a family's name is its parameter: dir0.1"
    ),
    "models": partial(components, "model", "Models"),
    "protocols": partial(
        components, "protocol", "Protocols; parameters that differ from the schema's defaults"
    ),
    "tables": _tables,
    "figures": _figures,
    "recorders": _recorders,
}
