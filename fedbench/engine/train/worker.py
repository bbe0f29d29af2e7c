"""One process of the workers engine: trains or scores the clients it is dealt, and writes trees to shared buffers."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from fedbench.core import trees
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.engine.hooks import portable
from fedbench.engine.setup import Setup
from fedbench.engine.train.looped import LoopedTrainer
from fedbench.engine.train.looped_scorer import Known
from fedbench.engine.train.trainer import Counts


@dataclass(frozen=True)
class Order:
    """Work for one process: rows of the cohort, by client id."""

    verb: str  # train or evaluate
    rows: list[int]
    ids: list[int]
    clock: Clock
    score: tuple[str, ...]
    call: int  # counts the cohorts that were dealt: within one, message and memory stay as they are


def serve(link: Connection, setup: Setup) -> None:
    """Train or score the rows this process is dealt until the link closes."""
    for number in (signal.SIGINT, signal.SIGTERM):  # often sent to all processes of a run
        signal.signal(number, signal.SIG_IGN)  # the parent decides what it means, and closes the link
    torch.set_num_threads(1)
    trainer = LoopedTrainer(setup)
    leaves: dict[str, Tree] = {}
    known, call = Known(), 0
    while True:
        try:
            name, payload = link.recv()
        except (EOFError, OSError):
            return
        if name != "order":
            leaves[name] = payload.leaves()
            continue
        if payload.call != call:
            known, call = Known(), payload.call
        reply: tuple[str, Any]
        try:
            rows = range(len(payload.rows))
            reply = "done", [_one(trainer, payload, index, leaves, known) for index in rows]
        except Exception as error:  # noqa: BLE001 - raised again by the parent
            reply = "error", portable(error)
        try:
            link.send(reply)
        except ConnectionError:  # the parent is gone
            return


def _one(
    trainer: LoopedTrainer, order: Order, index: int, leaves: dict[str, Tree], known: Known
) -> tuple[float, Any]:
    """Train or score one row; trees go to the shared buffers, numbers are returned (as plain lists)."""
    row, client = order.rows[index], order.ids[index]
    message = {key: leaf[min(row, leaf.shape[0] - 1)] for key, leaf in leaves["message"].items()}
    memory = {key: leaf[min(row, leaf.shape[0] - 1)] for key, leaf in leaves["memory"].items()}
    if order.verb == "evaluate":
        view = trainer.setup.client(client, message, memory, order.clock)
        return float("nan"), _plain(trainer.evaluate_one(client, view, order.score, known))
    one = torch.tensor([client]), trees.expand(message, 1), trees.expand(memory, 1)
    outcome = trainer.launch(*one, order.clock, order.score)
    for name, tree in (("upload", outcome.uploads), ("kept", outcome.memory)):
        for key, leaf in tree.items():
            leaves[name][key][row].copy_(leaf[0])
    return float(outcome.loss), _plain({name: (a[0], b[0]) for name, (a, b) in outcome.counts.items()})


def _plain(counts: Counts) -> dict[str, tuple[list[float], list[float]]]:
    return {name: (a.tolist(), b.tolist()) for name, (a, b) in counts.items()}


def unplain(result: tuple[float, Any]) -> tuple[Tensor, Counts]:
    """(loss, counts) of a row, from the numbers that a process answers with."""
    loss, counts = result
    float64 = partial(torch.tensor, dtype=torch.float64)
    return float64(loss), {name: (float64(a), float64(b)) for name, (a, b) in counts.items()}
