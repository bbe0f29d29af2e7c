"""Shared parts of sweepers: an experiment's values, their combinations, a scratch folder, and a closing table."""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobReturn
from omegaconf import DictConfig, OmegaConf

from fedbench.config import groups, messages
from fedbench.config.compose import changes_nothing, compose, key_of
from fedbench.config.fields import typed
from fedbench.config.schema import ACCURACY, SweepConfig
from fedbench.core.errors import ConfigError, unknown
from fedbench.core.files import make_folder, setting_name, write_text
from fedbench.core.tables import latex, latex_line, latex_table
from fedbench.core.tables import markdown as grid
from fedbench.engine.history import COMMON, TEST_SETS, VALIDATION
from fedbench.engine.method import Method
from fedbench.plots import runs as plots
from fedbench.plots import style
from fedbench.runs.config import RunConfig, resolve
from fedbench.runs.progress import STALE, Output, comparison_table, fewer_said, identity, remark
from fedbench.runs.run import FAMILIES, NUMBERS, Run
from fedbench.sample_metrics import METRICS, known
from fedbench.sweeps import jobs
from fedbench.sweeps.jobs import JobOutcome, launch, say, values_of

if TYPE_CHECKING:
    import pandas as pd


def parsed(sweeper: Any, arguments: Sequence[str]) -> list[Override]:
    """Return an experiment's values, with the command line's in place of those of the same key."""
    params = remaining(sweeper.params, arguments)
    texts = [*(f"{key}={value}" for key, value in params.items()), *arguments]
    return OverridesParser.create(config_loader=sweeper.hydra_context.config_loader).parse_overrides(texts)


def combinations(overrides: Sequence[Override]) -> list[list[str]]:
    """Return the overrides of each run: every combination of different values, the last key varies fastest.

    Raises:
        ConfigError: an interval, which has no list of all values, or a list without any.
    """
    values: dict[str, list[str]] = {}
    for override in overrides:
        key = override.get_key_element()
        if not override.is_sweep_override():
            values[key] = [f"{key}={override.get_value_element_as_str()}"]
        elif override.is_discrete_sweep():
            values[key] = list(dict.fromkeys(f"{key}={value}" for value in override.sweep_string_iterator()))
            if not values[key]:
                raise ConfigError(f"{override.input_line}: there is no value to combine; give one at least")
        else:
            raise ConfigError(
                f"{key}: a grid needs values such as 0.1,0.5 or range(5); an interval needs hydra/sweeper=optuna"
            )
    return [list(each) for each in itertools.product(*values.values())]


def launched(sweeper: Any, batch: Sequence[Sequence[str]], first: int = 0) -> list[JobOutcome]:
    """Return the outcomes of the runs of `batch`; their jobs are numbered from `first`."""
    sweeper.validate_batch_is_legal(batch)
    with jobs.counted(first, len(batch)):
        folder = Path(sweeper.config.hydra.sweep.dir)
        return [outcome_of(job) for job in launch(sweeper.launcher, folder, batch, first)]


def check_figure(plain: DictConfig, batch: Sequence[Sequence[str]]) -> None:
    """Refuse, before the runs, a figure that they cannot give; `plain` is the config's section `sweep`.

    Raises:
        UnknownName: sweep.x or sweep.by is no key of the runs, or sweep.y no number of theirs.
        ConfigError: a wrong value, several of one key, a heatmap of one key, or a sweep.y that no run has.
    """
    config = typed(SweepConfig, OmegaConf.to_container(plain, resolve=True), "sweep")
    runs = [JobOutcome(values_of(overrides)) for overrides in batch]
    for name, key in (("sweep.x", config.x), ("sweep.by", config.by)):
        if key and key not in runs[0].overrides:
            raise unknown(name, key, runs[0].overrides)
    keys = swept(runs, (config.x, config.by))
    if several := [key for key in keys if key.startswith("sweep.")]:
        raise ConfigError(f"{several[0]} is of the whole sweep, got several values; give one")
    if config.figure == "heatmap" and len(axes := {*keys, config.x} - {""}) < 2:
        found = ", ".join(axes) or "none"
        raise ConfigError(f"sweep.figure=heatmap needs two swept keys, no seeds, got {found}; set sweep.figure=lines")
    on = [f"_on_{name}{way}" for name in (*TEST_SETS, VALIDATION) for way in ("", "_pooled")]
    scores = [name + each for name in (ACCURACY, *METRICS, "clients") for each in on]
    others = ("score", "train_loss", "bytes_up", "bytes_down") if config.figure == "curves" else NUMBERS
    familiar = config.y.startswith(FAMILIES) and "_on_" not in config.y
    methods = {run.overrides.get("method"): overrides for run, overrides in zip(runs, batch, strict=True)}
    if not (config.y in (*others, *scores) or familiar or any(map(_records, methods.values()))):
        raise unknown("sweep.y", config.y, [*others, *scores])
    need = ""
    with suppress(Exception):  # of a run that is refused, which says so in its own turn
        need = lacking(config.y, compose(batch[0]))
    if need and not {"experiment", "protocol", key_of(need)} & {*keys}:
        raise ConfigError(f"sweep.y={config.y} is in no run; add {need}")


