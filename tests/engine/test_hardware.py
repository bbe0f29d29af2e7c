"""A device and an engine by the hardware config, steps that are timed, and models of two moments that compete."""

from __future__ import annotations

import itertools
import math
import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor

from fedbench.config import compose
from fedbench.config.schema import HardwareConfig, LocalConfig, OptimizerConfig, ProtocolConfig, TestConfig
from fedbench.core.batch import Population
from fedbench.core.errors import ConfigError, Diverged
from fedbench.core.trees import Tree
from fedbench.engine import graphs, hardware, schedule, timing
from fedbench.engine import hardware as memory
from fedbench.engine.contract import Client, Clock, Stage
from fedbench.engine.graphs import WARM
from fedbench.engine.hardware import pick_device, pick_trainer
from fedbench.engine.history import History, Record
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.setup import Setup, drawn
from fedbench.engine.simulation import Simulation, pack, unpack
from fedbench.engine.stacked import StackedTrainer
from fedbench.engine.timing import EngineCandidate, run_steps, time_engines
from fedbench.engine.trainer import Outcome, Trainer
from fedbench.methods.ditto import Ditto
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedrep import FedRep
from fedbench.metrics import Tally
from fedbench.models.small import MLP
from fedbench.models.task import Task
from fedbench.runs.config import resolve
from fedbench.testing.checks import rerun
from tests.helpers.tiers import sampled
from tests.methods.toys import federation, setup, simulate


class Workers(LoopedTrainer):
    """Stands for WorkersTrainer, without its processes."""

    def __init__(self, chosen: Setup, workers: int) -> None:
        super().__init__(chosen)
        self.workers = workers


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four cores, no GPU, no processes."""
    monkeypatch.setattr(hardware, "WorkersTrainer", Workers)
    monkeypatch.setattr(hardware, "available_workers", lambda: 4)
    gpus(monkeypatch, 0)


def gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


def picked(chosen: Setup, **config: Any) -> Trainer:
    return pick_trainer(chosen, HardwareConfig(**config))


def test_the_gpu_is_taken_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pick_device(HardwareConfig()) == torch.device("cpu")
    gpus(monkeypatch, 2)
    assert pick_device(HardwareConfig()) == torch.device("cuda")
    assert pick_device(HardwareConfig(device="cpu")) == torch.device("cpu")
    assert pick_device(HardwareConfig(device="cuda:1")) == torch.device("cuda:1")


@pytest.mark.parametrize(("count", "device"), [(0, "cuda"), (0, "cuda:0"), (2, "cuda:2"), (2, "cuda:x")])
def test_a_gpu_that_is_not_there_is_refused(count: int, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, count)
    seen = "2 GPU" if count else "no GPU"
    with pytest.raises(ConfigError, match=rf"hardware\.device={device}: .* sees {seen}.*; use hardware=cpu"):
        pick_device(HardwareConfig(device=device))


@pytest.fixture
def steps_take(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Say how many seconds a step takes with each engine."""

    def say(**seconds: float) -> None:
        def pace(_setup: Setup, contenders: dict[str, EngineCandidate]) -> dict[str, float]:
            return {name: seconds[name] for name in contenders}

        monkeypatch.setattr(hardware, "time_engines", pace)

    return say


def test_workers_start_where_they_save_more_than_they_cost(steps_take: Callable[..., None]) -> None:
    """A round with everyone is 16 steps of 0.1 s; four workers save three quarters of that, two a half."""
    steps_take(looped=0.1)
    assert run_steps(setup(FedAvg(), rounds=1)) == 16
    limit = hardware.WORKERS_START
    worth = {workers: math.floor(limit / (1.6 * (1 - 1 / workers))) + 1 for workers in (2, 4)}
    for workers, rounds in worth.items():
        assert type(picked(setup(FedAvg(), rounds=rounds - 1), workers=workers)) is LoopedTrainer
        long = picked(setup(FedAvg(), rounds=rounds), workers=workers)
        assert isinstance(long, Workers)
        assert long.workers == workers
    everyone = picked(setup(FedAvg(), rounds=99))
    assert isinstance(everyone, Workers)
    assert everyone.workers == 4, "all cores"
    assert type(picked(setup(FedAvg(), rounds=99, cohort=0.2))) is LoopedTrainer, "one client a round"
    assert type(picked(setup(FedAvg(), rounds=99), workers=1)) is LoopedTrainer
    steps_take(looped=0.0001)
    assert type(picked(setup(FedAvg(), rounds=99))) is LoopedTrainer


