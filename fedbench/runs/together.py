"""Runs that differ in nothing but their seeds, as rows of one program."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from fedbench.engine.pick.hardware import set_threads, stacked_engine
from fedbench.engine.setup import Setup
from fedbench.engine.train.by_kind import by_kind
from fedbench.engine.train.joint import JointSetup
from fedbench.engine.train.together import together
from fedbench.engine.train.trainer import Engine, Trainer
from fedbench.results.finished import Run
from fedbench.runs.config import RunConfig, run_key
from fedbench.runs.execution import execute
from fedbench.runs.places import folder_of, standing


def execute_together(runs: Sequence[RunConfig]) -> list[Run | Exception]:
    """`execute` each of `runs`, all on the stacked engine; an error ends its own run and is returned in its place."""
    references = [run.local for run in runs if run.local is not None]
    lacking = {run_key(each): each for each in references if standing(each, folder_of(each)) != "finished"}
    if (
        lacking
    ):  # once each, as runs may share one; an error comes up again, in the run that needs the reference
        execute_together(list(lacking.values()))

    def joint(setups: Sequence[Setup]) -> Trainer:
        return by_kind(
            setups[0], [alike(each) for each in zip(*(setup.kinds for setup in setups), strict=True)]
        )

    def alike(setups: Sequence[Setup]) -> Engine:
        return stacked_engine(JointSetup.of(setups), runs[0].hardware)

    set_threads(runs[0].hardware)  # of this thread, which trains for those of the runs
    return together([functools.partial(execute, run) for run in runs], joint)
