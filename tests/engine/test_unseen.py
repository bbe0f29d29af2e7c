"""Clients that no round meets: they change nothing, and are scored as a loop by hand scores them."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import fedbench
from fedbench.config.schema import LocalConfig
from fedbench.core import trees
from fedbench.core.batch import Batch
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.engine import newcomers
from fedbench.engine import simulation as states
from fedbench.engine.contract import Client, Clock, Stage
from fedbench.engine.hooks import HookError
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.method import Method
from fedbench.engine.newcomers import Newcomers, Unseen
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import State
from fedbench.engine.stacked import StackedTrainer
from fedbench.engine.trainer import Trainer
from fedbench.engine.workers import WorkersTrainer
from fedbench.methods import METHODS
from fedbench.methods.fedavg import FedAvg
from fedbench.models.small import MLP
from fedbench.testing.checks import equal, everything
from tests.helpers import pair
from tests.helpers.tiers import sampled
from tests.methods.toys import federation, gap, initial, setup, simulate

SIZES = (9, 13, 8, 21, 5, 7, 12)  # the last two are unseen
LAST = (5, 6)
PLACE = "the server keeps no state for new clients"
ROWS = "would depend on state that only trained clients have"
BEGUN = "scored without mean, which other clients got in the preparation"


def built(name: str, **fields: object) -> Method:
    return METHODS.build({"name": name, **fields})


def whole_of(name: str, **fields: object) -> Setup:
    return setup(built(name, **fields), federation(SIZES), rounds=3, cohort=0.6, unseen=2)


def scored(whole: Setup, trainer: type[Trainer] = LoopedTrainer, **options: int) -> tuple[State, Unseen]:
    newcomers = Newcomers(whole, whole.seen)
    state = simulate(whole.seen, trainer(whole.seen, **options))
    return state, newcomers.score(state)


def right(whole: Setup, models: list[Tree]) -> list[float]:
    """Right answers of each unseen client's model on its own test samples."""
    found = []
    for client, model in zip(LAST, models, strict=True):
        x, y = whole.federation.gather(whole.federation.indices("local", client))
        found.append(float((whole.task.apply(model, x).argmax(1) == y).sum()))
    return found