def _records(overrides: Sequence[str]) -> bool:
    """Whether the method of a run stores numbers of its own; a run that is refused says so in its own turn."""
    with suppress(Exception):
        return groups.registry("method").get(str(compose(overrides).method.name)).record is not Method.record
    return False


def lacking(column: str, config: Any) -> str:
    """Return the override without which runs of `config` do not have the `column`; "" if there is none."""
    protocol = config.protocol
    needs = {name: f"protocol.metrics=[{name}]" for name in METRICS if name not in protocol.metrics}
    needs |= dict.fromkeys(("ipr", "rsd"), "reference=local") if config.reference == "none" else {}
    needs |= {} if protocol.test.val_fraction else {VALIDATION: "protocol.test.val_fraction=0.2"}
    needs |= {} if protocol.unseen else {"unseen": "protocol.unseen=1"}
    needs |= {} if protocol.test.sets in ("global", "both") else {"global": "protocol.test.sets=both"}
    needs |= {} if protocol.test.sets in ("global", "both", COMMON) else {COMMON: f"protocol.test.sets={COMMON}"}
    return next((need for part, need in needs.items() if f"_{part}_" in f"_{column}_"), "")


def announce(batch: Sequence[Sequence[str]]) -> None:
    """Print how long the runs of a sweep take here, and for a planned sweep which ones are finished.

    A run that is refused says so in its own turn.
    """
    from fedbench.runs.estimate import plan_lines

    runs, names, planned = list[RunConfig](), list[str](), jobs.is_only_planned()
    for overrides, name in zip(batch, variants([*map(values_of, batch)]), strict=True):
        try:
            runs.append(resolve(compose(overrides)))
            names.append(name)
        except Exception as error:  # noqa: BLE001, PERF203 - whatever a config can raise
            if planned:
                code, failure = messages.explained(error, " ".join(text.lstrip("+") for text in overrides))
                jobs.keep(jobs.JobOutcome(code=code, failure=failure))
    if not runs:
        return
    try:
        for line in plan_lines(runs, names if planned else None):
            say(line)
    except Exception:  # an estimate must not end a sweep, whose runs say themselves what fails
        if planned:
            raise


def remaining(params: Mapping[str, str], arguments: Sequence[str]) -> dict[str, str]:
    """Return the values of an experiment (`hydra.sweeper.params`) but for the keys that the command line gives."""
    given = {key_of(text) for text in arguments}
    return {key: value for key, value in params.items() if key_of(key) not in given}


@contextmanager
def scratch(config: Any) -> Iterator[None]:
    """Remove the folder of Hydra and its launchers after the sweep, unless it has the log of a dead job."""
    folder = Path(config.hydra.sweep.dir)
    make_folder(folder)
    try:
        yield
    finally:
        if not any(folder.glob("*.log")):
            shutil.rmtree(folder, ignore_errors=True)
        for parent in list(folder.parents)[:2]:  # .sweeps/ and the folder of runs, unless something is in them
            with suppress(OSError):
                parent.rmdir()


def conclude(outcomes: Sequence[JobOutcome]) -> None:
    """Keep the jobs' outcomes, print one table, and write the files of a named sweep."""
    for outcome in outcomes:
        jobs.keep(outcome)
    finished = [outcome for outcome in outcomes if outcome.row is not None]
    if finished and len(outcomes) > 1:
        _compare(outcomes)
    if said := remark(part for outcome in finished for part in outcome.code_changed):
        say(said)
    if finished and (finished[0].plain.get("sweep") or {}).get("name"):
        say(f"table and figure: {write_table(outcomes)}")
    if earlier := sum(outcome.earlier for outcome in finished):
        say(f"{earlier} of {len(outcomes)} runs were there already; force=true repeats them")
    if lost := [outcome for outcome in outcomes if outcome.row is None]:
        again = "" if all(each.code == messages.REFUSED for each in lost) else ", and the same command tries it again"
        say(f"{len(lost)} of {len(outcomes)} runs failed; what failed is said above{again}")


