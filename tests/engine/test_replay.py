"""Steps that are captured once and replayed: the same numbers, for every step, round, cohort and optimiser."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedbench.config import groups
from fedbench.config.schema import HardwareConfig, OptimizerConfig
from fedbench.core.batch import Batch
from fedbench.core.trees import Tree
from fedbench.engine import graphs, hardware, stacked
from fedbench.engine.contract import Client
from fedbench.engine.setup import Setup
from fedbench.engine.stacked import Capture, Program, StackedTrainer
from fedbench.methods.fedavg import FedAvg
from fedbench.models.small import LeNet5
from fedbench.testing.checks import equal, everything, rerun
from fedbench.testing.toys import Subject, federation, gap, setup, simulate
from tests.engine.toys import traced

RAGGED = (1, 13, 8, 21, 5, 2)
OPTIMIZERS = {
    "adam": OptimizerConfig(name="adam", lr=0.01, weight_decay=0.01),
    "sgd": OptimizerConfig(lr=0.1, momentum=0.9, weight_decay=0.01, clip=1.0),
}


class Counted:
    """A capture, and how often it was asked for one."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self.kinds: list[tuple[int, bool]] = []
        self.replays = 0

    def __call__(self, program: Program, rows: int, full: bool) -> Callable[[], None]:
        self.kinds.append((rows, full))
        captured = self.capture(program, rows, full)

        def again() -> None:
            self.replays += 1
            captured()

        return again


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "WARM", 0)


def ragged(optimizer: str, **options: Any) -> Setup:
    return setup(
        FedAvg(),
        federation(RAGGED),
        rounds=3,
        cohort=4,
        optimizer=OPTIMIZERS[optimizer],
        eval_every=3,
        **options,
    )


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_trace_of_a_step_is_every_later_one_of_as_many_rows(optimizer: str) -> None:
    """So nothing that Python decides differs from step to step, and a graph may take its place."""
    chosen, traces = ragged(optimizer), Counted(traced)
    found = everything(simulate(chosen, StackedTrainer(chosen, 99, traces)))
    again = everything(simulate(chosen, StackedTrainer(chosen, 99, rerun)))
    assert equal(found, again)
    plain = everything(simulate(chosen, StackedTrainer(chosen, 99)))
    assert gap(found, plain) < 1e-12
    assert len(traces.kinds) == len(set(traces.kinds)) < traces.replays / 2


@pytest.mark.slow
def test_batch_normalisation_and_several_chunks_are_replayed() -> None:
    images, model = federation((1, 13, 9, 5), (1, 16, 16)), LeNet5(batch_norm=True)
    chosen = setup(FedAvg(), images, model, rounds=2, optimizer=OPTIMIZERS["sgd"], eval_every=3)
    traces = Counted(traced)
    found = everything(simulate(chosen, StackedTrainer(chosen, 3, traces)))
    assert gap(found, everything(simulate(chosen, StackedTrainer(chosen, 3)))) < 1e-12
    assert {rows for rows, _ in traces.kinds} <= {1, 2, 3}


def test_a_step_is_captured_after_it_has_run_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "WARM", 3)
    chosen, captures = setup(FedAvg(), federation((16, 16)), rounds=2), Counted(rerun)
    simulate(chosen, StackedTrainer(chosen, 2, captures))
    assert captures.kinds == [(2, True)]
    assert captures.replays == 2 * 4 - 3


@dataclass(frozen=True)
class ReadsTheRound(FedAvg):
    """A loss that depends on the round, as none should."""

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """FedAvg's, growing."""
        return super().loss(work, client, batch) * (1 + client.clock.round)


def test_a_loss_that_reads_the_round_is_not_captured_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    chosen = setup(ReadsTheRound(), federation(RAGGED), rounds=3)
    with caplog.at_level(logging.WARNING, "fedbench"):
        found = everything(simulate(chosen, StackedTrainer(chosen, 99, traced)))
    assert gap(found, everything(simulate(chosen, StackedTrainer(chosen, 99)))) < 1e-12
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "ReadsTheRound.loss is not captured, its steps run one by one"
    ]
    assert "let `draw` put" in caplog.text


