"""Commands on finished runs: `collect`, `plot` and `tta`."""

from __future__ import annotations

import pkgutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from fedbench.config.arguments import CommandParser, asks_for_help, split_arguments
from fedbench.config.groups import REGISTRIES
from fedbench.config.messages import OK, REFUSED
from fedbench.config.schema import score_of
from fedbench.core.errors import ConfigError, Damaged, FedbenchError, unknown
from fedbench.core.files import make_folder, write_bytes, write_text
from fedbench.core.tables import grouped
from fedbench.metrics import improvement
from fedbench.plots import runs, style
from fedbench.runs.config import NOT_RESULT
from fedbench.runs.folder import RESULT, finished_below
from fedbench.runs.progress import STALE, Output, amount, decimals, identity, remark
from fedbench.runs.run import Run, add_client_measures, collect, flat, reaches
from fedbench.sample_metrics import METRICS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


COLLECT_HELP = """\
Write or print run folders as one table, one row a run. The columns are those of the result row (python -m fedbench list
columns), the config as method.*, partition.*, protocol.*, ..., the folder as path, and code_changed, the parts of the
code that have changed since the run.
"""
COLLECT_EXAMPLE = """\
example: python -m fedbench collect runs --out runs.parquet, then pandas.read_parquet("runs.parquet")
"""
TTA_HELP = """\
Print rounds, seconds and bytes to an accuracy, and the ratio to a baseline, as in SosicFL, Section 5 and Table 5. The
reference accuracy is a number, or the best accuracy of the baseline. The ratio is the baseline's rounds over the run's.
A run that does not reach it is censored: "> T" with its last scored round T.
"""
PLOT_HELP = """\
usage: python -m fedbench plot PATH [PATH ...] [KEY=VALUE ...]

  PATH                 the folder of a run or of a filled table, or a folder with several (runs/digits/dir0.1)
  out=plots            the folder of the pictures
  formats=svg,png      also pdf

For each run: gain over Local by client, the collaboration matrix ordered by coalition, the samples of each class on
each client, a map of the clients.
For all runs together: accuracy over rounds (seeds as a band), bytes and seconds; with protocol.test.sets=both also
accuracy on clients' own samples against accuracy on the global test set.
For each table: curves, and our values beside the published ones.
"""
PLOT_OPTIONS = {"out": "plots", "formats": "svg,png"}


def collect_command(arguments: Sequence[str]) -> int:
    """Write or print runs as one table with a row for each run; return the exit code."""
    parser = CommandParser("collect", description=COLLECT_HELP, epilog=COLLECT_EXAMPLE)
    parser.add_argument("runs", nargs="+", metavar="RUNS", help="run folders, or folders that hold some")
    parser.add_argument(
        "--out", metavar="FILE", type=Path, help="all columns, as .parquet or .csv (default: the main ones, printed)"
    )
    parser.add_argument("--no-config", action="store_true", help="only the result rows")
    parser.add_argument("--clients", action="store_true", help="columns for the worst tenth, and for thirds by size")
    hurt = "with --clients: columns hurt_METHOD, the share of clients below that method's by more than the margin"
    parser.add_argument("--against", metavar="METHOD", nargs="+", default=[], help=hurt)
    parser.add_argument("--margin", metavar="POINTS", type=float, default=1.0, help="of accuracy (default: 1)")
    given = parser.parse_args(arguments)
    if given.against and not given.clients:
        raise ConfigError("--against compares client by client; add --clients")
    if not 0 <= given.margin <= 100:
        raise ConfigError(f"--margin {given.margin:g}: it must be in 0 to 100 points")
    if given.margin != parser.get_default("margin") and not given.against:
        raise ConfigError("--margin counts only in a comparison; add --clients --against METHOD")
    if given.out is not None and given.out.suffix not in (".csv", ".parquet"):
        raise ConfigError(f"--out {given.out}: the name must end in .csv or .parquet")
    if given.out is not None and not given.out.parent.is_dir():
        raise FedbenchError(f"--out {given.out}: the folder {given.out.parent} does not exist")
    from fedbench.runs.execution import changed_since

    table, out = collect(given.runs, config=not given.no_config), given.out
    if table.empty:
        raise FedbenchError(f"no finished run in {', '.join(given.runs)}")
    if given.clients:
        add_client_measures(table, given.against, given.margin)
    changed = [changed_since(Path(path)) for path in table["path"]]
    table["code_changed"] = [", ".join(parts) for parts in changed]
    if any(changed):
        said = remark(part for parts in changed for part in parts)
        print(f"{sum(map(bool, changed))} of {amount(len(table), 'run')}, see code_changed: {said}", file=sys.stderr)
    if out is None:
        _print_columns(table, CLIENT_COLUMNS if given.clients else RUN_COLUMNS)
        return 0
    write_frame(table, out)
    print(f"{out}: {amount(len(table), 'run')}, {len(table.columns)} columns")
    return 0


