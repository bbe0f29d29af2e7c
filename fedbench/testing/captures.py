"""Stand-ins for CUDA graphs: what a step does on a CPU when it is run on fixed tensors, or traced once and replayed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from fedbench.engine.train.program import Program


def rerun(program: Program, rows: int, full: bool) -> Callable[[], None]:
    """The step itself, each time anew."""
    return partial(program.step, rows, full=full)


def traced(program: Program, rows: int, full: bool) -> Callable[[], None]:
    """The operations that the step consists of now, whatever Python would do the next time."""
    inputs, state = program.inputs(), program.state()
    leaves = [*inputs.values(), *state.values()]

    def step(given: list[Tensor]) -> None:
        parts = zip(inputs, given, strict=False), zip(state, given[len(inputs) :], strict=True)
        program.over(*map(dict, parts)).step(rows, full=full)

    graph = make_fx(step)([leaf.clone() for leaf in leaves])
    return partial(graph, leaves)
