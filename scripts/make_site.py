"""Build documentation, API reference, a page for each method, result pages and the result page as one static site.

    python scripts/make_site.py [OUT]          # default: build/site

The pages of this repository keep their places, so that links between them hold. A link to a file that is no page of the
site becomes text. Sphinx writes the site; it and its search work without a network, from a folder too.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import json
import os
import re
import shutil
import sys
import textwrap
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from fedbench.cli.list import listing, varied
from fedbench.config import groups
from fedbench.config.fields import DOMAIN
from fedbench.config.schema import LocalConfig, ProtocolConfig
from fedbench.core.files import read_csv
from fedbench.core.tables import grouped, markdown
from fedbench.core.version import __version__
from fedbench.engine.contract import Clock
from fedbench.engine.method import Method, own_score
from fedbench.papers import report, standings

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs/**/*.md",
    "results/*.md",
    "results/bench/**/*.md",
    "results/reliability/*.md",
    "results/leaderboard/*/*.md",
    "results/tables/**/*.md",
)
NUMBERS = ("ours", "theirs", "difference", "explanation")
BY_HAND = re.compile("by_hand|test_histories|test_rounds")
SOURCES = ("settings", "readings")  # CSV files of docs/, each a page of the site
WRAPPED = 85  # characters: a line of a docstring that is as long goes on in the next
INTERFACES = {  # heading -> what is imported from where
    "Running": {"fedbench": "run sweep load table Run"},
    "A method": {
        "fedbench.engine.method": "Method",
        "fedbench.engine.contract": "Client Cohort Clock Stage Preparation",
        "fedbench.core.batch": "Batch Population",
    },
    "A network": {"fedbench.models.task": "Task Model"},
    "Data": {
        "fedbench.data.dataset": "Dataset DataSource",
        "fedbench.data.partition": "Partition",
    },
}
SETTINGS = {
    "project": "fedbench",
    "version": __version__,
    "copyright": "the fedbench contributors",
    "html_title": f"fedbench {__version__}",
    "extensions": ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"],
    "html_theme": "furo",
    "myst_heading_anchors": 4,
    "autodoc_member_order": "bysource",
    "autodoc_typehints": "signature",
    "python_maximum_signature_line_length": 100,
    "html_copy_source": False,
    "html_show_search_summary": False,  # it is fetched page by page, which a browser refuses in a folder
    "html_show_sphinx": False,
    "html_show_sourcelink": False,
    "html_use_index": False,
    "suppress_warnings": ["misc.highlighting_failure"],
}


def main(arguments: Sequence[str]) -> int:
    """Write the sources, then the site with the result page in it; return Sphinx's exit code."""
    from sphinx.application import Sphinx

    out = Path(arguments[0] if arguments else ROOT / "build" / "site").absolute()
    source = out.with_name(f"{out.name}-source")
    for folder in (out, source):
        shutil.rmtree(folder, ignore_errors=True)
    for name, text in {**documents(), **method_pages(), "api.md": reference()}.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text, encoding="utf-8")
    for each in ROOT.glob("results/**/*.[sp][vn]g"):
        target = source / each.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(each, target)
    app = Sphinx(source, None, out, out.with_name(f"{out.name}-cache"), "html", SETTINGS, status=None)
    app.build()
    shutil.copytree(
        ROOT / "results",
        out / "results",
        dirs_exist_ok=True,
        ignore=shutil.ignore_patterns("[a-z]*.md", "evidence", "sweeps"),  # a board has its README.md
    )
    report.build_page(out / "results", out / "results" / "index.html", "../methods")
    return app.statuscode


# The pages of the repository.