def outcome_of(job: JobReturn) -> JobOutcome:
    """Return a job's outcome, or, if its process died, an outcome that says so."""
    try:
        return cast("JobOutcome", job.return_value)
    except Exception as error:  # noqa: BLE001 - whatever ended the process; told with the others
        overrides = list(job.overrides or ())
        code, failure = messages.explained(error, " ".join(overrides))
        return JobOutcome(values_of(overrides), code=code, failure=failure)


def variants(overrides: Sequence[Mapping[str, str]]) -> list[str]:
    """Return what distinguishes runs of a sweep besides their groups' options and seeds, such as "mu=0.1"."""
    keys = dict.fromkeys(key for run in overrides for key in run if "." in key or key.startswith("reference"))
    varied = [key for key in keys if len({run.get(key) for run in overrides}) > 1]
    return [" ".join(f"{key.removeprefix('method.')}={run[key]}" for key in varied if key in run) for run in overrides]


def _compare(outcomes: Sequence[JobOutcome]) -> None:
    """Print all rows of a sweep, with a table for each setting; failed runs still count as swept values."""
    named = zip(outcomes, variants([outcome.overrides for outcome in outcomes]), strict=True)
    keys = {key.removeprefix("protocol.") for key in swept(outcomes)}
    choices = _choices(outcomes)
    rows = [
        {
            **outcome.row,
            **{group: outcome.overrides[group] for group in choices if group in outcome.overrides},
            "protocol": _without(keys, str(outcome.row.get("protocol") or "")),
            "variant": variant,
            "code_changed": outcome.code_changed,
        }
        for outcome, variant in named
        if outcome.row is not None
    ]
    # In a notebook rich would show it beside standard output.
    console = Output(width=120, force_jupyter=False)
    say(comparison_table(rows, console.width), console=console)


def _choices(outcomes: Sequence[JobOutcome]) -> list[str]:
    """Return the groups with two options of one label; a YAML without `preset:` has its base's label."""
    found: dict[tuple[str, str], set[str]] = {}
    for outcome in (each for each in outcomes if each.row is not None):
        for group in ("method", "dataset", "partition", "model"):
            if group in outcome.overrides:
                label = str((outcome.row or {}).get(group))
                found.setdefault((group, label), set()).add(outcome.overrides[group])
    return list(dict.fromkeys(group for (group, _), options in found.items() if len(options) > 1))


def _without(keys: Collection[str], protocol: str) -> str:
    """Return a protocol's label, `quick (rounds=6, optimizer.lr=0.1)`, without `keys`: rows name these."""
    name, _, changed = protocol.removesuffix(")").partition(" (")
    kept = [text for text in re.split(r", (?=[\w.]+=)", changed) if text.partition("=")[0] not in {"", *keys}]
    return f"{name} ({', '.join(kept)})" if kept else name


# The figure of a sweep, figure.svg and figure.png: lines, a heat map, or the curves of its runs.


def draw(config: SweepConfig, runs: pd.DataFrame, keys: Sequence[str]) -> Any:
    """Return the sweep's matplotlib figure."""
    x = config.x or (keys[0] if keys else "seed")
    by = config.by if config.by in keys else next((key for key in keys if key != x), "")
    y, title = config.y, ", ".join(part for part in (config.name or "", config.mirrors) if part)
    columns, over_rounds = [str(name) for name in runs.columns], config.figure == "curves"
    others = [key for key in keys if key != x and (key != by or over_rounds)]
    runs = runs.assign(panel=[" ".join(f"{key}={line[key]}" for key in others) for line in runs.to_dict("records")])
    if over_rounds:
        histories: list[Any] = [plots.curve_of(Run(Path(str(path))).rounds) for path in runs["path"]]
        runs = runs.assign(line=[f"{plots.short(x)}={value}" for value in runs[x]], rounds=histories)
        columns = list(dict.fromkeys(name for history in histories for name in history))
        scores = [name for name in columns if name.startswith("acc_on_") and name != "acc_on_val"]
        y = scores[0] if scores and y == "score" else y
    if y not in columns:
        raise unknown("sweep.y", y, columns)
    if over_rounds:
        return plots.sweep_curves(runs.to_dict("records"), y, title)
    shape = plots.sweep_heatmap if config.figure == "heatmap" else plots.sweep_lines
    return shape(runs, x, by, y, title)


