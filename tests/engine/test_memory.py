"""Memory of a cohort told from that of a few clients, against what torch's profiler sees allocated; chunks that fit."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedbench.config.schema import LocalConfig, OptimizerConfig, ProtocolConfig
from fedbench.core import trees
from fedbench.core.errors import ConfigError, FedbenchError
from fedbench.core.rng import torch_rng
from fedbench.data.dataset import Dataset
from fedbench.data.federation import Federation
from fedbench.data.partition import Partition
from fedbench.engine import hardware
from fedbench.engine.contract import Clock
from fedbench.engine.hardware import MemoryModel
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.method import Method
from fedbench.engine.schedule import _distinct
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation, State
from fedbench.engine.stacked import Chunk, StackedTrainer
from fedbench.engine.trainer import Trainer
from fedbench.methods.ditto import Ditto
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.ifca import IFCA
from fedbench.methods.sosicfl import SosicFL
from fedbench.models import MODELS
from fedbench.models.small import MLP, LeNet5
from fedbench.models.task import Model
from fedbench.models.vision import Vision
from fedbench.runs import building
from tests.helpers.runs import config
from tests.helpers.tiers import sampled
from tests.methods.toys import federation, setup

SGD = OptimizerConfig(lr=0.01)
GPU = torch.device("cuda")


def profiled(work: Callable[[], object]) -> int:
    """What `gpu_peak` is on a CPU, by torch's own account."""
    # acc_events: without it torch 2.11 warns of cycles, of which there is one.
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as seen:
        work()
    live = peak = 0
    for event in seen.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak


def round_of(made: Setup, chunk: int) -> int:
    """Peak of a round of everybody, by a simulation."""
    simulation = Simulation(made, StackedTrainer(made, chunk))
    state = simulation.begin()
    simulation.step(state)
    return profiled(lambda: simulation.step(state))


def chosen(method: Method, model: Model | None = None, optimizer: OptimizerConfig = SGD, **more: Any) -> Setup:
    data = federation((40, 13, 33, 64, 64), (1, 16, 16), dtype=torch.float32)
    net = model or MLP(hidden=(50,))
    given = {"epochs": 1, **more}
    return setup(method, data, net, batch=32, rounds=9, eval_every=9, optimizer=optimizer, **given)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "options"),
    [
        pytest.param(Ditto(), {}, marks=pytest.mark.slow),
        pytest.param(IFCA(k=3), {}, marks=pytest.mark.slow),
        pytest.param(SosicFL(), {}, marks=pytest.mark.slow),
        pytest.param(FedAvg(), {"model": LeNet5(batch_norm=True)}, marks=pytest.mark.slow),
        (FedAvg(), {"optimizer": OptimizerConfig("adam", lr=0.01)}),
        # Batches of many steps outweigh the model.
        pytest.param(FedAvg(), {"epochs": 3, "model": MLP(hidden=(1,))}, marks=pytest.mark.slow),
    ],
    ids=["Ditto", "IFCA", "SosicFL", "convolutions", "adam", "steps"],
)
def test_a_few_clients_tell_what_a_cohort_takes(method: Method, options: Any) -> None:
    made = chosen(method, **options)
    growth = MemoryModel.of(made, profiled)
    five, two = (growth.fixed + growth.training * chunk + growth.trained * (5 - chunk) for chunk in (5, 2))
    assert five == pytest.approx(round_of(made, 5), rel=0.2)
    assert 0.8 * round_of(made, 2) <= two <= 1.3 * round_of(made, 2)


