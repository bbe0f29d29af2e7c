"""`fedbench COMMAND ...`: the commands under one name, and `fedbench GROUP=OPTION ...` for a run.

`fedbench tables` is `fedbench list tables`. `python -m fedbench` is the same program.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Sequence

from fedbench.config import groups

COMMANDS = {  # name -> (module whose `main` it is, what it is given first)
    "list": ("fedbench.cli.list", ()),
    "tables": ("fedbench.cli.list", ("tables",)),
    "prepare": ("fedbench.cli.prepare", ()),
    "reproduce": ("fedbench.cli.reproduce", ()),
    "figure": ("fedbench.cli.figure", ()),
    "plot": ("fedbench.cli.plot", ()),
    "collect": ("fedbench.cli.collect", ()),
    "tta": ("fedbench.cli.tta", ()),
    "report": ("fedbench.report.build", ()),
    "redraw": ("fedbench.cli.redraw", ()),
    "check-method": ("fedbench.testing.command", ()),
}
KINDS = (  # of `list`
    "methods",
    "presets",
    "datasets",
    "partitions",
    "models",
    "protocols",
    "tables",
    "figures",
    "recorders",
)
COMPLETION = ("-sc", "--shell-completion")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, or the runs that the arguments describe; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in COMMANDS:
        module, first = COMMANDS[given[0]]
        code: int = importlib.import_module(module).main([*first, *given[1:]])
        return code
    if len(given) > 1 and given[0] in COMPLETION and given[1].startswith("query="):
        before, typed = _typed()
        if len(before) > 1 and before[1] in COMMANDS:
            print(*offered(before[1]), sep="\n")
            return 0
        if len(before) == 1:
            print(*(name for name in COMMANDS if name.startswith(typed)), sep="\n")
    from fedbench.cli import app

    return app.main(given)


def _typed() -> tuple[list[str], str]:
    """(the words before, the beginning of the word at the cursor), as the shell tells a program that completes it."""
    text = os.environ.get("COMP_LINE", "")
    text = text[: int(os.environ.get("COMP_POINT", len(text)))]
    *before, typed = re.split(r"\s+", text)
    return before, typed


def offered(command: str) -> list[str]:
    """The words that may follow a command; none where they are files."""
    if command == "list":
        return list(KINDS)
    if command == "prepare":
        return ["--check", "--root", *_stems("dataset")]
    if command == "reproduce":
        keys = ("rows=", "columns=", "seeds=", "jobs=", "--dry-run")
        named = (f"{key}={name}" for key in ("table", "scale") for name in _stems(key))
        return [*named, *(f"substitute={name}" for name in _stems("dataset")), *keys]
    if command == "figure":
        return [
            *_stems("figure"),
            "all",
            "scale=paper",
            "scale=open",
            "scale=quick",
            "seeds=",
            "jobs=",
            "--dry-run",
        ]
    return []


def _stems(group: str) -> list[str]:
    return sorted(file.stem for file in (groups.conf_dir() / group).glob("*.yaml"))
