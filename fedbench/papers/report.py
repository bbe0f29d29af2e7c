"""The page of results: leaderboards, then a line a paper; tables and figures are packed and drawn when asked for.

Jinja2 writes all of it. A table is packed as the HTML that is shown and what the page's script knows of it.
"""

from __future__ import annotations

import base64
import dataclasses
import gzip
import hashlib
import inspect
import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from fedbench.config import groups
from fedbench.config.arguments import CommandParser
from fedbench.core.errors import FedbenchError
from fedbench.core.files import make_folder, write_text
from fedbench.papers import boards, measures, recorded, standings, store, summary, text
from fedbench.papers.comparisons import agreements
from fedbench.papers.equivalence import DIFFERENT, EQUIVALENT, INCONCLUSIVE, UNDECIDABLE
from fedbench.papers.spec import ColumnSpec, MetricSpec, RowSpec, TableSpec
from fedbench.papers.store import SEPARATOR, Cell, TableResult, number_of
from fedbench.papers.text import DASH, Layout, Text, notes
from fedbench.papers.verdict import NONE
from fedbench.plots.style import cluster_order
from fedbench.runs.progress import amount

# What lies behind the cells of a table, packed small for the page: learning curves, matrices, clients.

LEVELS = 1000  # between zero and the largest weight of a matrix
CLIENTS = 150  # of a matrix that are drawn; more would be smaller than a pixel and weigh megabytes
PREFIX = "acc_on_"


def behind(
    table: TableResult, curves: Sequence[Mapping[str, str]], matrices: store.Arrays, clients: store.Arrays
) -> dict[str, Any]:
    """Return what the page draws of a table, per "row|column" (numbers from 0).

    Returns:
        {"sets": names, "curves": {cell: {seed: {"round": [..], set: [..]}}},
        "matrices": {cell: {"seed", "clients", "unit", "W", "order"}}, see `_matrix`,
        "clients": {cell: {seed: [percent]}}}.
        Rows and columns that the table lacks are left out.
    """
    cells = {
        SEPARATOR.join((row.label, column.label)): f"{i}|{j}"
        for i, row in enumerate(table.spec.rows)
        for j, column in enumerate(table.spec.columns)
    }
    sets = sorted({name for point in curves for name in point if name.startswith(PREFIX)})
    found: dict[str, dict[str, dict[str, list[float | None]]]] = {}
    for point in curves:
        cell = cells.get(SEPARATOR.join((point["row"], point["column"])))
        if cell is None:
            continue
        run = found.setdefault(cell, {}).setdefault(point["seed"], {"round": [], **{name: [] for name in sets}})
        run["round"].append(int(float(point["round"])))
        for name in sets:
            run[name].append(_number(point.get(name, "")))
    drawn = {cell: _matrix(weights, seed) for cell, seed, weights in _placed(cells, matrices)}
    scores: dict[str, dict[str, list[float | None]]] = {}
    for cell, seed, values in _placed(cells, clients):
        scores.setdefault(cell, {})[seed] = [_number(value) for value in values]
    return {"sets": sets, "curves": found, "matrices": drawn, "clients": scores}


def _placed(cells: Mapping[str, str], arrays: store.Arrays) -> Iterator[tuple[str, str, store.Array]]:
    """Yield (cell, seed, array) of those that lie in a cell of the table."""
    for name, array in arrays.items():
        labels, _, seed = name.rpartition(SEPARATOR)
        if labels in cells:
            yield cells[labels], seed, array


def _matrix(weights: store.Array, seed: str) -> dict[str, Any]:
    """Return a matrix [N, N], of at most CLIENTS clients, as whole multiples of a unit, None where it is not finite.

    With an order in which those who weigh each other stand together.
    """
    shown = np.asarray(weights[:CLIENTS, :CLIENTS], dtype=np.float64)
    finite = np.isfinite(shown)
    unit = float(np.abs(shown[finite]).max(initial=0.0)) / LEVELS or 1.0
    whole = np.rint(np.where(finite, shown, 0.0) / unit).astype(int).astype(object)  # a tenth of the size of decimals
    whole[~finite] = None
    order = cluster_order(np.nan_to_num(shown)).tolist()
    return {"seed": seed, "clients": len(weights), "unit": unit, "W": whole.tolist(), "order": order}


