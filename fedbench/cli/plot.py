"""`python -m fedbench plot PATH ...`: pictures of finished runs and filled tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedbench.cli import command
from fedbench.core.errors import ConfigError, unknown

HELP = """\
usage: python -m fedbench plot PATH [PATH ...] [KEY=VALUE ...]

  PATH                 a run's folder, a filled table's, or a folder of some (runs/digits/dir0.1)
  out=plots            where the pictures go
  formats=svg,png      also pdf

Of each run: gain over Local by client, the collaboration matrix ordered by coalition, a map of the clients.
Of the runs together: accuracy over rounds (seeds as a band), and against bytes and seconds.
Of each table: curves, ours beside the published values, and average ranks with their critical difference.
"""
OPTIONS = {"out": "plots", "formats": "svg,png"}
FORMATS = ("svg", "png", "pdf")


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw what the paths hold; returns the exit code."""
    return command.run("python -m fedbench plot", arguments, _main)


def _main(arguments: Sequence[str]) -> int:
    if not arguments or {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return 0 if arguments else 2
    options, paths = read(arguments)
    from fedbench.figures import of_runs
    from fedbench.plots.style import styled

    out, formats = Path(options["out"]), options["formats"].split(",")
    found, tables = of_runs.find_folders(paths)
    for folder in [*found, *tables]:
        name = "-".join(folder.parts[-3:]) if folder in found else folder.name
        with styled(name):
            figures = of_runs.run_figures(folder) if folder in found else of_runs.table_figures(folder)
            _tell(of_runs.save_figures(figures, out / name, formats))
    if found:
        with styled("runs"):
            _tell(of_runs.save_figures(of_runs.comparison_figures(found), out / "runs", formats))
    return 0


def read(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """(options, paths) of a command line.

    Raises:
        UnknownName: an option or format that there is none of.
        ConfigError: no path.
    """
    options, paths = dict(OPTIONS), []
    for text in arguments:
        key, equals, value = text.partition("=")
        if not equals or Path(text).exists():
            paths.append(text)
        elif key not in options:
            raise unknown("option", key, options)
        else:
            options[key] = value
    for kind in options["formats"].split(","):
        if kind not in FORMATS:
            raise unknown("format", kind, FORMATS)
    if not paths:
        raise ConfigError("which run or table? see python -m fedbench plot --help")
    return options, paths


def _tell(written: Sequence[Path]) -> None:
    for path in written:
        print(path)