class ReadsTheLength(FedAvg):
    """A loss that depends on how many rounds there are, which a capture may know."""

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """FedAvg's, larger."""
        return super().loss(work, client, batch) * client.clock.rounds


@pytest.mark.slow
def test_a_captured_loss_knows_how_many_rounds_there_are(caplog: pytest.LogCaptureFixture) -> None:
    chosen = setup(ReadsTheLength(), federation(RAGGED), rounds=3)
    found = everything(simulate(chosen, StackedTrainer(chosen, 99, traced)))
    assert gap(found, everything(simulate(chosen, StackedTrainer(chosen, 99)))) < 1e-12
    assert not caplog.records


def test_a_capture_that_memory_does_not_hold_halves_the_chunk() -> None:
    chosen, refused = setup(FedAvg(), federation(RAGGED), rounds=2), []

    def refusing(program: Program, rows: int, full: bool) -> Callable[[], None]:
        if len(program.chunk.ids) > 3:
            refused.append(len(program.chunk.ids))
            raise torch.OutOfMemoryError
        return rerun(program, rows, full)

    trainer = StackedTrainer(chosen, 6, refusing)
    found = everything(simulate(chosen, trainer))
    assert refused == [6]
    assert trainer.chunk == 3
    assert gap(found, everything(simulate(chosen, StackedTrainer(chosen, 3)))) < 1e-12


PRESETS = sorted(file.stem for file in (groups.conf_dir() / "method").glob("*.yaml"))


@pytest.mark.parametrize(
    "preset",  # FedALA's first round has a stage without steps
    [pytest.param(name, marks=() if name == "fedala" else pytest.mark.slow) for name in PRESETS],
)
@pytest.mark.parametrize("kind", ["mlp", "batch_norm"])
def test_every_preset_is_traced_once(preset: str, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    chosen = Subject.of(preset).toy(kind)
    with caplog.at_level(logging.WARNING, "fedbench"):
        found = everything(simulate(chosen, StackedTrainer(chosen, 99, traced)))
    assert not caplog.records
    assert gap(found, everything(simulate(chosen, StackedTrainer(chosen, 99)))) < 1e-9


# A GPU's graphs, as far as they can be told without one: what is called, in which order, and when.


@pytest.mark.parametrize("fails", [False, True])
def test_a_gpu_captures_a_step_in_a_graph_of_the_common_pool(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch does not leave the stream of a capture that fails."""
    told: list[Any] = []

    @contextlib.contextmanager
    def graph(made: Any, **options: Any) -> Iterator[None]:
        told.append(options)
        yield
        if fails:
            raise RuntimeError("invalidated")
        told.append("captured")

    @contextlib.contextmanager
    def stream(chosen: str) -> Iterator[None]:
        try:
            yield
        finally:
            told.append(f"back to {chosen}")

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: told.append("replayed")))
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: "the stream of before")
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    program: Any = SimpleNamespace(step=lambda rows, *, full: told.append((rows, full)))
    capture = stacked.capture_for(torch.device("cuda"))
    assert capture is not None
    begun = [{"pool": "pool", "capture_error_mode": "thread_local"}, (5, True)]
    if fails:
        with pytest.raises(RuntimeError, match="invalidated"):
            capture(program, 5, True)
        assert told == [*begun, "back to the stream of before"]
        return
    again = capture(program, 5, True)
    again()
    again()
    assert told == [*begun, "captured", "back to the stream of before", "replayed", "replayed"]


@pytest.mark.parametrize(
    ("graph", "device", "captures"), [("auto", "cuda", True), ("off", "cuda", False), ("auto", "cpu", False)]
)
def test_hardware_graph_says_whether_a_gpu_captures(
    graph: str, device: str, captures: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "cuda_capture", lambda _: rerun)
    chosen = setup(FedAvg())
    chosen.federation.device = torch.device(device)
    config = HardwareConfig(engine="stacked", graph=graph, chunk=2)
    trainer = hardware.pick_trainer(chosen, config)
    assert isinstance(trainer, StackedTrainer)
    assert (trainer.capture is not None) == captures
    assert (graphs.capture_for(torch.device(device)) is rerun) == captures, "the server's steps too"
    hardware.pick_trainer(chosen, HardwareConfig(engine="looped"))
    assert graphs.capture_for(torch.device("cuda")) is rerun, "off does not last"