RUN_COLUMNS = ("method", "dataset", "partition", "model", "seed", "clients", "rounds", "acc", "ipr", "rsd")
CLIENT_COLUMNS = ("method", "partition", "seed", "acc", "acc_worst_tenth", "acc_small", "acc_middle", "acc_large")
HURT = ("hurt_", "clients_hurt_")


def _print_columns(table: pd.DataFrame, names: Sequence[str]) -> None:
    """Print these columns and those of --against, and how many others there are."""
    names = [name for name in (*names, *(each for each in map(str, table) if each.startswith(HURT))) if name in table]
    shown = Table(*names)
    for line in table[names].to_dict("records"):
        shown.add_row(*(str(value) if isinstance(value, (int, str)) else decimals(value) for value in line.values()))
    Output(width=200).print(shown)
    print(f"{amount(len(table), 'run')}; --out runs.csv writes all {len(table.columns)} columns")


def write_frame(table: pd.DataFrame, out: Path) -> None:
    """Write .csv or .parquet, atomically. Raises ConfigError for parquet without pyarrow."""
    if out.suffix == ".csv":
        write_text(out, table.to_csv(index=False))
        return
    try:
        write_bytes(out, table.to_parquet(engine="pyarrow", index=False))
    except ImportError as error:
        raise ConfigError("parquet needs pyarrow: pip install 'fedbench-harness[parquet]'; or --out x.csv") from error


def plot_command(arguments: Sequence[str]) -> int:
    """Draw runs or filled tables; return the exit code."""
    if not arguments or asks_for_help(arguments):
        print(PLOT_HELP, end="")
        return OK if arguments else REFUSED
    paths = [text for text in arguments if not ("=" in text or text.startswith("-")) or Path(text).exists()]
    given, others, words = split_arguments([text for text in arguments if text not in paths], PLOT_OPTIONS)
    if wrong := [*others, *words]:
        raise unknown("option", wrong[0].partition("=")[0], PLOT_OPTIONS)
    options = {**PLOT_OPTIONS, **given}
    formats = options["formats"].split(",")
    for kind in formats:
        if kind not in style.FORMATS:
            raise unknown("format", kind, style.FORMATS)
    if not paths:
        raise ConfigError("which run or table? see python -m fedbench plot --help")
    out = Path(options["out"])
    runs, tables = find_folders(paths)
    drawn = [(folder, run_figures, folder.resolve().parts[-3:]) for folder in runs]
    drawn += [(folder, pkgutil.resolve_name(TABLE_FIGURES), _below_tables(folder)) for folder in tables]
    lost, named = [], Counter[str]()
    for folder, draw, parts in drawn:
        name = "-".join(parts)
        named[name] += 1
        name += f"-{named[name]}" if named[name] > 1 else ""  # the same run or table of another place
        try:
            with style.styled(name):
                save_figures(draw(folder), out / name, formats)
        except Damaged as error:
            if len(drawn) == 1:
                raise
            print(f"left out: {error}", file=sys.stderr)
            lost.append(folder)
    if runs := [folder for folder in runs if folder not in lost]:
        with style.styled("runs"):
            save_figures(comparison_figures(runs), out / "runs", formats)
    return OK


def _below_tables(folder: Path) -> tuple[str, ...]:
    """Return the path of a filled table below the nearest folder `tables`; without one its own name."""
    *above, own = folder.resolve().parts
    below = above[::-1].index("tables") if "tables" in above else 0
    return *above[len(above) - below :], own


