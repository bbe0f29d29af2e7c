"""A table of what can be chosen, and the words in which it tells the domains of parameters."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, cast

from fedbench.config.fields import DOMAIN, Component

Row = dict[str, str]


@dataclass(frozen=True)
class Listing:
    """A table: columns in order, and rows that have all of them."""

    title: str
    columns: tuple[str, ...]
    rows: list[Row]
    here: tuple[str, ...] = ()  # columns that depend on this machine

    def markdown(self) -> str:
        """As a table of Markdown, the same on every machine."""
        columns = tuple(column for column in self.columns if column not in self.here)
        lines = [columns, ("---",) * len(columns)]
        lines += [tuple(row[column].replace("|", "\\|") for column in columns) for row in self.rows]
        return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def domains(cls: type, prefix: str = "") -> str:
    """`key domain` of each of the class's parameters that has one, those of a schema inside too."""
    words = []
    for each in dataclasses.fields(cls):
        domain, inner = each.metadata.get(DOMAIN), cast("Any", each.default_factory)
        if isinstance(inner, type) and issubclass(inner, Component):
            words.append(domains(inner, f"{prefix}{each.name}."))
        elif domain is not None and domain.short:
            null = " or null" if "None" in str(each.type) else ""
            words.append(f"{prefix}{each.name} {domain.short}{null}")
    return ", ".join(word for word in words if word)
