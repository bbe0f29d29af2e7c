"""`python -m fedbench reproduce table=NAME ...`: run what a table lacks, set every cell beside the published value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedbench.cli import command, making, telling
from fedbench.cli.request import Request, planned, read
from fedbench.config.messages import OK, REFUSED
from fedbench.core.errors import FedbenchError

if TYPE_CHECKING:
    from fedbench.tables.plan import Job, Plan
    from fedbench.tables.spec import TableSpec

HELP = """\
python -m fedbench reproduce table=NAME [KEY=VALUE ...] [--dry-run]

  table=NAME           one of `python -m fedbench list tables`
  scale=paper          paper | half | quick | smoke (conf/scale/); only paper gets verdicts
  rows=A,B columns=1,2 run only these, by label or number from 1; the others keep what they have
  seeds=5              that many, or a list: seeds=[0,3]
  substitute=NAME      a data set in place of the table's own; the title says so, no verdicts
  jobs=N               runs at once (default: one a core, on a GPU one)
  results=results      where the filled table goes; the runs themselves go to runs_dir
  retry=false          true: run failed cells again
  dry_run=false        true, or --dry-run: show the plan with time, memory and disk on this machine, and stop
  render=false         true: draw the table again from its files, look at no run

Everything else is an override of every run: model=lenet5 protocol.rounds=20 hardware=cpu runs_dir=DIR. It gets a folder
of its own and no verdicts, unless the table says that the paper leaves it open (left_open: partition_seed=0, say, or
reference_seed=100). Hydra's launchers run elsewhere: hydra/launcher=submitit_slurm (pip install
hydra-submitit-launcher) and its options.
The same command again runs only what is missing.

Exit code: 0, every cell asked for is there; 3, some failed or cannot be run here; 2, refused; 1, a defect; 130, 143,
stopped.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Plan, run, fill and draw one table; returns the exit code (INCOMPLETE: a cell asked for is not there)."""
    return command.run("python -m fedbench reproduce", arguments, _main)


def _main(arguments: Sequence[str]) -> int:
    if not arguments or {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return OK if arguments else REFUSED
    return reproduce(*read(arguments))


def reproduce(request: Request, overrides: Sequence[str]) -> int:
    """Fill one table; returns INCOMPLETE if a cell that was asked for is not there, else OK."""
    from fedbench.core.files import held
    from fedbench.tables import fill, staleness, store
    from fedbench.tables.render import write

    launcher, at_once = making.launcher(request.jobs, overrides)
    if request.render:
        write(planned(request, overrides)[2])
        return OK
    plan, wish, folder = planned(request, overrides)
    missing = [job for job in plan.missing() if request.retry or not job.failure]
    telling.announce(plan, missing, at_once)
    if request.dry_run:
        return OK
    _require_cells(plan)
    if missing:
        _run(missing, launcher, plan.spec)
    with held(folder):
        if missing:
            plan = planned(request, overrides)[0]  # another call may have added cells meanwhile
        filled = fill.fill(plan)
        store.save(folder, filled, fill.rows(plan))
        store.save_curves(folder, fill.curves(plan))
        store.save_matrices(folder, fill.matrices(plan))
        store.save_clients(folder, fill.clients(plan))
        write(folder)
    telling.show(staleness.load(folder)[0])  # as table.md has it: with margins and marks
    return telling.finish(plan, wish, folder, len(missing))


def _require_cells(planned: Plan) -> None:
    """Refuse to write a table without a single cell, as where all of its data is missing."""
    from fedbench.tables.store import PENDING

    if not any(entry.jobs for entry in planned.entries):
        reasons = dict.fromkeys(each.reason for each in planned.entries if each.reason != PENDING)
        raise FedbenchError(f"no cell of {planned.spec.name} can be filled here: {'; '.join(reasons)}")


def _run(missing: Sequence[Job], launcher: Sequence[str], table: TableSpec) -> None:
    making.run(missing, launcher, join_seeds=not any(metric.timing for metric in table.metrics))
