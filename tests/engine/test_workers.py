"""How clients are dealt to worker processes, and what a process keeps between two blocks."""

from __future__ import annotations

import dataclasses
import functools
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from fedbench.config import compose
from fedbench.core import trees
from fedbench.core.errors import ConfigError, Diverged, FedbenchError
from fedbench.engine import workers
from fedbench.engine.contract import Client, Clock
from fedbench.engine.hooks import HookError
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.optim import KEPT
from fedbench.engine.setup import Setup
from fedbench.engine.workers import (
    BLOCKS_PER_WORKER,
    SharedTree,
    WorkersTrainer,
    WorkOrder,
    in_blocks,
    portable,
    scored_blocks,
    serve,
    spec_of,
    unplain,
)
from fedbench.methods.fedavg import FedAvg
from fedbench.runs.building import build
from fedbench.runs.config import resolve

CLOCK = Clock(0, 2)


def setup(*overrides: str) -> Setup:
    """Five clients of digits, scored on the test set that all share unless told otherwise."""
    where = ["dataset=digits", "partition=homo", "partition.num_clients=5", "model=mlp", "hardware=cpu"]
    chosen = [*where, "method=fedavg", "protocol.test.pool=false", "protocol.test.sets=both", *overrides]
    return build(resolve(compose.compose(chosen)))


@pytest.mark.parametrize("work", [[9, 1, 1, 1, 9, 1], [5] * 12, [1], [0, 0, 0], [100, 1, 1, 1, 1, 1]])
def test_every_row_is_dealt_once_the_most_work_first(work: list[float]) -> None:
    blocks = in_blocks(work, 4)
    assert sorted(row for block in blocks for row in block) == list(range(len(work)))
    assert len(blocks) <= 4
    sums = [sum(work[row] for row in block) for block in blocks]
    assert sums == sorted(sums, reverse=True)


@pytest.mark.parametrize("count", [2, 8, 12])
@pytest.mark.parametrize("work", [[66.0] * 10 + [1.0] * 10, [4000.0, 3500.0, *[300.0] * 10]])
def test_blocks_are_of_similar_work(work: list[float], count: int) -> None:
    most = max(sum(work[row] for row in block) for block in in_blocks(work, count))
    two_in_one = sum(sorted(work, reverse=True)[count - 1 : count + 1])  # some block holds two of the largest
    at_best = max(sum(work) / count, two_in_one if len(work) > count else 0.0, *work)
    assert most <= 4 / 3 * at_best, "Graham (1969): never worse than 4/3 of the best"


def test_each_goes_where_there_is_least_by_hand() -> None:
    assert in_blocks([0.1, 0.1, 0.1, 0.2], 3) == [[3], [0, 2], [1]]
    assert in_blocks([1e-17] * 3, 3) == [[0], [1], [2]]


def test_scoring_is_dealt_by_what_is_scored_and_training_by_what_is_trained_on() -> None:
    chosen = setup()
    trainer = object.__new__(WorkersTrainer)  # no processes are needed to ask
    trainer.setup = chosen
    federation = chosen.federation
    own = len(federation.indices("local", 2))
    assert trainer._work("train", 2, CLOCK, ("local",)) == federation.size(2)
    assert trainer._work("evaluate", 2, CLOCK, ("local",)) == own
    assert trainer._work("evaluate", 2, CLOCK, ("local", "global")) == own + len(federation.global_test)
    trainer.setup = setup("method=finetune")
    assert trainer._work("evaluate", 2, CLOCK, ("local",)) == own + federation.size(2), "it trains first"


def test_little_scoring_is_one_block_a_worker_and_much_is_some() -> None:
    assert scored_blocks(0, 2) == scored_blocks(7_000, 2) == scored_blocks(19_999, 2) == 1
    assert scored_blocks(20_000, 2) == 2
    assert scored_blocks(10**9, 2) == BLOCKS_PER_WORKER