def documents() -> dict[str, str]:
    """Return the repository's pages by name, with links that lead to no page of the site as text."""
    texts = {
        file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8")
        for pattern in PAGES
        for file in sorted(ROOT.glob(pattern))
    }
    texts |= {source_page(name): text for name, text in (("settings", settings()), ("readings", all_readings()))}
    found = {name: linked(name, text, texts) for name, text in texts.items()}
    home = found.pop("README.md")
    guides = re.findall(r"\]\((docs/[\w-]+\.md)", home)  # in the README's order, then those that it does not name
    references = [name for name in found if name.startswith("docs/reference/")]
    guides = [*dict.fromkeys([*guides, *(name for name in found if name.startswith("docs/"))])]
    guides = [name for name in guides if name not in references]
    results = [name for name in found if re.fullmatch(r"results/(\w+|leaderboard/\w+/README)\.md", name)]
    tables = {name for name in found if name.startswith("results/")} - {*results}
    found |= {name: f"---\norphan: true\n---\n\n{found[name]}" for name in tables}  # reached from the pages of results
    trees = {
        "Guide": guides,
        "Reference": ["methods/index.md", *references, "api.md"],
        "Results": results,
        "Project": ["CHANGELOG.md", "CONTRIBUTING.md"],
    }
    shown = '<a href="results/index.html">All results as one page, with leaderboards</a> · [methods](methods/index.md)'
    title, _, rest = home.partition("\n")
    found["index.md"] = "\n".join([title, "", shown, rest, *(tree(name, each) for name, each in trees.items())])
    return found


def tree(caption: str, names: Sequence[str]) -> str:
    """Return Sphinx's list of the pages of a part, which it shows beside every page."""
    options = [":hidden:", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["\n```{toctree}", *options, "", *names, "```\n"])


def linked(name: str, text: str, pages: Iterable[str]) -> str:
    """Return the text of the page `name` with each link to a file that is no page of the site as plain text.

    A link to a CSV file of docs/ leads to its page, one on a method's name to the method's page.
    """
    up = os.path.relpath(".", Path(name).parent)

    def kept(match: re.Match[str]) -> str:
        target = match[2].partition("#")[0]
        path = os.path.normpath(Path(name).parent / target)
        if path.startswith("fedbench/methods/") and match[1] in groups.registry("method"):
            return f"[{match[1]}]({up}/methods/{match[1]}.md)"
        inside = not target or ":" in target or path in pages or path.endswith((".svg", ".png"))
        return match[0] if inside else match[1]

    for source in SOURCES:
        text = re.sub(
            rf"\]\([\w./]*\b{source}\.csv\)", f"]({os.path.relpath(source_page(source), Path(name).parent)})", text
        )
    above = "../" if "/" in name else ""
    text = text.replace(f"]({above}README.md", f"]({above}index.md")
    return re.sub(r"(?<!!)\[((?:[^\[\]]|!\[[^\]]*\]\([^)]*\))*)\]\(([^)\s]+)\)", kept, text)


# A page for each method.


def method_pages() -> dict[str, str]:
    """Return a page for each method, and one that lists them."""
    rows = {row["method"].partition(",")[0]: row for row in listing("methods").rows}
    listed = [
        f"## {group}\n\n" + "\n".join(f"- [{name}]({name}.md): {escaped(rows[name]['what it does'])}" for name in names)
        for group, names in grouped((row["group"], name) for name, row in rows.items()).items()
    ]
    home = "\n\n".join(["# Methods", *listed, tree("", [f"{name}.md" for name in sorted(rows)])])
    return {"methods/index.md": home, **{f"methods/{name}.md": method_page(name, row) for name, row in rows.items()}}