def tta_command(arguments: Sequence[str]) -> int:
    """Print rounds, seconds and bytes to an accuracy; return the exit code."""
    parser = CommandParser("tta", description=TTA_HELP)
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="folders of finished runs")
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--reference", type=float, metavar="PERCENT", help="the accuracy to reach")
    chosen.add_argument("--baseline", type=Path, metavar="RUN", help="the run whose best accuracy is to be reached")
    parser.add_argument("--set", default="local", help="local, global or common (the one global model)")
    given = parser.parse_args(arguments)
    if given.reference is not None and not given.reference <= 100:
        raise ConfigError(f"--reference {given.reference:g}: give an accuracy in percent, at most 100")
    title, lines, said = times_to_accuracy(given.runs, given.reference, given.baseline, given.set)
    table = Table("run", "rounds", "seconds", "MB", "times fewer rounds", title=title, title_justify="left")
    for line in lines:
        table.add_row(*line)
    Output(width=140).print(table)
    if said:
        print(said)
    return 0


def times_to_accuracy(
    runs: Sequence[Path], percent: float | None, baseline: Path | None, test_set: str
) -> tuple[str, list[tuple[str, ...]], str]:
    """Return the title, a line of text for the baseline, if there is one, and for each run, and the remark below.

    Raises:
        FedbenchError: a folder has no finished run, or its run was not scored on `test_set`.
    """
    from fedbench.runs.execution import changed_since

    folders = [*([baseline] if baseline else []), *runs]
    for folder in folders:
        if not (folder / RESULT).is_file():
            raise ConfigError(f"{folder} holds no finished run: it has no {RESULT}")
    finished = [Run(folder) for folder in folders]
    reference = np.nanmax(finished[0].curve(test_set)) if percent is None else percent / 100
    times = [reaches(run, reference, test_set) for run in finished]
    lines: list[tuple[str, ...]] = []
    names = distinct_names([run.row for run in finished], finished, ("method", "dataset", "partition"))
    changed = [changed_since(folder) for folder in folders]
    for run, time, name, parts in zip(finished, times, names, changed, strict=True):
        ratio = improvement(times[0], time) if baseline else None
        mark = STALE if parts else ""
        cells = (
            (f"> {time.horizon}", "-", "-")
            if time.rounds is None
            else (str(time.rounds), f"{time.seconds:.1f}", f"{(time.bytes or 0) / 1e6:.1f}")
        )
        lines.append((f"{name}, seed {run.row['seed']}{mark}", *cells, "-" if ratio is None else f"{ratio:.1f}"))
    said = remark(part for parts in changed for part in parts)
    return f"To {100 * reference:.2f} % on the {test_set} test set", lines, said


# Pictures of finished runs, from their files: what `python -m fedbench plot` writes. Those of a filled table are drawn
# by `TABLE_FIGURES`, which is named as text because runs know nothing of papers.

Figures = dict[str, "Figure"]
TABLE = "table.zip"
TABLE_FIGURES = "fedbench.papers.render:table_figures"


def run_figures(folder: Path) -> Figures:
    """Return gain over Local, collaboration matrix, partition and map of clients, as far as the run has them."""
    run = Run(folder)
    row, *_ = run.row, run.rounds, run.config  # the latter for `comparison_figures`: damaged, they stop only this run
    title = f"{row['method']}, {row['dataset']}, {row['partition']}, seed {row['seed']}"
    found: Figures = {}
    gain = np.array([float(client.get("gain") or "nan") for client in run.client_rows])
    if np.isfinite(gain).any():
        found["gain"] = runs.gain_bars(gain, title, run.names)
    if run.W is not None:
        found["collaboration"] = runs.collaboration_matrix(run.W, title, run.names)
    found["partition"] = runs.partition_bubbles(run.label_counts, title, run.names)
    found["clients"] = runs.client_map(run.label_counts, run.W, title, run.names)
    return found


