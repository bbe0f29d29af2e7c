"""Several simulations on one engine, without training: who is asked what, when, and what an error or a signal ends."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedbench.config.schema import OptimizerConfig
from fedbench.core.errors import Diverged
from fedbench.core.signals import Stopped
from fedbench.core.trees import Tree
from fedbench.engine import seeds
from fedbench.engine.contract import Clock
from fedbench.engine.seeds import Answer, MakeProxy, Request, SimulationThread, TrainerProxy, joint_setup, together
from fedbench.engine.trainer import Counts, Outcome, Trainer
from fedbench.methods.fedavg import FedAvg
from tests.methods.toys import setup

CLIENTS = (3, 4, 2)


class Echo(Trainer):
    """Trains nothing: an upload tells who sent it, and each call takes `takes` seconds of a clock of its own."""

    now = 0.0

    def __init__(self, setup: Any, error: Exception | None = None, takes: float = 2.0) -> None:
        super().__init__(setup)
        self.error, self.takes = error, takes
        self.asked: list[list[int]] = []
        self.closed = 0

    def train(self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str] = ()) -> Outcome:
        self.asked.append(ids.tolist())
        Echo.now += self.takes
        if self.error:
            raise self.error
        return Outcome({"id": ids + message["add"]}, {}, torch.zeros(len(ids)))

    def evaluate(self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str]) -> Counts:
        return {"local": (self.train(ids, message, memory, clock).uploads["id"], ids)}

    def close(self) -> None:
        self.closed += 1


def run(own: Echo, rounds: int = 2, last: Callable[[], Any] = lambda: None) -> Callable[[MakeProxy], list[Any]]:
    """A simulation of so many rounds of clients 0 and 1, scored in between."""

    def work(make: MakeProxy) -> list[Any]:
        trainer, found = make(own), list[Any]()
        ids, message = torch.arange(2), {"add": torch.full((2,), 10 * own.setup.seed)}
        for number in range(rounds):
            begin = trainer.clock()
            found.append(trainer.train(ids, message, {}, Clock(number, 9)).uploads["id"].tolist())
            found.append(trainer.evaluate(ids, message, {}, Clock(number + 1, 9), ("local",))["local"][0].tolist())
            found.append(trainer.clock() - begin)
        last()
        trainer.close()
        return found

    return work


def engines() -> list[Echo]:
    places = enumerate(CLIENTS)
    return [Echo(SimpleNamespace(federation=SimpleNamespace(clients=n), seed=place)) for place, n in places]


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "perf_counter", lambda: Echo.now)


def test_alike_requests_are_served_as_one_and_cost_each_its_share() -> None:
    each, joint, made = engines(), Echo(None, takes=6.0), list[Any]()

    def make(setups: Sequence[Any]) -> Trainer:
        made.append(setups)
        return joint

    found = together([run(own) for own in each], make)
    assert made == [[own.setup for own in each]], "one engine for all, made once"
    assert joint.asked == [[0, 1, 3, 4, 7, 8]] * 4, "clients of the second run stand behind the three of the first"
    add = torch.arange(3) * 10
    for place, (own, result) in enumerate(zip(each, found, strict=True)):
        first = {0: 0, 1: 3, 2: 7}[place]
        answer = [first + int(add[place]), first + 1 + int(add[place])]
        assert result == [answer, answer, 4.0] * 2
        assert (own.asked, own.closed) == ([], 1)
    assert joint.closed == 1


def test_requests_are_alike_whose_clients_send_and_keep_leaves_of_one_kind() -> None:
    one = Request(True, torch.arange(2), {"a": torch.zeros(2, 3, 4)}, {"m": torch.zeros(2)}, Clock(1, 9), ("local",))
    more = replace(one, ids=torch.arange(5), message={"a": torch.ones(5, 3, 4)}, memory={"m": torch.ones(5)})
    assert more.kind == one.kind, "how many clients ask and what stands in the leaves does not matter"
    others = [
        {"training": False}, {"clock": Clock(2, 9)}, {"score": ()}, {"message": {"b": torch.zeros(2, 3, 4)}},
        {"message": {"a": torch.zeros(2, 2, 4)}}, {"message": {"a": torch.zeros(2, 3)}}, {"memory": {}},
        {"message": {"a": torch.zeros(2, 3, 4).double()}}, {"memory": {"m": torch.zeros(2, 1)}},
        {"message": {"a": torch.zeros(2, 3, 4), "b": torch.zeros(2)}},
    ]  # fmt: skip
    assert len({one.kind, *(replace(one, **other).kind for other in others)}) == 1 + len(others)


def test_one_that_is_left_alone_is_served_by_its_own_engine_and_pays_all() -> None:
    each, joint = engines()[:2], Echo(None)
    found = together([run(each[0], 1), run(each[1], 2)], lambda _: joint)
    assert len(joint.asked) == 2
    assert each[1].asked == [[0, 1]] * 2
    assert found[1][3:] == [[10, 11], [10, 11], 4.0]  # type: ignore[index]
    assert together([run(engines()[2])], lambda _: pytest.fail("nobody to be with")) == [[[20, 21], [20, 21], 4.0] * 2]


@pytest.mark.parametrize(
    ("error", "warned"), [(Diverged("on client 3"), False), (ValueError("unlike shapes"), True)], ids=str
)
def test_a_joint_step_that_fails_is_taken_by_each_alone(
    error: Exception, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    each, joint = engines()[:2], Echo(None, error)
    each[1].error = ZeroDivisionError("its own")
    with caplog.at_level(logging.WARNING, "fedbench"):
        good, bad = together([run(own, 1) for own in each], lambda _: joint)
    assert good == [[0, 1], [0, 1], 4.0]
    assert bad is each[1].error
    told = ["a step of 2 runs as one failed, each takes it alone: unlike shapes"] * warned
    assert [record.getMessage() for record in caplog.records] == told
    assert joint.closed == 1


def test_without_an_engine_for_all_each_has_its_own(caplog: pytest.LogCaptureFixture) -> None:
    each, tried = engines()[:2], list[int]()

    def joint(_: Any) -> Trainer:
        tried.append(1)
        raise MemoryError("no room")

    found = together([run(own, 1) for own in each], joint)
    assert found == [[[0, 1], [0, 1], 4.0], [[10, 11], [10, 11], 4.0]]
    assert tried == [1]
    assert "the runs train one by one, an engine for all of them failed: no room" in caplog.text


def test_signals_are_told_when_all_have_stopped_and_an_interrupt_stops_the_others() -> None:
    def stop(where: str) -> Callable[[], Any]:
        def raising() -> None:
            raise Stopped(signal.SIGTERM, where)

        return raising

    each, joint = engines(), Echo(None)
    works = [run(each[0], 1, stop("first, round 1")), run(each[1], 2), run(each[2], 1, stop("third, round 1"))]
    with pytest.raises(Stopped) as caught:
        together(works, lambda _: joint)
    assert (caught.value.number, caught.value.where) == (signal.SIGTERM, "first, round 1\nthird, round 1")
    assert len(each[1].asked) == 2, "the other went on to its end"
    ended: list[str] = []

    def interrupted() -> None:
        raise KeyboardInterrupt

    def noting(make: MakeProxy) -> None:
        try:
            run(each[1], 9)(make)
        except KeyboardInterrupt:
            ended.append("interrupted")
            raise

    with pytest.raises(KeyboardInterrupt) as other:
        together([run(each[0], 1, interrupted), noting], lambda _: joint)
    assert not isinstance(other.value, Stopped)
    assert ended == ["interrupted"]
    assert joint.closed == 2


@pytest.mark.parametrize("error", [None, ValueError("why"), Stopped(2, "here"), KeyboardInterrupt(), SystemExit()])
def test_what_a_simulation_ends_with(error: BaseException | None) -> None:
    """Errors are its result, a signal that was held back is kept, anything else interrupts who waits."""

    def work(_: MakeProxy) -> str:
        thread._ask(Request(True, torch.arange(1), {}, {}, Clock(0, 1)))
        if error is not None:
            raise error
        return "done"

    thread: SimulationThread[str] = SimulationThread(work)
    assert thread._thread.daemon, "it never keeps the program from ending"
    thread.start()
    if error is None or isinstance(error, Exception | Stopped):
        thread.go_on(Answer(Outcome({}, {}, torch.zeros(1))))
        assert thread.stopped is (error if isinstance(error, Stopped) else None)
        if not isinstance(error, Stopped):
            assert thread.result() == (error or "done")
    else:
        with pytest.raises(type(error)):
            thread.go_on(Answer(Outcome({}, {}, torch.zeros(1))))
    thread.stop()


def test_the_clock_of_a_proxy_leaves_out_what_others_take() -> None:
    own = engines()[0]

    def ask(_: Request) -> Answer:
        Echo.now += 7.0
        return Answer(Outcome({}, {}, torch.zeros(1)), 3.0)

    proxy = TrainerProxy(own, ask)
    assert (proxy.setup, proxy.clock()) == (own.setup, Echo.now)
    for waited in (4.0, 8.0):
        proxy.train(torch.arange(1), {}, {}, Clock(0, 1))
        assert proxy.clock() == Echo.now - waited


def test_a_joint_setup_is_the_first_with_the_clients_of_all() -> None:
    one, two = setup(FedAvg(), seed=3), setup(FedAvg(), seed=5)
    whole = joint_setup([one, two])
    assert (whole.seed, whole.seeds, whole.runs, whole.members, whole.at_once) == (3, (3, 5), (3, 5), 0, 10)
    assert [whole.seed_of(client) for client in (0, 4, 5, 9)] == [3, 3, 5, 5]
    assert (whole.rates, whole.lr_of(9)) == ((), 0.1)
    slow = setup(FedAvg(), seed=3, optimizer=OptimizerConfig(lr=0.02))
    apart = joint_setup([one, slow])
    assert [apart.lr_of(client) for client in (0, 4, 5, 9)] == [0.1, 0.1, 0.02, 0.02]
    assert [apart.client(client, {}, {}, Clock(0, 1)).lr for client in (4, 5)] == [0.1, 0.02]
    alone = seeds.merged([Request(True, torch.arange(2), {"a": torch.ones(2)}, {}, Clock(0, 1))], [4])
    assert (alone.ids.tolist(), alone.message["a"].tolist()) == ([4, 5], [1, 1])
