"""`python -m fedbench collect RUNS... [--out FILE]`: any run folders as one tidy table, one row a run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedbench.cli import command

if TYPE_CHECKING:
    import pandas as pd

HELP = """\
Columns: the result row (dataset, partition, model, method, protocol: as tables call them; seed, acc, ipr, rsd, bytes,
seconds, versions, ...), the config as method.*, partition.*, protocol.*, ..., path, the run's folder, and code_changed,
the parts of the code that are not what made it.
"""
EXAMPLE = """\
example: python -m fedbench collect runs --out runs.parquet, then pandas.read_parquet("runs.parquet")
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Collect, and write or print; returns the exit code."""
    return command.run("python -m fedbench collect", arguments, _main)


def _main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m fedbench collect", description=HELP, epilog=EXAMPLE)
    parser.add_argument("runs", nargs="+", metavar="RUNS", help="run folders, or folders that hold some")
    parser.add_argument(
        "--out", metavar="FILE", type=Path, help=".parquet or .csv (default: CSV on standard output)"
    )
    parser.add_argument("--no-config", action="store_true", help="only the result rows")
    given = parser.parse_args(arguments)
    return _collect(given.runs, given.out, not given.no_config)


def _collect(runs: Sequence[str], out: Path | None, config: bool) -> int:
    from fedbench.core.errors import ConfigError, FedbenchError
    from fedbench.runs.execution import changed_since
    from fedbench.runs.progress import remark
    from fedbench.runs.run import collect

    if out is not None and out.suffix not in (".csv", ".parquet"):
        raise ConfigError(f"--out {out}: the name must end in .csv or .parquet")
    table = collect(runs, config=config)
    if table.empty:
        raise FedbenchError(f"no finished run in {', '.join(runs)}")
    changed = [changed_since(Path(path)) for path in table["path"]]
    table["code_changed"] = [", ".join(parts) for parts in changed]
    if any(changed):
        said = remark(part for parts in changed for part in parts)
        print(f"{sum(map(bool, changed))} of {len(table)} runs, see code_changed: {said}", file=sys.stderr)
    if out is None:
        table.to_csv(sys.stdout, index=False)
        return 0
    if not out.parent.is_dir():
        raise FedbenchError(f"--out {out}: there is no folder {out.parent}")
    write(table, out)
    print(f"{out}: {len(table)} runs, {len(table.columns)} columns")
    return 0


def write(table: pd.DataFrame, out: Path) -> None:
    """Write .csv or .parquet, atomically.

    Raises:
        ConfigError: parquet without pyarrow.
    """
    from fedbench.core.errors import ConfigError
    from fedbench.core.files import replacing

    with replacing(out) as temporary:
        if out.suffix == ".csv":
            table.to_csv(temporary, index=False)
            return
        try:
            table.to_parquet(temporary, engine="pyarrow", index=False)
        except ImportError as error:
            raise ConfigError(
                "parquet needs pyarrow: pip install 'fedbench-harness[parquet]'; or --out x.csv"
            ) from error
