"""A cohort dealt to actors of Ray: the same numbers as one process, whatever their number and whoever dies."""

from __future__ import annotations

import dataclasses
import itertools
import os
import pickle
import re
import signal
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from fedbench.config.compose import compose
from fedbench.config.schema import HardwareConfig
from fedbench.core.errors import ConfigError, Diverged, FedbenchError
from fedbench.engine import sharded
from fedbench.engine import simulation as states
from fedbench.engine.contract import Clock
from fedbench.engine.hardware import pick_trainer
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation
from fedbench.methods.ditto import Ditto
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.per_kind import PerKind
from fedbench.runs.building import build
from fedbench.runs.config import resolve
from tests.helpers.tiers import sampled

LOOPED = HardwareConfig(engine="looped", device="cpu")


class Ray:
    """Stands for the module ray: actors are objects here, what passes to and from them is pickled, and some die."""

    def __init__(self) -> None:
        self.exceptions = SimpleNamespace(RayError=KeyError)
        self.gpus, self.begun, self.calls = 0, 0, Counter[int]()
        self.dies: Callable[[int, int], bool] = lambda _actor, _call: False

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0, "GPU": float(self.gpus)}

    def put(self, value: Any) -> bytes:
        return pickle.dumps(value)

    def get(self, promised: Callable[[], Any]) -> Any:
        return pickle.loads(pickle.dumps(promised()))

    def remote(self, **_: Any) -> Callable[[type], Any]:
        def made(given: bytes, *more: Any) -> Any:
            number, self.begun = self.begun, self.begun + 1
            shard = sharded.Shard(pickle.loads(given), *more)

            def work(shared: bytes, order: sharded.ActorOrder) -> Callable[[], Any]:
                self.calls[number] += 1
                call, sent = self.calls[number], pickle.loads(pickle.dumps(order))

                def done() -> Any:
                    if self.dies(number, call):
                        raise KeyError("the actor died")
                    return shard.work(pickle.loads(shared), sent)

                return done

            known, worked = SimpleNamespace(remote=lambda: shard.known), SimpleNamespace(remote=work)
            return SimpleNamespace(known=known, work=worked)

        return lambda _kind: SimpleNamespace(remote=made)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    found = Ray()

    @contextmanager
    def started(*_: object) -> Iterator[Ray]:
        yield found

    monkeypatch.setattr(sharded, "started_ray", started)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    return found


def setup_of(method: str, *more: str) -> Setup:
    data = ("dataset=digits", "dataset.limit=120", "partition=homo", "partition.num_clients=6", "model=mlp")
    short = ("protocol.rounds=3", "protocol.cohort=4", "protocol.local.epochs=1", "hardware=cpu")
    return build(resolve(compose([f"method={method}", *data, *short, *more])))


def trained(
    setup: Setup, config: HardwareConfig, before: Callable[[Any, int], None] = lambda *_: None
) -> tuple[dict[str, Tensor], Any]:
    """All that a checkpoint holds at the end, and the trainer."""
    trainer = pick_trainer(setup, config)
    try:
        simulation = Simulation(setup, trainer)
        state = simulation.begin()
        while not simulation.done(state):
            before(trainer, state.round)
            simulation.step(state)
    finally:
        trainer.close()
    return {name: leaf for name, leaf in states.pack(state)[0].items() if "seconds" not in name}, trainer


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """To the bit; nan is itself."""
    same = (torch.equal(leaf.nan_to_num(-7), other[name].nan_to_num(-7)) for name, leaf in one.items())
    return one.keys() == other.keys() and all(same)


def actors(count: int) -> HardwareConfig:
    return HardwareConfig(engine="ray", device="cpu", workers=count)


@pytest.mark.parametrize("method", sampled(["fedavg", "ditto", "scaffold"], every=3))
def test_any_number_of_actors_gives_what_one_process_gives(ray: Ray, method: str) -> None:
    setup = setup_of(method, "protocol.score=both", "protocol.report=best_test")
    alone, _ = trained(setup, LOOPED)
    for count in (1, 2, 4):
        assert equal(alone, trained(setup, actors(count))[0])
    assert ray.begun == 7


