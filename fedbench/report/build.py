"""From the filled tables on disk to the page: Jinja2 writes the tables, the script draws the rest when asked to."""

from __future__ import annotations

import base64
import functools
import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedbench.core.errors import FedbenchError
from fedbench.core.files import write_text
from fedbench.report.behind import Arrays, behind, packed
from fedbench.report.start import OWN, Start, start
from fedbench.report.view import KINDS, TableView, shown, view
from fedbench.tables import account, staleness, store
from fedbench.tables.equivalence import DIFFERENT, EQUIVALENT, INCONCLUSIVE
from fedbench.tables.result import TableResult

PAGE = Path(__file__).with_name("page")
SCRIPTS = (  # in the order in which they need each other
    "base.js",
    "plots.js",
    "curves.js",
    "clients.js",
    "address.js",
    "grid.js",
    "card.js",
    "cell.js",
    "compare.js",
    "page.js",
)
STYLES = ("style.css", "tables.css", "dialogs.css", "print.css")
Rows = Sequence[Mapping[str, str]]  # result rows of runs
SIGNS = {EQUIVALENT: "≈", DIFFERENT: "≠", INCONCLUSIVE: "?"}
DRAWN = (
    "table.md",
    "table.tex",
    "cells.csv",
    "rows.csv",
    "significance.csv",
    "bias.csv",
    "specificity.csv",
)  # linked where they exist


def build(results: Path, out: Path) -> int:
    """Write the page of all filled tables below `results` to `out`; returns how many there are.

    Raises:
        FedbenchError: there is no filled table, one is unreadable, or `out` cannot be written.
    """
    folders = store.folders(results)
    if not folders:
        raise FedbenchError(
            f"no filled table below {results}; python -m fedbench.reproduce table=NAME makes one"
        )
    tables = {folder.name: staleness.load(folder)[0] for folder in folders}
    rows = {folder.name: store.load_rows(folder) for folder in folders}
    clients = clients_of(folders, rows)
    views = [
        _view(folder, tables[folder.name], rows[folder.name], clients[folder.name], out) for folder in folders
    ]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out, render(views, start(tables, rows)))
    except OSError as error:
        raise FedbenchError(f"cannot write {out} ({error}); name another file with --out") from error
    return len(views)


def render(views: Sequence[TableView], first: Start) -> str:
    """The page, with all it needs: style, script, data and Plotly."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(PAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = _breakable
    script = "\n".join(map(_text, SCRIPTS))
    plotly, plotly_hash = _plotly()
    return environment.get_template("page.html").render(
        views=views,
        start=first,
        signs=SIGNS,
        facets=_facets(views),
        kinds=KINDS,
        content=[each.content for each in views],
        style="\n".join(map(_text, STYLES)),
        script=script,
        plotly=plotly,
        hashes=[_hash(script), plotly_hash],
    )


def clients_of(folders: Sequence[Path], rows: Mapping[str, Rows]) -> dict[str, dict[str, Arrays]]:
    """Accuracies of clients by table and "row|column|seed"; a table that did not keep a run's has those of another."""
    kept = {folder.name: store.load_clients(folder) for folder in folders}
    named = [
        (table, store.place_of(run["row"], run["column"], run["seed"]), run["key"])
        for table, runs in rows.items()
        for run in runs
    ]
    by_key = {key: kept[table][name] for table, name, key in named if name in kept[table]}
    return {
        folder.name: {
            name: by_key[key] for table, name, key in named if table == folder.name and key in by_key
        }
        for folder in folders
    }


def _view(
    folder: Path, table: TableResult, rows: Rows, clients: Mapping[str, Arrays], out: Path
) -> TableView:
    links = [
        (name, Path(os.path.relpath(folder / name, out.parent)).as_posix())
        for name in DRAWN
        if (folder / name).is_file()
    ]
    found = behind(shown(table), store.load_curves(folder), store.load_matrices(folder), clients)
    return view(table, folder.name, rows, found, links)


def _facets(views: Sequence[TableView]) -> list[dict[str, Any]]:
    """What the page can be filtered by: a name, its label and its options."""
    papers = {each.paper: account.PAPERS.get(each.paper, each.paper) or OWN for each in views}
    datasets = sorted(
        {name for each in views for column in each.content["columns"] for name in column["datasets"]}
    )
    methods = sorted({row["label"] for each in views for row in each.content["rows"]}, key=str.casefold)
    return [
        {"name": "paper", "label": "Paper", "options": sorted(papers.items())},
        {"name": "dataset", "label": "Data set", "options": [(name, name) for name in datasets]},
        {"name": "method", "label": "Method", "options": [(name, name) for name in methods]},
        {
            "name": "verdict",
            "label": "Verdict",
            "options": [(kind, word) for kind, (_, word) in KINDS.items()],
        },
    ]


def _text(name: str) -> str:
    return (PAGE / name).read_text(encoding="utf-8")


@functools.cache
def _plotly() -> tuple[str, str]:
    """(Plotly's JavaScript packed, its hash)."""
    from plotly.offline import get_plotlyjs

    script: str = get_plotlyjs()
    return packed(script), _hash(script)


def _breakable(label: str) -> Any:
    """`label`, escaped, with room for a line break after every plus, as in FedAvg+FedCollab."""
    from markupsafe import Markup, escape

    return Markup("+<wbr>").join(escape(part) for part in label.split("+"))


def _hash(script: str) -> str:
    """As a Content-Security-Policy names a script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
