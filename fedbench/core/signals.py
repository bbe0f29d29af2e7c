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

SIGNALS: dict[int, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,  # the terminal was closed
}  # and what is replaced
TOLD = b"\nstopping after this round; once more stops at once\n"
NOTE = "stopped"  # the file with the signal's number, for other processes


class Stopped(KeyboardInterrupt):
    """A signal ended the work."""

    def __init__(self, number: int, where: str = "") -> None:
        """`number` of the signal; `where`: how far the work got, and where it was saved."""
        super().__init__(number, where)
        self.number, self.where = number, where


class _State:
    """What the process knows of signals; its threads share it."""

    installed = False
    holding = 0  # rounds under way
    asked: int | None = None  # the signal that came while there were some
    others: Path | None = None  # where other processes look for a note
    boss: Path | None = None  # where another process leaves one


@contextmanager
def handled() -> Iterator[None]:
    """Raise Stopped on a signal, or, inside of `held`, let it be seen there.

    Nothing happens where signals cannot be set (another thread than the main one) or somebody else handles them.
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
    """The signal that was held back, here or by the process that this one works for: save, and raise Stopped."""
    if _State.asked is None and _State.boss is not None:
        with suppress(OSError, ValueError):
            _State.asked = int((_State.boss / NOTE).read_bytes())
    return _State.asked


def stop_if_asked() -> None:
    """Raise Stopped if a signal was held back."""
    if (number := asked()) is not None:
        raise Stopped(number)


@contextmanager
def held() -> Iterator[None]:
    """Hold a first signal back, for whoever looks at `asked`; a second one ends the block."""
    with handled():
        _State.holding += 1
        try:
            yield
        finally:
            _State.holding -= 1


@contextmanager
def passed_on(folder: Path) -> Iterator[None]:
    """`held`, where processes that are `working_for` the same folder do the work: they are asked too."""
    before, _State.others = _State.others, folder
    try:
        with held():
            yield
    finally:
        _State.others = before


@contextmanager
def working_for(folder: Path) -> Iterator[bool]:
    """Around a piece of the work that is waited for in `passed_on`; whether that is in another process.

    Then what that one is asked counts, and signals of its own do not, from now on: a terminal sends them to all
    processes. Else this one does not wait, and a signal counts as it does without `passed_on`.
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
    _State.boss = folder
    try:
        yield True
    finally:
        _State.boss = _State.asked = None


def _handle(number: int, _frame: FrameType | None) -> None:
    if number == signal.SIGHUP:
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
    """Send to nobody what would be printed on a terminal that is gone, where writing fails."""
    for stream in (1, 2):
        with suppress(OSError):  # closed
            if stat.S_ISCHR(os.fstat(stream).st_mode) and not os.isatty(stream):
                nobody = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nobody, stream)
                os.close(nobody)
