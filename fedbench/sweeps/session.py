"""What sweepers share: an experiment's values, their combinations, a scratch folder, and a table at the end."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.config import messages
from fedbench.core.errors import ConfigError
from fedbench.results.units import remark
from fedbench.sweeps import counting, jobs
from fedbench.sweeps.jobs import JobOutcome
from fedbench.sweeps.launching import launch

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override


def parsed(sweeper: Any, arguments: Sequence[str]) -> list[Override]:
    """An experiment's values and the command line's, which take the place of those of the same key."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    params = remaining(sweeper.params, arguments)
    texts = [*(f"{key}={value}" for key, value in params.items()), *arguments]
    return OverridesParser.create(config_loader=sweeper.hydra_context.config_loader).parse_overrides(texts)


def combinations(overrides: Sequence[Override]) -> list[list[str]]:
    """The overrides of each run: every combination of the swept values, the last key varies fastest.

    Raises:
        ConfigError: an interval, of which there is no every value.
    """
    values: dict[str, list[str]] = {}
    for override in overrides:
        key = override.get_key_element()
        if not override.is_sweep_override():
            values[key] = [f"{key}={override.get_value_element_as_str()}"]
        elif override.is_discrete_sweep():
            values[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
        else:
            raise ConfigError(
                f"{key}: a grid needs values, as 0.1,0.5 or range(5); for an interval hydra/sweeper=optuna"
            )
    return [list(each) for each in itertools.product(*values.values())]


def launched(sweeper: Any, batch: Sequence[Sequence[str]], first: int = 0) -> list[JobOutcome]:
    """What the runs of `batch` send back; their jobs are numbered from `first`."""
    sweeper.validate_batch_is_legal(batch)
    with counting.counted(first, len(batch)):
        folder = Path(sweeper.config.hydra.sweep.dir)
        return [outcome_of(job) for job in launch(sweeper.launcher, folder, batch, first)]


if TYPE_CHECKING:
    from hydra.core.utils import JobReturn


def remaining(params: Mapping[str, str], arguments: Sequence[str]) -> dict[str, str]:
    """The values of an experiment (`hydra.sweeper.params`) but for the keys that the command line gives."""
    given = {bare(text) for text in arguments}
    return {key: value for key, value in params.items() if bare(key) not in given}


def bare(override: str) -> str:
    """The key of an override: `++method.mu=1` is about method.mu."""
    return override.lstrip("+~").partition("=")[0]


@contextmanager
def scratch(config: Any) -> Iterator[None]:
    """The folder of Hydra and its launchers, removed when the sweep is over; theirs is nothing worth keeping."""
    folder = Path(config.hydra.sweep.dir)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for parent in list(folder.parents)[
            :2
        ]:  # .sweeps/ and the folder of runs, unless something is in them
            with contextlib.suppress(OSError):
                parent.rmdir()


def conclude(outcomes: Sequence[JobOutcome]) -> None:
    """Keep what the jobs sent back, print one table, and write the files of a named sweep."""
    for outcome in outcomes:
        jobs.keep(outcome)
    finished = [outcome for outcome in outcomes if outcome.row is not None]
    if finished and len(outcomes) > 1:
        _compare(outcomes)
    if said := remark(part for outcome in finished for part in outcome.code_changed):
        print(said)
    if finished and (finished[0].plain.get("sweep") or {}).get("name"):
        from fedbench.sweeps.table import write

        print(f"table and figure: {write(outcomes)}")
    if earlier := sum(outcome.earlier for outcome in finished):
        print(f"{earlier} of {len(outcomes)} runs were there already; force=true repeats them")
    if lost := len(outcomes) - len(finished):
        print(
            f"{lost} of {len(outcomes)} runs failed; what failed is said above, and the same command tries it again"
        )


def outcome_of(job: JobReturn) -> JobOutcome:
    """What a job sent back, or, where its process died, that it did."""
    try:
        outcome: JobOutcome = job.return_value
    except Exception as error:  # noqa: BLE001 - whatever ended the process; told with the others
        overrides = list(job.overrides or ())
        code, failure = messages.told(error, " ".join(overrides))
        return JobOutcome(
            dict(text.lstrip("+").split("=", 1) for text in overrides), code=code, failure=failure
        )
    return outcome


def variants(overrides: Sequence[Mapping[str, str]]) -> list[str]:
    """What tells the runs of a sweep apart besides their groups' options and their seeds: "mu=0.1", for example."""
    keys = dict.fromkeys(key for run in overrides for key in run if "." in key)
    varied = [key for key in keys if len({run.get(key) for run in overrides}) > 1]
    return [
        " ".join(f"{key.removeprefix('method.')}={run[key]}" for key in varied if key in run)
        for run in overrides
    ]


def _compare(outcomes: Sequence[JobOutcome]) -> None:
    """Print all rows of a sweep as one table; what failed still counts as one of the values that were swept."""
    from fedbench.results.console import Output, comparison_table

    named = zip(outcomes, variants([outcome.overrides for outcome in outcomes]), strict=True)
    rows = [
        {**outcome.row, "variant": variant, "code_changed": outcome.code_changed}
        for outcome, variant in named
        if outcome.row is not None
    ]
    console = Output() if sys.stdout.isatty() else Output(width=120)
    console.print(comparison_table(rows))