@dataclass(frozen=True)
class Filled(FedAvg):
    """Cannot train before its preparation has filled in the weights."""

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        server, memory = super().init(task, population, generator)
        return {name: torch.full_like(leaf, torch.nan) for name, leaf in server.items()}, memory


def test_a_method_that_cannot_be_tried_gets_an_engine_all_the_same(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "cuda_capture", lambda _: None)  # which torch without CUDA does not have
    chosen = setup(Filled())
    with pytest.raises(Diverged):
        timing.time_engines(chosen, {"looped": EngineCandidate(LoopedTrainer)})
    assert type(picked(chosen)) is Workers
    assert not caplog.records, "that it diverges is said by the run"
    chosen.federation.device = torch.device("cuda")
    assert type(picked(chosen, chunk=2)) is StackedTrainer


def test_a_process_that_may_have_no_children_trains_alone(
    steps_take: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps_take(looped=100.0)
    assert type(picked(setup(FedAvg()))) is Workers
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)  # type: ignore[attr-defined]
    assert type(picked(setup(FedAvg()))) is LoopedTrainer


def test_a_gpu_takes_the_faster_of_stacked_and_looped(
    steps_take: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda _: 10**9)
    monkeypatch.setattr(graphs, "cuda_capture", lambda _: None)  # which torch without CUDA does not have
    chosen, single = setup(FedAvg()), setup(FedAvg(), cohort=0.2)
    for each in (chosen, single):
        each.federation.device = torch.device("cuda")
    steps_take(looped=0.002, stacked=0.0001)
    stacked = picked(chosen)
    assert isinstance(stacked, StackedTrainer)
    assert stacked.chunk == 5
    assert type(picked(single)) is LoopedTrainer, "nothing to stack"
    steps_take(looped=0.0029, stacked=0.003)
    assert type(picked(chosen)) is StackedTrainer, "noise is no reason"
    steps_take(looped=0.002, stacked=0.003)
    assert type(picked(chosen)) is LoopedTrainer


@pytest.mark.parametrize(
    ("device", "engine", "cohort", "seconds", "expected"),
    [
        ("cpu", "auto", 1.0, 0.5, 2.0),
        ("cuda", "auto", 1.0, 0.5, 0.5),
        ("cuda", "auto", 1.0, 3.0, 2.0),
        ("cuda", "stacked", 1.0, 3.0, 3.0),
        ("cuda", "looped", 1.0, 0.5, 2.0),
        ("cuda", "auto", 0.2, 0.5, 2.0),
    ],
)
def test_a_step_is_timed_with_the_engine_that_trains(
    device: str,
    engine: str,
    cohort: float,
    seconds: float,
    expected: float,
    steps_take: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A step takes 2 s with the plain loop; a single client is not stacked."""
    monkeypatch.setattr(memory, "free_bytes", lambda _: 10**9)
    monkeypatch.setattr(graphs, "cuda_capture", lambda _: None)
    steps_take(looped=2.0, stacked=seconds)
    chosen = setup(FedAvg(), cohort=cohort)
    chosen.federation.device = torch.device(device)
    assert hardware.pace(chosen, HardwareConfig(engine=engine)) == expected


@pytest.mark.parametrize(("chunk", "graph", "at_once"), [(3, "auto", 3), (9, "auto", 5), (3, "off", None)])
def test_on_a_gpu_is_tried_what_would_train_and_ways_are_chosen_where_it_captures(
    chunk: int, graph: str, at_once: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At exactly the share of the stacked engine's time that is clear, noise may still turn the choice around."""
    told: list[Any] = []

    def pace(setup: Setup, contenders: dict[str, EngineCandidate]) -> dict[str, float]:
        built = contenders["stacked"].build(setup)
        assert isinstance(built, StackedTrainer)
        assert (contenders["looped"].build, contenders["looped"].clients) == (LoopedTrainer, 1)
        told.append((contenders["stacked"].clients, built.chunk, built.capture))
        return {"looped": hardware.CLEARLY * 0.5, "stacked": 0.5}

    monkeypatch.setattr(hardware, "capture_for", lambda _: rerun if graphs.allowed.get() else None)
    monkeypatch.setattr(hardware, "choose", lambda _, clients: told.append(clients))
    monkeypatch.setattr(hardware, "time_engines", pace)
    chosen = setup(FedAvg())
    chosen.federation.device = torch.device("cuda")
    assert type(picked(chosen, chunk=chunk, graph=graph)) is StackedTrainer
    assert told == [*([at_once] if at_once else []), (min(chunk, 5), chunk, rerun if at_once else None)]


def test_a_trial_that_fails_is_told_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hardware, "time_engines", Mock(side_effect=ValueError("its weights are missing")))
    assert hardware._tried(setup(FedAvg()), {}) == {}
    assert "no engine could be timed, so the default one trains: its weights are missing" in caplog.text