def tuned(whole: Setup, model: Tree, client: int, epochs: int, moves: tuple[str, ...] = ("*",)) -> Tree:
    """Plain SGD at the protocol's rate on the mini-batches that are keyed by `unseen`."""
    order = whole.order(client, Stage(epochs=epochs), Clock(3, 3), "unseen")
    assert len(order) == epochs * -(-SIZES[client] // whole.protocol.local.batch_size)
    owned, work = whole.federation.indices("train", client), trees.clone(model)
    for positions in order:
        x, y = whole.federation.gather(owned[positions])
        leaves = {name: work[name].requires_grad_() for name in whole.task.select(work, moves)}
        loss = torch.nn.functional.cross_entropy(whole.task.apply({**work, **leaves}, x), y)
        steps = torch.autograd.grad(loss, list(leaves.values()))
        with torch.no_grad():
            moved = {name: leaf - 0.1 * step for (name, leaf), step in zip(leaves.items(), steps, strict=True)}
        work = {**{name: leaf.detach() for name, leaf in work.items()}, **moved}
    return work


@pytest.mark.parametrize("name", sampled(["fedavg", "fedper", "fedfomo", "kmeans", "pfedhn"], every=3))
def test_to_the_run_they_do_not_exist(name: str) -> None:
    """Its state is, to the bit, that of a federation without them."""
    whole, ids = whole_of(name), list(range(5))
    alone = setup(whole.method, federation(SIZES, ids=ids), rounds=3, cohort=0.6)
    assert equal(everything(simulate(whole.seen)), everything(simulate(alone)))
    assert whole.seen.population.sizes.tolist() == [9, 13, 8, 21, 5]


@pytest.mark.parametrize(("name", "moves"), [("fedavg", ("*",)), ("finetune", ("@head",)), ("fedprox", ("*",))])
def test_scores_are_those_of_a_loop_by_hand(name: str, moves: tuple[str, ...]) -> None:
    fields = {"tuned": ["@head"]} if name == "finetune" else {"mu": 0.0} if name == "fedprox" else {}
    whole = whole_of(name, **fields)
    state, found = scored(whole)
    assert found.note == ""
    if name != "finetune":  # which is scored as received after steps of its own
        assert found.tallies["received"]["local"].correct.tolist() == right(whole, [state.server] * 2)
    for epochs in (1, 5):
        expected = [tuned(whole, state.server, client, epochs, moves) for client in LAST]
        tally = found.tallies[str(epochs)]["local"]
        assert tally.correct.tolist() == right(whole, expected)
        assert tally.total.tolist() == [6, 6]
    assert gap(state.server, tuned(whole, state.server, 6, 5, moves)) > 1e-3


@pytest.mark.parametrize(
    ("name", "note"),
    sampled(
        [
            ("fedavg", ""),
            ("scaffold", ""),  # its clients keep something, which starts at zero, but no part of a model
            ("fedbabu", ""),  # whose head no client trains in rounds
            ("per_kind", ""),  # the server has a row for each client, which is right from the beginning
            ("local", f"no score as received: the model {ROWS}"),
            ("pfedhn", f"no score as received: the model {ROWS}"),
            ("fedper", f"no score as received: head.bias, head.weight {ROWS}"),
            ("fedap", PLACE),
            ("kmeans", ""),  # its server places new clients, see tests/methods/test_newcomers.py
            ("feddbe", f"no score as received: bias {ROWS}; {BEGUN}"),
        ],
        every=4,
    ),
)
def test_a_method_that_has_nothing_says_so(name: str, note: str) -> None:
    """What is made of a client's own rows is not scored, the adaptation from there is."""
    found = scored(whole_of(name))[1]
    assert found.note == note
    moments = ["received"] * (note == "") + ["1", "5"] * (note != PLACE)
    assert list(found.tallies) == moments


@pytest.mark.parametrize(("private", "more"), [(8, ""), (9, " and 1 more leaves"), (10, None)])
def test_of_many_leaves_that_are_lacking_some_are_named(private: int, more: str | None) -> None:
    model = MLP(hidden=(3, 3, 3, 3))
    names = sorted(model.task((1, 4, 4), 4).parameters)
    assert len(names) == 10
    method = built("fedavg", private=names[:private])
    whole = setup(method, federation(SIZES), model, rounds=1, cohort=0.6, unseen=2)
    told = "the model" if more is None else ", ".join(names[:8]) + more
    assert scored(whole)[1].note == f"no score as received: {told} {ROWS}"


class Looking(FedAvg):
    """Tells the local steps that a client hears of, and has stages of both kinds."""

    tuning: tuple[Stage, ...] = ()
    heard: ClassVar[list[float]] = []

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        return Stage(self.loss, moves=("@head",), iterations=3), Stage(self.loss)

    def adapt(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        return self.tuning

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        return dict(work), {}

    def model(self, work: Tree, client: Client) -> Tree:
        self.heard.append(float(client.steps))
        return work


@pytest.mark.parametrize("tuning", [(), (Stage(FedAvg().loss, iterations=4),), (Stage(FedAvg().loss, moves=()),)])
@pytest.mark.parametrize("local", [{"epochs": 2}, {"epochs": None, "iterations": 7}])
def test_an_adaptation_is_so_many_epochs_of_what_tunes_or_trains(
    tuning: tuple[Stage, ...], local: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 12 samples in batches of 8, two steps an epoch; a stage of the training keeps its iterations."""
    told: list[Any] = []
    monkeypatch.setattr(Looking, "tuning", tuning)
    Looking.heard.clear()

    def descend(_: Any, client: int, work: Tree, view: Client, stages: Any, purpose: str) -> list[Any]:
        told.append((client, [(stage.epochs, stage.iterations) for stage in stages], purpose, float(view.steps)))
        return []

    chosen = setup(Looking(), federation((9, 12)), **local)
    monkeypatch.setattr(LoopedTrainer, "descend", descend)
    view = chosen.client(1, initial(chosen), {}, Clock(2, 2))
    for epochs in (1, 5):
        newcomers._adapted(chosen, 1, view, epochs, ("local",))
        own = [(epochs, None)] if tuning and tuning[0].moves else [(None, 3), (epochs, None)]
        assert told.pop() == (1, own, "unseen", 2 * epochs)
        assert Looking.heard.pop() == 2 * epochs


def test_a_hook_that_fails_for_them_in_another_way_ends_the_run() -> None:
    class Lost(FedAvg):
        def send(self, server: Tree, cohort: Any) -> Tree:
            if 5 in cohort.ids:
                raise KeyError("5")
            return super().send(server, cohort)

    whole = setup(Lost(), federation(SIZES), rounds=1, unseen=2)
    with pytest.raises(HookError, match=r"Lost.send failed .*for 2 clients, 5, 6: KeyError"):
        scored(whole)


@pytest.mark.parametrize(("step", "lacking"), [(2, "1"), (4, "5")])
def test_one_whose_adaptation_diverges_does_not_end_the_run(step: int, lacking: str) -> None:
    """Client 6, which takes two steps an epoch, in its second step of all, or in the second of its five epochs."""
    taken: list[int] = []

    class Exploding(FedAvg):
        def loss(self, work: Tree, client: Client, batch: Batch) -> torch.Tensor:
            if int(client.size) == SIZES[6]:
                taken.append(1)
            return super().loss(work, client, batch) * (math.inf if len(taken) == step else 1)

    whole = setup(Exploding(), federation(SIZES), rounds=1, unseen=2)
    state, found = scored(whole)
    assert [*found.tallies] == [name for name in ("received", "1", "5") if name != lacking]
    assert found.note == f"{lacking}: training diverged in round 1 on client 6: its model's scores are not finite"
    assert equal(everything(state), everything(simulate(whole.seen)))


def test_they_are_sent_nothing_of_one_another() -> None:
    """FedFomo's server would send each six models; five have trained, and in the place of another it sends its own."""
    whole = whole_of("fedfomo", M=6)
    newcomers, state = Newcomers(whole, whole.seen), simulate(whole.seen)
    views = newcomers._views(state, Clock(3, 3), {}, lend=False)
    for client, view in zip(LAST, views, strict=True):
        assert set(view.message["reported/peers"].tolist()) == {*range(5), client}


def test_one_group_of_all_is_everybody_s() -> None:
    """Where clients are in one cluster, a new one can only be in that."""
    found = scored(whole_of("kmeans", k=1))[1]
    assert found.note == ""
    plain = scored(whole_of("fedavg"))[1]
    assert set(found.tallies) == set(plain.tallies)


@pytest.mark.parametrize("name", ["fedrep", "scaffold"])
def test_engines_and_interrupted_runs_agree(name: str, tmp_path: Path) -> None:
    whole = whole_of(name)
    newcomers, (state, expected) = Newcomers(whole, whole.seen), scored(whole)
    states.save_state(tmp_path / "state", state, "key")
    found = [newcomers.score(states.load_state(tmp_path / "state", "key", torch.device("cpu")))]
    found += [scored(whole, StackedTrainer, chunk=3)[1], scored(whole, WorkersTrainer, workers=2)[1]]
    for other in found:
        assert other.note == expected.note
        assert list(other.tallies) == list(expected.tallies)
        for moment, each in expected.tallies.items():
            assert other.tallies[moment]["local"].correct.tolist() == each["local"].correct.tolist()


def test_the_last_of_a_kind_may_be_unseen_but_not_all_of_it() -> None:
    """Clients 2 to 4 see captions."""
    whole = pair.pair(built("fedavg", private=["@head"]), rounds=2, cohort="2", unseen=2)
    found = Newcomers(whole, whole.seen).score(pair.simulate(whole.seen))
    assert found.tallies["5"]["local"].total.tolist() == [len(whole.federation.indices("local", k)) for k in (3, 4)]
    assert found.note.startswith("no score as received: head.bias, head.weight would depend")
    message = "protocol.unseen=3 holds out all clients of one modality; lower it"
    with pytest.raises(ConfigError, match=message):
        _ = pair.pair(built("fedavg"), cohort="1", unseen=3).seen


SHORT = (
    "dataset=digits",
    "partition=dir0.5",
    "partition.num_clients=6",
    "protocol=quick",
    "protocol.rounds=2",
    "protocol.local.epochs=1",
    "model=mlp",
    "model.hidden=[8]",
    "progress=none",
    "hardware.engine=looped",
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["protocol.unseen=6"],
            "protocol.unseen=6 holds out all 6 clients of the partition; lower it, or add clients",
        ),
        (["protocol.unseen=2", "protocol.cohort=5"], "protocol.cohort=5 is more than the 4 clients that rounds meet"),
        (["protocol.unseen=-1"], "protocol.unseen must be at least 0, got -1"),
    ],
)
def test_more_than_can_be_spared_are_refused_before_training(options: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        fedbench.run("method=fedavg", *SHORT, *options, runs_dir=str(tmp_path / "runs"))
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.rglob("result.json"))


@pytest.mark.slow
def test_a_run_has_them_in_its_row_and_its_counts(tmp_path: Path) -> None:
    runs = str(tmp_path / "runs")
    plain = fedbench.run("method=fedavg", *SHORT, runs_dir=runs)
    assert not [name for name in plain.row if "unseen" in name]
    found = fedbench.run("method=fedavg", *SHORT, "protocol.unseen=2", runs_dir=runs)
    assert found.row["key"] != plain.row["key"]
    assert (found.row["clients"], found.row["unseen"], found.row["unseen_note"]) == (4, 2, "")
    assert len(found.clients) == len(found.label_counts) == len(found.W if found.W is not None else range(4)) == 4
    for moment in ("received", "1", "5"):
        correct, total = (found.tallies[f"unseen/{moment}/local/{part}"] for part in ("correct", "total"))
        assert len(correct) == 2
        assert found.row[f"acc_unseen_{moment}"] == pytest.approx(100 * np.mean(correct / total))
    local = fedbench.run("method=local", *SHORT, "protocol.unseen=2", runs_dir=runs)
    assert local.row["key"] == found.row["local_key"]
    assert "acc_unseen_received" not in local.row
    assert "the model" in local.row["unseen_note"]
