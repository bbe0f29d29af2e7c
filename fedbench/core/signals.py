"""Ctrl-C, SIGTERM and SIGHUP: runs finish their round, save and stop; a second signal stops at once.

If other processes do the work, the waiting process gets the signal and leaves a note in a folder that all of them see.
It needs neither their process ids nor the same machine.
"""

from __future__ import annotations

import os
import signal
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

# Windows ends a console with another signal.
SIGHUP: int = signal.SIGHUP if hasattr(signal, "SIGHUP") else signal.SIGBREAK  # type: ignore[attr-defined]
SIGNALS: dict[int, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    SIGHUP: signal.SIG_DFL,  # the terminal was closed
}  # and what is replaced
TOLD = b"\nstopping after this round; once more stops at once\n"
NOTE = "stopped"  # the file with the signal's number, for other processes


class Stopped(KeyboardInterrupt):
    """A signal ended the work."""

    def __init__(self, number: int, where: str = "") -> None:
        """`number` is the signal; `where` says how far the work got and where it is saved."""
        super().__init__(number, where)
        self.number, self.where = number, where


class _State:
    """The process's state of signals, which its threads share."""

    installed = False
    holding = 0  # rounds under way
    asked: int | None = None  # the signal that came while there were some
    others: Path | None = None  # where other processes look for a note
    boss: Path | None = None  # where another process leaves one
    parent = 0  # the process that started this one to work for it


@contextmanager
def handled() -> Iterator[None]:
    """Raise Stopped on a signal; inside `held` only note it.

    This does nothing where handlers cannot be set (outside the main thread) or somebody else handles the signals.
    """
    if _State.installed or threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = [number for number, default in SIGNALS.items() if signal.getsignal(number) is default]
    _State.installed = True
    try:
        for number in ours:
            signal.signal(number, _handle)
        yield
    finally:
        for number in ours:
            signal.signal(number, SIGNALS[number])
        _State.installed, _State.asked = False, None


def asked() -> int | None:
    """Return the signal that is held back here or by the process that this one works for; the caller then stops."""
    if _State.asked is None and _State.boss is not None:
        with suppress(OSError, ValueError):
            _State.asked = int((_State.boss / NOTE).read_bytes())
        if os.getppid() != _State.parent:  # killed, it left no note
            _State.asked = signal.SIGTERM
    return _State.asked


def stop_if_asked() -> None:
    """Raise Stopped if a signal was held back."""
    if (number := asked()) is not None:
        raise Stopped(number)


@contextmanager
def held() -> Iterator[None]:
    """Hold back a first signal, which `asked` then returns; a second one ends the block."""
    with handled():
        _State.holding += 1
        try:
            yield
        finally:
            _State.holding -= 1


@contextmanager
def passed_on(folder: Path) -> Iterator[None]:
    """As `held`, and pass the signal on to the processes that are `working_for` the same folder."""
    before, _State.others = _State.others, folder
    try:
        with held():
            yield
    finally:
        _State.others = before


@contextmanager
def working_for(folder: Path) -> Iterator[bool]:
    """Wrap work that another block waits for in `passed_on`; yield whether that block is in another process.

    In another process only the signals of the waiting process count from now on, because a terminal sends a signal to
    all processes. Otherwise a signal counts as it does without `passed_on`.
    """
    if _State.others is not None:
        _State.holding -= 1
        try:
            yield False
        finally:
            _State.holding += 1
        return
    if threading.current_thread() is threading.main_thread():
        for number, default in SIGNALS.items():
            if signal.getsignal(number) is default:
                signal.signal(number, signal.SIG_IGN)
    _State.boss, _State.parent = folder, _State.parent or os.getppid()
    try:
        yield True
    finally:
        _State.boss = _State.asked = None


def _handle(number: int, _frame: FrameType | None) -> None:
    if number == SIGHUP:
        _leave_terminal()
    if _State.holding and _State.asked is None:
        _State.asked = number
        if _State.others is not None:
            with suppress(OSError):
                (_State.others / NOTE).write_bytes(str(number).encode())
        os.write(2, TOLD)  # print could be what was interrupted
        return
    raise Stopped(number)


def _leave_terminal() -> None:
    """Discard output to a terminal that is gone, where writing would fail."""
    for stream in (1, 2):
        with suppress(OSError):  # closed
            if stat.S_ISCHR(os.fstat(stream).st_mode) and not os.isatty(stream):
                nobody = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nobody, stream)
                os.close(nobody)