class Fated(FedAvg):
    """In the first round a client may fail, and another take its time: what becomes of whom is sent along."""

    def start(self, client: Client) -> trees.Tree:
        fate = int(client.message["fate"])
        if client.clock.round == 0 and fate == LATE:
            time.sleep(1.0)
        if client.clock.round == 0 and fate == FAILS:
            raise Odd("who", "why")
        return {name: leaf for name, leaf in client.message.items() if name != "fate"}


FAILS, LATE = 1, 2


class Odd(ValueError):
    """Does not come out of a pipe as it went in."""

    def __init__(self, who: str, why: str) -> None:
        super().__init__(f"{who}: {why}")


@pytest.mark.slow
def test_after_a_failure_nothing_is_left_over_for_the_next_call() -> None:
    chosen = dataclasses.replace(setup(), method=Fated())
    model = trees.expand(chosen.task.init(torch.Generator().manual_seed(0)), 5)
    dealt = [block[0] for block in in_blocks([chosen.federation.size(client) for client in range(5)], 12)]
    fates = torch.zeros(5)
    fates[dealt[0]], fates[dealt[1]] = LATE, FAILS
    message = {**model, "fate": fates}
    trainer = WorkersTrainer(chosen, 2)
    try:
        with pytest.raises(HookError, match="Odd: who: why"):
            trainer.train(torch.arange(5), message, {}, CLOCK)
        ids, later = torch.arange(4, -1, -1), Clock(1, 2)
        after = trainer.train(ids, message, {}, later)
        time.sleep(1.5)  # a process that was late would have written by now
        written = trees.clone(trainer._buffers["upload"].leaves())
    finally:
        trainer.close()
    looped = LoopedTrainer(chosen).train(ids, message, {}, later)
    assert torch.equal(after.loss, looped.loss)
    for name, leaf in looped.uploads.items():
        assert torch.equal(after.uploads[name], leaf)
        assert torch.equal(written[name], leaf), "a process of the failed call was still writing"


@pytest.mark.slow
def test_an_interrupt_ends_the_processes() -> None:
    chosen = dataclasses.replace(setup(), method=Fated())
    model = trees.expand(chosen.task.init(torch.Generator().manual_seed(0)), 5)
    trainer = WorkersTrainer(chosen, 2)
    processes = list(trainer._processes)
    fates = torch.full((5,), float(LATE))
    fates[0] = 0  # it is started in this process, too
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    with pytest.raises(KeyboardInterrupt):
        trainer.train(torch.arange(5), {**model, "fate": fates}, {}, CLOCK)
    assert not any(process.is_alive() for process in processes)


def test_what_workers_count_is_float64_as_elsewhere() -> None:
    counted = {"local": (np.array([1.0]), np.array([2.0]))}
    loss, counts = unplain((0.5, counted))
    assert {loss.dtype, *(each.dtype for each in counts["local"])} == {torch.float64}


@pytest.mark.parametrize("error", [ZeroDivisionError("why"), Diverged("round 3, client 7")])
def test_errors_that_survive_a_pipe_are_raised_as_they_are(error: Exception) -> None:
    found = portable(error)
    assert type(found) is type(error)
    assert str(found) == str(error)


class Link:
    """The worker's end of a pipe, which holds what it will be sent."""

    def __init__(self, *messages: tuple[str, Any]) -> None:
        self.messages = list(messages)
        self.replies: list[Any] = []

    def recv(self) -> tuple[str, Any]:
        if not self.messages:
            raise EOFError
        name, payload = self.messages.pop(0)
        if name == "rewrite":  # as the parent does between two calls, without a word
            for key, leaf in payload[0].leaves().items():
                leaf.copy_(payload[1][key].unsqueeze(0))
            return self.recv()
        return name, payload

    def send(self, reply: Any) -> None:
        self.replies.append(reply)


