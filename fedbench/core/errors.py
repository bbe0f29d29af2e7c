"""Errors and warnings that a user can act on: each is one line with the reason and the remedy."""

from __future__ import annotations

import difflib
import functools
import logging
from collections.abc import Callable, Iterable

CPU_MEMORY = "DefaultCPUAllocator: "  # before what torch says where a CPU's memory ran out

log = logging.getLogger("fedbench")


class FedbenchError(Exception):
    """Base of every error that the command line prints as one line, without a traceback."""


class UnknownName(FedbenchError):
    """A name that no registry, config group or schema knows."""


class ConfigError(FedbenchError):
    """A value that is well-typed but impossible (alpha = 0, more clients than samples, ...)."""


class DataMissing(FedbenchError):
    """A data set that is not on this machine; the message names the searched folders and the command that gets it."""


class DataCorrupt(FedbenchError):
    """A data file that is truncated, altered or of another format."""


class Damaged(FedbenchError):
    """A damaged file that fedbench wrote; the message says how to repair it."""


class Stale(FedbenchError):
    """A result or a checkpoint that other code made and that the run does not accept."""


class CheckpointError(FedbenchError):
    """A checkpoint that is unreadable or belongs to another configuration."""


class FolderInUse(FedbenchError):
    """A run folder that another process uses at the moment."""


class Diverged(FedbenchError):
    """Training produced a value that is not finite; the message names the round and the place."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` means that memory ran out; torch has its own class for this only on GPUs."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and CPU_MEMORY in str(error))
    )


def nearest(name: str, options: Iterable[str], count: int = 3) -> str:
    """The `count` options closest to `name`, joined for a message (all of them if few).

    Case is ignored, and an option that starts with `name` or is a prefix of it counts as close. Of five options or
    fewer the others follow where none is very close.
    """
    pool = sorted(set(options))
    lowered = {option.lower(): option for option in pool}
    close = difflib.get_close_matches(name.lower(), lowered, n=count, cutoff=0.5)
    sure = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.7)
    prefixed = [o for o in lowered if o.startswith(name.lower()) or name.lower().startswith(o)]
    found = list(dict.fromkeys([lowered[o] for o in [*close, *prefixed]]))[:count]
    if len(pool) <= 5 and not (sure or prefixed):
        found += [option for option in pool if option not in found]
    return ", ".join(found or (pool if len(pool) <= 12 else [*pool[:12], "..."]))


def unknown(kind: str, name: str, options: Iterable[str]) -> UnknownName:
    """The error for an unknown `kind` (method, data set, key, ...) called `name`."""
    near = nearest(name, options)
    return UnknownName(f"unknown {kind} '{name}'; {f'nearest: {near}' if near else 'there is none, leave it out'}")


REASON = 200  # characters of an error of a library that are shown


def reason_of(error: BaseException) -> str:
    """Return the text of `error` as one line of limited length, or its class if it has no text."""
    return " ".join(str(error).split())[:REASON] or type(error).__name__


Report = Callable[[str, int, int | None], None]
"""(what is going on, how far, out of how many if known)"""


def silent(what: str, done: int, total: int | None) -> None:
    """Report to nobody."""


@functools.cache
def warn_once(line: str) -> None:
    """Log a warning that many runs would repeat."""
    log.warning("%s", line)
