"""Pieces of the engines on their own: processes that hang, programs on other tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from fedbench.config.schema import LocalConfig, WorkConfig
from fedbench.core import trees
from fedbench.core.errors import ConfigError
from fedbench.core.rng import torch_rng
from fedbench.core.trees import Tree
from fedbench.engine import hardware, schedule, timing, workers
from fedbench.engine.contract import Clock, Cohort, Stage
from fedbench.engine.newcomers import Newcomers
from fedbench.methods.fedavg import FedAvg
from fedbench.models import layers
from fedbench.models.small import MLP, LeNet5
from tests.helpers.pair import KIND, pair
from tests.methods.toys import federation, setup

CLOCK = Clock(1, 3)


class Process:
    """One that ends by itself, or only when it is killed."""

    def __init__(self, *, hangs: bool) -> None:
        self.alive, self.told = True, list[Any]()
        self.hangs = hangs

    def join(self, timeout: float | None = None) -> None:
        self.told.append(("join", timeout))
        self.alive = self.alive and self.hangs and timeout is not None

    def is_alive(self) -> bool:
        return self.alive

    def kill(self) -> None:
        self.told.append("kill")


def test_a_process_that_does_not_end_by_itself_is_killed_and_waited_for() -> None:
    order: list[str] = []
    links: list[Any] = [SimpleNamespace(close=lambda: order.append("closed")) for _ in range(2)]
    good, hung = Process(hangs=False), Process(hangs=True)
    processes: list[Any] = [good, hung]
    workers.end(processes, links)
    assert order == ["closed"] * 2
    assert good.told == [("join", 5)]
    assert hung.told == [("join", 5), "kill", ("join", None)]
    assert processes == links == []


def test_a_shared_tree_lays_its_leaves_out_apart_and_keeps_their_types() -> None:
    spec = {
        "a": ((2, 3), torch.float32),
        "b": ((1,), torch.int64),
        "c": ((0, 4), torch.float64),
        "d": ((33,), torch.bool),
    }
    shared = workers.SharedTree.like(spec)
    assert shared.buffer.dtype == torch.uint8
    assert shared.buffer.is_shared()
    assert len(shared.buffer) == 64 + 64 + 0 + 64
    filled = {
        name: torch.arange(torch.Size(shape).numel()).view(shape).to(dtype) + True
        for name, (shape, dtype) in spec.items()
    }
    for name, leaf in shared.leaves().items():
        leaf.copy_(filled[name])
    for name, leaf in shared.leaves().items():
        assert (tuple(leaf.shape), leaf.dtype) == spec[name]
        assert torch.equal(leaf, filled[name].to(leaf.dtype))
        assert leaf.data_ptr() % 64 == shared.buffer.data_ptr() % 64 or not leaf.numel()
    tree = {"own": torch.zeros(5, 2), **trees.expand({"same": torch.zeros(3)}, 5)}
    assert workers.spec_of(tree) == {"own": ((5, 2), torch.float32), "same": ((1, 3), torch.float32)}
    assert workers.spec_of(tree, 4) == {"own": ((4, 2), torch.float32), "same": ((4, 3), torch.float32)}


# ---- the clients of a kind, and rows of clients that no round met


def test_a_kind_s_cohort_is_served_as_its_clients_are() -> None:
    chosen = pair(FedAvg())
    cohort = chosen.cohort(torch.tensor([1, 2, 4]), CLOCK)
    found = list(cohort.by_modality())
    assert [mask.tolist() for mask, _ in found] == [[True, False, False], [False, True, True]]
    for place, (_, part) in enumerate(found):
        assert part.served.tolist() == [client for client, kind in enumerate(KIND) if kind == place]
        assert part.ids.tolist() == [[1], [2, 4]][place]
        assert part.steps.tolist() == cohort.steps[[[0], [1, 2]][place]].tolist()
        assert part.task is chosen.task.modalities[place]
    (only,) = chosen.cohort(torch.tensor([3]), CLOCK).by_modality()
    assert only[1].served.tolist() == [2, 3, 4], "also those that are not in the cohort"
    alike = setup(FedAvg())
    whole = alike.cohort(torch.tensor([0, 3]), CLOCK)
    ((mask, same),) = whole.by_modality()
    assert mask.all()
    assert isinstance(same, Cohort)
    assert same.served.tolist() == [0, 1, 2, 3, 4]


def test_rows_of_unseen_clients_are_as_they_began_and_leaves_of_other_axes_stay() -> None:
    whole = setup(FedAvg(), federation((9, 13, 8, 7, 12)), unseen=2)
    newcomers = Newcomers(whole, whole.seen)
    begun: list[dict[str, Tree]] = [{"server": {}, "memory": {}} for _ in range(2)]
    for count, each in zip((3, 5), begun, strict=True):
        each["server"] |= {"rows": torch.zeros(count, 2), "square": torch.zeros(count, count), "one": torch.zeros(4)}
    newcomers._begun = begun
    moved = torch.tensor([[0.0, 0.0], [1.0, 2.0], [3.0, 4.0]])
    rows = newcomers._rows("server", "rows", moved, lend=False)
    assert rows.tolist() == [*moved.tolist(), [0.0, 0.0], [0.0, 0.0]]
    lent = newcomers._rows("server", "rows", moved, lend=True)
    assert lent.tolist() == [*moved.tolist(), [1.0, 2.0], [1.0, 2.0]], "of the first that moved and differs"
    for count, each in zip((3, 5), begun, strict=True):
        each["server"] |= {"wide": torch.zeros(count, 1), "columns": torch.zeros(2, count)}
        each["memory"] |= {"value": torch.tensor([7.0, 5, 0, 0, 0])[:count]}
    wide = newcomers._rows("server", "wide", torch.ones(3, 4), lend=True)
    assert wide.tolist() == [[1] * 4] * 5, "a row may have grown"
    columns = newcomers._rows("server", "columns", torch.tensor([[0.0, 0, 3], [0, 2, 3]]), lend=True)
    assert columns.tolist() == [[0, 0, 3, 0, 0], [0, 2, 3, 2, 2]]
    value = newcomers._rows("memory", "value", torch.tensor([7.0, 0, 3]), lend=True)
    assert value.tolist() == [7, 0, 3, 3, 3], "the first did not move, the second is as they are"
    square = newcomers._rows("server", "square", torch.ones(3, 3), lend=False)
    assert square.sum() == 9
    assert square.shape == (5, 5)
    for name, leaf in (
        *(("rows", torch.ones(shape)) for shape in ((3,), (3, 2, 2), (4, 2), (3, 3))),
        ("one", torch.ones(4)),
        ("new", torch.ones(3, 7)),
    ):
        assert newcomers._rows("server", name, leaf, lend=True) is leaf, "it has no place for clients, or another one"


def test_rows_are_lent_within_a_kind() -> None:
    whole = pair(FedAvg(), cohort="2", unseen=2)
    newcomers = Newcomers(whole, whole.seen)
    newcomers._begun = [{"server": {"rows": torch.zeros(count)}, "memory": {}} for count in (3, 5)]
    moved = torch.tensor([1.0, 2.0, 3.0])
    assert newcomers._rows("server", "rows", moved, lend=True).tolist() == [1, 2, 3, 3, 3], "of the third, as they are"


# ---- schedules, and what fits, by hand


def test_a_stage_s_own_work_goes_before_the_protocol_s() -> None:
    epochs, iterations = LocalConfig(epochs=3, batch_size=8), LocalConfig(iterations=7, batch_size=8)
    for local, own in ((epochs, (3, None)), (iterations, (None, 7))):
        assert schedule.local_work(None, local) == schedule.local_work(Stage(), local) == own
        assert schedule.local_work(Stage(epochs=2), local) == (2, None)
        assert schedule.local_work(Stage(iterations=4), local) == (None, 4)
        assert schedule.local_work(Stage(iterations=4, epochs=2), local) == (None, 4)
    assert [schedule.steps(size, epochs) for size in (1, 8, 9, 16)] == [3, 3, 6, 6]
    assert schedule.steps(9, epochs, Stage(epochs=0)) == schedule.steps(9, iterations, Stage(iterations=0)) == 0
    whole = LocalConfig(epochs=3, batch_size=8, drop_last=True)
    assert [schedule.batches_an_epoch(size, whole) for size in (8, 15, 16)] == [1, 1, 2]
    assert schedule.all_steps(torch.tensor([8.0, 15.0, 16.0]), whole).tolist() == [3, 3, 6]
    with pytest.raises(ConfigError, match="a client with 7 training samples in batches of 8; lower"):
        schedule.batches_an_epoch(7, whole)
    order = schedule.batches(13, whole, Stage(), torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(1)
    assert order.sizes == [8] * 3
    assert order.positions.tolist() == [
        k for _ in range(3) for k in torch.randperm(13, generator=generator)[:8].tolist()
    ]
    middle = schedule.Order(torch.arange(9), [4, 3, 2])
    assert [each.tolist() for each in middle.cut(1, 9)] == [[4, 5, 6], [7, 8]]
    assert [each.tolist() for each in middle.cut(0, 2)] == [[0, 1, 2, 3], [4, 5, 6]]


def test_who_falls_short_by_hand() -> None:
    for client in range(20):
        stops, lost = torch.rand(2, generator=torch_rng(3, "work", 5, client), dtype=torch.float64).tolist()
        work = WorkConfig(partial=0.5, fraction=0.25, dropout=0.5)
        assert schedule.fallen_short(work, 3, 5, client) == (0.25 if stops < 0.5 else 1.0, lost >= 0.5)
        assert schedule.fallen_short(WorkConfig(dropout=0.5), 3, 5, client) == (1.0, lost >= 0.5)
        assert schedule.fallen_short(WorkConfig(partial=0.5, fraction=0.25), 3, 5, client)[1]
        assert schedule.fallen_short(WorkConfig(), 3, 5, client) == (1.0, True)
    assert [schedule.part_of(count, 0.3) for count in (0, 1, 3, 4, 10)] == [0, 1, 1, 2, 3]
    assert schedule.part_of(25, 0.28) == 7, "7.000000000000001 to a computer"


def test_cohorts_are_shuffled_from_few_clients_and_streamed_from_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "SHUFFLED", 8)
    assert schedule.cohort(0, CLOCK, 9, 9).tolist() == list(range(9))
    for clients, size in ((8, 4), (9, 5), (8, 7)):
        drawn = torch.randperm(clients, generator=torch_rng(0, "cohort", 1))[:size]
        assert schedule.cohort(0, CLOCK, clients, size).tolist() == sorted(drawn.tolist())
    for clients, size in ((9, 4), (10, 5), (90, 3)):
        generator, chosen = torch_rng(0, "cohort", 1), list[int]()
        while len(chosen) < size:
            chosen += [k for k in torch.randint(clients, (size,), generator=generator).tolist() if k not in chosen]
            chosen = list(dict.fromkeys(chosen))
        assert schedule.cohort(0, CLOCK, clients, size).tolist() == sorted(chosen[:size])


def test_memory_of_a_cohort_from_three_peaks_by_hand() -> None:
    chosen = setup(FedAvg(), federation((16, 16, 16, 16, 16, 16)))
    own = sum(trees.leaf_bytes(leaf) for leaf in chosen.task.init(torch.Generator()).values())  # which is on its way
    own *= 2  # in float64
    peaks = [10_000 - own, 34_000, 16_000]
    found = hardware.MemoryModel.of(chosen, lambda _: peaks.pop(0))
    assert (found.fixed, found.training, found.trained) == (2_000, 8_000, 2_000)
    assert [found.chunk(10, each) for each in (39_999, 40_000, 45_999, 46_000, 10**6, 0)] == [2, 3, 3, 4, 10, 1]
    peaks = [10_000 - own, 9_000, 8_000]
    least = hardware.MemoryModel.of(chosen, lambda _: peaks.pop(0))
    assert (least.training, least.trained) == (1, 0)
    peaks = [10_000 - own, 64_000, 16_000]
    assert hardware.MemoryModel.of(chosen, lambda _: peaks.pop(0)).fixed == 0, "three more take more than three"
    assert [hardware.MemoryModel(0, 5, 5).chunk(4, each) for each in (21, 22, 24, 99)] == [1, 2, 4, 4]


def test_bytes_of_a_client_are_those_of_its_weights_and_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = setup(FedAvg(), federation((9, 9), dtype=torch.float32), model=MLP(hidden=(7,)), batch=8)
    outputs = {"inputs": 16, "hidden": 7, "relu": 7, "scores": 4}
    net = chosen.task.fresh()
    seen = hardware.activation_bytes(net, chosen.task.shape, 8)
    assert not any(module._forward_hooks for module in net.modules())
    assert seen in {8 * 4 * sum(n for name, n in outputs.items() if name not in left) for left in ((), ("inputs",))}
    assert hardware.activation_bytes(nn.GRU(16, 3, batch_first=True), (5, 16), 8) == 8 * 5 * 3 * 4, "not its state"
    weights = 4 * (16 * 7 + 7 + 7 * 4 + 4)
    assert hardware.client_bytes(chosen) == 5 * weights + 3 * (seen + 4 * 16 * 8)
    needed = 5 * MLP(hidden=(7,)).leaf_bytes((1, 4, 4), 4)
    data: Any = SimpleNamespace(shape=(1, 4, 4), classes=4)
    monkeypatch.setattr(MLP, "view", lambda _, dataset: dataset)
    monkeypatch.setattr(hardware, "free_bytes", lambda _: needed)
    hardware.check_memory(MLP(hidden=(7,)), data, torch.device("cpu"))
    monkeypatch.setattr(hardware, "free_bytes", lambda _: needed - 1)
    with pytest.raises(
        ConfigError, match=r"model mlp7 takes at least 0.0 GB for inputs of shape \[1, 4, 4\], 0.0 GB are"
    ):
        hardware.check_memory(MLP(hidden=(7,)), data, torch.device("cpu"))


def test_a_convolution_is_computed_another_way_only_where_that_is_clearly_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen = setup(FedAvg(), federation((9, 9), (1, 16, 16)), model=LeNet5(), batch=8)
    found = timing.layers(chosen.task, 8)
    told: list[tuple[str, str]] = []
    asked: list[tuple[int, ...]] = []
    slower, other = (name for name in sorted(layers.LOWERINGS)[:3] if name != layers.NATIVE)
    monkeypatch.setattr(type(chosen.task), "set_lowering", lambda _, name, way: told.append((name, way)))
    monkeypatch.setattr(timing, "FASTER", 0.9)
    for seconds, way in ((0.89, other), (0.9, layers.NATIVE), (0.94, layers.NATIVE)):
        times = {layers.NATIVE: 2.0, slower: 2.0 * 0.949, other: 2.0 * seconds}

        def timed(_: Any, shape: tuple[int, ...], __: Any, times: dict[str, float] = times) -> dict[str, float]:
            asked.append(shape)
            return times

        monkeypatch.setattr(timing, "timed", timed)
        timing.choose(chosen, 3)
        assert not told, "on a CPU torch's own is kept"
        monkeypatch.setattr(chosen.federation, "device", torch.device("cuda"))
        timing.choose(chosen, 3)
        assert told == [(name, way) for name, _, _ in found]
        assert asked == [(3, *shape) for _, _, shape in found]
        monkeypatch.setattr(chosen.federation, "device", torch.device("cpu"))
        told.clear()
        asked.clear()


def test_every_way_of_a_convolution_has_the_same_gradients_and_all_are_timed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    layer = layers.Conv2d(2, 3, 3, padding=1)
    generator = torch.Generator().manual_seed(0)
    model = {name: torch.randn(4, *leaf.shape, generator=generator) for name, leaf in layer.named_parameters()}
    x = torch.randn(4, 2, 2, 5, 5, generator=generator)
    leaves = [leaf.requires_grad_() for leaf in (model["weight"], model["bias"], x)]
    each = [torch.nn.functional.conv2d(x[k], model["weight"][k], model["bias"][k], padding=1) for k in range(4)]
    expected = torch.autograd.grad(torch.stack(each).sum(), leaves)
    given = {name: leaf.detach() for name, leaf in model.items()}, x.detach()
    for name in layers.LOWERINGS:
        found, of_x = timing._pass(layer, name)(*given)
        assert layer.lowering == name
        for ours, theirs in zip((found["weight"], found["bias"], of_x), expected, strict=True):
            assert torch.allclose(ours, theirs, atol=1e-4)
    told: list[Any] = []

    def seconds(_: Any, model: Tree, x: torch.Tensor) -> float:
        told.append(({name: leaf.shape for name, leaf in model.items()}, x.shape))
        return float(len(told))

    monkeypatch.setenv("FEDBENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "card")
    monkeypatch.setattr(timing, "_seconds", seconds)
    for _ in range(2):
        times = timing.timed(layer, (4, 2, 2, 5, 5), torch.device("cpu"))
        assert times == {name: place + 1.0 for place, name in enumerate(layers.LOWERINGS)}
    assert told == [({"weight": (4, 3, 2, 3, 3), "bias": (4, 3)}, (4, 2, 2, 5, 5))] * 4


def test_a_pass_is_timed_within_a_graph_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    told, clock = list[Any](), iter((10.0, 13.0))

    @contextlib.contextmanager
    def graph(_: Any) -> Iterator[None]:
        told.append("begin")
        yield
        told.append("end")

    def seconds() -> float:
        told.append("clock")
        return next(clock)

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: told.append("wait"))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: told.append("replay")))
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=seconds))
    assert timing._seconds(lambda *given: told.append(given), 1, 2) == 3.0 / timing.REPEATS
    within = ["begin", *[(1, 2)] * timing.REPEATS, "end"]
    assert told == [(1, 2), (1, 2), "wait", *within, "replay", "wait", "clock", "replay", "wait", "clock"]
