"""All figures at once: the contact sheet, and the papers' claims beside what ours show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fedbench.core.files import write_text
from fedbench.figures import spec as specs
from fedbench.figures import store
from fedbench.figures.judges.verdict import VERDICTS
from fedbench.figures.store import Drawn
from fedbench.plots.sheet import sheet
from fedbench.tables.account import PAPERS

HEAD = """# Figures of the five papers

Made by `make figures scale=quick`, or one by one by `make figure-NAME`, at the papers' settings where the data are
there; drawn again from the arrays beside them, without any run, by `make tables`. A verdict is a rule on the figure's
numbers alone (`fedbench/figures/judges/`), fixed before it was drawn: a difference counts beyond two standard errors
over seeds. A figure on other data than the paper's says so, and neither agreement nor disagreement there reproduces it.

![all figures](contact.png)
"""


def made(folder: Path) -> list[Drawn]:
    """Every figure that is there, at the scale nearest the paper's, paper by paper."""
    places = [store.place_of(folder, name) for name in ordered()]
    return [store.read(place)[0] for place in places if place is not None]


def ordered() -> list[str]:
    """Names of all figures, in the order of the papers and of numbers."""
    each = [specs.load(name) for name in specs.names()]
    papers = list(PAPERS)
    return [s.name for s in sorted(each, key=lambda s: (papers.index(s.paper), int(s.figure)))]


def write(folder: Path) -> None:
    """README.md and contact.png of a folder of figures."""
    found = made(folder)
    if not found:
        return
    pictures = [folder / each.scale / f"{each.name}.png" for each in found]
    sheet(pictures, [each.mirrors for each in found]).savefig(folder / "contact.png", dpi=100)
    write_text(folder / "README.md", text(found))


def text(found: Sequence[Drawn]) -> str:
    """The page: counts of verdicts, and a line a figure."""
    counts = Counter(each.verdict for each in found)
    lacking = sorted(set(ordered()) - {each.name for each in found})
    lines = [HEAD, f"{len(found)} figures: " + ", ".join(f"{word} {counts[word]}" for word in VERDICTS) + "."]
    if lacking:
        lines.append(f"Not made yet: {', '.join(lacking)}.")
    lines += ["", "| figure | claim of the paper | ours | what ours shows | data |", "|---|---|---|---|---|"]
    lines += [
        f"| [{each.mirrors}]({each.scale}/{each.name}.svg) | {each.claim} | {each.verdict} | {each.shows} "
        f"| {each.data}; {len(each.seeds)} seed{'s' * (len(each.seeds) > 1)} |"
        for each in found
    ]
    return "\n".join(lines) + "\n"
