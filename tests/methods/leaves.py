"""What a method's docstring says of its leaves, read: the notation is that of `Method`'s docstring."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

PLACES = ("Server", "Memory", "Message", "Upload")


@dataclass(frozen=True)
class Entry:
    """One leaf, or the leaves of one namespace, as documented."""

    name: str
    shape: tuple[str, ...] | None  # symbols, numbers, "..." for a network leaf's own; None: any
    optional: bool


def listed(cls: type) -> dict[str, list[Entry]]:
    """What the docstring of `cls` lists, place by place."""
    text = inspect.cleandoc(cls.__dict__.get("__doc__") or "")
    lines = re.findall(r"^(\w+): (.*(?:\n +.*)*)$", text, re.MULTILINE)
    return {
        place: [] if line == "nothing" else [entry(part) for part in line.split(";")]
        for place, line in lines
        if place in PLACES
    }


def documented(cls: type) -> dict[str, list[Entry]]:
    """What is listed of `cls`; without a line of its own, its base's."""
    found: dict[str, list[Entry]] = {}
    for base in reversed(cls.__mro__):
        found.update(listed(base))
    return found


def entry(text: str) -> Entry:
    match = re.fullmatch(r"([\w./*]+)(?: \[([^\]]*)\])?( if [^,]+)?(?:,.*)?", text.strip(), re.DOTALL)
    assert match, f"not of the form `name [shape] if condition, remark`: {text!r}"
    shape = None if match[2] is None else tuple(s.strip() for s in match[2].split(",") if s.strip())
    return Entry(match[1], shape, match[3] is not None)


def matches(known: Entry, name: str, own: Mapping[str, Any]) -> bool:
    """Whether `known` documents the leaf `name` of a network with the leaves `own`."""
    space, _, last = known.name.rpartition("/")
    here, _, leaf = name.rpartition("/")
    if last == "**":
        return name.startswith(f"{space}/") or not space
    if last == "*":
        return here == space and (leaf in own or known.shape is None)
    return name == known.name


def wrong_shape(known: Entry, name: str, leaf: Tensor, own: Mapping[str, Tensor], sizes: dict[str, int]) -> str:
    """Why the shape [C, ...] or [N, ...] of a leaf is not what is documented; "" if it is."""
    if known.shape is None:
        return ""
    shape, symbols = list(leaf.shape), [s for s in known.shape if s != "..."]
    if len(symbols) < len(known.shape):
        tail = list(own[name.rpartition("/")[2]].shape) if name.rpartition("/")[2] in own else shape[len(symbols) :]
        if shape[len(symbols) :] != tail:
            return f"{name} {shape} does not end in {tail}"
        shape = shape[: len(symbols)]
    bound = [int(s) if s.isdigit() else sizes.setdefault(s, n) for s, n in zip(symbols, shape, strict=False)]
    return "" if bound == shape else f"{name} {shape} is not {symbols} with {sizes}"
