"""A GPU's graphs, as far as they can be told without one: what is called, in which order, and when."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedbench.config.schema import HardwareConfig
from fedbench.engine import hardware, stacked
from fedbench.methods.fedavg import FedAvg
from fedbench.testing.checks import rerun
from fedbench.testing.toys import setup


def test_a_gpu_captures_a_step_in_a_graph_of_the_common_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as it can be told without one: what is called, and in which order."""
    told: list[Any] = []

    @contextlib.contextmanager
    def graph(made: Any, **options: Any) -> Iterator[None]:
        told.append(options)
        yield
        told.append("captured")

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: told.append("replayed")))
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    program: Any = SimpleNamespace(step=lambda rows, *, full: told.append((rows, full)))
    again = stacked.cuda_capture(torch.device("cuda"))(program, 5, True)
    again()
    again()
    options = {"pool": "pool", "capture_error_mode": "thread_local"}
    assert told == [options, (5, True), "captured", "replayed", "replayed"]


@pytest.mark.parametrize(
    ("graph", "device", "captures"), [("auto", "cuda", True), ("off", "cuda", False), ("auto", "cpu", False)]
)
def test_hardware_graph_says_whether_a_gpu_captures(
    graph: str, device: str, captures: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "cuda_capture", {torch.device(device): rerun}.get)
    chosen = setup(FedAvg())
    chosen.federation.device = torch.device(device)
    trainer = hardware.stacked_engine(chosen, HardwareConfig(graph=graph, chunk=2))
    assert (trainer.capture is rerun) == captures
