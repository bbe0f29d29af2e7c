"""The start of the page: what of each paper was run, how well it agrees, and at what cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fedbench.tables import account, summary
from fedbench.tables.result import TableResult
from fedbench.tables.summary import Judged
from fedbench.tables.verdict import NONE, judge

OWN = "Our own tables"
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
    confirmed: Counter[str]
    runs: int
    hours: float


def start(tables: Mapping[str, TableResult], rows: Rows) -> Start:
    """Of the filled tables, by the name of their folder."""
    found = summary.judged(tables)
    tallies = summary.tallies(found)
    lines = [
        _line(tables, rows, each.paper, each.setting or "as published", each.tables, each.values)
        for each in tallies
    ]
    told = {folder for each in tallies for folder in each.tables}
    for paper in (*account.PAPERS, ""):
        rest = [name for name, table in tables.items() if table.spec.paper == paper and name not in told]
        values = {(each.keys, each.metric): each for each in found if each.folder in rest}
        if rest:
            setting = ", ".join(dict.fromkeys(word for name in rest for word in _differs(tables[name])))
            lines.append(_line(tables, rows, paper, setting, rest, list(values.values())))
    papers = (*account.PAPERS, "")
    lines.sort(key=lambda line: papers.index(line.paper) if line.paper in papers else len(papers))
    own = [line.confirmed for line in lines if line.setting == "as published"]
    return Start(tuple(lines), sum(own, Counter()), *_cost(rows, list(tables)))


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
    """In what a table is not as published."""
    made = table.circumstances
    if made.substitute:
        yield "other data"
    if made.scale != "paper":
        yield f"{made.scale} scale"
    if made.changed:
        yield "changed settings"
    if table.spec.varies:
        yield "several settings tried"
    if made.varied:
        yield "what the paper leaves open chosen otherwise"
    if not table.spec.paper:
        yield "nothing published"


def _open(table: TableResult) -> int:
    return sum(
        1 for cell in table.cells if cell.published and cell.values and judge(table, cell).kind == NONE
    )


def _cost(rows: Rows, folders: Sequence[str]) -> tuple[int, float]:
    """(runs, hours of one core) of these tables, each run once."""
    spent = {run["key"]: float(run.get("seconds_total") or 0) for name in folders for run in rows[name]}
    return len(spent), sum(spent.values()) / 3600