def comparison_figures(folders: Sequence[Path]) -> Figures:
    """Return accuracy over rounds, bytes and seconds of runs; runs that differ only in their seed are one line.

    Metrics of scores that all runs have are drawn over rounds too.
    """
    finished = [Run(folder) for folder in folders]
    rows = [run.row for run in finished]
    names = distinct_names(rows, finished)
    named = grouped(zip(names, (runs.curve_of(run.rounds) for run in finished), strict=True))
    column = f"acc_on_{rows[0]['test_set']}"
    if any(column not in curve for each in named.values() for curve in each):
        raise FedbenchError(f"these runs were not scored on one test set; {column} is not in all of them")
    what = score_of(rows)
    label = f"{what} ({rows[0]['test_set']}), %"
    found = {"curves": runs.accuracy_curves(named, column, label), "cost": runs.cost_curves(named, column, label)}
    for name, metric in METRICS.items():
        column = f"{name}_on_{rows[0]['test_set']}"
        if all(column in curve for each in named.values() for curve in each):
            label = metric.words.replace(",", f" ({rows[0]['test_set']}),")
            found[f"curves-{name}"] = runs.accuracy_curves(named, column, label)
    if all(f"acc_on_{name}" in row for row in rows for name in ("local", "global")):
        points = ((row["acc_on_global"], row["acc_on_local"]) for row in rows)
        found["plane"] = runs.local_common_plane(grouped(zip(names, points, strict=True)), what)
    return found


def distinct_names(
    rows: Sequence[Mapping[str, Any]], finished: Sequence[Run] = (), always: Sequence[str] = ("method",)
) -> list[str]:
    """Return names that distinguish runs besides their seed: `always`, other differences, hashes of samples and key."""
    keys = ("method", "dataset", "partition", "model", "protocol", "variant")
    varied = [key for key in keys if key in always or len({str(row.get(key) or "") for row in rows}) > 1]
    names = [", ".join(str(row[key]) for key in varied if row.get(key)) for row in rows]
    names = _with_settings(names, finished) if finished else names
    samples = grouped({(name, identity(row)[1]) for name, row in zip(names, rows, strict=True)})
    names = [f"{n} {identity(row)[1][:6]}" if len(samples[n]) > 1 else n for n, row in zip(names, rows, strict=True)]
    seen = {(name, row["seed"], identity(row)) for name, row in zip(names, rows, strict=True)}
    clashing = {name for (name, _), count in Counter(each[:2] for each in seen).items() if count > 1}
    return [f"{n} {row['key'][:4]}" if n in clashing else n for n, row in zip(names, rows, strict=True)]


def _with_settings(names: Sequence[str], finished: Sequence[Run]) -> list[str]:
    """Return `names` with the settings in which runs of one name differ; a setting that a run lacks does not count."""
    hidden = {f"{group}.{key}" for group, keys in NOT_RESULT.items() for key in keys}
    settings = [flat({group: run.config.get(group, {}) for group in REGISTRIES}) for run in finished]
    drawn = [run.config.get("partition_seed") for run in finished]
    for run, own, seed in zip(finished, settings, drawn, strict=True):
        same = seed is None and run.row["seed"] in drawn  # the others' partition is the one of its own seed
        own["partition_seed"] = run.row["seed"] if same else seed
        own["hardware.precision"] = run.row.get("precision", "float32")
    values: dict[tuple[str, str], set[str]] = {}
    for name, own in zip(names, settings, strict=True):
        for key in own.keys() - hidden:
            values.setdefault((name, key), set()).add(str(own[key]))
    differ = {place for place, each in values.items() if len(each) > 1}
    return [
        ", ".join([name, *(f"{key.removeprefix('method.')}={own[key]}" for key in own if (name, key) in differ)])
        for name, own in zip(names, settings, strict=True)
    ]


def find_folders(paths: Sequence[str]) -> tuple[list[Path], list[Path]]:
    """Return (folders of finished runs, folders of filled tables) that `paths` are, or hold.

    Raises:
        FedbenchError: a path has neither.
    """
    runs: dict[Path, None] = {}  # each folder once, in order
    tables: dict[Path, None] = {}
    for place in paths:
        each = [finished_below(Path(place)), sorted(file.parent for file in Path(place).rglob(TABLE))]
        if not any(each):
            raise FedbenchError(f"{place} holds no finished run and no filled table")
        for kept, new in zip((runs, tables), each, strict=True):
            kept.update(dict.fromkeys(new))
    return list(runs), list(tables)


def save_figures(figures: Mapping[str, Figure], place: Path, formats: Sequence[str]) -> None:
    """Write each figure to PLACE-NAME.FORMAT, and print the paths without their ends."""
    make_folder(place.parent)
    for name, figure in figures.items():
        path = place.with_name(f"{place.name}-{name}")
        style.save_as(figure, path, formats=formats)
        print(path)
