"""Tables of Markdown, as the pages that scripts write hold them."""

from __future__ import annotations

from collections.abc import Sequence

from fedbench.core.tables import markdown


def table(head: Sequence[object], *rows: Sequence[object]) -> list[str]:
    """Return the lines of a table."""
    return markdown([head, *rows]).splitlines()
