"""The files of a named sweep: runs.csv, mean and spread over seeds as table.csv and table.md, figure.svg and .png."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.config.compose import is_setting
from fedbench.config.fields import typed
from fedbench.config.schema import SweepConfig
from fedbench.core.files import replacing, write_text
from fedbench.results.units import STALE, remark
from fedbench.sweeps import picture

if TYPE_CHECKING:
    import pandas as pd

    from fedbench.sweeps.jobs import JobOutcome

SEEDS = ("seed", "partition_seed")  # averaged over, unless an axis
METRICS = ("score", "acc", "acc_pooled", "ipr", "rsd", "acc_on_common", "acc_on_val")
UNNAMED = ("experiment", "seed")  # in the folder of an experiment, which has its name already


def write(outcomes: Sequence[JobOutcome]) -> Path:
    """Write the files of a sweep, some of whose runs may have failed; returns their folder.

    Raises:
        UnknownName: sweep.x, sweep.by or sweep.y names nothing that was swept or measured.
    """
    finished = [outcome for outcome in outcomes if outcome.row is not None]
    config = typed(SweepConfig, finished[0].plain["sweep"], "sweep")
    keys = swept(outcomes, (config.x, config.by))
    folder = Path(config.folder) / folder_name(config.name or "", outcomes, keys)
    runs = tidy(finished, keys)
    _make_way(folder, set(runs["key"]))
    folder.mkdir(parents=True, exist_ok=True)
    write_frame(runs, folder / "runs.csv")
    lines = table(runs, keys, config.y)
    write_frame(lines, folder / "table.csv")
    write_text(folder / "table.md", markdown(lines, keys, fixed(outcomes, keys)))
    picture.write(picture.draw(config, runs, keys), folder)
    return folder


def _make_way(folder: Path, keys: set[str]) -> None:
    """Move what is in `folder` aside if it is of other runs altogether, or cannot be read, and say so."""
    import pandas as pd

    file = folder / "runs.csv"
    if not file.is_file():
        return
    with contextlib.suppress(OSError, ValueError):  # damaged
        if keys & set(pd.read_csv(file, usecols=["key"])["key"]):
            return
    free = next(
        path
        for n in itertools.count(1)
        if not (path := folder.with_name(f"{folder.name}-before-{n}")).exists()
    )
    folder.rename(free)
    print(f"{folder} held another sweep; it is in {free} now")


def swept(outcomes: Sequence[JobOutcome], axes: Sequence[str] = ()) -> list[str]:
    """Keys, in order, whose values differ among the runs, finished or not, but for seeds that are no axis."""
    keys = dict.fromkeys(key for outcome in outcomes for key in outcome.overrides)
    return [
        key
        for key in keys
        if (key not in SEEDS or key in axes) and len({outcome.overrides.get(key) for outcome in outcomes}) > 1
    ]


def folder_name(name: str, outcomes: Sequence[JobOutcome], keys: Sequence[str]) -> str:
    """The name on the command line; an experiment's own, and what was changed for all of its runs.

    So an experiment on digits does not overwrite the one on Fashion-MNIST.
    """
    if "sweep.name" in outcomes[0].overrides:
        return re.sub(r"[^A-Za-z0-9._+=,-]", "_", name)[:150]
    changed = [f"{key}={value}" for key, value in fixed(outcomes, keys).items() if key not in UNNAMED]
    return re.sub(r"[^A-Za-z0-9._+=,-]", "_", "-".join([name, *changed]))[:150]


def fixed(outcomes: Sequence[JobOutcome], keys: Sequence[str]) -> dict[str, str]:
    """What was set beside the swept `keys`, in order, and is the same for all runs."""
    return {
        key: value
        for key, value in outcomes[0].overrides.items()
        if key not in keys
        and not is_setting(key)
        and not key.startswith("sweep.")
        and all(outcome.overrides.get(key) == value for outcome in outcomes)
    }


def tidy(finished: Sequence[JobOutcome], keys: Sequence[str]) -> pd.DataFrame:
    """One line a run: its swept values under their keys' names (as text), its result row, and its folder.

    `code_changed`: the parts of the code that are not what made it, "" where it was made by today's.
    """
    import pandas as pd

    rows = [
        {
            **(outcome.row or {}),
            **{key: outcome.overrides.get(key, "") for key in keys},
            "path": outcome.folder,
            "code_changed": ", ".join(outcome.code_changed),
        }
        for outcome in finished
    ]
    frame: pd.DataFrame = pd.DataFrame(rows)
    return frame


def table(runs: pd.DataFrame, keys: Sequence[str], y: str) -> pd.DataFrame:
    """One line a combination of swept values: seeds, and mean and sample standard deviation of every metric."""
    import pandas as pd

    metrics = [name for name in dict.fromkeys((*METRICS, y)) if name in runs.columns]
    lines: list[dict[str, Any]] = []
    groups = runs.groupby(list(keys), sort=False, dropna=False) if keys else [((), runs)]
    for values, group in groups:
        line: dict[str, Any] = dict(
            zip(keys, values if isinstance(values, tuple) else (values,), strict=True)
        )
        line["seeds"] = len(group)
        for name in metrics:
            numbers = pd.to_numeric(group[name], errors="coerce")
            line[name], line[f"{name}_std"] = numbers.mean(), numbers.std(ddof=1)
        line["code_changed"] = ", ".join(dict.fromkeys(filter(None, group["code_changed"])))
        lines.append(line)
    filled: pd.DataFrame = pd.DataFrame(lines)
    return filled


def markdown(lines: pd.DataFrame, keys: Sequence[str], same: Mapping[str, str]) -> str:
    """The table for people: swept values, seeds, and mean ± standard deviation of each metric that any line has.

    Below it stands what is the `same` for all runs. What other code made is marked.
    """
    names = [name for name in lines.columns if f"{name}_std" in lines.columns and lines[name].notna().any()]
    rows = [[*keys, "seeds", *names], ["---"] * (len(keys) + 1 + len(names))]
    for line in lines.to_dict("records"):
        spread = [
            _mean_std(line[name], line[f"{name}_std"], STALE if line["code_changed"] else "")
            for name in names
        ]
        rows.append([*(str(line[key]) for key in keys), str(line["seeds"]), *spread])
    grid = "".join(f"| {' | '.join(text.replace('|', chr(92) + '|') for text in row)} |\n" for row in rows)
    settings = "all runs: " + ", ".join(f"`{key}={value}`" for key, value in same.items()) if same else ""
    said = remark(part for parts in lines["code_changed"] for part in parts.split(", ") if part)
    return "\n".join([grid, *(f"{text}\n" for text in (settings, said) if text)])


def _mean_std(mean: float, std: float, mark: str) -> str:
    if mean != mean:
        return "-"
    return (f"{mean:.2f}" if std != std else f"{mean:.2f} ± {std:.2f}") + mark


def write_frame(frame: pd.DataFrame, path: Path) -> None:
    """Write a table as CSV, atomically."""
    with replacing(path) as temporary:
        frame.to_csv(temporary, index=False)