def test_a_model_that_all_share_is_scored_once_a_call_and_anew_in_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen = setup()
    old, new = (chosen.task.init(torch.Generator().manual_seed(i)) for i in (0, 1))
    message = SharedTree.like(spec_of(trees.expand(old, 5)))
    empty = SharedTree.like({})
    scored: list[int] = []
    count = LoopedTrainer._count

    def spy(self: LoopedTrainer, model: trees.Tree, sets: Any) -> Any:
        scored.extend(len(samples) for samples in sets.values())
        return count(self, model, sets)

    monkeypatch.setattr(LoopedTrainer, "_count", spy)
    told: list[Any] = []
    link = Link(
        ("message", message),
        ("memory", empty),
        ("rewrite", (message, old)),
        ("order", WorkOrder("evaluate", [0, 1], [0, 1], CLOCK, ("global",), 1)),
        ("order", WorkOrder("evaluate", [2], [2], CLOCK, ("global",), 1)),
        ("rewrite", (message, new)),
        ("order", WorkOrder("evaluate", [0, 1], [0, 1], CLOCK, ("global",), 2)),
    )
    monkeypatch.setattr(signal, "signal", lambda *given: told.append(given))
    monkeypatch.setattr(torch, "set_num_threads", told.append)
    serve(link, chosen)  # type: ignore[arg-type]
    ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    assert told == [*((number, signal.SIG_IGN) for number in ends), 1]
    assert scored == [len(chosen.federation.global_test)] * 2, "once a call"
    first, second, third = ([listed(counts) for _, counts in answer] for _, answer in link.replies)
    assert first[0] == first[1] == second[0]
    looped = LoopedTrainer(chosen)
    for found, model in ((first, old), (third, new)):
        correct, total = looped.count(0, model, ("global",))["global"]
        assert found[0]["global"] == (correct.tolist(), total.tolist())
    assert first[0] != third[0]


class Remembering(FedAvg):
    """A client's model is what it is sent, and what it keeps: one part its own, one the same for all."""

    def model(self, work: trees.Tree, client: Client) -> trees.Tree:
        added = client.memory["own"] + client.memory["same"]
        return {name: leaf + added if name == "head.bias" else leaf for name, leaf in work.items()}


def test_rows_of_what_clients_keep_are_their_own_and_what_all_keep_is_stored_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen = dataclasses.replace(setup(), method=Remembering())
    model = chosen.task.init(torch.Generator().manual_seed(0))
    own, same = 3 * torch.eye(10)[:5], torch.linspace(-1, 1, 10)
    kept = {"own": own, **trees.expand({"same": same}, 5)}
    sent = {**model, "head.bias": torch.randn(5, 10, generator=torch.Generator().manual_seed(1))}
    message, memory = (
        SharedTree.like(spec_of(tree)) for tree in ({**trees.expand(model, 5), "head.bias": sent["head.bias"]}, kept)
    )
    assert {name: len(leaf) for name, leaf in memory.leaves().items()} == {"own": 5, "same": 1}
    assert {name: len(leaf) for name, leaf in message.leaves().items()} == {n: 1 + 4 * (n == "head.bias") for n in sent}
    for shared, tree in ((message, sent), (memory, {"own": own, "same": same[None]})):
        for name, leaf in shared.leaves().items():
            leaf.copy_(tree[name])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    clients = [4, 0, 2, 3, 1]
    order = WorkOrder("evaluate", list(range(5)), clients, CLOCK, ("global",), 1)
    link = Link(("message", message), ("memory", memory), ("order", order))
    serve(link, chosen)  # type: ignore[arg-type]
    found = [listed(counts)["global"] for _, counts in link.replies[0][1]]
    looped = LoopedTrainer(chosen)
    for row, client in enumerate(clients):
        held = {**model, "head.bias": sent["head.bias"][row] + own[row] + same}
        correct, total = looped.count(client, held, ("global",))["global"]
        assert found[row] == (correct.tolist(), total.tolist())
    assert len({tuple(each[0]) for each in found}) > 1


# What the parent does, against links that answer as they are told to.