def method_page(name: str, row: Mapping[str, str]) -> str:
    """Return the page of a method; `row` is its line of `python -m fedbench list methods`."""
    cls = groups.registry("method").get(name)
    presets = row["method"].split(", ")
    file = Path(inspect.getfile(cls))
    titled = (inspect.getdoc(sys.modules[cls.__module__]) or "").partition(":")[0]
    parts = [
        f"# {name}",
        escaped(row["what it does"]),
        f"**Paper:** {escaped(row['paper'])} · **Group:** {row['group']} · **Source:** `{file.relative_to(ROOT)}`",
        f"```\npython -m fedbench method={name}\n```",
        "## Equations and deviations",
        prose(inspect.getdoc(sys.modules[cls.__module__]) or ""),
    ]
    if file.parent.name != "methods":  # a method of several files
        parts += [
            f"### `{each.name}`\n\n{prose(ast.get_docstring(ast.parse(each.read_text(encoding='utf-8'))) or '')}"
            for each in sorted(file.parent.glob("*.py"))
            if each != file and each.name != "__init__.py"
        ]
    sent = ("kept by clients", "server → client", "client → server")
    leaves = [(what, f"`{row[what]}`") for what in sent]
    parts += [
        "## What is kept and sent",
        "`*` is the model; N clients, K classes, d features.",
        markdown([("", "leaves"), *leaves]),
    ]
    parts += section("Definitions", definitions(name, cls))
    parts += section("Options", options(name, cls))
    parts += section("Presets", [preset_line(each, name) for each in presets if each != name])
    parts += section("Where text and code differ", readings(titled, name))
    parts += section("Where each value comes from", sources(presets))
    parts += section("Checks", checks(name, cls, presets))
    parts += section("Beside other implementations", implementations(presets))
    parts += section("On the leaderboards", boards(presets))
    return "\n\n".join(parts) + "\n"


def definitions(name: str, cls: type[Method]) -> list[str]:
    """Return which of the usual definitions a method has: the scored model, the weights of averages, the head."""
    method = groups.registry("method").build(groups.plain_option("method", name))
    received = "the global model" if method.family == "global" else "the model that a client has before local training"
    if "personal" in method.reads_data:
        received = "the model that a client makes from what it received and its own samples"
    if method.adapt(LocalConfig(), Clock(0, 1)):
        received += ", after the adaptation that belongs to the method"
    model, why = own_score(method, ProtocolConfig(report="best_test"))
    shares = method.shares(torch.tensor([1.0, 3.0], dtype=torch.float64))
    average = "there is no plain average of all clients' models; see the equations"
    if shares is not None:
        average = "training samples" if float(shares[1]) == 3 * float(shares[0]) else "see the equations"
    scored = f"{received} (`protocol.score=received`, the default). With `score=own` it is `{model}`: {escaped(why)}"
    bases = cls.__mro__[: cls.__mro__.index(Method)]
    source = "".join(inspect.getsource(sys.modules[each.__module__]) for each in bases)
    head = "the method does not treat it apart"
    if re.search(r"@head|@body|@classifier|\.head\(|\.features\(", source):
        head = "every fully connected layer" if "@classifier" in source else "the last linear layer"
        head += ". [`model.classifier`](../docs/methods.md#parameters) moves the border for all methods"
    lines = [
        f"- **Scored model**: {scored}. The protocol chooses the [reported round](../docs/runs.md#the-protocol).",
        f"- **Weights of the server's average**: {average}.",
        f"- **Head**: {head}.",
        "- **Dirichlet's parameter**: if small, clients differ ([`dir`](../docs/reference/data.md#partitions)).",
    ]
    return ["\n".join(lines)]


def section(title: str, lines: Sequence[Any]) -> list[str]:
    """Return a heading and what is below it: a table, or text; nothing where there is nothing."""
    texts = [each for each in lines if isinstance(each, str)]
    table = [each for each in lines if not isinstance(each, str)]
    return [f"## {title}", *([markdown(table)] if table else []), *texts] if lines else []