def packed(content: Any) -> str:
    """Return what JSON can hold as base64 of gzip; the same content gives the same text."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=9, mtime=0)).decode()


def _number(value: Any) -> float | None:
    """Return a number rounded to what can be seen; None where there is no finite value."""
    number = number_of(value)
    if not math.isfinite(number):
        return None
    short = float(f"{number:.4g}")
    return int(short) if short.is_integer() else short


PAGE = Path(__file__).with_name("page")
SCRIPTS = (  # in the order in which they need each other
    "base.js", "plots.js", "curves.js", "clients.js", "tables.js", "address.js", "cell.js", "compare.js", "page.js",
)  # fmt: skip
STYLES = ("style.css", "tables.css", "dialogs.css", "print.css")
ResultRows = Sequence[Mapping[str, str]]  # of runs
KINDS = {  # of cells -> the sign, for those who do not see the colour, and the word
    EQUIVALENT: ("≈", "equivalent"),
    "above": ("▲", "different, ours is higher"),
    "below": ("▼", "different, ours is lower"),
    INCONCLUSIVE: ("?", "inconclusive"),
    UNDECIDABLE: ("∅", "undecidable: no outcome of so few seeds could be equivalent"),
    "exploratory": ("†", "exploratory, counted separately"),
    "open": ("○", "no verdict"),
    "missing": ("–", "not run, or failed"),
}
ALONE = "alone"  # nothing is published beside it, and it has no sign
SHORT = 24  # characters of a reason that fit into a cell
OWN = "Our own tables"


def report_command(arguments: Sequence[str]) -> int:
    """Write one page of all filled tables; return the exit code."""
    parser = CommandParser("report", description="Write every filled table below RESULTS to one page.")
    parser.add_argument("results", nargs="?", default="results", type=Path, help="default: results")
    parser.add_argument("--out", type=Path, help="default: RESULTS/index.html")
    parser.add_argument(
        "--methods", default="", help="folder of the methods' pages, as seen from the page; default: their source files"
    )
    given = parser.parse_args(arguments)
    out = given.out or given.results / "index.html"
    tables = build_page(given.results, out, given.methods)
    print(f"{out} ({amount(tables, 'table')}, {out.stat().st_size / 1e6:.1f} MB)")
    return 0


def build_page(results: Path, out: Path, methods: str = "") -> int:
    """Write the page of all filled tables below `results` to `out`; returns how many there are.

    `methods`: the folder of the methods' pages, as seen from `out`; a method without one leads to its source file.

    Raises:
        FedbenchError: there is no filled table, one is unreadable, or `out` cannot be written.
    """
    folders = store.table_folders(results)
    if not folders:
        raise FedbenchError(f"no filled table below {results}; python -m fedbench reproduce table=NAME makes one")
    tables = {name: recorded.read_marked(folder)[0] for name, folder in folders.items()}
    rows = {name: store.read_rows(folder) for name, folder in folders.items()}
    clients = clients_of(folders, rows)
    views = {}
    for name, folder in folders.items():
        links = [
            (file.name, _relative(file, out))
            for file in (_page(folder / "table.md"), folder / store.ARCHIVE)
            if file.is_file()
        ]
        table, curves = tables[name], store.read_rows(folder, store.CURVES)
        found = behind(only_run(table), curves, store.read_arrays(folder, store.MATRICES), clients[name])
        views[name] = table_view(table, name, rows[name], found, links)
    papers = paper_views(tables, views)
    for each in papers:
        page = _page(results / f"{each['name']}.md")
        each["page"] = _relative(page, out) if page.is_file() else ""
    boards = [board_view(folder, out, methods) for folder in reversed(standings.board_folders(results))]
    try:
        make_folder(out.parent)
        write_text(out, render(papers, boards, *_cost(rows)))
    except OSError as error:
        raise FedbenchError(f"cannot write {out} ({error}); name another file with --out") from error
    return len(views)


BOARD_HEADINGS = {
    "method": "",
    "accuracy %": "mean test accuracy over clients and seeds",
    "95 % interval": "of the mean over seeds; the axis ends where the leading row does, and longer bars are cut there",
    "best": "● no significant difference from the highest mean",
    "worst tenth %": "",
    "hurt %": "share of clients more than a point worse than under Local",
    "unseen %": "accuracy of clients that never took part, after one epoch of the method's own adaptation",
    "MB to Local": "megabytes until the accuracy of tuned Local is reached; (1 of 3): in one seed, never in the others",
    "s to Local": "seconds until then",
    "seeds": "that ended",
}


def board_view(folder: Path, out: Path, methods: str = "") -> dict[str, Any]:
    """Return what the page prints of a leaderboard; `methods`: the folder of the methods' pages, as seen from `out`."""
    board = standings.read_standings(folder)
    return {
        "name": board.name,
        "title": board.title,
        "cost": f"{board.runs} runs, {board.cost:.2f} hours by their clocks ({board.machine})",
        "federations": [_federation_view(each, out, methods) for each in board.federations],
        "rules": list(standings.rules(board)),
        "links": [
            (file.name, _relative(file, out)) for file in (_page(folder / standings.PAGE), folder / boards.ARCHIVE)
        ],
    }