class Far:
    """Our end of a link: writes down the rows of every order, and answers what `answers` makes of them."""

    def __init__(self, told: list[list[int]], answers: Callable[[list[int]], Any]) -> None:
        self.told, self.answers = told, answers
        self.rows, self.closed = list[int](), False

    def send(self, message: tuple[str, Any]) -> None:
        name, payload = message
        if name == "order":
            assert payload.ids == [4 - row for row in payload.rows]
            self.told.append(payload.rows)
            self.rows = payload.rows

    def recv(self) -> Any:
        found = self.answers(self.rows)
        if isinstance(found, BaseException):
            raise found
        return found

    def close(self) -> None:
        self.closed = True


def parent(monkeypatch: pytest.MonkeyPatch, *answers: Callable[[list[int]], Any]) -> tuple[Any, list[list[int]]]:
    """A trainer of clients of 5 to 1 samples whose processes are such links, and the rows that they were dealt."""
    told: list[list[int]] = []
    links = [Far(told, each) for each in answers]
    monkeypatch.setattr(workers, "start", lambda *given: ([], links[: given[2]]))
    monkeypatch.setattr(workers, "wait", lambda busy: busy)
    monkeypatch.setattr(type(shared().federation), "size", lambda _, client: 1 + client)
    return WorkersTrainer(shared(), len(links)), told


@functools.cache
def shared() -> Setup:
    return setup()


def done(rows: list[int]) -> Any:
    return "done", [(float(row), {"local": (np.array([float(row)]), np.array([2.0]))}) for row in rows]


def listed(counts: dict[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, tuple[list[float], list[float]]]:
    """Counts as a process answers with them, to be compared."""
    return {name: (correct.tolist(), total.tolist()) for name, (correct, total) in counts.items()}


def test_the_most_work_is_dealt_first_and_answers_come_back_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, told = parent(monkeypatch, done, done)
    assert trainer.setup.federation.x.is_shared()
    ids = torch.arange(4, -1, -1)
    replies = trainer._deal("train", ids, CLOCK, ("local",))
    assert told == [[0], [1], [2], [3], [4]], "the client of five samples before that of four"
    assert [float(loss) for loss, _ in replies] == [0, 1, 2, 3, 4]
    assert [float(counts["local"][0]) for _, counts in replies] == [0, 1, 2, 3, 4]
    told.clear()
    trainer._deal("evaluate", ids, CLOCK, ("local",))
    assert len(told) == 2, "there is too little to score for more than a block each"
    assert sorted(row for rows in told for row in rows) == [0, 1, 2, 3, 4]


def test_after_a_failure_no_more_is_dealt_but_what_was_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = ValueError("first"), ValueError("second")
    trainer, told = parent(monkeypatch, lambda _: ("error", second), lambda _: ("error", first))
    with pytest.raises(ValueError, match="first"):
        trainer._deal("train", torch.arange(4, -1, -1), CLOCK, ())
    assert told == [[0], [1]]
    links = list(trainer._links)
    assert not any(link.closed for link in links)
    trainer.close()
    assert all(link.closed for link in links)


@pytest.mark.parametrize("end", [EOFError(), ConnectionResetError(), KeyboardInterrupt()])
def test_a_process_that_ends_ends_all_and_an_earlier_failure_is_told(
    end: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = KeyboardInterrupt if isinstance(end, KeyboardInterrupt) else FedbenchError
    for before, error in (((), told), ((lambda _: ("error", ValueError("why")),), ValueError)):
        trainer, _ = parent(monkeypatch, lambda _: end, *before)
        links = list(trainer._links)
        with pytest.raises(error):
            trainer._deal("train", torch.arange(4, -1, -1), CLOCK, ())
        assert all(link.closed for link in links)
    trainer, _ = parent(monkeypatch, done)
    trainer._links[0].send = Mock(side_effect=BrokenPipeError)
    with pytest.raises(FedbenchError, match="a worker process died"):
        trainer._deal("train", torch.arange(4, -1, -1), CLOCK, ())


def test_a_lone_client_tells_the_shapes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, _ = parent(monkeypatch, done)
    model = trees.map_leaves(lambda leaf: leaf.unsqueeze(0), shared().task.init(torch.Generator()))
    upload, kept = trainer._specimen(torch.tensor([3]), model, {}, CLOCK)
    assert (spec_of(upload), kept) == (spec_of(model), {})
    assert spec_of(upload, 4)["head.bias"] == ((4, 10), torch.float32)
    _, kept = trainer._specimen(torch.tensor([3]), model, {f"{KEPT}/0/own": torch.ones(1, 2)}, CLOCK)
    assert spec_of(kept) == {f"{KEPT}/0/own": ((1, 2), torch.float32)}


def test_processes_are_begun_without_signals_and_links_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []

    def blocked() -> set[int]:
        return {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])}

    class Context:
        def __init__(self, name: str) -> None:
            assert name == "forkserver"
            self.number = 0

        def set_forkserver_preload(self, names: list[str]) -> None:
            told.append(names)

        def Pipe(self) -> tuple[str, Any]:
            self.number += 1
            return f"ours {self.number}", Mock(close=lambda number=self.number: told.append(f"closed {number}"))

        def Process(self, target: Any, args: Any, daemon: bool) -> Any:
            assert (target, args[1:], daemon) == (serve, ("argument",), True)
            return Mock(start=lambda: told.append("started"))

    before = blocked()
    monkeypatch.setattr(torch.multiprocessing, "get_context", Context)
    monkeypatch.setattr(forkserver, "ensure_running", lambda: told.append(blocked() - before))
    monkeypatch.setattr(workers, "_name_a_known_start_method", lambda: told.append("named"))
    processes, links = workers.start(serve, "argument", 2)
    signals = {int(signal.SIGINT), int(signal.SIGTERM), int(signal.SIGHUP)}
    assert told == ["named", [serve.__module__], signals, "started", "closed 1", "started", "closed 2"]
    assert (len(processes), [str(link) for link in links]) == (2, ["ours 1", "ours 2"])
    assert blocked() == before


