"""YAML files, checked before they are read: what is nested or repeated without end is refused, not expanded."""

from __future__ import annotations

import copy
import functools
import io
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from fedbench.core.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig, ListConfig

DEPTH = 50  # of lists and mappings in each other
NODES = 100_000  # values and keys, those that an alias repeats counted each time
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load(path: Path) -> DictConfig | ListConfig:
    """The content of a file, the caller's own: the same content is parsed, which takes milliseconds, once a process.

    Raises:
        ConfigError: as `check`, or a value in it is none.
    """
    return copy.deepcopy(_parsed(path, path.read_bytes()))


@functools.lru_cache(maxsize=1024)
def _parsed(path: Path, content: bytes) -> DictConfig | ListConfig:
    from omegaconf import OmegaConf

    check(path, content)
    try:
        return OmegaConf.load(io.StringIO(content.decode()))
    except (yaml.YAMLError, ValueError, OSError) as error:  # the last: a number alone, which is no config
        raise ConfigError(
            f"{path} holds a value that cannot be read: {' '.join(str(error).split())}"
        ) from error


def check(path: Path, content: bytes) -> None:
    """Refuse the content of a file that is no YAML, or more than a config can hold, in time linear in its length.

    Raises:
        ConfigError: in one line, with the file's name.
    """
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 at byte {error.start}; save it as UTF-8") from error
    try:
        reason = _excess(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if reason:
        raise ConfigError(f"{path} {reason}")


def _excess(text: str) -> str:
    """What is too much in `text`; "" if nothing. Raises YAMLError."""
    size = _Size()
    for event in yaml.parse(text, Loader=LOADER):
        if isinstance(event, yaml.AliasEvent) and event.anchor not in size.of_anchors:
            return f"refers to itself (*{event.anchor})"
        size.count(event)
        if len(size.inside) > DEPTH:
            return f"is nested more than {DEPTH} deep"
        if size.nodes > NODES:
            return f"holds more than {NODES:,} values, those that its aliases repeat counted each time"
    return ""


class _Size:
    """Nodes so far, from events one after the other."""

    def __init__(self) -> None:
        self.nodes = 0
        self.inside: list[
            tuple[str | None, int]
        ] = []  # anchor of each open collection, and the nodes before it
        self.of_anchors: dict[str, int] = {}  # nodes of each

    def count(self, event: yaml.Event) -> None:
        """Add what `event` stands for."""
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, before = self.inside.pop()
            if anchor:
                self.of_anchors[anchor] = self.nodes - before
        elif isinstance(event, yaml.AliasEvent):
            self.nodes += self.of_anchors[str(event.anchor)]
        elif isinstance(event, yaml.CollectionStartEvent):
            self.inside.append((event.anchor, self.nodes))
            self.nodes += 1
        elif isinstance(event, yaml.ScalarEvent):
            self.nodes += 1
            if event.anchor:
                self.of_anchors[event.anchor] = 1
