"""`fedbench COMMAND ...`: the commands under one name, and `fedbench GROUP=OPTION ...` for a run or a sweep.

`python -m fedbench` is the same program.
"""

from __future__ import annotations

import difflib
import io
import os
import pkgutil
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from fedbench.config import groups, messages, sources
from fedbench.config.compose import ONE_HYDRA, refuse_mixed, tell_of_doubles
from fedbench.config.messages import OK
from fedbench.core.errors import ConfigError, unknown
from fedbench.core.signals import Stopped, handled
from fedbench.core.version import __version__

if TYPE_CHECKING:
    from fedbench.sweeps.jobs import JobOutcome

COMMANDS = {  # name -> the function that takes the arguments after it and returns the exit code
    "list": "fedbench.cli.list:list_command",
    "new": "fedbench.cli.new:new_command",
    "prepare": "fedbench.cli.prepare:prepare_command",
    "reproduce": "fedbench.papers.reproduce:reproduce_command",
    "evidence": "fedbench.papers.evidence:evidence_command",
    "figure": "fedbench.papers.reproduce:figure_command",
    "leaderboard": "fedbench.papers.leaderboard:leaderboard_command",
    "plot": "fedbench.cli.runs:plot_command",
    "collect": "fedbench.cli.runs:collect_command",
    "tta": "fedbench.cli.runs:tta_command",
    "report": "fedbench.papers.report:report_command",
    "redraw": "fedbench.papers.reproduce:redraw_command",
    "check-method": "fedbench.testing:check_command",
}
SWEEPING = ("-m", "--multirun")
COMPLETION = ("-sc", "--shell-completion")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, or the runs that the arguments describe; return the exit code."""
    if arguments is None:
        _read_as_utf8()
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in COMMANDS:
        command = COMMANDS[given[0]]
        return end(f"python -m fedbench {given[0]}", given[1:], lambda rest: int(pkgutil.resolve_name(command)(rest)))
    if len(given) > 1 and given[0] in COMPLETION and given[1].startswith("query="):
        before, typed = _typed()
        if len(before) > 1 and before[1] in COMMANDS:
            print(*offered(before[1]), sep="\n")
            return OK
        if len(before) == 1:
            print(*(name for name in COMMANDS if name.startswith(typed)), sep="\n")
    return end("python -m fedbench", given, _run)


def _read_as_utf8() -> None:
    """Restart in Python's UTF-8 mode if an argument or the folder is not text in the locale's encoding.

    An example is `jürgen` under LC_ALL=C with PYTHONUTF8=0, which Python could neither write into a file nor draw.
    """
    with suppress(FileNotFoundError):  # no folder, see `end`
        begun = os.environ.get("PYTHONUTF8") == "1"  # an interpreter that is told otherwise (-X utf8=0) stays so
        if not (sys.flags.utf8_mode or begun) and any(map(_is_no_text, (*sys.argv, str(Path.cwd())))):
            os.environ["PYTHONUTF8"] = "1"  # and in the processes that this one starts
            os.execv(sys.executable, sys.orig_argv)


def _is_no_text(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


# What a shell offers to complete behind a command.


def _typed() -> tuple[list[str], str]:
    """Return (words before, beginning of the word at the cursor), as the shell gives them for completion."""
    text = os.environ.get("COMP_LINE", "")
    text = text[: int(os.environ.get("COMP_POINT", len(text)))]
    *before, typed = re.split(r"\s+", text)
    return before, typed


def offered(command: str) -> list[str]:
    """Return the words that may follow a command; none if they are files."""
    if command == "list":
        from fedbench.cli.list import KINDS

        return list(KINDS)
    if command == "prepare":
        return ["--check", "--root", *groups.names("dataset")]
    if command == "reproduce":
        keys = ("rows=", "columns=", "seeds=", "jobs=", "--dry-run")
        named = (f"{key}={name}" for key in ("table", "scale") for name in groups.names(key))
        return [*named, *(f"substitute={name}" for name in groups.names("dataset")), *keys]
    if command == "leaderboard":
        return [*(f"board={name}" for name in groups.names("leaderboard")), "rows=", "seeds=", "jobs=", "--dry-run"]
    if command == "figure":
        scales = ("scale=paper", "scale=open", "scale=quick")
        return [*groups.names("figure"), "all", *scales, "seeds=", "jobs=", "--dry-run"]
    return []


# Runs and sweeps: the Hydra application.


def _run(arguments: Sequence[str]) -> int:
    if arguments == ["--version"]:  # Hydra would print its own
        print(f"fedbench {__version__}")
        return OK
    first = arguments[0] if arguments else ""
    if first.replace("-", "").isalnum() and difflib.get_close_matches(first, COMMANDS):
        raise unknown("command", first, COMMANDS)
    from fedbench.sweeps.jobs import only_planned

    rest = [text for text in arguments if text != "--dry-run"]
    with only_planned() if rest != arguments else nullcontext():
        return min((outcome.code for outcome in outcomes_of(rest) if outcome.code != OK), default=OK)


def outcomes_of(arguments: Sequence[str]) -> list[JobOutcome]:
    """Make the runs that `arguments` describe and return their outcomes."""
    from fedbench.sweeps import jobs

    sources.register()
    tell_of_doubles(arguments)
    # After an override argparse knows no option; what an option takes stays behind it.
    arguments = sorted(arguments, key=lambda text: (text not in SWEEPING, "=" in text and text[0] != "-"))
    with ONE_HYDRA, _hydra_arguments(sweep_keys(arguments)), jobs.keeping() as outcomes:
        hydra.main(str(groups.conf_dir()), groups.CONFIG_NAME, version_base="1.3")(jobs.perform)()
    return outcomes


def sweep_keys(arguments: Sequence[str]) -> list[str]:
    """Return `arguments` with keys of a swept group as forced ones: `method=a,b method.mu=1` to `++method.mu=1`.

    Hydra checks a sweep's plain keys against the group's default option before it composes the jobs. A forced key
    is checked when its job builds the component, so it meets the options it is for; another option refuses it.
    `+experiment=NAME` is taken as `experiment=NAME`.
    """
    # Hydra asks for a + before groups without a default; many write it before this one too.
    arguments = [text.removeprefix("+") if text.startswith("+experiment=") else text for text in arguments]
    prefixes = tuple(f"{group.replace('/', '.')}." for group in _swept_groups(arguments))
    return [f"++{text}" if prefixes and text.startswith(prefixes) else text for text in arguments]


def _swept_groups(arguments: Sequence[str]) -> list[str]:
    """Return `method` for `method=a,b` or `method='glob(*)'`; Hydra reports what it cannot read."""
    swept = []
    for text in arguments:
        group, equals, _ = text.partition("=")
        if not text.startswith("~") and (not equals or "." in group or group.startswith("-")):
            continue
        with suppress(HydraException):
            override = OverridesParser.create().parse_override(text)
            refuse_mixed(override, arguments)
            if override.is_sweep_override():
                swept.append(group)
    return swept


@contextmanager
def _hydra_arguments(arguments: list[str]) -> Iterator[None]:
    """Give Hydra `arguments` in sys.argv, where it reads them, and let it raise errors instead of printing them."""
    argv, full = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = ["fedbench", *arguments]
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        sys.argv = argv
        os.environ.pop("HYDRA_FULL_ERROR")
        if full is not None:
            os.environ["HYDRA_FULL_ERROR"] = full


# How every command ends: its exit code, one line for what a user can act on, and the command that goes on.


def end(program: str, arguments: Sequence[str], command: Callable[[Sequence[str]], int]) -> int:
    """Return the exit code of `command`, called with `arguments`, for any kind of end.

    It is 130 after Ctrl-C, 143 after SIGTERM and 129 after SIGHUP, as in a shell, and 141 if the output is closed
    (`| head`).
    """
    _accept_any_output()
    try:
        with handled():
            Path.cwd()  # libraries of others end the process where there is none
            if lost := [text for text in arguments if _is_no_text(text)]:
                raise ConfigError(f"{lost[0]} is not UTF-8; rename the file or folder")
            code = command(arguments)
            sys.stdout.flush()
            return code
    except KeyboardInterrupt as stop:
        number, where = (stop.number, stop.where) if isinstance(stop, Stopped) else (signal.SIGINT, "")
        for line in where.splitlines() or [""]:  # one a run
            print(f"interrupted {line}".rstrip(), file=sys.stderr)
        print(f"resume with: {shlex.join([*program.split(), *arguments])}", file=sys.stderr)
        return 128 + number
    except BrokenPipeError:
        _write_no_more()
        return 141  # 128 + SIGPIPE, which Windows lacks
    except Exception as error:  # noqa: BLE001 - the outermost frame: every error is reported here
        return report(error)


def _accept_any_output() -> None:
    """Let no command fail because the output is closed or its encoding lacks a sign."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # `>&-`: the next file that is opened would have its number
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - it stays open
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")


def _write_no_more() -> None:
    """Discard the remaining output, which Python flushes once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def report(error: Exception) -> int:
    """Print one line if the user can act on the error, else a traceback; return the exit code."""
    code, text = messages.explained(error)
    try:
        sys.stdout.flush()
    except OSError:  # a full disk, which may be the error
        _write_no_more()
    print(text, file=sys.stderr)
    return code
