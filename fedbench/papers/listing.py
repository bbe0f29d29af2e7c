"""`python -m fedbench list tables` and `list figures`."""

from __future__ import annotations

from fedbench.cli.list import Listing
from fedbench.config import groups
from fedbench.papers import spec
from fedbench.papers.figure_plan import ordered_specs


def tables() -> Listing:
    """List the tables, with what they publish and which of their data are here."""
    rows = []
    for name in groups.names("table"):
        table = spec.load_spec(name)
        published = sum(table.published(*place) is not None for place in table.places())
        used = dict.fromkeys(name for column in table.columns for name in table.datasets(column))
        ready = [d for d in used if groups.registry("dataset").build(groups.plain_option("dataset", d)).state().ready]
        rows.append(
            {
                "table": name,
                "content": table.title,
                "rows × columns": f"{len(table.rows)} × {len(table.columns)}",
                "published values": str(published),
                "seeds": str(table.seeds),
                "data": ", ".join(used),
                "ready": ", ".join(ready) or "-",
            }
        )
    return Listing("Tables: make reproduce-NAME, - for _", rows, local=("ready",))


def figures() -> Listing:
    """List the figures of the papers."""
    rows = [
        {"figure": s.name, "mirrors": s.mirrors, "shows": s.title, "scales": ", ".join(s.settings)}
        for s in ordered_specs()
    ]
    return Listing("Figures of the papers", rows)
