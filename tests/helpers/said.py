"""What every message has: the key or file, what was found there, and what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence

DO = re.compile(
    r"\b(use|give|set|add|takes?|write|save|lower|raise|fetch|leave|remove|quote|nearest|make|number|must|needs?|choose"
    r"|example|call|a run of each)\b"
)
STATES = ("unknown", "no place", "not found", "Missing", "must be", "need the model named")  # of what is no value


def lacks(said: str, arguments: Sequence[str]) -> list[str]:
    """Which of the three a message on the last of `arguments`, as `protocol.rounds=0`, is without."""
    key, _, value = arguments[-1].lstrip("+~").partition("=")
    found = (value.strip("'\"") or key, *STATES)
    parts = {
        "the key": key.rpartition(".")[2] in said,
        "what was found": any(each in said for each in found),
        "what to do": DO.search(said) is not None,
    }
    return [name for name, there in parts.items() if not there]
