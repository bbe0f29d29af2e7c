"""All figures at once: the contact sheet, and a page with the papers' claims and what was run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedbench.core.files import write_text
from fedbench.figures import spec as specs
from fedbench.figures import store
from fedbench.figures.spec import OPEN, PAPER, QUICK
from fedbench.figures.store import Drawn
from fedbench.plots.sheet import sheet
from fedbench.tables.account import PAPERS

HEAD = """# Figures of the five papers

Made by `make figures scale=quick`, or one by one by `make figure-NAME`, at the papers' settings where the data are
there; drawn again from the arrays beside them, without any run, by `make tables`. The claim is the paper's, of its own
data and settings. Only a figure at the paper's setting can be held against it; the others show the same quantities on
other data, and neither support nor refute the claim.

![all figures](contact.png)
"""


RUN = {PAPER: "at the paper's setting", OPEN: "on open data", QUICK: "at a small scale"}


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
    """The page: a line a figure, with the paper's claim and what was run."""
    lacking = sorted(set(ordered()) - {each.name for each in found})
    counts = ", ".join(
        f"{sum(each.scale == scale for each in found)} {words}" for scale, words in RUN.items()
    )
    lines = [HEAD, f"{len(found)} figures: {counts}."]
    if lacking:
        lines.append(f"Not made yet: {', '.join(lacking)}.")
    lines += ["", "| figure | claim of the paper | run | data |", "|---|---|---|---|"]
    lines += [
        f"| [{each.mirrors}]({each.scale}/{each.name}.svg) | {each.claim} | {RUN[each.scale]} "
        f"| {each.data}; {len(each.seeds)} seed{'s' * (len(each.seeds) > 1)} |"
        for each in found
    ]
    return "\n".join(lines) + "\n"