def escaped(text: str) -> str:
    """Return text with what Markdown would read as markup escaped, but for code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([\\*_<>\[\]#$~|])", r"\\\1", part) for part in parts)


def prose(text: str) -> str:
    """Return a docstring as Markdown: its lines end where they are short, and what is indented is code."""
    lines = []
    for paragraph in text.split("\n\n"):
        if paragraph.startswith("    "):
            lines.append(f"```text\n{paragraph}\n```\n")
            continue
        for line in paragraph.splitlines():
            start = "- " if line.startswith("- ") else ""
            end = "" if len(line) >= WRAPPED else "\\"
            lines.append(f"{start}{escaped(line.removeprefix('- '))}{end}")
        lines[-1] = lines[-1].removesuffix("\\") + "\n"
    return "\n".join(lines).replace("\\\n- ", "\n- ")  # a paragraph or an item ends before an item


def options(name: str, cls: type) -> list[Any]:
    """Return the options of a method as a table: first those that a preset, a table or a leaderboard varies."""
    head, chosen, others = ("option", "default", "values", "meaning"), list[Any](), list[Any]()
    for option, default, domain, meaning in fields_of(cls, "method"):
        lines = chosen if (name, option.removeprefix("method.")) in varied() else others
        lines.append([f"`{option}`", f"`{default}`", domain, escaped(meaning)])
    found = [head, *chosen] if chosen else []
    if others:
        folded = f"<details><summary>Options that no table, board or preset varies: {len(others)}</summary>"
        found.append(f"{folded}\n\n{markdown([head, *others])}\n</details>")
    return found


def fields_of(cls: type, prefix: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield (option, default, domain, comment) of each field of a dataclass, and of those inside."""
    said = comments(cls)
    for each in dataclasses.fields(cls):
        option, inner = f"{prefix}.{each.name}" if prefix else each.name, each.default_factory
        if isinstance(inner, type) and dataclasses.is_dataclass(inner):
            yield from fields_of(inner, option)
            continue
        domain, default = each.metadata.get(DOMAIN), "" if each.default is dataclasses.MISSING else each.default
        default = json.dumps(default, default=str).replace('"', "")
        yield option, default, domain.short if domain else str(each.type).replace("|", "or"), said.get(each.name, "")


