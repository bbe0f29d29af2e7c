"""Rewrite the generated parts of *.md, docs/ and results/*.md: between <!-- KIND --> and <!-- /KIND -->.

KIND is one of `python -m fedbench list`, or one of these: `speed`, ratios of the benchmarks under results/bench/;
`filled`, a line for every filled table; `commands`, what fills them; `papers`, a line for every paper; `others`, our
methods beside other implementations; `keys` and `code`, the changelog's part on results; `packages`, `types`, `hooks`,
`task`, `trees`, `data`, `program` and `python`, the beginnings of docstrings; `reproduce`, the help of that command.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name

import fedbench
from fedbench.cli.list import KINDS, listing
from fedbench.cli.program import COMMANDS
from fedbench.config import groups
from fedbench.config.schema import ADDED, ProtocolConfig
from fedbench.core import trees
from fedbench.core.files import read_csv
from fedbench.core.tables import markdown as markdown_table
from fedbench.engine.method import Method
from fedbench.models.task import Task
from fedbench.papers import store, summary, text
from fedbench.papers.reproduce import REPRODUCE_HELP
from fedbench.papers.store import TableResult
from fedbench.runs.fingerprint import SAME_NUMBERS

ROOT = Path(__file__).resolve().parents[1]
VENUES = {
    "fedcollab": "ICML 2023",
    "fedsac": "ICML 2024",
    "pfedsim": "2023",
    "sosicfl": "2024",
    "fedrema": "ECAI 2024",
    "flux": "NeurIPS 2025",
}
TITLES = {name: f"{name} ({VENUES[paper]})" for paper, name in text.PAPERS.items()}
OTHERS = ROOT / "results" / "evidence" / "other_implementations.csv"
TYPES = (  # that pass between the packages
    *("core.batch:Population", "engine.contract:Clock", "engine.contract:Cohort", "engine.contract:Client"),
    *("core.batch:Batch", "engine.contract:Stage", "engine.setup:Setup", "engine.simulation:State"),
)
TASK = "init apply features head loss criterion shape_before split select weights is_buffer"
TREES = "join part under without plain split expand row take put mean mix clone stack map_leaves dot squared_distance"


def listed(kind: str) -> str:
    """Return a table of `python -m fedbench list`."""
    return listing(kind).markdown()


def methods() -> str:
    """Return the list of methods, each name with a link to its source file, as seen from docs/reference/."""
    found, known = listing("methods"), groups.registry("method")
    rows = []
    for row in found.rows:
        name, *presets = row["method"].split(", ")
        source = os.path.relpath(inspect.getfile(known.get(name)), ROOT / "docs" / "reference")
        rows.append({**row, "method": ", ".join([f"[{name}]({source})", *presets])})
    return dataclasses.replace(found, rows=rows).markdown()


def speed() -> str:
    """Return the speed of each engine beside a PyTorch loop without fedbench, and of fedbench beside other programs."""
    parts = []
    for file in sorted((ROOT / "results" / "bench").glob("*.json")):
        found = json.loads(file.read_text(encoding="utf-8"))
        rounds, steps = found["rounds"], found.get("floor", [])
        where = f"{found['machine']}, torch {found['version_torch']}, {found['date']}"
        page = f"../results/bench/{file.stem}.md"
        there = " on the same GPU" if steps else ""
        parts.append(f"Speed relative to one process of plain PyTorch{there}\n([all numbers]({page})).\n{where}.\n")
        if rounds:
            parts.append(ratios("workload", {row["what"]: row["vs_plain"] for row in rounds}))
        if steps:  # of training on a GPU
            rates = {
                f"{row['workload']}: {row['what']}": {way: each["rate"] for way, each in row["ways"].items()}
                for row in steps
            }
            over = {
                what: {way: rate / of["plain"] for way, rate in of.items() if way != "plain"}
                for what, of in rates.items()
            }
            parts.append(ratios("training step of", over))
        words = {row["workload"]: row["what"] for row in rounds}
        rivals = [
            [
                words[row["workload"]],
                f"{rival['rival']} {rival['version']}",
                rival["processes"],
                f"{rival['ratio']:.2f}",
            ]
            for row in found.get("rivals", ())
            for rival in row["rivals"]
        ]
        if rivals:
            head = ("workload", "program", "processes of each", "speed of fedbench / speed of the other")
            parts += ["The fastest engine compared with other programs:\n", markdown_table([head, *rivals])]
    return "\n".join(parts)


def ratios(title: str, rows: Mapping[str, Mapping[str, float]]) -> str:
    """Return a table of the ratio of each engine, by row."""
    engines = [*dict.fromkeys(engine for row in rows.values() for engine in row)]
    cells = [[what, *(f"{row[name]:.2f}" if name in row else "-" for name in engines)] for what, row in rows.items()]
    return markdown_table([(title, *engines), *cells])


@cache
def filled() -> Mapping[str, TableResult]:
    """Return the filled tables by their names."""
    return {name: store.read_table(folder) for name, folder in store.table_folders(ROOT / "results").items()}


def tables() -> str:
    """Return of each filled table: setting, data, seeds, verdicts, when and by which code it was made."""
    rows = []
    for name, found in filled().items():
        made = found.provenance
        commits = made.commit.split(", ")
        by = f"{len(commits)} commits" if len(commits) > 1 else commits[0][:7]
        counts = sorted({len(own) for own in text.seeds(found).values()})
        cells = (
            f"[{found.spec.name}](tables/{name}/table.md)",
            text.setting(found),
            text.data(found),
            "-".join(map(str, dict.fromkeys((counts[0], counts[-1])))),
            summary.count_words(summary.judged({name: found})),
            f"{made.date}; {by}; {f'{made.seconds / 3600:.1f}' if made.seconds else 'not recorded'}",
        )
        rows.append(cells)
    head = ("table", "setting", "data", "seeds", "verdicts", "date; commit; hours")
    return markdown_table([head, *rows])


def commands() -> str:
    """Return the commands that fill the tables, as a block of shell."""
    lines = (line for found in filled().values() for line in text.commands(found))
    return "\n".join(["```", *lines, "```\n"])


def papers() -> str:
    """Return a line a paper: what runs at its own setting and data say of its published values."""
    counts = summary.paper_counts(summary.judged(filled()))
    rows = [[f"[{TITLES[name]}](results/{paper}.md)", *map(str, counts[paper])] for paper, name in text.PAPERS.items()]
    return markdown_table([("paper", "agree", "differ", "undecided", "not counted"), *rows])


def others() -> str:
    """Return our accuracy and that of other implementations on one split, a line for each method and setting."""
    rows = []
    for line in read_csv(OTHERS):
        ours, theirs = (f"{line[s]} ± {line[f'{s}_sd']}" if line[f"{s}_sd"] else line[s] for s in ("ours", "theirs"))
        name = " ".join(f"`{words}`" for words in (line["method"], line["setting"]) if words)
        there = f"{line['rival']} {line['commit']}" + (f": {line['its_setting']}" if line["its_setting"] else "")
        count = str(len(line["seeds"].split()))
        rows.append([name, there, count, ours, theirs, f"{float(line['difference']):+.2f}", line["explanation"]])
    return markdown_table([("here", "there", "seeds", "here, %", "there, %", "difference", "why"), *rows])


def keys() -> str:
    """Return the options that came after results were recorded, each with the value that leaves a key as it was."""
    found: dict[tuple[str, str], list[str]] = {}
    for group in groups.REGISTRIES:
        registry = groups.registry(group)
        for name in registry:
            for option, value in added_fields(registry.get(name), group):
                found.setdefault((option, value), []).append(name)
    for option, value in added_fields(ProtocolConfig, "protocol"):
        found[option, value] = ["every run"]
    lines = [(f"`{option}={value}`", ", ".join(sorted(of))) for (option, value), of in sorted(found.items())]
    return markdown_table([("option and value", "of"), *lines])


def added_fields(cls: type, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield (option, value) of each field that is declared `added`, also of the dataclasses inside."""
    for each in dataclasses.fields(cls):
        option, inner = f"{prefix}.{each.name}", each.default_factory
        if each.metadata.get(ADDED):
            value = dataclasses.asdict(each.default) if dataclasses.is_dataclass(each.default) else each.default
            yield option, json.dumps(value).replace('"', "")
        elif dataclasses.is_dataclass(inner):
            yield from added_fields(inner, option)