# The files of a named sweep: runs.csv, mean and spread over seeds as table.csv, .md and .tex, figure.svg and .png.

SEEDS = ("seed", "partition_seed")  # averaged over, unless an axis
MEANS = ("score", "acc", "acc_pooled", "ipr", "rsd", "acc_on_common", "acc_on_val")
UNNAMED = ("experiment", "seed")  # in the folder of an experiment, which has its name already


def write_table(outcomes: Sequence[JobOutcome]) -> Path:
    """Write the files of a sweep, also if runs failed; return their folder.

    Raises:
        UnknownName: sweep.y is not measured.
    """
    finished = [outcome for outcome in outcomes if outcome.row is not None]
    config = typed(SweepConfig, finished[0].plain["sweep"], "sweep")
    keys = swept(outcomes, (config.x, config.by))
    folder = Path(config.folder) / folder_name(config.name or "", outcomes, keys)
    runs = tidy(finished, list(dict.fromkeys(filter(None, (*keys, config.x)))))  # of an axis also a single value
    write_runs(folder, runs)
    lines = table(runs, keys, config.y)
    write_text(folder / "table.csv", lines.to_csv(index=False))
    same = fixed(outcomes, keys)
    write_text(folder / "table.md", markdown(lines, keys, same))
    title = ", ".join(filter(None, (config.name, config.mirrors)))
    write_text(folder / "table.tex", tex(lines, keys, same, title, folder.name))
    with style.styled(folder.name):
        style.save_as(draw(config, runs, keys), folder / "figure")
    return folder


def write_runs(folder: Path, runs: pd.DataFrame) -> None:
    """Write runs.csv; move the content of `folder` aside if it belongs to other runs or cannot be read."""
    import pandas as pd

    file, known = folder / "runs.csv", set[tuple[str, str]]()
    with suppress(OSError, ValueError):  # none, or damaged
        before = pd.read_csv(file, usecols=["key", "data"], dtype=str, keep_default_na=False)
        known = {identity(run) for run in before.to_dict("records")}
    if file.is_file() and not known & {identity(run) for run in runs.to_dict("records")}:
        places = (folder.with_name(f"{folder.name}-before-{n}") for n in itertools.count(1))
        free = next(path for path in places if not path.exists())
        folder.rename(free)
        say(f"{folder} held another sweep; it is in {free} now")
    make_folder(folder)
    write_text(file, runs.to_csv(index=False))


def swept(outcomes: Sequence[JobOutcome], axes: Sequence[str] = ()) -> list[str]:
    """Return keys, in order, whose values differ among the runs, finished or not, without seeds that are no axis."""
    keys = dict.fromkeys(key for outcome in outcomes for key in outcome.overrides)
    return [
        key
        for key in keys
        if (key not in SEEDS or key in axes) and len({outcome.overrides.get(key) for outcome in outcomes}) > 1
    ]


def folder_name(name: str, outcomes: Sequence[JobOutcome], keys: Sequence[str]) -> str:
    """Return the name from the command line, or the experiment's with the changes of all its runs.

    So an experiment on digits does not overwrite the one on Fashion-MNIST.
    """
    own = "sweep.name" not in outcomes[0].overrides
    changed = [f"{key}={value}" for key, value in fixed(outcomes, keys).items() if own and key not in UNNAMED]
    return setting_name([re.sub(r"[^A-Za-z0-9._+=,-]", "_", part) for part in (name, *changed)])


def fixed(outcomes: Sequence[JobOutcome], keys: Sequence[str]) -> dict[str, str]:
    """Return the settings besides the swept `keys`, in order, which are the same for all runs."""
    return {
        key: value
        for key, value in outcomes[0].overrides.items()
        if key not in keys
        and not changes_nothing(f"{key}={value}")
        and not key.startswith("sweep.")
        and all(outcome.overrides.get(key) == value for outcome in outcomes)
    }


