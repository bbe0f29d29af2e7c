"""How every command ends: its exit code, one line for what a user can act on, and the command that goes on."""

from __future__ import annotations

import io
import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from fedbench.core.errors import FedbenchError
from fedbench.core.signals import Stopped, handled


def run(program: str, arguments: Sequence[str] | None, body: Callable[[list[str]], int]) -> int:
    """The exit code of `body`, called with `arguments` (None: the process's own), whatever ends it.

    130 after Ctrl-C and 143 after SIGTERM, as a shell says; 141 when nobody reads the output any longer (`| head`).
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    _take_anything()
    try:
        with handled():
            _check_folder()
            code = body(given)
            sys.stdout.flush()
            return code
    except KeyboardInterrupt as stop:
        number, where = (stop.number, stop.where) if isinstance(stop, Stopped) else (signal.SIGINT, "")
        for line in where.splitlines() or [""]:  # one a run
            print(f"interrupted {line}".rstrip(), file=sys.stderr)
        print(f"go on: {shlex.join([*program.split(), *given])}", file=sys.stderr)
        return 128 + number
    except BrokenPipeError:
        _write_no_more()
        return 128 + signal.SIGPIPE
    except Exception as error:  # noqa: BLE001 - the outermost frame: every error is reported here
        return report(error)


def _take_anything() -> None:
    """Where the output is closed, or of an encoding that lacks a sign, that is no reason to fail."""
    if sys.stdout is None:  # `>&-`
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - as long as the process lives
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")


def _write_no_more() -> None:
    """What is left is for nobody: Python flushes once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _check_folder() -> None:
    """Libraries of others end the process where there is no working directory."""
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise FedbenchError("the working directory is gone; change to another one") from error


def report(error: Exception) -> int:
    """Print one line for what a user can act on, else a traceback; return the exit code it deserves."""
    from fedbench.config import messages

    code, text = messages.told(error)
    try:
        sys.stdout.flush()
    except OSError:  # a full disk, which may be the error
        _write_no_more()
    print(text, file=sys.stderr)
    return code
