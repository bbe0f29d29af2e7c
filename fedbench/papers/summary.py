"""Count the verdicts of all filled tables, for verdicts.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fedbench.core.files import write_text
from fedbench.core.tables import markdown
from fedbench.papers import measures, store
from fedbench.papers.equivalence import DIFFERENT, EQUIVALENT
from fedbench.papers.published import published_values
from fedbench.papers.store import TableResult
from fedbench.papers.text import JUDGED_KINDS
from fedbench.papers.verdict import NONE, verdict_of
from fedbench.runs.progress import amount

FILE = "verdicts.md"
COLUMNS = ("values", "table rows", *JUDGED_KINDS)
HEAD = """\
# How many values have which verdict

The table counts our values at the papers' settings by their verdict beside the published value. A value is exploratory
if its setting was chosen after an outcome was seen; such values have their own columns. The last lines count a value
once that is in several tables, such as those of FedCollab's own row. [docs/verdicts.md](../docs/verdicts.md) defines
the verdicts.

Values are not independent trials. Accuracy, IPR and RSD of a table row come from the same runs, so rows are counted
too. Rows share their seeds, and IPR and RSD share the runs of Local.

"""
FOOT = "\n`python -m fedbench redraw results` writes the text above this line, without training.\n"


@dataclass(frozen=True)
class Judged:
    """One value with a verdict."""

    paper: str
    folder: str
    setting: str  # changes of settings that the paper leaves open; "" if none
    keys: tuple[str, ...]  # keys of its runs, with the study if there is one
    number: str  # the metric that is read from the runs
    kind: str
    exploratory: bool


@dataclass(frozen=True)
class VerdictTally:
    """The values of a paper's tables at one setting, each once."""

    paper: str
    setting: str
    tables: tuple[str, ...]  # names
    values: tuple[Judged, ...]


def write_summary(results: Path) -> None:
    """Write verdicts.md into `results` if a table there has a verdict; text below its last line is kept."""
    if found := judged({name: store.read_table(folder) for name, folder in store.table_folders(results).items()}):
        file = results / FILE
        before = file.read_text(encoding="utf-8") if file.is_file() else ""
        write_text(file, HEAD + count_table(found) + FOOT + before.partition(FOOT)[2])


def judged(tables: Mapping[str, TableResult]) -> list[Judged]:
    """Return every value with a verdict in the filled tables, given by name."""
    found = []
    for folder, filled in tables.items():
        place = filled.spec.paper, folder, " ".join(filled.provenance.varied)
        for (row, column, metric), cell in zip(filled.spec.places(), filled.cells, strict=True):
            verdict = verdict_of(filled, cell)
            if verdict.kind != NONE:
                keys = tuple(f"{row.study}{key}" for key in cell.keys)
                # One run gives several values of one metric: accuracies on images and on text, similarities of pairs.
                number = f"{metric.name} {measures.build(metric.measured(row, column))}"
                found.append(Judged(*place, keys, number, verdict.kind, bool(verdict.exploratory)))
    return found


def tally_verdicts(found: Sequence[Judged]) -> list[VerdictTally]:
    """Return one for all tables of a paper with the same setting that hold values not exploratory."""
    confirmed = [each for each in found if not each.exploratory]
    made = []
    for paper, setting in dict.fromkeys((each.paper, each.setting) for each in confirmed):
        tables = [each.folder for each in confirmed if (each.paper, each.setting) == (paper, setting)]
        once = _once([each for each in found if each.folder in tables])
        made.append(VerdictTally(paper, setting, tuple(dict.fromkeys(tables)), tuple(once)))
    return made


class PaperCounts(NamedTuple):
    """The numbers of a paper's values by outcome, in runs on its own data at its own setting."""

    agree: int  # ours, each once
    differ: int
    undecided: int
    no_verdict: int  # published ones, not run or with no margin


def paper_counts(found: Sequence[Judged]) -> dict[str, PaperCounts]:
    """Return the counts of each paper with published values; `found` are the judged values of all tables."""
    own = {each.paper: each.values for each in tally_verdicts(found) if not each.setting}
    # A value that the paper prints in two tables is two published ones, and one of ours.
    judged_values = Counter(each.paper for each in found if not (each.setting or each.exploratory))
    counted = {}
    for paper, published in Counter(each.paper for each in published_values()).items():
        kinds = Counter(each.kind for each in own.get(paper, ()) if not each.exploratory)
        agree, differ = kinds[EQUIVALENT], kinds[DIFFERENT]
        counted[paper] = PaperCounts(agree, differ, kinds.total() - agree - differ, published - judged_values[paper])
    return counted


def _once(found: Sequence[Judged]) -> list[Judged]:
    """Return each run's value once, from the table with most seeds."""
    kept: list[Judged] = []
    for each in sorted(found, key=lambda each: -len(each.keys)):
        if not any(each.number == other.number and set(each.keys) & set(other.keys) for other in kept):
            kept.append(each)
    return kept


def parted(found: Sequence[Judged]) -> list[list[Judged]]:
    """Return the values that are not exploratory, and those that are."""
    return [[each for each in found if each.exploratory == exploratory] for exploratory in (False, True)]


def rows_of(found: Sequence[Judged]) -> int:
    """Return how many rows of runs are behind the values; values of one row come from the same runs."""
    return len({each.keys for each in found})


def count_words(found: Sequence[Judged]) -> str:
    """Return the counts as a phrase with the rows of runs behind them, with exploratory values separately."""
    confirmed, exploratory = map(_phrase, parted(found))
    return (confirmed or "none") + (f"; exploratory: {exploratory}" if exploratory else "")


def _phrase(found: Sequence[Judged]) -> str:
    of = {kind: [each for each in found if each.kind == kind] for kind in JUDGED_KINDS}
    told = [f"{len(values)} {kind} ({amount(rows_of(values), 'row')})" for kind, values in of.items() if values]
    return ", ".join(told).replace(" row", " table row", 1)


def count_table(found: Sequence[Judged]) -> str:
    """Return a line a table, and one for each tally."""
    lines = [["table", *COLUMNS, *(f"exploratory: {column}" for column in COLUMNS)]]
    for folder in dict.fromkeys(each.folder for each in found):
        counted = _count_cells([each for each in found if each.folder == folder])
        lines.append([f"[{folder}](tables/{folder}/table.md)", *counted])
    for each in tally_verdicts(found):
        setting = each.setting or "paper's setting"
        label = f"{each.paper}, {setting}, {len(each.tables)} tables, each value once"
        lines.append([label.replace(" 1 tables", " 1 table"), *_count_cells(each.values)])
    return markdown(lines)


def _count_cells(found: Sequence[Judged]) -> list[str]:
    counts = [(own, Counter(each.kind for each in own)) for own in parted(found)]
    return [str(n) for own, kinds in counts for n in (len(own), rows_of(own), *map(kinds.__getitem__, JUDGED_KINDS))]
