"""How many published values of all filled tables have which verdict: verdicts.md beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedbench.core.files import write_text
from fedbench.tables import store
from fedbench.tables.equivalence import DIFFERENT, EQUIVALENT, INCONCLUSIVE
from fedbench.tables.verdict import NONE, judge

FILE = "verdicts.md"
COLUMNS = ("values", EQUIVALENT, DIFFERENT, INCONCLUSIVE)
HEAD = """\
# How many values have which verdict

Values of ours beside a published one, at the papers' settings, by table. Exploratory values, whose setting was chosen
after outcomes had been seen, are counted apart. A value that stands in several tables, as FedCollab's own, counts once
in the last lines. What the words mean is in [docs/verdicts.md](../docs/verdicts.md).

"""
FOOT = "\nWritten by `python -m fedbench.cli.redraw results`; nothing is trained.\n"


@dataclass(frozen=True)
class Judged:
    """One value with a verdict."""

    paper: str
    folder: str
    setting: str  # what was varied of what the paper leaves open; "" if nothing
    keys: tuple[str, ...]  # of its runs
    metric: str
    kind: str
    exploratory: bool


def write(results: Path) -> None:
    """Write verdicts.md into `results`, if a table there has a verdict."""
    if found := judged(store.folders(results)):
        write_text(results / FILE, HEAD + table(found) + FOOT)


def judged(folders: Sequence[Path]) -> list[Judged]:
    """Every value with a verdict in the filled tables of `folders`."""
    found = []
    for folder in folders:
        filled = store.load_table(folder)
        setting = " ".join(filled.circumstances.varied)
        for cell in filled.cells:
            verdict = judge(filled, cell)
            if verdict.kind != NONE:
                place = (filled.spec.paper, folder.name, setting)
                found.append(Judged(*place, cell.keys, cell.metric, verdict.kind, bool(verdict.exploratory)))
    return found


def table(found: Sequence[Judged]) -> str:
    """A line a table, and one for all tables of a paper with the same setting that hold values not exploratory."""
    lines = [["table", *COLUMNS, *(f"exploratory: {column}" for column in COLUMNS)]]
    lines.append(["---"] * len(lines[0]))
    lines += [
        [f"[{folder}](tables/{folder}/table.md)", *_counts([each for each in found if each.folder == folder])]
        for folder in dict.fromkeys(each.folder for each in found)
    ]
    confirmed = [each for each in found if not each.exploratory]
    for paper, setting in dict.fromkeys((each.paper, each.setting) for each in confirmed):
        tables = {each.folder for each in confirmed if (each.paper, each.setting) == (paper, setting)}
        once = {(each.keys, each.metric): each for each in found if each.folder in tables}
        label = f"{paper}, {setting or 'as specified'}, {len(tables)} tables, each value once"
        lines.append([label, *_counts(list(once.values()))])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _counts(found: Sequence[Judged]) -> list[str]:
    said = []
    for exploratory in (False, True):
        kinds = Counter(each.kind for each in found if each.exploratory == exploratory)
        said += [str(kinds.total()), *(str(kinds[kind]) for kind in COLUMNS[1:])]
    return said
