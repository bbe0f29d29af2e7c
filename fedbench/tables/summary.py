"""How many published values of all filled tables have which verdict: verdicts.md beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedbench.core.files import write_text
from fedbench.tables import store
from fedbench.tables.equivalence import DIFFERENT, EQUIVALENT, INCONCLUSIVE
from fedbench.tables.result import TableResult
from fedbench.tables.verdict import NONE, judge

KINDS = (EQUIVALENT, DIFFERENT, INCONCLUSIVE)
FILE = "verdicts.md"
COLUMNS = ("values", *KINDS)
HEAD = """\
# How many values have which verdict

Values of ours beside a published one, at the papers' settings, by table. Exploratory values, whose setting was chosen
after outcomes had been seen, are counted apart. A value that stands in several tables, as FedCollab's own, counts once
in the last lines. What the words mean is in [docs/verdicts.md](../docs/verdicts.md).

"""
FOOT = "\nWritten by `python -m fedbench redraw results`; nothing is trained.\n"


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


@dataclass(frozen=True)
class Tally:
    """The values of a paper's tables at one setting, each once."""

    paper: str
    setting: str
    tables: tuple[str, ...]  # folders
    values: tuple[Judged, ...]


def write(results: Path) -> None:
    """Write verdicts.md into `results`, if a table there has a verdict."""
    if found := judged({folder.name: store.load_table(folder) for folder in store.folders(results)}):
        write_text(results / FILE, HEAD + table(found) + FOOT)


def judged(tables: Mapping[str, TableResult]) -> list[Judged]:
    """Every value with a verdict in filled tables, which are given by the name of their folder."""
    found = []
    for folder, filled in tables.items():
        setting = " ".join(filled.circumstances.varied)
        for cell in filled.cells:
            verdict = judge(filled, cell)
            if verdict.kind != NONE:
                place = (filled.spec.paper, folder, setting)
                found.append(Judged(*place, cell.keys, cell.metric, verdict.kind, bool(verdict.exploratory)))
    return found


def tallies(found: Sequence[Judged]) -> list[Tally]:
    """One for all tables of a paper with the same setting that hold values not exploratory."""
    confirmed = [each for each in found if not each.exploratory]
    made = []
    for paper, setting in dict.fromkeys((each.paper, each.setting) for each in confirmed):
        tables = [each.folder for each in confirmed if (each.paper, each.setting) == (paper, setting)]
        once = _once([each for each in found if each.folder in tables])
        made.append(Tally(paper, setting, tuple(dict.fromkeys(tables)), tuple(once)))
    return made


def _once(found: Sequence[Judged]) -> list[Judged]:
    """Of values that share a run, the one with most seeds: a table may have more of them than another has."""
    kept: list[Judged] = []
    for each in sorted(found, key=lambda each: -len(each.keys)):
        if not any(each.metric == other.metric and set(each.keys) & set(other.keys) for other in kept):
            kept.append(each)
    return kept


def counts(found: Sequence[Judged], *, exploratory: bool = False) -> Counter[str]:
    """How many of which kind: those that are exploratory, or all others."""
    return Counter(each.kind for each in found if each.exploratory == exploratory)


def words(found: Sequence[Judged]) -> str:
    """The counts as a phrase, those of exploratory values apart."""
    return "; exploratory: ".join(filter(None, _phrases(found))) or "none"


def _phrases(found: Sequence[Judged]) -> Iterator[str]:
    for exploratory in (False, True):
        kinds = counts(found, exploratory=exploratory)
        told = ", ".join(f"{kinds[kind]} {kind}" for kind in KINDS if kinds[kind])
        yield told or ("" if exploratory or not found else "none")


def table(found: Sequence[Judged]) -> str:
    """A line a table, and one for each tally."""
    lines = [["table", *COLUMNS, *(f"exploratory: {column}" for column in COLUMNS)]]
    lines.append(["---"] * len(lines[0]))
    lines += [
        [f"[{folder}](tables/{folder}/table.md)", *_counts([each for each in found if each.folder == folder])]
        for folder in dict.fromkeys(each.folder for each in found)
    ]
    for each in tallies(found):
        label = f"{each.paper}, {each.setting or 'as specified'}, {len(each.tables)} tables, each value once"
        lines.append([label, *_counts(each.values)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _counts(found: Sequence[Judged]) -> list[str]:
    said = []
    for exploratory in (False, True):
        kinds = counts(found, exploratory=exploratory)
        said += [str(kinds.total()), *(str(kinds[kind]) for kind in KINDS)]
    return said
