"""Steps that are captured once and replayed: on a GPU a step is then one launch, however many kernels it has."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Hashable
from contextvars import ContextVar

import torch

WARM = 2  # calls before a step is captured: libraries choose kernels and take memory in their first

Step = Callable[[], None]
allowed = ContextVar("allowed", default=True)  # hardware.graph
log = logging.getLogger("fedbench")


def cuda_capture(device: torch.device) -> Callable[[Step], Step]:
    """Captures steps in CUDA graphs, which share one pool of memory: they never run at the same time."""
    pool = torch.cuda.graph_pool_handle()

    def capture(step: Step) -> Step:
        graph = torch.cuda.CUDAGraph()
        # A capture that fails leaves its stream as the current one, on which nothing can run.
        # Other threads may go on allocating meanwhile.
        with (
            torch.cuda.device(device),
            torch.cuda.stream(torch.cuda.current_stream(device)),
            torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"),
        ):
            step()
        return graph.replay

    return capture


def capture_for(device: torch.device) -> Callable[[Step], Step] | None:
    """Return what captures steps on `device`; None: it is no GPU, or hardware.graph is off."""
    return cuda_capture(device) if device.type == "cuda" and allowed.get() else None


class Replays:
    """Steps by kind. Those of a kind are the same operations on the same tensors."""

    def __init__(self, what: str) -> None:
        """`what` names the steps in the warning that they cannot be captured."""
        self._what = what
        self._calls: Counter[Hashable] = Counter()
        self._replays: dict[Hashable, Step] = {}
        self._captures = True

    def clear(self) -> None:
        """Forget what was captured."""
        self._calls.clear()
        self._replays.clear()

    def run(self, kind: Hashable, step: Step, capture: Callable[[], Step]) -> None:
        """Do `step`, or replay what `capture` returned for its kind; what cannot be captured is run as it is."""
        self._calls[kind] += 1
        if kind not in self._replays and self._captures and self._calls[kind] > WARM:
            try:
                self._replays[kind] = capture()
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, the step can be run as it is
                self._captures = False
                log.warning("%s is not captured, its steps run one by one: %s", self._what, error)
        self._replays.get(kind, step)()