def _federation_view(table: standings.Table, out: Path, methods: str) -> dict[str, Any]:
    """Return the rows of a federation, those that lost seeds last, each with its interval in percent of the bar."""
    lines = sorted(table.lines, key=lambda line: len(line.scores) < len(table.seeds))  # stable: by mean within each
    means = [line.mean for line in lines if line.scores]
    low = math.floor(max(0.0, sorted(means)[len(means) // 4] - 5)) if means else 0  # those far below end at the edge
    half = next((line.half for line in lines if math.isfinite(line.half)), 5.0)
    high = max(low + 1, math.ceil(min(100.0, max(means, default=100.0) + half)))

    def place(value: float) -> float:
        return round(100 * min(1.0, max(0.0, (value - low) / (high - low))), 1)

    def bar(line: standings.Standing) -> tuple[float, float] | None:
        if not math.isfinite(line.half):
            return None
        start, end = place(line.mean - line.half), place(line.mean + line.half)
        return min(start, 99.0), max(1.0, round(end - start, 1))

    return {
        "label": table.label,
        "setting": table.setting,
        "ran": table.ran,
        "low": low,
        "high": high,
        "marks": [(line.row, place(line.mean)) for line in lines if line.row in ("local", "fedavg") and line.scores],
        "lines": [
            {
                "name": line.row,
                "page": method_page(line.row, out, methods),
                "lost": len(line.scores) < len(table.seeds),
                "mean": _shown(line.mean) if line.scores else line.lacks.partition(":")[0],
                "interval": f"{line.mean:.2f} ± {line.half:.2f}" if math.isfinite(line.half) else DASH,
                "bar": bar(line),
                "cells": (
                    DASH if line.best is None else "●" if line.best else "",
                    _shown(line.worst),
                    _shown(line.hurt.get("local", math.nan)),
                    _shown(line.unseen[1] if len(line.unseen) > 1 else math.nan),
                    *(_shown(each) + _reached(line) for each in (line.megabytes, line.seconds)),
                    len(line.scores),
                ),
            }
            for line in lines
        ],
    }


def _reached(line: standings.Standing) -> str:
    """Return " (1 of 3)" if only some seeds reached Local's accuracy, over which alone the costs are means."""
    return f" ({line.reached} of {len(line.scores)})" if 0 < line.reached < len(line.scores) else ""


def method_page(row: str, out: Path, methods: str) -> str:
    """Return where the name of a board's row leads, as seen from the page `out`.

    A row's name begins with that of a preset. Its method's page in `methods` is preferred to the source file.
    """
    preset = row.partition(" ")[0]
    name = str(groups.plain_option("method", preset)["name"]) if preset in groups.names("method") else preset
    page = out.parent / methods / f"{name}.html"
    if methods and page.is_file():
        return f"{methods}/{name}.html"
    known = groups.registry("method")
    return _relative(Path(inspect.getfile(known.get(name))), out) if name in known else ""


def _shown(value: float) -> str:
    return f"{value:.1f}" if math.isfinite(value) else DASH


def render(papers: Sequence[Mapping[str, Any]], boards: Sequence[Mapping[str, Any]], runs: int, hours: float) -> str:
    """Return the page with all it needs: style, script and data; `runs` are behind the tables and took `hours`."""
    script = "\n".join(map(_text, SCRIPTS))
    return _template("page.html").render(
        papers=papers,
        boards=boards,
        headings=BOARD_HEADINGS,
        runs=runs,
        hours=hours,
        kinds=KINDS,
        style="\n".join(map(_text, STYLES)),
        script=script,
        # by which a Content-Security-Policy names a script
        hash="sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _template(name: str) -> Template:
    environment = Environment(
        loader=FileSystemLoader(PAGE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["breakable"] = _breakable
    return environment.get_template(name)


def clients_of(folders: Mapping[str, Path], rows: Mapping[str, ResultRows]) -> dict[str, store.Arrays]:
    """Return clients' accuracies by table and "row|column|seed", from another table where one did not keep a run's."""
    kept = {name: store.read_arrays(folder, store.CLIENTS) for name, folder in folders.items()}
    named = [
        (table, store.place_of(run["row"], run["column"], run["seed"]), run["key"])
        for table, runs in rows.items()
        for run in runs
    ]
    by_key = {key: kept[table][name] for table, name, key in named if name in kept[table]}
    return {own: {name: by_key[key] for table, name, key in named if table == own and key in by_key} for own in folders}


def _page(file: Path) -> Path:
    """Return the page that the site made of a Markdown file, if it lies beside it, else the file."""
    made = file.with_suffix(".html")
    return made if made.is_file() else file


def _relative(file: Path, out: Path) -> str:
    """Return the address of `file` from the page `out`."""
    return Path(os.path.relpath(file, out.parent)).as_posix()


def _text(name: str) -> str:
    return (PAGE / name).read_text(encoding="utf-8")


def _breakable(label: str) -> Any:
    """Return `label`, escaped, with room for a line break after every plus, as in FedAvg+FedCollab."""
    return Markup("+<wbr>").join(escape(part) for part in label.split("+"))


def only_run(table: TableResult) -> TableResult:
    """Return a table, if it is not at the paper's setting, with only the rows and columns in which something ran."""
    if table.provenance.is_paper_setting:
        return table
    layout = Layout(table)
    chosen = dataclasses.replace(table.spec, rows=tuple(layout.rows), columns=tuple(layout.columns))
    return dataclasses.replace(table, spec=chosen)


def table_view(
    table: TableResult, folder: str, runs: ResultRows, behind: Mapping[str, Any], links: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    """Return what the page says of a table: a line, and packed what is drawn when it is opened.

    `runs` are its result rows, `behind` what lies behind its cells.
    """
    less = only_run(table)
    layout = Layout(less)
    known = script_content(layout, table.spec, folder, runs)
    counts = Counter(cell["kind"] for cell in known["cells"].values())
    view = {
        "folder": folder,
        "title": table.title,
        "name": _name(table),
        "setting": f"{text.setting(table).replace('`', '')}; {text.data(table)}",
        "headline": less.spec.headline,
        "groups": column_groups(less),
        "counts": {kind: counts[kind] for kind in KINDS if counts[kind]},  # of published values, or of our own cells
        "notes": notes(layout if less is table else Layout(table)),
        "links": links,
        "content": known,
        "behind": packed(behind),
    }
    html = _template("content.html").render(table=view, content=known, kinds=KINDS)
    return {**view, "drawn": packed({"html": html, "content": known})}


def _name(table: TableResult) -> str:
    """Return the paper's name of a table that has its data and rows, else its own."""
    own, substitute = table.spec, table.provenance.substitute
    if not own.paper or own.varies or substitute:
        return f"{own.name} on {substitute}" if substitute else own.name
    return f"{text.PAPERS.get(own.paper, own.paper)} {own.table}"


def _cell(layout: Layout, row: RowSpec, column: ColumnSpec, metric: MetricSpec) -> dict[str, Any]:
    """Return what is printed of a cell, and what is shown on demand."""
    table = layout.table
    cell, text = table.cell(row.label, column.label, metric.name), layout.text(row, column, metric)
    kind, said = _kind(cell, text, metric, mirrored=bool(table.spec.paper))
    values = [f"{value:.{metric.decimals}f}" if math.isfinite(value) else DASH for value in cell.values]
    measure = measures.build(metric.measured(row, column))
    return {
        "kind": kind,
        "place": text.place,
        "said": said,
        "ours": text.ours if text.ran else "",
        "mean": round(cell.mean, 6) if math.isfinite(cell.mean) else None,
        "paper": "" if cell.published is None else text.published,
        "difference": "" if text.difference == DASH else text.difference,
        "verdict": text.verdict.text,
        "apart": text.verdict.exploratory,
        "also": text.also,
        "reason": cell.reason,
        "seeds": [list(each) for each in zip(cell.seeds, values, cell.keys, strict=True)],
        "says": measure.words,
        "curve": getattr(measure, "column", "") == "score",
    }


def _kind(cell: Cell, text: Text, metric: MetricSpec, *, mirrored: bool) -> tuple[str, str]:
    """Return (kind, the verdict in the width of a cell)."""
    judged = text.verdict
    if cell.published is None and (text.ran or mirrored):
        return ALONE, ""
    if not text.ran:
        return "missing", _brief(cell.reason)
    difference = f"{judged.difference:+.{metric.decimals}f}" if math.isfinite(judged.difference) else DASH
    if judged.kind == NONE:
        return "open", f"{difference}, no verdict"
    side = "above" if judged.difference > 0 else "below"
    kind = "exploratory" if judged.exploratory else side if judged.kind == DIFFERENT else judged.kind
    return kind, f"{difference}, {judged.kind}"


def _brief(reason: str) -> str:
    """Say why there is no value, in the width of a cell; the whole reason is shown on demand."""
    if not reason.startswith("not run"):
        return "failed" if reason else "not run"
    brief = reason.partition(" (")[0]
    return brief if len(brief) <= SHORT else "not run"


def script_content(layout: Layout, whole: TableSpec, folder: str, runs: ResultRows) -> dict[str, Any]:
    """Return what template and script know of a table; cells by "row-column-metric", `whole` with columns not shown."""
    table, spec, made = layout.table, layout.table.spec, layout.table.provenance
    columns = [_column(table, column, runs) for column in spec.columns]
    of_all, seeds = dataclasses.replace(table, spec=whole), text.seeds(table)
    labels = Counter(column["label"] for column in columns)
    for column in columns:  # the images and the captions of one split, for example
        column["label"] += f", {column['note']}" if labels[column["label"]] > 1 else ""
    cells = {
        f"{i}-{j}-{k}": {
            "name": f"{row.label}, {columns[j]['label']}, {metric.label}",
            **_cell(layout, row, column, metric),
        }
        for i, row in enumerate(spec.rows)
        for j, column in enumerate(spec.columns)
        for k, metric in enumerate(spec.metrics)
    }
    return {
        "id": folder,
        "cells": cells,
        "rows": [{"label": row.label, "overrides": row.overrides} for row in spec.rows],
        "columns": columns,
        "metrics": [
            {
                "label": metric.label,
                "says": "; ".join(dict.fromkeys(each["says"] for key, each in cells.items() if key.endswith(f"-{k}"))),
            }
            for k, metric in enumerate(spec.metrics)
        ],
        "base": spec.base,
        "changed": made.changed,
        "varied": made.varied,
        "scale": made.scale,
        "runs": {run["key"]: _run_facts(run) for run in runs if run.get("key")},
        "commands": {
            f"{i}-{j}": text.command(of_all, row.label, column.label, seeds.get((row.label, column.label), ()))
            for i, row in enumerate(spec.rows)
            for j, column in enumerate(spec.columns)
        },
    }


def _column(table: TableResult, column: ColumnSpec, runs: ResultRows) -> dict[str, Any]:
    """Return what is said of a column, headed by the data that was run; `note`: which of the paper's that replaces."""
    group, name, note = column.group, column.label, ""
    if substitute := table.provenance.substitute:
        parts = dict.fromkeys(run.get("partition", "") for run in runs if run.get("column") == column.label)
        group, name = "", ", ".join([substitute, *filter(None, parts)])
        note = text.headings(table, column)[1]
    return {
        "name": name,
        "note": note,
        "key": column.label,
        "label": ", ".join(filter(None, [group, name])),
        "datasets": _datasets(table, column),
        "overrides": column.overrides,
        "says": ", ".join(filter(None, [note, *column.overrides])) or "as the table's own settings say",
        "own": [column.own(row.label) for row in table.spec.rows],
        "substitute": (f"dataset={substitute}", *column.substitute) if substitute else (),
    }


def column_groups(table: TableResult) -> tuple[tuple[str, int], ...]:
    """Return the headings of neighbouring columns, each with how many; nothing if none has any, or on other data."""
    columns = table.spec.columns
    if table.provenance.substitute or not any(column.group for column in columns):
        return ()
    return tuple((group, len([*found])) for group, found in groupby(columns, key=lambda column: column.group))


def _run_facts(run: Mapping[str, str]) -> dict[str, Any]:
    """Return what is shown of a run beside its value, and what its figures need."""
    sent = sum(float(run.get(name) or 0) for name in ("bytes_up", "bytes_down")) / 1e6
    known = bool(run.get("bytes_up_prepare"))  # empty in rows of earlier versions; of a method without any it is 0
    prepared = sum(float(run.get(name) or 0) for name in ("bytes_up_prepare", "bytes_down_prepare")) / 1e6
    return {
        "rounds": run.get("rounds", ""),
        "seconds": f"{_number(run.get('seconds_total') or 0)}",
        "megabytes": f"{_number(sent)}",
        "prepared": f"{_number(prepared)}" if known else DASH,
        "trained": f"{_number(sent - prepared)}" if known else DASH,
        "curve": f"acc_on_{run.get('test_set', 'local')}{'_pooled' if run.get('average') == 'pooled' else ''}",
        "partition": run.get("partition_hash", ""),
        "local": run.get("local_key", ""),
    }


def _datasets(table: TableResult, column: ColumnSpec) -> tuple[str, ...]:
    """Return the data set that was run: the column's own, or the one in its place."""
    if table.provenance.substitute:
        return (table.provenance.substitute,)
    named = [column.published.get("dataset", ""), *table.spec.datasets(column)]
    return tuple(filter(None, named[-1:]))


def paper_views(tables: Mapping[str, TableResult], views: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a line for each paper, and one for our own tables (""); `tables` and `views` by folder name."""
    counts = summary.paper_counts(summary.judged(tables))
    lines = []
    for paper in dict.fromkeys(
        (*text.PAPERS, *(table.spec.paper for table in tables.values() if table.spec.paper), "")
    ):
        own = {name: table for name, table in tables.items() if table.spec.paper == paper}
        counted = counts[paper]._asdict() if paper in counts else {}
        if own or counted:
            label, shown = text.PAPERS.get(paper, paper) or OWN, [views[name] for name in own]
            told = {name.replace("_", " "): count for name, count in counted.items()}
            said = claim([*own.values()])
            lines.append({"name": paper, "label": label, "claim": said, "counts": told, "tables": shown})
    return lines


def claim(tables: Sequence[TableResult]) -> str:
    """Return whether a paper's method is best wherever the paper says so: in runs as published, if any decide it."""
    found = [
        (table, each) for table in tables for each in agreements(table) if each.metric == table.spec.metrics[0].name
    ]
    # A row that was not run could be better than the best of the others; what one of these beats is not best.
    tried = [
        (table, bool(each.headline))
        for table, each in found
        if each.headline_published and (not each.headline or each.rows == each.published)
    ]
    if not tried:
        return ""
    own = [holds for table, holds in tried if table.provenance.is_paper_setting and not table.provenance.varied]
    here = own or [holds for _, holds in tried]
    where = f"{amount(len(here), 'column')} {'run as published' if own else 'elsewhere'}"
    before = "" if own else "Not wholly run as published. "
    return f"{before}{tried[-1][0].spec.headline} is best: holds in {sum(here)} of {where}"


def _cost(rows: Mapping[str, ResultRows]) -> tuple[int, float]:
    """Return (runs, hours that they took), each run once."""
    spent = {run["key"]: float(run.get("seconds_total") or 0) for runs in rows.values() for run in runs}
    return len(spent), sum(spent.values()) / 3600
