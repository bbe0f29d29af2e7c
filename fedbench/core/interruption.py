"""Ctrl-C and SIGTERM: rounds under way complete the one they are in, save and stop; asked again, all stops at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS: dict[int, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}  # and what is replaced
NOTE = b"\nstopping after this round; once more stops at once\n"


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


class Held:
    """Signals that are held back."""

    @property
    def asked(self) -> bool:
        """Whether one came: then save, and raise `stopped`."""
        return _State.asked is not None

    def stopped(self, where: str) -> Stopped:
        """What to raise; `where`: how far the work got, and where it was saved."""
        return Stopped(_State.asked or signal.SIGINT, where)


@contextmanager
def held() -> Iterator[Held]:
    """Hold a first signal back, for whoever asks; a second one ends the block."""
    with handled():
        _State.holding += 1
        try:
            yield Held()
        finally:
            _State.holding -= 1


def _handle(number: int, _frame: FrameType | None) -> None:
    if _State.holding and _State.asked is None:
        _State.asked = number
        os.write(2, NOTE)  # print could be what was interrupted
        return
    raise Stopped(number)