@cache
def comments(cls: type) -> Mapping[str, str]:
    """Return the comment behind or above each field of a class and its bases."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        try:
            source = textwrap.dedent(inspect.getsource(base))
        except (OSError, TypeError):
            continue
        said = {
            token.start[0]: token.string.lstrip("# ")
            for token in tokenize.generate_tokens(io.StringIO(source).readline)
            if token.type == tokenize.COMMENT
        }
        (node,) = ast.parse(source).body
        for each in getattr(node, "body", ()):
            if isinstance(each, ast.AnnAssign):
                above, behind = said.get(each.lineno - 1, ""), said.get(each.end_lineno or 0, "")
                own = source.splitlines()[each.lineno - 2].lstrip().startswith("#")
                found[ast.unparse(each.target)] = "; ".join(filter(None, [above if own else "", behind]))
    return found


def preset_line(name: str, usual: str) -> str:
    """Return what a preset is and how it differs."""
    changes = groups.parameters(
        groups.different(groups.plain_option("method", name), groups.plain_option("method", usual))
    )
    return f"- `method={name}`: {escaped(groups.about('method', name))}" + (f" (`{changes}`)" if changes else "")


@cache
def lines_of(file: str) -> list[dict[str, str]]:
    """Return the lines of a CSV file of this repository."""
    return read_csv(ROOT / file)


READINGS = {  # column of docs/readings.csv -> its heading
    "about": "about",
    "where": "where",
    "the_text": "the text",
    "the_code": "the authors' code",
    "follows_text": "to follow the text",
    "follows_code": "to follow the code",
    "default": "default",
    "why": "why",
}


def readings(titled: str, name: str) -> list[Any]:
    """Return where the paper's text and its authors' code differ, and which is followed."""
    names = {titled.casefold(), name}
    return readings_table([row for row in lines_of("docs/readings.csv") if row["paper"].casefold() in names])


def readings_table(found: Sequence[Mapping[str, str]]) -> list[Any]:
    """Return lines of docs/readings.csv as a table; nothing for none."""
    coded = {"follows_text", "follows_code", "default"}
    lines = [
        [
            "<br>".join(f"`{part}`" for part in row[column].split("; "))
            if column in coded and "=" in row[column]
            else escaped(row[column]) + (f"<br>`{row['key']}`" if column == "about" and row["key"] else "")
            for column in READINGS
        ]
        for row in found
    ]
    return [[*READINGS.values()], *lines] if lines else []


def sources(presets: Sequence[str]) -> list[Any]:
    """Return where the values of the presets come from."""
    wanted = {f"method={name}" for name in presets}
    return sources_table([row for row in lines_of("docs/settings.csv") if wanted & set(row["preset"].split(", "))])


def sources_table(found: Sequence[Mapping[str, str]]) -> list[Any]:
    """Return lines of docs/settings.csv as a table; nothing for none."""
    lines = [
        [
            f"`{row['preset']}`",
            f"`{row['settings']}`",
            escaped(f"{row['source']}: {row['place']}"),
            escaped(row["remark"]),
        ]
        for row in found
    ]
    return [("preset", "values", "from", "remark"), *lines] if lines else []


def source_page(name: str) -> str:
    """Return the page of the site that shows docs/NAME.csv."""
    return f"docs/reference/{name}.md"


def settings() -> str:
    """Return the page of docs/settings.csv: where each value of each preset and table comes from."""
    text = (
        "Every value of every preset under `conf/` and of every table, with its source. A test compares it with the "
        "presets. `table=fedsac_t1 columns=C10 * rows=FedSaC` are those rows of a table in those columns."
    )
    return by_paper("Where each value comes from", text, "docs/settings.csv", "source", sources_table)


def all_readings() -> str:
    """Return the page of docs/readings.csv: where texts of papers and code of their authors differ."""
    text = (
        "A paper's text and its authors' code do not always agree, and both leave things open. `WORDS: VALUE` reads: "
        "with these words on the command line the key in the first column has this value. An empty cell has nothing "
        "to follow. A test compares the statements with the presets."
    )
    return by_paper("Where text and code differ", text, "docs/readings.csv", "paper", readings_table)


def by_paper(title: str, text: str, file: str, column: str, table: Callable[[list[dict[str, str]]], list[Any]]) -> str:
    """Return a CSV file as a page with a table for each value of the column that names the paper."""
    lines = lines_of(file)
    names = dict.fromkeys(line[column] for line in lines)
    parts = [section(escaped(name), table([line for line in lines if line[column] == name])) for name in names]
    return "\n\n".join([f"# {title}", text, *(each for part in parts for each in part)]) + "\n"


def checks(name: str, cls: type, presets: Sequence[str]) -> list[Any]:
    """Return the laws that hold the method, its rounds computed by hand, and the tests that name its class."""
    said = [line for line in lines_of("results/evidence/checks.csv") if {*presets} & {*line["method"].split(", ")}]
    laws = [f"- Law: {line['law']} (`{line['law_test']}`)" for line in said]
    laws += [f"- Law: {limit}" for limit in limits() if limit.startswith(f"`{cls.__name__}(") and not said]
    named = [f"{file}::{test}" for file, test, names in tests_of_methods() if cls.__name__ in names]
    hand = [*(line["by_hand"] for line in said), *(test for test in named if BY_HAND.search(test))]
    rest = [test for test in named if test not in hand]
    parts = [f"- `python -m fedbench check-method {name}` runs the conformance suite.", *laws]
    for words, tests in (("Rounds computed by hand", hand), ("Other tests that name it", rest)):
        parts += [f"- {words}: " + ", ".join(f"`{test}`" for test in dict.fromkeys(tests))] if tests else []
    return ["\n".join(parts)]


def implementations(presets: Sequence[str]) -> list[Any]:
    """Return our accuracy and that of other implementations on one split."""
    lines = [
        [
            f"`{line['method']} {line['setting']}`".replace(" `", "`"),
            escaped(f"{line['rival']} {line['commit']}"),
            *(line[c] for c in NUMBERS),
        ]
        for line in lines_of("results/evidence/other_implementations.csv")
        if line["method"] in presets
    ]
    return [("here", "there", "here, %", "there, %", "difference", "why"), *lines] if lines else []


@cache
def limits() -> tuple[str, ...]:
    """Return the laws of tests/methods/test_laws.py, as "`Ditto(lam=0.0)` is `Local()`"."""
    module = ast.parse((ROOT / "tests/methods/test_laws.py").read_text(encoding="utf-8"))
    (laws,) = (n.value for n in module.body if isinstance(n, ast.AnnAssign) and ast.unparse(n.target) == "LAWS")
    assert isinstance(laws, ast.List)
    trios = [each.elts for each in laws.elts if isinstance(each, ast.Tuple)]
    return tuple(f"`{ast.unparse(limit)}` is `{ast.unparse(other)}`" for limit, _, other in trios)


@cache
def tests_of_methods() -> tuple[tuple[str, str, frozenset[str]], ...]:
    """Return (file, test, names in it) of each test below tests/methods."""
    return tuple(
        (
            file.relative_to(ROOT).as_posix(),
            node.name,
            frozenset(n.id for n in ast.walk(node) if isinstance(n, ast.Name)),
        )
        for file in sorted(ROOT.glob("tests/methods/test_*.py"))
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


@cache
def recorded() -> tuple[standings.Standings, ...]:
    """Return the leaderboards that are recorded."""
    return tuple(standings.read_standings(folder) for folder in standings.board_folders(ROOT / "results"))


def boards(presets: Sequence[str]) -> list[Any]:
    """Return the rows of a method on the leaderboards, each with its place among the rows that have every seed."""
    shown = [name for name in standings.HEADINGS if name not in ("method", "of all trials") and "tuned" not in name]
    lines = []
    for board in recorded():
        for table in board.federations:
            whole = [line.row for line in table.lines if len(line.scores) == len(table.seeds)]
            for line in table.lines:
                if line.row.partition(" ")[0] in presets:
                    own = standings.cells(line, board.board["references"], len(table.seeds))
                    cells = dict(zip(standings.HEADINGS, own, strict=True))
                    place = f"{whole.index(line.row) + 1} of {len(whole)}" if line.row in whole else "lost seeds"
                    where = f"[{board.name}](../results/leaderboard/{board.name}/README.md), {table.label}"
                    lines.append([where, line.row, place, *(cells[name] for name in shown)])
    return [("board", "row", "place", *shown), *lines] if lines else []


# The reference of the interfaces.


def reference() -> str:
    """Return the page of what a user or an author of a method calls, from the docstrings."""
    parts = ["# Python reference", "From the docstrings. [In Python](docs/python.md) shows the first four in use."]
    for heading, modules in INTERFACES.items():
        parts.append(f"## {heading}")
        for module, names in modules.items():
            for name in names.split():
                kind = "autoclass" if name[0].isupper() else "autofunction"
                members = "   :members:\n   :exclude-members: __init__, __new__\n" if name[0].isupper() else ""
                parts.append(f"### {name}\n\n```{{eval-rst}}\n.. {kind}:: {module}.{name}\n{members}```")
                cls = getattr(import_module(module), name)
                if dataclasses.is_dataclass(cls) and (said := [line for line in fields_of(cls, "") if line[3]]):
                    rows = [[f"`{field}`", f"`{kind}`", escaped(meaning)] for field, _, kind, meaning in said]
                    parts.append(markdown([("field", "type", "meaning"), *rows]))
    parts.append("## Trees\n\n```{eval-rst}\n.. automodule:: fedbench.core.trees\n   :members:\n```")
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