def test_an_engine_asked_for_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = setup(FedAvg())
    assert type(picked(chosen, engine="looped")) is LoopedTrainer
    for asked, given in ((0, 4), (2, 2)):
        found = picked(chosen, engine="workers", workers=asked)
        assert isinstance(found, Workers)
        assert found.workers == given
    stacked = picked(chosen, engine="stacked", chunk=3)
    assert isinstance(stacked, StackedTrainer)
    assert stacked.chunk == 3
    refusal = pytest.raises(ConfigError, match=r"engine=workers runs on a CPU of Linux or macOS; use stacked or looped")
    with monkeypatch.context() as windows, refusal:
        windows.setattr(hardware, "FORKS", False)
        assert isinstance(picked(chosen), LoopedTrainer)
        picked(chosen, engine="workers")
    chosen.federation.device = torch.device("cuda")
    with refusal:
        picked(chosen, engine="workers")


def test_threads_are_set_where_asked(steps_take: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    steps_take(looped=0.0)
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    picked(setup(FedAvg()), threads=3)
    picked(setup(FedAvg()), threads=0)
    assert asked == [3]


def test_a_step_is_timed_with_the_settings_of_the_run(steps_take: Callable[..., None]) -> None:
    steps_take(looped=0.0)
    usual = HardwareConfig()
    try:
        hardware.pace(setup(FedAvg()), HardwareConfig(precision="tf32", graph="off", threads=2))
        assert (torch.backends.cudnn.allow_tf32, graphs.allowed.get(), torch.get_num_threads()) == (True, False, 2)
        hardware.pace(setup(FedAvg()), usual)
        assert (torch.backends.cudnn.allow_tf32, graphs.allowed.get(), torch.get_num_threads()) == (False, True, 1)
    finally:
        hardware.apply(usual)


@pytest.mark.parametrize("wanted", [True, False])
def test_coarse_products_only_where_asked(wanted: bool) -> None:
    hardware.set_precision(tf32=not wanted)
    chosen = setup(FedAvg())
    chosen.federation.device = torch.device("cuda")
    try:
        picked(chosen, engine="looped", precision="tf32" if wanted else "float32")
        assert torch.backends.cuda.matmul.allow_tf32 is torch.backends.cudnn.allow_tf32 is wanted
    finally:
        hardware.set_precision(tf32=False)


def test_a_cpu_has_no_tensorfloat() -> None:
    with pytest.raises(ConfigError, match=r"precision=tf32 needs a GPU"):
        picked(setup(FedAvg()), precision="tf32")


def test_a_run_in_python_has_the_command_lines_hardware() -> None:
    """Torch's own choice of threads on a busy or a large machine is many times slower for small networks."""
    assert resolve(compose.compose([])).hardware == HardwareConfig()
    assert HardwareConfig().threads == 1


# A few steps of a run, timed: what they predict, that they change nothing, that they are timed once.


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBENCH_CACHE", str(tmp_path))


class Ticking:
    """An engine on a clock of its own: a second a step of every client, and `once` seconds a round of a client."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, once: float = 0.0) -> None:
        self.now = 0.0
        self.calls = 0
        for clock in ("thread_time", "perf_counter"):
            monkeypatch.setattr(time, clock, lambda: self.now)
        ticking = self

        class Engine(LoopedTrainer):
            def train(
                self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str] = ()
            ) -> Outcome:
                ticking.calls += 1
                ticking.now += once * len(ids)
                return super().train(ids, message, memory, clock, score)

            def descend(
                self, client: int, work: Tree, view: Client, stages: Sequence[Stage], purpose: str
            ) -> list[Tensor]:
                losses = super().descend(client, work, view, stages, purpose)
                ticking.now += len(losses)
                return losses

        self.contender = {"ticking": EngineCandidate(Engine)}


@pytest.mark.parametrize("epochs", [1, 5, 40])
def test_the_pace_is_a_rounds_time_over_its_steps(epochs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What happens once a round counts once, however few of its steps are taken."""
    chosen = setup(FedAvg(), epochs=epochs)
    steps = max(chosen.steps(client) for client in range(5))
    ticking = Ticking(monkeypatch, once=7.0)
    assert time_engines(chosen, ticking.contender)["ticking"] == pytest.approx((steps + 7) / steps)
    assert ticking.calls == 3, "to warm up, a few steps, some more"
    assert ticking.now <= 3 * 7 + 2 * timing.FEW + timing.MORE


class Scripted:
    """A trainer whose rounds take the seconds that are written down, and what was done about it, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *seconds: float) -> None:
        self.seconds, self.now, self.told = list(seconds), 0.0, list[Any]()
        for clock in ("thread_time", "perf_counter"):
            monkeypatch.setattr(time, clock, lambda: self.now)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device: self.told.append(f"wait for {device}"))
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: self.told.append("emptied"))
        monkeypatch.setattr(timing, "first_round_inputs", lambda _, ids, clock: ({"given": ids}, {"own": clock}))

    def build(self, brief: Setup) -> Any:
        def train(ids: Tensor, message: Any, memory: Any, clock: Clock) -> None:
            assert (message["given"] is ids, memory["own"], clock) == (True, clock, Clock(0, 2))
            given = [brief.source(brief, client, Stage(), Mock(clock=clock), "batches") for client in ids.tolist()]
            self.told.append((ids.tolist(), len(given[0][0])))
            self.now += self.seconds.pop(0)

        return Mock(train=train)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_gpu_is_waited_for_before_and_after_every_round(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, scripted = setup(FedAvg(), epochs=20), Scripted(monkeypatch, 99.0, 5.0, 3.0)
    chosen.federation.device = torch.device(device)
    monkeypatch.setattr(timing, "drawn", lambda *_: (schedule.Order(torch.arange(40), [1] * 40), {}))
    pace = timing.seconds_a_step(chosen, EngineCandidate(scripted.build, 2))
    assert pace == 3.0 / (60 + 40), "no faster than without the further steps"
    gpu = device == "cuda"
    waits = ["wait for cuda"] * gpu
    first = timing.MORE if gpu else timing.FEW  # in which a GPU captures steps of every kind
    assert first > WARM or not gpu
    rounds = [[*waits, ([3, 1], steps), *waits] for steps in (first, timing.FEW, timing.MORE)]
    assert scripted.told == [*itertools.chain(*rounds), *["emptied"] * gpu]


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_round_of_few_steps_is_timed_whole(epochs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, scripted = setup(FedAvg(), federation((8, 8)), epochs=epochs), Scripted(monkeypatch, 9.0, 1.0, 4.0)
    order = schedule.Order(torch.arange(epochs), [1] * epochs)
    monkeypatch.setattr(timing, "drawn", lambda *_: (order, {}))
    assert timing.seconds_a_step(chosen, EngineCandidate(scripted.build)) == 4.0 / epochs


def test_the_largest_client_is_part_of_what_a_time_is_remembered_by() -> None:
    keys = {timing._key(setup(FedAvg(), federation(sizes)), {}) for sizes in ((3, 9, 20), (3, 9, 21), (3, 8, 21))}
    assert len(keys) == 2


def test_a_time_is_remembered_for_every_learning_rate_and_no_other_optimiser() -> None:
    optimizers = OptimizerConfig(), OptimizerConfig(lr=0.01), OptimizerConfig(momentum=0.9)
    first, slow, heavy = (timing._key(setup(FedAvg(), optimizer=each), {}) for each in optimizers)
    assert first == slow != heavy


def test_what_a_method_does_besides_is_part_of_a_plain_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ditto trains two models, so a plain step costs two; FedRep's stages have epochs of their own."""
    contender = Ticking(monkeypatch).contender
    assert time_engines(setup(Ditto(), epochs=20), contender)["ticking"] == pytest.approx(2.0)
    rep = FedRep(head_epochs=30, body_epochs=10)
    assert time_engines(setup(rep, epochs=20), contender)["ticking"] == pytest.approx(2.0)


def test_a_cohort_together_is_counted_by_its_clients_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Ticking(monkeypatch).contender["ticking"].build
    assert time_engines(setup(FedAvg()), {"four": EngineCandidate(engine, 4)})["four"] == pytest.approx(1.0)


def test_timing_happens_once_for_the_same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    ticking = Ticking(monkeypatch)
    contender = ticking.contender
    first = time_engines(setup(FedAvg()), contender)
    assert time_engines(setup(FedAvg(), seed=1, rounds=9), contender) == first
    assert ticking.calls == 3
    others = [
        setup(FedAvg(), batch=4),
        setup(Ditto()),
        setup(FedAvg(), model=MLP(hidden=(8,))),
        setup(FedAvg(), federation(dtype=torch.float32)),
    ]
    for other in others:
        time_engines(other, contender)
    time_engines(setup(FedAvg()), {"ticking": EngineCandidate(contender["ticking"].build, 2)})
    assert ticking.calls == 3 * (2 + len(others))


def finished(chosen: Setup) -> Tree:
    """The server's state after all rounds."""
    simulation = Simulation(chosen, LoopedTrainer(chosen))
    state = simulation.begin()
    while not simulation.done(state):
        simulation.step(state)
    return state.server


@pytest.mark.slow
@pytest.mark.parametrize("engine", [LoopedTrainer, lambda brief: StackedTrainer(brief, 3)])
def test_real_engines_are_timed_and_the_run_is_not_touched(engine: Any) -> None:
    chosen, other = setup(Ditto()), setup(Ditto())
    assert 0 < time_engines(chosen, {"engine": EngineCandidate(engine, 3)})["engine"] < 10
    assert chosen.source is drawn
    after, fresh = (finished(each) for each in (chosen, other))
    assert all(torch.equal(leaf, fresh[name]) for name, leaf in after.items())


@pytest.mark.parametrize("local", [LocalConfig(epochs=3, batch_size=8), LocalConfig(iterations=7)])
def test_steps_of_all_are_those_of_each(local: LocalConfig) -> None:
    sizes = torch.tensor([1.0, 8.0, 9.0, 31.0], dtype=torch.float64)
    each = [schedule.steps(int(size), local) for size in sizes]
    assert schedule.all_steps(sizes, local).tolist() == each


def test_the_runs_steps_are_those_of_the_cohorts_expected() -> None:
    chosen = setup(FedAvg(), rounds=7)
    everyone = sum(chosen.steps(client) for client in range(5))
    assert run_steps(chosen) == pytest.approx(7 * everyone)
    assert run_steps(setup(FedAvg(), rounds=7, cohort=0.4)) == pytest.approx(7 * everyone * 2 / 5)


# protocol.score=both: models as received and after training compete for a client's best round, as in FedSaC's code.

VALIDATED = TestConfig(sets="both", val_fraction=0.2)


def tally(*correct: float, total: float = 10) -> Tally:
    return Tally(np.array(correct, dtype=float), np.full(len(correct), total))


def record(done: int, **tallies: Tally) -> Record:
    return Record(done, tallies, 0, 0, {})


# Two clients over two rounds; (test, validation) of each candidate.
COMPETING = History(
    [
        record(0, local=tally(1, 1), val=tally(1, 2)),
        record(
            1,
            local=tally(2, 6),
            val=tally(3, 7),
            trained_local=tally(5, 3),
            trained_val=tally(9, 6),
        ),
        record(
            2,
            local=tally(8, 2),
            val=tally(9, 5),
            trained_local=tally(7, 9),
            trained_val=tally(8, 4),
        ),
    ]
)


def read(rule: str, **options: Any) -> list[float]:
    return COMPETING.report("local", rule, **options).tally.correct.tolist()


def test_each_client_is_read_at_its_best_validation_of_either_moment() -> None:
    # Client 0: 9 of 10 after the first training, and no more later: the first counts. Client 1: 7, as received.
    assert read("best_val", per_client=True) == [5, 6]
    assert COMPETING.report("local", "best_val", per_client=True).rounds.tolist() == [[1, 1]]


def test_one_round_for_all_is_one_moment_for_all() -> None:
    # Mean validation accuracy: received 1.5, 5, 7; trained 7.5, 6.
    assert read("best_val") == [5, 3]
    # Mean test accuracy: received 1, 4, 5; trained 4, 8.
    assert read("best_test") == [7, 9]


def test_rules_that_choose_nothing_read_models_as_received() -> None:
    assert read("last") == [8, 2]
    assert read("mean_last_5") == [10, 8]  # summed over two trained rounds
    with pytest.raises(ConfigError, match="use best_val or best_test"):
        ProtocolConfig(score="both", report="last")


def scores(score: str, **options: Any) -> list[Record]:
    fast = OptimizerConfig(lr=0.5)
    chosen = setup(FedAvg(), test=VALIDATED, optimizer=fast, score=score, report="best_val", rounds=3, **options)
    return list(simulate(chosen).history.records)


def same(one: Tally, other: Tally, clients: Sequence[int]) -> bool:
    return all(
        np.array_equal(getattr(one, part)[list(clients)], getattr(other, part)[list(clients)])
        for part in ("correct", "total")
    )


@pytest.mark.parametrize("cohort", sampled([1.0, 2], every=2))
def test_both_are_what_each_alone_would_be(cohort: float) -> None:
    both, received, trained = (scores(each, cohort=cohort) for each in ("both", "received", "trained"))
    assert [r.round for r in both] == [0, 1, 2, 3]
    assert set(both[-1].tallies) == {
        *("local", "global", "common", "val"),
        *("trained_local", "trained_global", "trained_val"),
    }
    for mine, theirs in zip(both, received, strict=True):
        assert all(same(mine.tallies[name], each, range(len(each))) for name, each in theirs.tallies.items())
    differ = 0
    for mine, theirs in zip(both[1:], trained, strict=True):
        for name, each in theirs.tallies.items():
            seen = np.flatnonzero(each.total)
            waiting = np.flatnonzero(each.total == 0)
            assert same(mine.tallies[f"trained_{name}"], each, seen)
            assert same(mine.tallies[f"trained_{name}"], mine.tallies[name], waiting), "has not trained yet"
            differ += not same(each, mine.tallies[name], seen)
    assert differ, "training must change some score, or this test cannot fail"


def test_an_interrupted_run_reads_the_same() -> None:
    chosen = setup(FedAvg(), test=VALIDATED, score="both", report="best_val", cohort=2, rounds=4, per_client=True)
    whole = simulate(chosen).history
    simulation = Simulation(chosen, LoopedTrainer(chosen))
    state = simulation.begin()
    for _ in range(2):
        simulation.step(state)
    again = unpack(*pack(state), chosen.federation.device)
    while not simulation.done(again):
        simulation.step(again)
    for name in ("local", "global", "common"):
        one, other = (each.report(name, "best_val", per_client=True) for each in (whole, again.history))
        assert np.array_equal(one.tally.correct, other.tally.correct)
        assert np.array_equal(one.rounds, other.rounds)
