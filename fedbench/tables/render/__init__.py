"""A filled table as Markdown, LaTeX and CSV."""

from __future__ import annotations

from pathlib import Path

from fedbench.core.files import write_csv, write_text


def write(folder: Path) -> None:
    """Draw the table stored in `folder` as table.md, table.tex and cells.csv beside it, and significance.csv.

    Raises:
        FedbenchError: the stored table is unreadable.
    """
    import dataclasses

    from fedbench.tables import significance, store
    from fedbench.tables.render import cells, latex, markdown

    table = store.load_table(folder)
    for name, module in (("table.md", markdown), ("table.tex", latex), ("cells.csv", cells)):
        write_text(folder / name, module.render(table))
    first, headline = table.spec.metrics[0], table.spec.headline
    if pairs := significance.paired(table, first, headline) if headline else []:
        write_csv(folder / "significance.csv", [dataclasses.asdict(pair) for pair in pairs])
