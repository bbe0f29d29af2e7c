"""The files of drawn figures: SCALE/NAME.npz (arrays), .json (what is said of it), .svg, .png; README.md of all."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedbench.core.files import Sealed, as_npz, write_text
from fedbench.figures.plan import (
    OPEN,
    PAPER,
    QUICK,
    SETTINGS,
    FigurePlan,
    load_spec,
    ordered_specs,
    spec_names,
)
from fedbench.plots import style

Arrays = Mapping[str, np.ndarray]
HEAD = """# Figures of the five papers

Made by `make figures scale=quick`, or one by one by `make figure-NAME`, at the papers' settings where the data are
there; drawn again from the arrays beside them, without any run, by `make tables`. The claim is the paper's, of its own
data and settings. Only a figure at the paper's setting can be held against it; the others show the same quantities on
other data, and neither support nor refute the claim.

![all figures](contact.png)
"""
RUN = {PAPER: "at the paper's setting", OPEN: "on open data", QUICK: "at a small scale"}


@dataclass(frozen=True)
class Drawn:
    """What is said of a drawn figure."""

    name: str
    scale: str
    mirrors: str  # as "FedSaC, Figure 1"
    title: str
    data: str
    seeds: tuple[int, ...]
    command: str
    claim: str  # what the paper says that its figure shows
    note: str = ""

    @property
    def caption(self) -> str:
        """Data, protocol, seeds and command."""
        count = len(self.seeds)
        seeds = f"seed {self.seeds[0]}" if count == 1 else f"{count} seeds, mean and one standard deviation"
        note = f" {self.note}" if self.note else ""
        return f"{self.mirrors}: {self.title}. {self.data}; {seeds}.{note} {self.command}"


def save_figure(
    folder: Path, plan: FigurePlan, arrays: Arrays, formats: Sequence[str] = ("svg", "png")
) -> Drawn:
    """Write the arrays of a figure and what is said of them, and draw it."""
    spec = plan.spec
    changed = f" with {' '.join(plan.wanted.changed)}" if plan.wanted.changed else ""
    drawn = Drawn(
        spec.name, plan.scale, spec.mirrors, spec.title, plan.setting.data + changed,
        tuple(plan.runs.seeds), plan.command(), spec.claim, spec.note,
    )  # fmt: skip
    place = folder / plan.scale / spec.name
    place.parent.mkdir(parents=True, exist_ok=True)
    kept = as_npz({key: compact(array) for key, array in arrays.items()})
    files_of(place).write({f"{place.name}.npz": kept, f"{place.name}.json": _said(drawn)})
    draw(place, drawn, arrays, formats)
    return drawn


def compact(array: Any) -> np.ndarray:
    """Return numbers in single precision: what a figure shows."""
    found = np.asarray(array)
    return found.astype(np.float32) if found.dtype == np.float64 else found


def draw(place: Path, drawn: Drawn, arrays: Arrays, formats: Sequence[str] = ("svg", "png")) -> None:
    """Draw a figure from its arrays, without any run."""
    paper, _, number = drawn.name.rpartition("_")
    function = getattr(importlib.import_module(f"fedbench.plots.{paper}"), number)
    with style.styled(drawn.name):
        style.save(function(arrays), place, drawn.caption, formats)


def redraw(place: Path, formats: Sequence[str] = ("svg", "png")) -> Drawn:
    """Draw again what is kept at `place` (no suffix), in the words that its YAML has today."""
    drawn, arrays = load_figure(place)
    spec = load_spec(drawn.name)
    drawn = replace(drawn, title=spec.title, claim=spec.claim, note=spec.note, mirrors=spec.mirrors)
    files_of(place).write({f"{place.name}.json": _said(drawn)})
    draw(place, drawn, arrays, formats)
    return drawn


def load_figure(place: Path) -> tuple[Drawn, Arrays]:
    """Return what `save_figure` kept at `place` (no suffix).

    Raises:
        Damaged: it is not as it was written.
    """
    files = files_of(place)
    content, arrays = files.json(f"{place.name}.json"), files.npz(f"{place.name}.npz")
    try:
        said = {each.name: content[each.name] for each in fields(Drawn)}  # earlier versions said more
        return Drawn(**{**said, "seeds": tuple(content["seeds"])}), arrays
    except (TypeError, KeyError) as error:
        raise files.damaged(f"{place.name}.json", "it is of another version") from error


def files_of(place: Path) -> Sealed:
    """Return the files of the figures beside `place` (no suffix) that are read back."""
    return Sealed(place.parent, f"python -m fedbench figure {place.name} makes it again")


def _said(drawn: Drawn) -> bytes:
    return (json.dumps(asdict(drawn), indent=1, ensure_ascii=False) + "\n").encode()


def place_of(folder: Path, name: str) -> Path | None:
    """Return where the figure is kept at the scale nearest the paper's (no suffix); None if it has not been made."""
    places = [folder / scale / name for scale in SETTINGS]
    return next((place for place in places if place.with_suffix(".json").is_file()), None)


def drawn_figures(folder: Path) -> list[Drawn]:
    """Return every figure that is there, at the scale nearest the paper's, paper by paper."""
    places = [place_of(folder, spec.name) for spec in ordered_specs()]
    return [load_figure(place)[0] for place in places if place is not None]


def write_overview(folder: Path) -> None:
    """Write README.md and contact.png of a folder of figures."""
    found = drawn_figures(folder)
    if not found:
        return
    pictures = [folder / each.scale / f"{each.name}.png" for each in found]
    style.contact_sheet(pictures, [each.mirrors for each in found]).savefig(folder / "contact.png", dpi=100)
    write_text(folder / "README.md", overview_text(found))


def overview_text(found: Sequence[Drawn]) -> str:
    """Return the page: a line a figure, with the paper's claim and what was run."""
    lacking = sorted(set(spec_names()) - {each.name for each in found})
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
