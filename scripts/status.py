"""What is filled under results/tables/, as Markdown: a line a table, and a line a paper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fedbench.tables import scale, store, verdict
from fedbench.tables.render.grid import Layout
from fedbench.tables.result import TableResult

RESULTS = Path(__file__).resolve().parents[1] / "results"
PAPERS = {
    "fedcollab": "FedCollab (ICML 2023)",
    "fedsac": "FedSaC (ICML 2024)",
    "pfedsim": "pFedSim (2023)",
    "sosicfl": "SosicFL (2024)",
    "fedrema": "FedReMa (ECAI 2024)",
}


def markdown(lines: Sequence[Sequence[Any]]) -> str:
    """A table whose first line is its heading."""
    rows = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "".join(f"| {' | '.join(map(str, row))} |\n" for row in rows)


@cache
def filled() -> Mapping[str, TableResult]:
    """The filled tables by the name of their folder."""
    return {folder.name: store.load_table(folder) for folder in store.folders(RESULTS)}


def tables() -> str:
    """Of each filled table: the setting, the data, the seeds, the verdicts, when and by which code it was made."""
    lines = [["table", "setting", "data", "seeds", "verdicts", "made, by code of, hours of runs"]]
    for name, table in filled().items():
        made = table.circumstances
        commits = made.commit.split(", ")
        by = f"{len(commits)} commits" if len(commits) > 1 else commits[0][:7]
        when = f"{made.date}, {by}, {made.seconds / 3600:.1f}"
        counts = sorted({len(_seeds(table, row)) for row in _ran(table, "row")})
        seeds = "-".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
        lines.append(
            [
                f"[{name}](tables/{name}/table.md)",
                _setting(table),
                _data(table),
                seeds,
                _verdicts([table]),
                when,
            ]
        )
    return markdown(lines)


def commands() -> str:
    """The commands that fill the tables, as a block of shell."""
    return (
        "```\n" + "".join(f"{text}\n" for table in filled().values() for text in _commands(table)) + "```\n"
    )


def papers() -> str:
    """A line a paper: what of it was run, and the verdicts on the values of which it was run as published."""
    lines = [["paper", "what was run", "verdicts"]]
    for paper, name in PAPERS.items():
        of = [t for t in filled().values() if t.spec.paper == paper and not t.spec.varies]
        own = [t for t in of if t.circumstances.faithful and not t.circumstances.varied]
        runs: dict[str, list[str]] = {}
        for table in own or of:
            runs.setdefault(f"{_setting(table)}; {_data(table)}", []).append(
                table.spec.table.removeprefix("T")
            )
        text = "<br>".join(
            f"Table{'s' * (len(numbers) > 1)} {', '.join(numbers)}: {what}" for what, numbers in runs.items()
        )
        lines.append([f"[{name}](results/{paper}.md)", text or "nothing yet", _verdicts(own)])
    return markdown(lines)


def _setting(table: TableResult) -> str:
    made, own = table.circumstances, table.spec
    parts = ["our own"] if not own.paper or own.varies else []
    parts += [f"scale `{made.scale}`"] if made.scale != "paper" else []
    parts += [f"`{text}`" for text in (*made.changed, *made.varied)]
    return ", ".join(parts) or "as published"


def _data(table: TableResult) -> str:
    ran = [column for column in table.spec.columns if column.label in _ran(table, "column")]
    own = dict.fromkeys(
        text.partition("=")[2]
        for column in ran
        for text in (*table.spec.base, *column.overrides)
        if text.startswith("dataset=")
    )
    named = f"{table.circumstances.substitute} instead" if table.circumstances.substitute else ", ".join(own)
    return (
        named
        if len(ran) == len(table.spec.columns)
        else f"{named}, {len(ran)} of {len(table.spec.columns)} columns"
    )


def _ran(table: TableResult, side: str) -> set[str]:
    return {getattr(cell, side) for cell in table.cells if cell.values}


def _seeds(table: TableResult, row: str) -> tuple[int, ...]:
    return tuple(sorted({seed for cell in table.cells if cell.row == row for seed in cell.seeds}))


def _verdicts(of: Sequence[TableResult]) -> str:
    """How many published values got which verdict, of those beside which something was run."""
    kinds: Counter[str] = Counter()
    for table in of:
        layout = Layout(table)
        kinds.update(
            layout.text(row, column, metric).verdict.kind
            for row in table.spec.rows
            for column in layout.columns
            for metric in table.spec.metrics
            if (cell := table.cell(row.label, column.label, metric.name)).published and cell.values
        )
    return (
        ", ".join(f"{count} {kind}" for kind, count in kinds.most_common() if kind != verdict.NONE) or "none"
    )


def _commands(table: TableResult) -> Iterator[str]:
    """A command for all rows that have the same seeds."""
    made, own = table.circumstances, table.spec
    words = [f"make reproduce-{own.name.replace('_', '-')}"]
    words += [f"substitute={made.substitute}"] if made.substitute else []
    words += [f"scale={made.scale}"] if made.scale != "paper" else []
    words += [*made.changed, *made.varied, *_numbers("columns", own.columns, _ran(table, "column"))]
    usual = tuple(range(scale.load(made.scale).seeds or own.seeds))
    groups: dict[tuple[int, ...], set[str]] = {}
    for row in _ran(table, "row"):
        groups.setdefault(_seeds(table, row), set()).add(row)
    for seeds, rows in sorted(groups.items(), reverse=True):
        count = len(seeds) if seeds == tuple(range(len(seeds))) else f"[{','.join(map(str, seeds))}]"
        yield " ".join(
            [*words, *_numbers("rows", own.rows, rows), *([] if seeds == usual else [f"seeds={count}"])]
        )


def _numbers(key: str, lines: Sequence[Any], ran: set[str]) -> list[str]:
    """`key=1,3`, the places of the lines in which something ran; nothing for all of them."""
    places = [str(number) for number, line in enumerate(lines, 1) if line.label in ran]
    return [] if len(places) == len(lines) else [f"{key}={','.join(places)}"]
