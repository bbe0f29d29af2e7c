"""Rewrite the tables of README.md that `python -m fedbench.list` makes: between <!-- KIND --> and <!-- /KIND -->."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from fedbench.cli.listing import KINDS, listing

README = Path(__file__).resolve().parents[1] / "README.md"


def updated(text: str) -> str:
    """`text` with every marked table made anew."""

    def table(match: re.Match[str]) -> str:
        kind = match[1]
        return f"<!-- {kind} -->\n\n{listing(kind).markdown()}\n<!-- /{kind} -->"

    return re.sub(rf"<!-- ({'|'.join(KINDS)}) -->.*?<!-- /\1 -->", table, text, flags=re.DOTALL)


def main() -> int:
    """Rewrite the file if a table has changed."""
    before = README.read_text(encoding="utf-8")
    after = updated(before)
    if after != before:
        README.write_text(after, encoding="utf-8")
    print(f"{README.name}: {'rewritten' if after != before else 'unchanged'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
