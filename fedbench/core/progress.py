"""How long-running preparation reports what it does."""

from __future__ import annotations

from collections.abc import Callable

Report = Callable[[str, int, int | None], None]
"""(what is going on, how far, out of how many if known)"""


def silent(what: str, done: int, total: int | None) -> None:
    """Report to nobody."""