def tidy(finished: Sequence[JobOutcome], keys: Sequence[str]) -> pd.DataFrame:
    """Return one line for each run: its swept values under their keys' names (as text), its result row, its folder.

    A run that appears twice with the same values (`seed=0,0`) has one line. `code_changed`: the parts of the code that
    differ from the code that made it, "" for none.
    """
    import pandas as pd

    rows: dict[Any, dict[str, Any]] = {}
    for number, outcome in enumerate(finished):
        values, row = {key: outcome.overrides.get(key, "") for key in keys}, outcome.row or {}
        rows[(*values.values(), identity(row)) if row.get("key") else number] = {
            **row,
            **values,
            "path": outcome.folder,
            "code_changed": ", ".join(outcome.code_changed),
        }
    frame: pd.DataFrame = pd.DataFrame([*rows.values()])
    return frame


def table(runs: pd.DataFrame, keys: Sequence[str], y: str) -> pd.DataFrame:
    """Return one line for each combination of swept values: seeds, mean and sample standard deviation of every metric.

    `fewer`: which of these means are over fewer than all clients.
    """
    import pandas as pd

    scores = [each for name in known(runs.columns) for each in (name, f"{name}_pooled", f"ipr_{name}", f"rsd_{name}")]
    unseen = [name for name in runs.columns if "_unseen_" in name]
    metrics = [name for name in dict.fromkeys((*MEANS, *scores, *unseen, y)) if name in runs.columns]
    lines: list[dict[str, Any]] = []
    groups = runs.groupby(list(keys), sort=False, dropna=False) if keys else [((), runs)]
    for values, group in groups:
        line: dict[str, Any] = dict(zip(keys, values if isinstance(values, tuple) else (values,), strict=True))
        line["seeds"] = len(group)
        for name in metrics:
            numbers = pd.to_numeric(group[name], errors="coerce")
            line[name], line[f"{name}_std"] = numbers.mean(), numbers.std(ddof=1)
        named = " ".join(f"{key}={line[key]}" for key in keys) or "all runs"
        line["fewer"] = fewer_said(named, group.to_dict("records"))
        line["code_changed"] = ", ".join(dict.fromkeys(filter(None, group["code_changed"])))
        lines.append(line)
    filled: pd.DataFrame = pd.DataFrame(lines)
    return filled


def cells(lines: pd.DataFrame, keys: Sequence[str]) -> list[list[str]]:
    """Return headings and lines: swept values, seeds, and mean ± standard deviation of each metric in any line.

    `score` is left out if it is `acc`. Results of other code are marked.
    """
    names = [name for name in lines.columns if f"{name}_std" in lines.columns and lines[name].notna().any()]
    if {"score", "acc"} <= {*names} and lines["score"].equals(lines["acc"]):
        names.remove("score")
    rows = [[*keys, "seeds", *names]]
    for line in lines.to_dict("records"):
        spread = [_mean_std(line[name], line[f"{name}_std"], STALE if line["code_changed"] else "") for name in names]
        rows.append([*(str(line[key]) for key in keys), str(line["seeds"]), *spread])
    return rows


def remarks(lines: pd.DataFrame, same: Mapping[str, str]) -> list[str]:
    """Return the lines below the table: means over fewer than all clients, settings that are the `same`, marks."""
    settings = "all runs: " + ", ".join(f"`{key}={value}`" for key, value in same.items()) if same else ""
    said = remark(part for parts in lines["code_changed"] for part in parts.split(", ") if part)
    return [text for text in (*lines["fewer"], settings, said) if text]


def markdown(lines: pd.DataFrame, keys: Sequence[str], same: Mapping[str, str]) -> str:
    """Return the table for people."""
    return "\n".join([grid(cells(lines, keys)), *(f"{text}\n" for text in remarks(lines, same))])


def tex(lines: pd.DataFrame, keys: Sequence[str], same: Mapping[str, str], title: str, name: str) -> str:
    """Return the table for a paper."""
    shown = cells(lines, keys)
    columns = "l" * len(keys) + "r" * (len(shown[0]) - len(keys))
    head, *body = (latex_line([*map(latex, row)]) for row in shown)
    return latex_table(title, name, columns, [head], body, remarks(lines, same))


def _mean_std(mean: float, std: float, mark: str) -> str:
    if mean != mean:
        return "-"
    return (f"{mean:.2f}" if std != std else f"{mean:.2f} ± {std:.2f}") + mark
