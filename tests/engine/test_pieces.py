"""Pieces of the engines on their own: processes that hang, simulations that never began, programs on other tensors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedbench.core import trees
from fedbench.core.trees import Tree
from fedbench.engine import seeds, workers
from fedbench.engine.contract import Clock, Cohort
from fedbench.engine.seeds import Answer, MakeProxy, Request, SimulationThread, merged, split, together
from fedbench.engine.simulation import Newcomers
from fedbench.engine.stacked import BatchPlan, Program, StackedTrainer
from fedbench.engine.trainer import Outcome
from fedbench.methods.fedavg import FedAvg
from tests.helpers.pair import KIND, pair
from tests.methods.toys import federation, gap, setup

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


# ---- several simulations as one


def request(first: int, count: int, *, training: bool = True, score: tuple[str, ...] = (), at: int = 1) -> Request:
    ids = torch.arange(first, first + count)
    return Request(training, ids, {"w": ids.double()[:, None]}, {"m": -ids.float()}, Clock(at, 3), score)


def test_requests_are_put_together_and_their_outcome_is_taken_apart() -> None:
    one, two = request(1, 2, score=("local",)), request(0, 3, score=("local",))
    whole = merged([one, two], [0, 7])
    assert whole.ids.tolist() == [1, 2, 7, 8, 9]
    assert whole.message["w"].flatten().tolist() == [1, 2, 0, 1, 2]
    assert whole.memory["m"].tolist() == [-1, -2, 0, -1, -2]
    assert (whole.training, whole.clock, whole.score) == (True, CLOCK, ("local",))
    numbers = torch.arange(5.0)
    counts = {"local": (numbers[:, None], numbers[:, None] + 10)}
    parts = split(Outcome({"u": numbers}, {"k": numbers + 1}, numbers + 2, counts), [2, 3])
    for part, own in zip(parts, ([0.0, 1.0], [2.0, 3.0, 4.0]), strict=True):
        assert part.uploads["u"].tolist() == own
        assert part.memory["k"].tolist() == [each + 1 for each in own]
        assert part.loss.tolist() == [each + 2 for each in own]
        assert [leaf.flatten().tolist() for leaf in part.counts["local"]] == [own, [each + 10 for each in own]]


def test_requests_are_alike_that_ask_for_the_same_of_leaves_of_one_shape() -> None:
    one = request(0, 2)
    assert one.kind == request(3, 4).kind
    others = [request(0, 2, training=False), request(0, 2, score=("val",)), request(0, 2, at=2)]
    for part in ("message", "memory"):
        own = (
            {"other": torch.zeros(2)},
            {"w": torch.zeros(2, 9), "m": torch.zeros(2, 9)},
            {"w": torch.zeros(2, 1).int()},
        )
        others += [Request(**{**vars(one), part: tree}) for tree in own]
    assert all(one.kind != other.kind for other in others)


def test_the_run_that_is_furthest_behind_goes_first_and_is_scored_before_the_next_trains() -> None:
    def waiting(*requests: Request | None) -> list[int]:
        threads: list[Any] = [SimpleNamespace(request=each, place=place) for place, each in enumerate(requests)]
        threads = [type("Seat", (), vars(each))() for each in threads]
        return [each.place for each in seeds._furthest_behind(threads)]

    assert waiting(request(0, 2, at=2), request(0, 2, at=1), request(5, 1, at=1)) == [1, 2]
    assert waiting(request(0, 2, at=1), request(0, 2, at=1, training=False), None) == [1]


def test_a_simulation_that_never_began_needs_no_end() -> None:
    begun: list[int] = []

    def interrupted(_: MakeProxy) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        together([interrupted, lambda _: begun.append(1)], lambda _: pytest.fail("no engine is needed"))
    assert not begun
    thread: SimulationThread[int] = SimulationThread(lambda _: 3)
    assert (thread.request, thread.seat, thread.stopped) == (None, None, None)
    thread.stop()
    thread.start()
    assert thread.result() == 3
    thread.stop()


def test_a_simulation_that_is_stopped_asks_no_more_however_often_it_tries() -> None:
    asked: list[int] = []

    def stubborn(_: MakeProxy) -> str:
        for attempt in range(3):
            try:
                found = thread._ask(request(attempt, 1)).outcome
                if isinstance(found, BaseException):
                    raise found
            except KeyboardInterrupt:  # noqa: PERF203 - what is tried again
                asked.append(attempt)
        return "done"

    thread: SimulationThread[str] = SimulationThread(stubborn)
    thread.start()
    assert thread.request is not None
    thread.go_on(Answer(KeyboardInterrupt()))
    assert thread.request.ids.tolist() == [1]
    thread.stop()
    assert asked == [0, 1, 2]
    assert thread.request is None
    assert not thread._thread.is_alive()
    assert thread.result() == "done"


# ---- the clients of a kind, and rows of clients that no round met


def test_a_kind_s_cohort_is_served_as_its_clients_are() -> None:
    chosen = pair(FedAvg())
    cohort = chosen.cohort(torch.tensor([1, 2, 4]), CLOCK)
    found = list(cohort.by_kind())
    assert [mask.tolist() for mask, _ in found] == [[True, False, False], [False, True, True]]
    for place, (_, part) in enumerate(found):
        assert part.served.tolist() == [client for client, kind in enumerate(KIND) if kind == place]
        assert part.ids.tolist() == [[1], [2, 4]][place]
        assert part.steps.tolist() == cohort.steps[[[0], [1, 2]][place]].tolist()
        assert part.task is chosen.task.kinds[place]
    (only,) = chosen.cohort(torch.tensor([3]), CLOCK).by_kind()
    assert only[1].served.tolist() == [2, 3, 4], "also those that are not in the cohort"
    alike = setup(FedAvg())
    whole = alike.cohort(torch.tensor([0, 3]), CLOCK)
    ((mask, same),) = whole.by_kind()
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
    square = newcomers._rows("server", "square", torch.ones(3, 3), lend=False)
    assert square.sum() == 9
    assert square.shape == (5, 5)
    for name, leaf in (
        *(("rows", torch.ones(shape)) for shape in ((3, 2, 2), (4, 2), (3, 3))),
        ("one", torch.ones(4)),
        ("new", torch.ones(3, 7)),
    ):
        assert newcomers._rows("server", name, leaf, lend=True) is leaf, "it has no place for clients, or another one"


# ---- a program on other tensors


def test_a_program_on_other_tensors_trains_on_those() -> None:
    """Other weights, messages, batches, masks and sizes: as the program that was made of them."""
    chosen = setup(FedAvg(), federation((8, 16, 16)), batch=8)
    trainer = StackedTrainer(chosen, 9)
    made: list[Program] = []

    def program(ids: list[int], clock: Clock, seed: int) -> Program:
        model = chosen.federation.placed(chosen.task.init(torch.Generator().manual_seed(seed)))
        found: list[Program] = []

        def keep(chunk: Any) -> Outcome:
            (stage,) = chosen.method.stages(chosen.protocol.local, clock)
            work = trees.clone(trainer.map("start", "start", chosen.method.start, chunk))
            plan = trainer._plan(chunk, stage, "batches")
            found.append(Program(trainer, stage, chunk, work, plan, {}))
            return Outcome({}, {}, torch.zeros(len(ids)))

        trainer.in_chunks(torch.tensor(ids), trees.expand(model, len(ids)), {}, clock, keep)
        made.extend(found)
        return found[0]

    first, second = program([1, 2], CLOCK, 0), program([2, 1], Clock(2, 3), 1)
    assert isinstance(first.plan, BatchPlan)
    assert not torch.equal(first.plan.indices, second.plan.indices)
    given = {name: leaf.clone() for name, leaf in second.inputs().items()}
    assert {"own/indices", "own/mask", "own/sizes", "own/steps"} <= given.keys()
    other = first.over(given)
    for name, leaf in other.inputs().items():
        assert leaf is given[name] or leaf.data_ptr() == given[name].data_ptr(), name
    before = trees.clone(first.work)
    other.run()
    second.run()
    assert gap(other.work, second.work) == 0
    assert torch.equal(other.total, second.total)
    assert gap(first.work, before) == 0
    state = {name: torch.full_like(leaf, 3) for name, leaf in other.state().items()}
    again = first.over(given, state)
    assert all(leaf is state[name] for name, leaf in again.state().items() if name != "count")
