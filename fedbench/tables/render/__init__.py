"""A filled table as Markdown, LaTeX and CSV."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.core.files import write_csv, write_text

if TYPE_CHECKING:
    from fedbench.tables.staleness import Count


def write(folder: Path) -> Count:
    """Draw the table stored in `folder` as table.md, table.tex and cells.csv beside it, with the tests it allows.

    significance.csv: rows against the headline; bias.csv: groups of rows against the paper; specificity.csv: every cell
    against every published value of its column and metric.

    Returns:
        How many runs are behind it, and how many of them were made by other code.

    Raises:
        FedbenchError: the stored table is unreadable.
    """
    import dataclasses

    from fedbench.tables import bias, significance, specificity, staleness
    from fedbench.tables.render import cells, latex, markdown

    table, count = staleness.load(folder)
    drawings = (("table.md", markdown.render), ("table.tex", latex.render), ("cells.csv", cells.render))
    for name, draw in drawings:
        write_text(folder / name, draw(table))
    first, headline = table.spec.metrics[0], table.spec.headline
    tests: dict[str, Sequence[Any]] = {
        "significance.csv": significance.paired(table, first, headline) if headline else [],
        "bias.csv": bias.biases(table),
        "specificity.csv": specificity.matches(table),
    }
    for name, found in tests.items():
        if found:
            write_csv(folder / name, [dataclasses.asdict(each) for each in found])
    return count
