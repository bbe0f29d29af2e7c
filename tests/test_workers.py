"""How clients are dealt to worker processes, and what a process keeps between two blocks."""

from __future__ import annotations

import dataclasses
import signal
from typing import Any

import pytest
import torch

from fedbench import compose
from fedbench.engine import trees
from fedbench.engine.contract import Batch, Client, Clock
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.setup import Setup
from fedbench.engine.shared_tree import SharedTree, spec_of
from fedbench.engine.worker import Order, serve
from fedbench.engine.workers import BLOCKS_PER_WORKER, WorkersTrainer, in_blocks, scored_blocks
from fedbench.methods.fedavg import FedAvg
from fedbench.run import build

CLOCK = Clock(0, 2)


def setup(*overrides: str) -> Setup:
    """Five clients of digits, scored on the test set that all share unless told otherwise."""
    where = ["dataset=digits", "partition=homo", "partition.num_clients=5", "model=mlp", "hardware=cpu"]
    chosen = [*where, "method=fedavg", "protocol.test.pool=false", "protocol.test.sets=both", *overrides]
    return build(compose.resolve(compose.compose(chosen)))[0]


@pytest.mark.parametrize("work", [[9, 1, 1, 1, 9, 1], [5] * 12, [1], [0, 0, 0], [100, 1, 1, 1, 1, 1]])
def test_every_row_is_dealt_once_the_largest_first(work: list[float]) -> None:
    blocks = in_blocks(work, 4)
    assert sorted(row for block in blocks for row in block) == list(range(len(work)))
    dealt = [work[row] for block in blocks for row in block]
    assert dealt == sorted(work, reverse=True)


def test_blocks_are_of_similar_work() -> None:
    target = sum(WORK) / 8
    blocks = in_blocks(WORK, 8)
    assert all(sum(WORK[row] for row in block) < target + WORK[block[0]] for block in blocks)
    assert all(sum(WORK[row] for row in block) >= target for block in blocks[:-1])


WORK = [66.0] * 10 + [1.0] * 10


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


class Failing(FedAvg):
    """Fails on the clients that are dealt first, in the first round."""

    def loss(self, work: trees.Tree, client: Client, batch: Batch) -> torch.Tensor:
        if client.clock.round == 0 and int(client.size) == LARGEST:
            raise ZeroDivisionError
        return super().loss(work, client, batch)


LARGEST = 231  # training samples of two clients of five, which are dealt first, to both workers


def test_answers_to_a_call_that_failed_are_not_taken_for_the_next_one_s() -> None:
    chosen = dataclasses.replace(setup(), method=Failing())
    sizes = [chosen.federation.size(client) for client in range(5)]
    assert max(sizes) == LARGEST
    model = trees.expand(chosen.task.init(torch.Generator().manual_seed(0)), 5)
    ids, later = torch.arange(5), Clock(1, 2)
    trainer = WorkersTrainer(chosen, 2)
    try:
        with pytest.raises(ZeroDivisionError):
            trainer.train(ids, model, {}, CLOCK)
        after = trainer.train(ids, model, {}, later)
    finally:
        trainer.close()
    looped = LoopedTrainer(chosen).train(ids, model, {}, later)
    assert torch.equal(after.loss, looped.loss)
    assert all(torch.equal(after.uploads[name], leaf) for name, leaf in looped.uploads.items())


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
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    link = Link(
        ("message", message),
        ("memory", empty),
        ("rewrite", (message, old)),
        ("order", Order("evaluate", [0, 1], [0, 1], CLOCK, ("global",), 1)),
        ("order", Order("evaluate", [2], [2], CLOCK, ("global",), 1)),
        ("rewrite", (message, new)),
        ("order", Order("evaluate", [0, 1], [0, 1], CLOCK, ("global",), 2)),
    )
    serve(link, chosen)  # type: ignore[arg-type]
    assert scored == [len(chosen.federation.global_test)] * 2, "once a call"
    first, second, third = ([counts for _, counts in answer] for _, _, answer in link.replies)
    assert first[0] == first[1] == second[0]
    looped = LoopedTrainer(chosen)
    for found, model in ((first, old), (third, new)):
        correct, total = looped.count(0, model, ("global",))["global"]
        assert found[0]["global"] == (correct.tolist(), total.tolist())
    assert first[0] != third[0]
