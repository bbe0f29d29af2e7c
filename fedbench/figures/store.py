"""The files of a drawn figure: SCALE/NAME.npz (its arrays), .json (what is said of it), .svg and .png."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedbench.core.files import as_npz
from fedbench.core.sealed import Sealed
from fedbench.figures import spec as specs
from fedbench.figures.plan import FigurePlan
from fedbench.figures.spec import SETTINGS
from fedbench.plots import style

Arrays = Mapping[str, np.ndarray]


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


def write(folder: Path, plan: FigurePlan, arrays: Arrays, formats: Sequence[str] = ("svg", "png")) -> Drawn:
    """Keep the arrays of a figure and what is said of them, and draw it."""
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
    """Numbers in single precision: what a figure shows."""
    found = np.asarray(array)
    return found.astype(np.float32) if found.dtype == np.float64 else found


def draw(place: Path, drawn: Drawn, arrays: Arrays, formats: Sequence[str] = ("svg", "png")) -> None:
    """Draw a figure from its arrays, without any run."""
    paper, _, number = drawn.name.rpartition("_")
    function = getattr(importlib.import_module(f"fedbench.plots.{paper}"), number)
    with style.styled(drawn.name):
        style.save(function(arrays), place, drawn.caption, formats)


def render(place: Path, formats: Sequence[str] = ("svg", "png")) -> Drawn:
    """Draw again what is kept at `place` (no suffix), in the words that its YAML has today."""
    drawn, arrays = read(place)
    spec = specs.load(drawn.name)
    drawn = replace(drawn, title=spec.title, claim=spec.claim, note=spec.note, mirrors=spec.mirrors)
    files_of(place).write({f"{place.name}.json": _said(drawn)})
    draw(place, drawn, arrays, formats)
    return drawn


def read(place: Path) -> tuple[Drawn, Arrays]:
    """What `write` kept at `place` (no suffix).

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
    """The files of the figures beside `place` (no suffix) that are read back."""
    return Sealed(place.parent, f"python -m fedbench.figure {place.name} makes it again")


def _said(drawn: Drawn) -> bytes:
    return (json.dumps(asdict(drawn), indent=1, ensure_ascii=False) + "\n").encode()


def place_of(folder: Path, name: str) -> Path | None:
    """Where the figure is kept at the scale nearest the paper's (no suffix); None if it has not been made."""
    places = [folder / scale / name for scale in SETTINGS]
    return next((place for place in places if place.with_suffix(".json").is_file()), None)