def code() -> str:
    """Return how often code that decides numbers changed without changing any, by part."""
    changes = Counter(line["part"] for line in read_csv(SAME_NUMBERS))
    return markdown_table([("part", "hashes that changed"), *((part, str(n)) for part, n in changes.items())])


def said(thing: object) -> str:
    """Return the first paragraph of a docstring as one line."""
    return (inspect.getdoc(thing) or "").partition("\n\n")[0].replace("\n", " ")


def packages() -> str:
    """Return the packages and modules in the order of imports, the lowest first."""
    contract = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("layers = [")[2].partition("\n]")[0]
    layers = re.findall(r'^    "([\w |]+)",', contract, re.MULTILINE)
    names = [name for layer in reversed(layers) for name in layer.split(" | ") if name != "__main__"]
    folders = [f"{name}/" if (ROOT / "fedbench" / name).is_dir() else f"{name}.py" for name in names]
    rows = [(f"`{shown}`", said(import_module(f"fedbench.{name}"))) for name, shown in zip(names, folders, strict=True)]
    return markdown_table([("folder or module", "what it holds"), *rows])


def types() -> str:
    """Return the types that pass between the packages."""
    found = [resolve_name(f"fedbench.{each}") for each in TYPES]
    return markdown_table([("type", "what it is"), *((f"`{each.__name__}`", said(each)) for each in found)])