def test_the_state_of_an_optimiser_that_is_kept_stays_with_its_client(ray: Ray) -> None:
    setup = setup_of("fedavg", "protocol.optimizer.state=kept", "protocol.optimizer.momentum=0.9")
    assert equal(trained(setup, LOOPED)[0], trained(setup, actors(2))[0])


@pytest.mark.slow
def test_clients_of_several_kinds(ray: Ray) -> None:
    setup = build(
        resolve(
            compose(
                [
                    "method=fedavg", "dataset=captioned", "model=small_pair", "partition.num_clients=6", "hardware=cpu",
                    "protocol.rounds=2", "protocol.local.epochs=1", "dataset.limit=120", "partition=homo",
                ]
            )
        )
    )  # fmt: skip
    assert equal(trained(setup, LOOPED)[0], trained(setup, actors(3))[0])


def test_an_actor_that_dies_is_replaced_and_its_part_done_again(ray: Ray) -> None:
    setup = setup_of("ditto")
    alone, _ = trained(setup, LOOPED)
    ray.dies = lambda actor, call: actor == 0 and call == 4
    assert equal(alone, trained(setup, actors(2))[0])
    assert ray.begun == 3


def test_a_part_that_kills_every_actor_ends_the_run_in_one_line(ray: Ray) -> None:
    ray.dies = lambda _actor, _call: True
    with pytest.raises(FedbenchError, match=r"an actor of Ray died 3 times in round 1 .*resumes from its last"):
        trained(setup_of("fedavg"), actors(2))


def test_an_error_of_a_client_is_the_run_s(ray: Ray) -> None:
    with pytest.raises(Diverged, match="training diverged in round 2 on client"):
        trained(setup_of("fedavg", "protocol.optimizer.lr=1e30"), actors(2))


