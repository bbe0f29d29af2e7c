"""The start of the page: what of each paper was run, how well it agrees, and at what cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fedbench.tables import account, summary
from fedbench.tables.result import TableResult
from fedbench.tables.summary import Judged
from fedbench.tables.verdict import NONE, judge

OWN, PUBLISHED = "Our own tables", "as published"
Rows = Mapping[str, Sequence[Mapping[str, str]]]  # of the result rows of runs, by the folder of their table


@dataclass(frozen=True)
class Line:
    """The tables of a paper at one setting."""

    paper: str  # as in a table's specification; "" for our own
    label: str
    setting: str
    what: str
    tables: tuple[str, ...]  # folders
    confirmed: Counter[str]  # kind of verdict -> values, each once
    exploratory: Counter[str]
    open: int  # values beside published ones that get no verdict
    runs: int
    hours: float  # of one core, each run once


@dataclass(frozen=True)
class Start:
    """All lines, and their sum: of the values with a verdict only those at the papers' own settings."""

    lines: tuple[Line, ...]
    empty: tuple[str, ...]  # folders of tables without a value, which are in no line
    confirmed: Counter[str]
    runs: int
    hours: float


def start(tables: Mapping[str, TableResult], rows: Rows) -> Start:
    """Of the filled tables, by the name of their folder."""
    found = summary.judged(tables)
    tallies = summary.tallies(found)
    lines = [
        _line(
            tables,
            rows,
            each.paper,
            account.spelled(each.setting.split()) or PUBLISHED,
            each.tables,
            each.values,
        )
        for each in tallies
    ]
    told = {folder for each in tallies for folder in each.tables}
    empty = tuple(name for name, table in tables.items() if not any(cell.values for cell in table.cells))
    settings: dict[tuple[str, str], list[str]] = {}
    for name, table in tables.items():
        if name not in (*told, *empty):
            settings.setdefault((table.spec.paper, ", ".join(_differs(table)) or PUBLISHED), []).append(name)
    for (paper, setting), rest in settings.items():
        values = {(each.keys, each.metric): each for each in found if each.folder in rest}
        lines.append(_line(tables, rows, paper, setting, rest, list(values.values())))
    papers = (*account.PAPERS, "")
    lines.sort(key=lambda line: papers.index(line.paper) if line.paper in papers else len(papers))
    own = [line.confirmed for line in lines if line.setting == PUBLISHED]
    return Start(tuple(lines), empty, sum(own, Counter()), *_cost(rows, list(tables)))


def _line(
    tables: Mapping[str, TableResult],
    rows: Rows,
    paper: str,
    setting: str,
    folders: Sequence[str],
    values: Sequence[Judged],
) -> Line:
    chosen = [tables[name] for name in folders]
    runs: dict[str, list[str]] = {}
    for table in chosen:
        runs.setdefault(account.data(table), []).append(_short(table))
    return Line(
        paper,
        account.PAPERS.get(paper, paper) or OWN,
        setting,
        "; ".join(f"{', '.join(dict.fromkeys(names))}: {data}" for data, names in runs.items()),
        tuple(folders),
        summary.counts(values),
        summary.counts(values, exploratory=True),
        sum(_open(table) for table in chosen),
        *_cost(rows, folders),
    )


def _short(table: TableResult) -> str:
    own = table.spec
    return own.name if not own.paper else f"{own.table} open" if own.varies else own.table


def _differs(table: TableResult) -> Iterator[str]:
    """In what a table is not as published, in words."""
    made = table.circumstances
    if not table.spec.paper:
        yield "not in a paper"
    if made.substitute:
        yield "on other data"
    if made.scale != "paper":
        yield f"shorter: {made.scale} scale"
    if words := account.spelled((*made.changed, *made.varied)):
        yield words
    if table.spec.varies and made.faithful:
        yield "several settings tried"


def _open(table: TableResult) -> int:
    return sum(
        1 for cell in table.cells if cell.published and cell.values and judge(table, cell).kind == NONE
    )


def _cost(rows: Rows, folders: Sequence[str]) -> tuple[int, float]:
    """(runs, hours of one core) of these tables, each run once."""
    spent = {run["key"]: float(run.get("seconds_total") or 0) for name in folders for run in rows[name]}
    return len(spent), sum(spent.values()) / 3600
