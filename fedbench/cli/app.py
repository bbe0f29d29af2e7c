"""The Hydra application: one run, or a sweep of runs and one table at its end."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from fedbench.cli import command
from fedbench.config import groups
from fedbench.config.messages import OK
from fedbench.core.version import __version__

if TYPE_CHECKING:
    from fedbench.sweeps.jobs import JobOutcome


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line `arguments` (default: the process's own) and return its exit code."""
    return command.run("python -m fedbench", arguments, _main)


def _main(arguments: Sequence[str]) -> int:
    if arguments == ["--version"]:  # Hydra would print its own
        print(f"fedbench {__version__}")
        return OK
    return min((outcome.code for outcome in outcomes_of(arguments) if outcome.code != OK), default=OK)


def outcomes_of(arguments: Sequence[str]) -> list[JobOutcome]:
    """Run what `arguments` ask for; what each of its runs sent back."""
    import hydra

    from fedbench.config import sources
    from fedbench.sweeps import jobs

    sources.register()
    with _arguments(sweep_keys(arguments)), jobs.keeping() as outcomes:
        hydra.main(str(groups.conf_dir()), groups.CONFIG_NAME, version_base="1.3")(jobs.perform)()
    return outcomes


def sweep_keys(arguments: Sequence[str]) -> list[str]:
    """`arguments` with the keys of a swept group as forced ones: `method=a,b method.mu=1` to `++method.mu=1`.

    Hydra checks a sweep's plain keys against the group's default option before it composes the jobs. A forced key
    is checked when its job builds the component, so it meets the options it is for; another option refuses it.
    `+experiment=NAME` is taken as `experiment=NAME`.
    """
    # Hydra asks for a + before groups without a default; many write it before this one too.
    arguments = [text.removeprefix("+") if text.startswith("+experiment=") else text for text in arguments]
    prefixes = tuple(f"{group.replace('/', '.')}." for group in _swept_groups(arguments))
    return [f"++{text}" if prefixes and text.startswith(prefixes) else text for text in arguments]


def _swept_groups(arguments: Sequence[str]) -> list[str]:
    """`method` for `method=a,b` or `method='glob(*)'`; what Hydra cannot read is left for it to report."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    groups = []
    for text in arguments:
        group, equals, _ = text.partition("=")
        if not equals or "." in group or group.startswith("-"):
            continue
        with suppress(HydraException):
            if OverridesParser.create().parse_override(text).is_sweep_override():
                groups.append(group)
    return groups


@contextmanager
def _arguments(arguments: list[str]) -> Iterator[None]:
    """Hydra reads sys.argv, and prints errors itself unless it is told to raise them."""
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