def test_who_takes_the_place_of_a_dead_actor_is_checked_too(ray: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [("a", "b")] * 2 + [("other", "b")]
    monkeypatch.setattr(sharded, "hashes", lambda _: found.pop(0))
    ray.dies = lambda _actor, _call: True
    with pytest.raises(ConfigError, match=r"an actor of Ray has other code \(other\) than this process"):
        trained(setup_of("fedavg"), actors(1))


def test_what_is_equal_for_all_crosses_once_and_a_memory_only_to_who_lacks_it(ray: Ray) -> None:
    setup = setup_of("ditto", "protocol.cohort=6")
    model = 4 * sum(leaf.numel() for leaf in setup.task.init(torch.Generator()).values())
    _, trainer = trained(setup, actors(2))
    # Three rounds and two scorings send the global model, the first round and its scoring the initial personal one.
    assert trainer.crossed["shared"] == (3 + 2 + 2) * model
    assert trainer.crossed["down"] == 0, "what an actor trained it has"
    assert trainer.crossed["up"] == 3 * 6 * 2 * model


# ---- what an actor is given, and what crosses, against a stand-in that writes down what it is called with


class Cluster:
    """Stands for the module ray where no actor has to do anything: it answers `hashes`, or what it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **resources: float) -> None:
        self.exceptions = SimpleNamespace(RayError=KeyError)
        self.resources, self.open = resources, False
        self.options: list[dict[str, Any]] = []
        self.given: list[tuple[Any, ...]] = []
        self.answers: Callable[[Any], Any] = lambda promised: promised

        @contextmanager
        def started(address: str | None, resources: Any, where: str) -> Iterator[Cluster]:
            assert (address, resources, where) == (None, {}, "hardware")
            self.open = True
            yield self
            self.open = False

        monkeypatch.setattr(sharded, "started_ray", started)
        monkeypatch.setattr(sharded, "hashes", lambda _: ("code", "data"))

    def cluster_resources(self) -> dict[str, float]:
        return self.resources

    def put(self, value: Any) -> Any:
        return value

    def get(self, promised: Any) -> Any:
        return self.answers(promised)

    def remote(self, **options: Any) -> Callable[[type], Any]:
        self.options.append(options)

        def made(*given: Any) -> Any:
            self.given.append(given)
            known = SimpleNamespace(remote=lambda: ("code", "data"))
            return SimpleNamespace(known=known, work=SimpleNamespace(remote=lambda *order: order))

        return lambda kind: SimpleNamespace(remote=made) if kind is sharded.Shard else pytest.fail("of what?")


CARDS, CORES = {"GPU": 2.0, "CPU": 8.0}, {"CPU": 3.0}


@pytest.mark.parametrize(
    ("there", "device", "workers", "count"),
    sampled([
        (CARDS, "auto", 0, 2), (CARDS, "cuda", 2, 2), (CARDS, "auto", 1, 1), (CARDS, "auto", 3, None),
        (CARDS, "cpu", 0, 4), (CARDS, "cpu", 3, 3), (CORES, "auto", 0, 3), (CORES, "auto", 9, 4), ({}, "auto", 0, 1),
        (CORES, "cuda", 1, None), (CORES, "cpu", 0, 3),
    ], every=3),
)  # fmt: skip
def test_how_many_actors_begin_and_on_what(
    there: dict[str, float], device: str, workers: int, count: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a cohort of four no more; a card each where there are cards and the config takes them."""
    cluster, setup = Cluster(monkeypatch, **there), setup_of("fedavg")
    config = HardwareConfig(engine="ray", device=device, workers=workers)
    if count is None:
        there_are = f"hardware.workers={workers} actors take a GPU each, Ray has {there.get('GPU', 0):g}"
        with pytest.raises(ConfigError, match=there_are):
            sharded.RayTrainer(setup, config, pick_trainer)
        assert not cluster.open, "what was started is ended"
        return
    trainer = sharded.RayTrainer(setup, config, pick_trainer)
    card = device != "cpu" and "GPU" in there
    (given,) = {id(each[0]): each for each in cluster.given}.values()
    assert (len(cluster.given), given[0], given[2]) == (count, setup, pick_trainer)
    assert (given[1].engine, given[1].device) == (("stacked", "cuda") if card else ("looped", "cpu"))
    assert given[1].workers == workers
    assert cluster.options == [{"num_cpus": 0, "num_gpus": card, "scheduling_strategy": "SPREAD"}]
    assert trainer.waited == 0
    assert cluster.open
    trainer.close()
    assert not cluster.open


def test_what_is_refused_ends_what_was_started_and_tells_the_end_of_a_long_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, setup = Cluster(monkeypatch, CPU=1.0), setup_of("fedavg")
    cluster.answers = lambda _: ("code", "other")
    with pytest.raises(ConfigError, match=r"an actor of Ray has other data \(other\) than this process"):
        sharded.RayTrainer(setup, actors(1), pick_trainer)
    assert not cluster.open
    cluster.answers = Mock(side_effect=KeyError("a" * 200 + "b" * 299))
    with pytest.raises(ConfigError, match="an actor of Ray does not start; install fedbench on its ") as caught:
        sharded.RayTrainer(setup, actors(1), pick_trainer)
    assert str(caught.value).endswith("machine: " + "b" * 299 + "'")


@pytest.mark.parametrize(("threads", "expected"), [(0, 1), (3, 3)])
def test_an_actor_leaves_interrupts_to_the_driver_and_has_its_threads(
    threads: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(signal, "signal", lambda *given: told.append(given))
    monkeypatch.setattr(torch, "set_num_threads", told.append)
    sharded.Shard(setup_of("fedavg"), HardwareConfig(device="cpu", threads=threads), lambda *_: Mock())
    assert told == [(signal.SIGINT, signal.SIG_IGN), expected]


def test_a_packed_tree_comes_out_as_it_went_in() -> None:
    tree = {
        "scalar": torch.tensor(2.5, dtype=torch.float64), "half": torch.ones(2).bfloat16(),
        "turned": torch.arange(6.0).view(2, 3).t(), "flag": torch.tensor([True, False]), "learns": torch.ones(2, 2),
        "empty": torch.ones(0, 3),
    }  # fmt: skip
    tree["learns"].requires_grad_()
    there = sharded.packed(tree)
    assert sharded.size(there) == 8 + 4 + 24 + 2 + 16
    for name, leaf in sharded.unpacked(pickle.loads(pickle.dumps(there))).items():
        assert (leaf.dtype, leaf.shape) == (tree[name].dtype, tree[name].shape)
        assert torch.equal(leaf, tree[name])
        leaf.zero_()
    assert tree["learns"].sum() == 4


def test_the_hash_of_the_data_is_that_of_all_samples_and_labels_and_of_code_that_of_methods_inside() -> None:
    setup = setup_of("fedavg")
    federation = setup.federation
    data = b"".join(each.numpy().tobytes() for each in (federation.x, federation.y, federation.sets["train"].values))
    assert sharded.hashes(setup)[1] == f"{zlib.crc32(data):08x}"
    methods = FedAvg(), Ditto(), PerKind(base=FedAvg()), PerKind(base=Ditto())
    codes = [sharded.hashes(dataclasses.replace(setup, method=method))[0] for method in methods]
    assert len(set(codes)) == 4
    assert codes[0] == sharded.hashes(setup_of("fedavg"))[0]


def test_who_is_dealt_to_whom(monkeypatch: pytest.MonkeyPatch) -> None:
    Cluster(monkeypatch, CPU=2.0)
    setup = setup_of("fedavg")
    monkeypatch.setattr(type(setup.federation), "size", lambda _, client: [1, 9, 4, 3, 2, 6][client])
    trainer = sharded.RayTrainer(setup, actors(2), pick_trainer)
    ids = torch.tensor([5, 1, 2, 0])
    assert trainer._dealt(ids, stays=True) == {0: [2, 3], 1: [0, 1]}
    assert trainer._dealt(ids, stays=False) == {0: [1, 3], 1: [0, 2]}
    assert trainer._dealt(torch.tensor([3]), stays=True) == {1: [0]}


def test_what_a_new_actor_lacks_crosses_again_and_seconds_are_those_of_waiting(
    ray: Ray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first actor has three of six clients; it dies when it is to train for the third time."""
    setup = setup_of("ditto", "protocol.cohort=6")
    model = 4 * sum(leaf.numel() for leaf in setup.task.init(torch.Generator()).values())
    ray.dies = lambda actor, call: (actor, call) == (0, 4)
    seconds = itertools.count()
    monkeypatch.setattr(sharded, "time", SimpleNamespace(perf_counter=lambda: next(seconds)))
    trainer = trained(setup, actors(2))[1]
    assert trainer.crossed["down"] == 3 * model
    assert trainer.waited == sum(ray.calls.values()) == 11


def test_a_clients_own_message_crosses_each_time_and_its_memory_once(ray: Ray) -> None:
    setup = setup_of("ditto", "protocol.cohort=6")
    trainer: Any = pick_trainer(setup, actors(2))
    server, memory = setup.method.init(setup.task, setup.population, torch.Generator().manual_seed(0))
    own = {name: torch.stack([leaf[0] + client for client in range(6)]) for name, leaf in memory.items()}
    message = {name: torch.stack([leaf] * 6) for name, leaf in server.items()}
    model = sum(leaf.numel() * 4 for leaf in server.values())
    given = torch.arange(6), message, own, Clock(0, 3), ("local",)
    expected = pick_trainer(setup, LOOPED).evaluate(*given)
    for down in (12, 18, 24):
        found = trainer.evaluate(*given)
        assert trainer.crossed["down"] == down * model
        assert all(torch.equal(a, b) for a, b in zip(found["local"], expected["local"], strict=True))
    trainer.close()


def test_of_several_failures_that_of_the_first_row_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients 0 and 2 are one actor's, 1 and 3 the other's; they stand in the cohort as 1, 0, 2, 3 and 0, 1, 3, 2."""
    cluster, setup = Cluster(monkeypatch, CPU=2.0), setup_of("ditto")
    trainer = sharded.RayTrainer(setup, actors(2), pick_trainer)
    cluster.answers = lambda order: ValueError(order[1].ids.tolist())
    memory = {"kept": torch.arange(4.0)}
    for ids, whose in (([1, 0, 2, 3], [1, 3]), ([0, 1, 3, 2], [0, 2])):
        with pytest.raises(ValueError, match=re.escape(str(whose))):
            trainer.train(torch.tensor(ids), {}, memory, Clock(0, 3))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_actors_of_ray_itself_one_of_which_is_killed() -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed")

    def kill(trainer: Any, completed: int) -> None:
        if completed == 1:
            number = ray.get(trainer._actors[0].__ray_call__.remote(lambda _: os.getpid()))
            os.kill(number, signal.SIGKILL)

    setup = setup_of("ditto")
    assert equal(trained(setup, LOOPED)[0], trained(setup, actors(2), kill)[0])
    assert not ray.is_initialized(), "what the run started, it has ended"
