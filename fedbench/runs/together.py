"""Runs that differ in nothing but their seeds, as rows of one program."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from fedbench.engine.pick.footprint import fitting_chunk
from fedbench.engine.train.joint import Joint, JointSetup, serve_together
from fedbench.engine.train.stacked import StackedTrainer
from fedbench.runs.config import RunConfig, run_key
from fedbench.runs.execution import Execution, RunResult, folder_of, local_config


def execute_together(runs: Sequence[RunConfig]) -> list[RunResult | Exception]:
    """`execute` each of `runs`, all on the stacked engine; an error ends its own run and is returned in its place."""
    references = [local_config(run) for run in runs if run.labels["method"] != "local"]
    lacking = {run_key(each): each for each in references if folder_of(each).status() != "finished"}
    if (
        lacking
    ):  # once each, as runs may share one; an error comes up again, in the run that needs the reference
        execute_together(list(lacking.values()))
    executions = [Execution(run) for run in runs]

    def joint() -> Joint:
        begun = {k: each.trainer.setup for k, each in enumerate(executions) if hasattr(each, "trainer")}
        setup = JointSetup.of(list(begun.values()))
        first = {k: place * setup.clients for place, k in enumerate(begun)}
        return Joint(StackedTrainer(setup, runs[0].hardware.chunk or fitting_chunk(setup)), first)

    alone = [functools.partial(getattr, each, "trainer") for each in executions]
    return serve_together([each.steps() for each in executions], alone, joint)