def functions(holder: object, names: Iterable[str]) -> str:
    """Return a table of functions: the call, and the beginning of the docstring."""
    rows = [("call", "what it does or gives")]
    for name in names:
        found = [each for each in inspect.signature(getattr(holder, name)).parameters.values() if each.name != "self"]
        shown = [f"{each.name}=" if each.kind is each.KEYWORD_ONLY else str(each).partition(":")[0] for each in found]
        rows.append((f"`{name}({', '.join(shown)})`", said(getattr(holder, name))))
    return markdown_table(rows)


def hooks() -> str:
    """Return the hooks of a method in the order of the interface."""
    found = [name for name, each in vars(Method).items() if inspect.isfunction(each) and not name.startswith("_")]
    return functions(Method, found)


def data() -> str:
    """Return what a data set, a partition and a network must say."""
    named = "DataSource.read DataSource.state FileSource.files FileSource.parse PartitionSpec.assign Pool.deal"
    where = {"DataSource": "data.dataset", "FileSource": "data.files", "Model": "models.task"}
    rows = [("member", "what it gives")]
    for name in f"{named} Model.build Model.label Model.begin".split():
        member = resolve_name(f"fedbench.{where.get(name.partition('.')[0], 'data.partitions.base')}:{name}")
        rows.append((f"`{name}`", said(member)))
    return markdown_table(rows)


def program() -> str:
    """Return the commands of the program."""
    found = [(f"`fedbench {name}`", said(resolve_name(command))) for name, command in COMMANDS.items()]
    return markdown_table([("command", "what it does"), *((name, f"{words.split('; ')[0]}.") for name, words in found)])


MADE = {
    **{kind: partial(listed, kind) for kind in KINDS},
    "methods": methods,
    "speed": speed,
    "filled": tables,
    "commands": commands,
    "papers": papers,
    "keys": keys,
    "code": code,
    "others": others,
    "packages": packages,
    "types": types,
    "hooks": hooks,
    "program": program,
    "data": data,
    "task": partial(functions, Task, TASK.split()),
    "trees": partial(functions, trees, TREES.split()),
    "python": partial(functions, fedbench, [name for name in fedbench.__all__ if name.isalpha() and name.islower()]),
    "reproduce": lambda: f"```text\n{REPRODUCE_HELP}```\n",
}


def updated(before: str) -> str:
    """Return the text of a document with every generated part made anew."""

    def part(match: re.Match[str]) -> str:
        return f"<!-- {match[1]} -->\n\n{MADE[match[1]]()}\n<!-- /{match[1]} -->"

    return re.sub(rf"<!-- ({'|'.join(MADE)}) -->.*?<!-- /\1 -->", part, before, flags=re.DOTALL)


def files() -> list[Path]:
    """Return the documents that may hold generated parts."""
    return [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "results").glob("*.md")]


def main() -> int:
    """Rewrite every document of which a part has changed."""
    for file in files():
        before = file.read_text(encoding="utf-8")
        after = updated(before)
        if after != before:
            file.write_text(after, encoding="utf-8")
            print(f"{file.relative_to(ROOT)}: rewritten")
    return 0


if __name__ == "__main__":
    sys.exit(main())