def test_the_clients_that_are_tried_are_those_whose_batches_take_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short last batch is padded to a whole one: of 40, 33 and 13 samples it takes more than two whole ones of 32."""
    seen: list[Any] = []
    first = hardware.first_round_inputs

    def spy(setup: Setup, ids: torch.Tensor, clock: Any) -> Any:
        seen.append((ids.tolist(), clock))
        return first(setup, ids, clock)

    class Spy(StackedTrainer):
        def train(self, ids: torch.Tensor, message: Any, memory: Any, clock: Clock, score: Any = ()) -> Any:
            seen.append((self.chunk, self.capture, ids.tolist(), clock))

    def capture(*_: Any) -> Any:
        return pytest.fail("nothing is trained")

    monkeypatch.setattr(hardware, "first_round_inputs", spy)
    monkeypatch.setattr(hardware, "StackedTrainer", Spy)
    MemoryModel.of(chosen(FedAvg()), lambda work: bool(work()), capture)
    start, four = Clock(0, 9), [0, 2, 1, 3]
    assert seen[::2] == [([0], start), (four, start), (four, start)]
    assert seen[1::2] == [(1, capture, [0], start), (4, capture, four, start), (1, capture, four, start)]


def on_a_gpu(made: Setup, monkeypatch: pytest.MonkeyPatch, free: float) -> Setup:
    """`made`, where a GPU has `free` bytes; what is tried there is done, and allocated, on the CPU."""

    def free_bytes(_: torch.device) -> float:
        made.federation.device = torch.device("cpu")
        return free

    made.federation.device = GPU
    monkeypatch.setattr(hardware, "free_bytes", free_bytes)
    monkeypatch.setattr(hardware, "gpu_peak", lambda _, work: profiled(work))
    return made


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [1, 3, 5])
def test_the_largest_chunk_that_fits_is_chosen(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    peak = round_of(chosen(Ditto()), chunk)
    found = hardware.fitting_chunk(on_a_gpu(chosen(Ditto()), monkeypatch, 1.1 * peak / hardware.SHARE))
    assert found >= chunk - 1
    assert round_of(chosen(Ditto()), found) <= 1.2 * peak


@pytest.mark.parametrize(("device", "free"), [(GPU, 2**40), (torch.device("cpu"), 1)])
def test_nothing_is_tried_where_all_fit_or_there_is_no_gpu(
    device: torch.device, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = on_a_gpu(chosen(FedAvg()), monkeypatch, free)
    made.federation.device = device
    monkeypatch.setattr(hardware, "gpu_peak", lambda *_: pytest.fail("tried"))
    assert hardware.fitting_chunk(made) == (5 if device is GPU else 1)


def test_where_the_trial_fails_the_rough_estimate_is_on_the_safe_side(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = hardware.CERTAIN * hardware.client_bytes(chosen(FedAvg()))
    made = on_a_gpu(chosen(FedAvg()), monkeypatch, 2.5 * client / hardware.SHARE)
    monkeypatch.setattr(hardware, "gpu_peak", lambda *_: 1 / 0)
    assert hardware.fitting_chunk(made) == 2
    assert "2 clients train at once: division by zero" in caplog.text


def test_a_gpus_peak_is_what_was_added(monkeypatch: pytest.MonkeyPatch) -> None:
    held = {"now": 100, "most": 900}
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: held.update(most=held["now"]))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: held["now"])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: held["most"])
    assert partial(hardware.gpu_peak, GPU)(lambda: held.update(most=130)) == 30


def test_no_chunk_is_larger_than_the_cohort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "free_bytes", lambda _: 10**12)
    assert hardware.fitting_chunk(setup(FedAvg(), cohort=0.4)) == 2
    monkeypatch.setattr(hardware, "free_bytes", lambda _: 1)
    assert hardware.fitting_chunk(setup(FedAvg())) == 1


@pytest.mark.parametrize(
    "name", sampled([name for name in MODELS if name not in ("kinds", "textcnn", "torchvision", "timm")], every=4)
)
def test_the_bytes_of_a_network_are_known_before_it_is_built(name: str) -> None:
    model = MODELS.build({"name": name, **({"pretrained": False} if issubclass(MODELS.get(name), Vision) else {})})
    real = model.build((3, 32, 32), 10).state_dict().values()
    assert model.leaf_bytes((3, 32, 32), 10) == sum(map(trees.leaf_bytes, real)) > 0


@pytest.mark.slow
def test_a_network_that_cannot_fit_is_refused_before_it_is_built(tmp_path: Path) -> None:
    run = config(tmp_path, "model=mlp", "model.hidden=[10000000,10000000]")
    with pytest.raises(ConfigError, match=r"takes at least 2,0\d\d,\d{3}\.\d GB for inputs of .*\[1, 8, 8\]"):
        building.build(run)


def test_free_memory_is_what_the_machine_says(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert 2**20 < hardware.free_bytes(cpu) < 2**50
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: {GPU: (7, 9)}[device])
    assert hardware.free_bytes(GPU) == 7
    lines = "MemTotal: 16 kB\nMemFree: 5 kB\nMemAvailable:   11 kB\nBuffers: 2 kB\n"
    for container, free in (([], 11 * 1024), ([3], 3), ([10**9], 11 * 1024)):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_text", lambda *_, **__: lines)
            patch.setattr(hardware, "_container_bytes", lambda container=container: container)
            assert hardware.free_bytes(cpu) == free
    monkeypatch.setattr(hardware, "Path", Mock(side_effect=OSError))
    monkeypatch.setattr(os, "sysconf", {"SC_PAGESIZE": 4096, "SC_PHYS_PAGES": 5}.__getitem__)
    assert hardware.free_bytes(cpu) == 5 * 4096


def test_cached_files_do_not_fill_a_container(tmp_path: Path) -> None:
    assert hardware._container_bytes(tmp_path) == []
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("990\n")
    (tmp_path / "memory.stat").write_text("anon 200\nactive_file 90\ninactive_file 700\n")
    assert hardware._container_bytes(tmp_path) == [710]
    (tmp_path / "memory.current").write_text("1701\n")
    assert hardware._container_bytes(tmp_path) == [0]
    (tmp_path / "memory.max").write_text("max\n")
    assert hardware._container_bytes(tmp_path) == []


class Small(StackedTrainer):
    """A device that holds `capacity` clients and fails only after some of their work is done."""

    capacity = 1
    tried: list[int]

    def _train(self, chunk: Chunk, score: Any) -> Any:
        outcome = super()._train(chunk, score)
        self.tried.append(len(chunk.ids))
        if len(chunk.ids) > self.capacity:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return outcome


def small(chunk: int, capacity: int, **options: Any) -> Small:
    trainer = Small(setup(FedAvg(), **options), chunk)
    trainer.capacity, trainer.tried = capacity, []
    return trainer


def trained(trainer: Trainer, rounds: int = 2) -> State:
    simulation = Simulation(trainer.setup, trainer)
    state = simulation.begin()
    for _ in range(rounds):
        simulation.step(state)
    return state


def test_a_chunk_that_does_not_fit_is_halved_and_the_run_goes_on() -> None:
    trainer = small(chunk=8, capacity=1, rounds=2)
    state = trained(trainer)
    assert trainer.tried == [5, 2, *[1] * 5, *[1] * 5], "halved from the clients there were, and it stays so"
    expected = trained(LoopedTrainer(setup(FedAvg(), rounds=2)))
    for name, leaf in expected.server.items():
        torch.testing.assert_close(state.server[name], leaf, rtol=1e-9, atol=1e-9)


def test_one_client_that_does_not_fit_is_refused_in_one_line() -> None:
    with pytest.raises(FedbenchError, match=r"is too small to train one client; use"):
        trained(small(chunk=2, capacity=0))


@pytest.mark.parametrize(
    ("count", "chunk", "holds", "tried"),
    [
        (7, 4, [4, 1], [4, 3, 1, 1, 1]),  # halved from the three that there were
        (5, 5, [1, 2], [5, 2, 2, 1]),
        (1, 4, [0, 1], [1, 1]),
        (3, 1, [1], [1, 1, 1]),
        (4, 2, [2], [2, 2]),
    ],
)
def test_rows_are_run_once_each_whatever_fails(
    count: int, chunk: int, holds: list[int], tried: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`holds`: clients that memory holds before the first and after every failure or success."""
    trainer = StackedTrainer(setup(FedAvg()), chunk)
    emptied, seen, done, captured = list[str](), list[int](), list[int](), list[int]()
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append("emptied"))

    def run(rows: torch.Tensor) -> Any:
        captured.append(len(trainer._replayed))
        seen.append(len(rows))
        trainer._replayed["any", 0, len(seen)] = Mock()
        if len(rows) > holds[min(len(seen), len(holds)) - 1]:
            raise torch.OutOfMemoryError
        done.extend(rows.tolist())
        return len(rows)

    for device in ("cpu", "cuda"):
        trainer._replayed.clear()
        for each in (seen, done, captured):
            each.clear()
        trainer.chunk, trainer.setup.federation.device = chunk, torch.device(device)
        found: Any = trainer._fitting(torch.arange(count).flip(0), run)
        assert seen == tried
        assert done == list(range(count))[::-1]
        assert sum(found) == count
        failures = len(tried) - len(found)
        assert len(emptied) == (failures if device == "cuda" else 0)
        assert captured.count(0) == 1 + failures, "what was captured before a failure is given up"