@pytest.mark.parametrize("name", [None, "spawn", "fork", "loky"])
def test_only_an_unknown_way_to_start_processes_is_replaced(name: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda *, allow_none: {True: name}[allow_none])
    monkeypatch.setattr(multiprocessing, "set_start_method", lambda method, force: told.append((method, force)))
    workers._name_a_known_start_method()
    assert told == ([("spawn", True)] if name == "loky" else [])


def test_the_cores_are_those_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "cpu_count", lambda: 9)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2} if process == 0 else {0}, raising=False)
    assert workers.available_workers() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    assert workers.available_workers() == 9


# Worker processes never import the script that started them, nor die of a signal that is meant for it.


def script_setup() -> Setup:
    chosen = ["partition=homo", "partition.num_clients=2", "dataset.limit=40", "model=mlp", "hardware=cpu"]
    return build(resolve(compose.compose(chosen)))


def train(trainer: WorkersTrainer) -> None:
    model = trees.expand(trainer.setup.task.init(torch.Generator().manual_seed(0)), 2)
    trainer.train(torch.arange(2), model, {}, Clock(0, 2))


def test_a_script_without_a_main_guard_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a signal to all processes of the program leaves the workers to it."""
    script, trace = tmp_path / "script.py", tmp_path / "trace"
    script.write_text(f"open({str(trace)!r}, 'w').close()\n")
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__spec__", None)
    monkeypatch.setattr(main, "__file__", str(script), raising=False)
    trainer = WorkersTrainer(script_setup(), 1)
    try:
        assert sys.modules["__main__"] is main
        train(trainer)
        server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
        for process in (trainer._processes[0].pid, server):
            os.kill(process, signal.SIGTERM)
        train(trainer)
        os.kill(server, 0)  # it lives
    finally:
        trainer.close()
    assert not trace.exists()


def test_what_the_script_defines_is_refused_clearly(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = type("Mine", (FedAvg,), {"__module__": "__main__"})
    monkeypatch.setattr(sys.modules["__main__"], "Mine", mine, raising=False)
    with pytest.raises(ConfigError, match=r"Mine.*to a module .*hardware\.engine=looped"):
        WorkersTrainer(dataclasses.replace(script_setup(), method=mine()), 1)
