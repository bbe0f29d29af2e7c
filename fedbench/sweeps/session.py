"""What a sweep needs besides Hydra's: an experiment's values, a scratch folder, and a table at its end."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.config import messages
from fedbench.sweeps import jobs
from fedbench.sweeps.jobs import Outcome

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
    """Remove the folder of Hydra and its launchers when the sweep is over; theirs is nothing worth keeping."""
    folder = Path(config.hydra.sweep.dir)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for parent in list(folder.parents)[
            :2
        ]:  # .sweeps/ and the folder of runs, unless something is in them
            with contextlib.suppress(OSError):
                parent.rmdir()


def conclude(outcomes: Sequence[Outcome]) -> None:
    """Keep what the jobs sent back, print one table, and write the files of a named sweep."""
    for outcome in outcomes:
        jobs.keep(outcome)
    finished = [outcome for outcome in outcomes if outcome.row is not None]
    if finished and len(outcomes) > 1:
        _compare(outcomes)
    if finished and (finished[0].plain.get("sweep") or {}).get("name"):
        from fedbench.sweeps.table import write

        print(f"table and figure: {write(outcomes)}")
    if lost := len(outcomes) - len(finished):
        print(
            f"{lost} of {len(outcomes)} runs failed; what failed is said above, and the same command tries it again"
        )


def outcome_of(job: JobReturn) -> Outcome:
    """What a job sent back, or, where its process died, that it did."""
    try:
        outcome: Outcome = job.return_value
    except Exception as error:  # noqa: BLE001 - whatever ended the process; told with the others
        overrides = list(job.overrides or ())
        code, failure = messages.told(error, " ".join(overrides))
        return Outcome(dict(text.lstrip("+").split("=", 1) for text in overrides), code=code, failure=failure)
    return outcome


def variants(overrides: Sequence[Mapping[str, str]]) -> list[str]:
    """What tells the runs of a sweep apart besides their groups' options and their seeds: "mu=0.1", for example."""
    keys = dict.fromkeys(key for run in overrides for key in run if "." in key)
    varied = [key for key in keys if len({run.get(key) for run in overrides}) > 1]
    return [
        " ".join(f"{key.removeprefix('method.')}={run[key]}" for key in varied if key in run)
        for run in overrides
    ]


def _compare(outcomes: Sequence[Outcome]) -> None:
    """Print all rows of a sweep as one table; what failed still counts as one of the values that were swept."""
    from rich.console import Console

    from fedbench.results.console import comparison_table

    named = zip(outcomes, variants([outcome.overrides for outcome in outcomes]), strict=True)
    rows = [{**outcome.row, "variant": variant} for outcome, variant in named if outcome.row is not None]
    console = Console() if sys.stdout.isatty() else Console(width=120)
    console.print(comparison_table(rows))
