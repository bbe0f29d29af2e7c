"""`python -m fedbench.report [RESULTS] [--out FILE]`: every filled table below RESULTS on one page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fedbench.core.errors import FedbenchError


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page and say where it is; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m fedbench.report", description=__doc__)
    parser.add_argument("results", nargs="?", default="results", type=Path, help="default: results")
    parser.add_argument("--out", type=Path, help="default: RESULTS/index.html")
    given = parser.parse_args(arguments)
    out = given.out or given.results / "index.html"
    from fedbench.report.build import build

    try:
        tables = build(given.results, out)
    except FedbenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{out} ({tables} tables, {out.stat().st_size / 1e6:.1f} MB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