MANY, COHORT = 20_000, 4


class Largest(TorchDispatchMode):
    """The most elements that a tensor made inside holds (views of what was there before do not count)."""

    elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        made = function(*args, **(kwargs or {}))
        for each in tree_leaves(made):
            if isinstance(each, torch.Tensor) and each.untyped_storage().data_ptr() not in before:
                self.elements = max(self.elements, each.untyped_storage().nbytes() // each.element_size())
        return made


def registered(clients: int, method: Method) -> Setup:
    """`clients` clients of one sample each, some of them cohort."""
    x = np.random.default_rng(0).integers(0, 256, (clients + 1, 1, 2, 2)).astype(np.uint8)
    y = np.arange(clients + 1) % 3
    data = Dataset("toy", x, y, clients, 3, (0.5,), (0.25,))
    own = [np.array([client]) for client in range(clients)]
    none = [np.zeros(0, dtype=np.int64)] * clients
    partition = Partition("toy", 0, "toy", 3, own, none, [np.array([clients])] * clients)
    protocol = ProtocolConfig(
        rounds=9,
        cohort=COHORT,
        eval_every=9,
        local=LocalConfig(),
        optimizer=OptimizerConfig(),
        score="trained",
    )
    federation = Federation(data, partition)
    return Setup(method, MLP(hidden=(3,)).task(federation.shape, 3), federation, protocol, 0)


@pytest.mark.parametrize("method", sampled([FedAvg(), IFCA(k=2), Ditto()], every=2))
@pytest.mark.parametrize("engine", [LoopedTrainer, lambda setup: StackedTrainer(setup, COHORT)])
def test_no_tensor_of_a_round_is_as_long_as_the_list_of_clients(engine: Any, method: Method) -> None:
    chosen = registered(MANY, method)
    trainer: Trainer = engine(chosen)
    simulation = Simulation(chosen, trainer)
    state = simulation.begin()
    simulation.step(state)  # a table of rows is made once
    with Largest() as seen:
        simulation.step(state)
    assert 0 < seen.elements < 1000


def test_every_set_of_clients_is_as_likely() -> None:
    generator = torch_rng(0, "test")
    sets = [tuple(_distinct(5, 2, generator).tolist()) for _ in range(4000)]
    counts = [sets.count((a, b)) for a in range(5) for b in range(a + 1, 5)]
    assert sum(counts) == 4000
    assert min(counts) > 330, "400 expected, standard deviation 19"
    assert max(counts) < 470


def test_a_network_that_cannot_be_built_has_no_bytes() -> None:
    assert MODELS.build({"name": "lenet5"}).leaf_bytes((1, 4, 4), 10) == 0
