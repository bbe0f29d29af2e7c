"""What is scored, when, on which samples, by which model. Counts recomputed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedbench.config import compose
from fedbench.config.schema import OptimizerConfig, TestConfig
from fedbench.core import trees
from fedbench.core.trees import Tree
from fedbench.data.federation import Federation, Ragged
from fedbench.engine.contract import Clock
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.method import Method
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation
from fedbench.engine.stacked import StackedTrainer
from fedbench.engine.trainer import Trainer
from fedbench.methods.ditto import Ditto
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.local import Local
from fedbench.runs.building import build
from fedbench.runs.config import resolve
from fedbench.runs.execution import execute
from tests.engine.toys import trainers
from tests.helpers.tiers import sampled
from tests.methods.toys import federation, gap, setup, simulate


def per_class(chosen: Setup, model: trees.Tree, indices: torch.Tensor) -> tuple[list[int], list[int]]:
    """(correct, total) of each class, one sample after another."""
    correct, total = [0] * chosen.task.classes, [0] * chosen.task.classes
    for index in indices:
        x, y = chosen.federation.gather(index.view(1))
        total[int(y)] += 1
        correct[int(y)] += int(chosen.task.apply(model, x).argmax() == y)
    return correct, total


def test_every_set_is_scored_by_the_model_it_is_about() -> None:
    chosen = setup(Local(), test=TestConfig(sets="both", val_fraction=0.1))
    for trainer in trainers(chosen):
        state = simulate(chosen, trainer)
        tallies = state.history.last.tallies
        assert set(tallies) == {"local", "global", "val"}, "Local has no common model"
        for name in tallies:
            for client in range(5):
                own = trees.row(state.memory, client)
                correct, total = per_class(chosen, own, chosen.federation.indices(name, client))
                assert tallies[name].correct[client] == sum(correct)
                assert tallies[name].total[client] == sum(total) > 0


def test_the_common_model_is_scored_once_on_the_global_set() -> None:
    for method in (FedAvg(), Ditto()):
        chosen = setup(method, test=TestConfig(sets="global"))
        state = simulate(chosen)
        correct, total = per_class(chosen, state.server, chosen.federation.global_test)
        common = state.history.last.tallies["common"]
        assert (common.correct.tolist(), common.total.tolist()) == ([sum(correct)], [sum(total)])
    chosen = setup(FedAvg(private=("@head",)), test=TestConfig(sets="global"))
    assert "common" not in simulate(chosen).history.last.tallies, "a body alone is no model"


@pytest.mark.parametrize("sets", sampled(["validation", "both"], every=2))
def test_test_samples_are_read_never_or_once(sets: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a trial only the validation samples are looked at; of a final run the test sets after the last round."""
    looked: list[str] = []
    indices = Federation.indices
    monkeypatch.setattr(
        Federation, "indices", lambda own, name, client: looked.append(name) or indices(own, name, client)
    )
    chosen = setup(FedAvg(), test=TestConfig(sets=sets, val_fraction=0.1, once=sets == "both"), rounds=3)
    plain = simulate(setup(FedAvg(), test=TestConfig(sets="both", val_fraction=0.1), rounds=3)).history
    looked.clear()
    for trainer in trainers(chosen):
        simulation = Simulation(chosen, trainer)
        state = simulation.begin()
        while not simulation.done(state):
            assert not {"local", "global"} & {*looked}
            simulation.step(state)
        last = {"val"} if sets == "validation" else {"val", "local", "global", "common"}
        assert [set(record.tallies) for record in state.history.records] == [*[{"val"}] * 3, last]
        assert set(looked) <= {"train", *last}
        looked.clear()
        for mine, theirs in zip(state.history.records, plain.records, strict=True):
            for name, tally in mine.tallies.items():
                np.testing.assert_array_equal(tally.correct, theirs.tallies[name].correct)


def test_the_global_set_is_weighted_by_the_client_s_own_labels() -> None:
    labels = [[0], [0, 1], [1, 2, 3], [0, 1, 2, 3], [3]]
    test = TestConfig(sets="global", weighting="label_shares")
    for score in ("received", "trained"):
        chosen = setup(
            Local(),
            federation(labels=labels),
            test=test,
            score=score,
            cohort=3 if score == "trained" else 1.0,
        )
        for trainer in trainers(chosen):
            state = simulate(chosen, trainer)
            scored = state.history.last.tallies["global"]
            seen = {k for t in range(2) for k in chosen.draw_cohort(Clock(t, 2)).tolist()}
            for client in seen:
                own = trees.row(state.memory, client)
                correct, total = per_class(chosen, own, chosen.federation.global_test)
                _, y = chosen.federation.gather(chosen.federation.indices("train", client))
                shares = [float((y == c).sum()) / len(y) for c in range(4)]
                expected = np.dot(shares, correct) / np.dot(shares, total)
                assert scored.accuracy()[client] == pytest.approx(expected, abs=1e-12)
            assert np.isnan(scored.accuracy()[[k for k in range(5) if k not in seen]]).all()


def test_as_received_is_before_training_and_as_trained_is_after() -> None:
    """FedAvg: what a client receives is the average, what it has after training is its own."""
    fast = OptimizerConfig(lr=1.0)
    received = simulate(setup(FedAvg(), rounds=1, optimizer=fast)).history
    assert [record.round for record in received.records] == [0, 1]
    chosen = setup(FedAvg(), rounds=1, optimizer=fast, score="trained")
    trained = simulate(chosen).history
    assert [record.round for record in trained.records] == [1]
    alone = simulate(setup(Local(), rounds=1, optimizer=fast)).memory
    for client in range(5):
        own = chosen.federation.indices("local", client)
        correct, _ = per_class(chosen, trees.row(alone, client), own)
        assert trained.last.tallies["local"].correct[client] == sum(correct)
        correct, _ = per_class(chosen, simulate(setup(FedAvg(), rounds=1, optimizer=fast)).server, own)
        assert received.last.tallies["local"].correct[client] == sum(correct)
    assert trained.last.tallies["local"].correct.tolist() != received.last.tallies["local"].correct.tolist()


def test_absent_clients_keep_the_score_of_their_latest_training() -> None:
    chosen = setup(Local(), rounds=4, cohort=2, score="trained", optimizer=OptimizerConfig(lr=0.5))
    simulation = Simulation(chosen, LoopedTrainer(chosen))
    state = simulation.begin()
    latest: dict[int, tuple[float, float]] = {}
    for t in range(4):
        simulation.step(state)
        tally = state.history.last.tallies["local"]
        for client in chosen.draw_cohort(Clock(t, 4)).tolist():
            own = trees.row(state.memory, client)
            correct, total = per_class(chosen, own, chosen.federation.indices("local", client))
            latest[client] = (sum(correct), sum(total))
        expected = [latest.get(client, (0.0, 0.0)) for client in range(5)]
        assert list(zip(tally.correct.tolist(), tally.total.tolist(), strict=True)) == expected


@pytest.mark.parametrize("score", sampled(["trained", "both"], every=2))
@pytest.mark.parametrize("method", sampled([FedAvg(private=("@head",)), Ditto()], every=2))
def test_the_latest_trained_model_counts_whichever_round_it_was_trained_in(method: Method, score: str) -> None:
    """So what a round reports does not depend on how often rounds are scored; the last cohort alone is two of five."""
    options: dict[str, Any] = {"rounds": 7, "cohort": 2, "score": score, "optimizer": OptimizerConfig(lr=0.5)}
    options |= {"report": "best_test"} if score == "both" else {}
    drawn = {k for t in range(7) for k in setup(method, **options).draw_cohort(Clock(t, 7)).tolist()}
    name = "trained_local" if score == "both" else "local"
    for place in range(3):
        often, seldom = (
            simulate(chosen, trainers(chosen)[place]).history
            for chosen in (setup(method, **options, eval_every=every) for every in (1, 3))
        )
        known = {record.round: record.tallies for record in often.records}
        assert [record.round for record in seldom.records if record.round] == [3, 6, 7]
        for record in (each for each in seldom.records if each.round):
            assert record.tallies[name].correct.tolist() == known[record.round][name].correct.tolist()
            assert record.tallies[name].total.tolist() == known[record.round][name].total.tolist()
        assert seldom.last.tallies[name].scored >= len(drawn) > 2


@pytest.mark.parametrize(
    ("options", "scored"),
    [
        ({"rounds": 5, "eval_every": 1}, [0, 1, 2, 3, 4, 5]),
        ({"rounds": 5, "eval_every": 2}, [0, 2, 4, 5]),
        ({"rounds": 8, "eval_every": 3, "report": "mean_last_5"}, [0, 3, 4, 5, 6, 7, 8]),
        ({"rounds": 3, "eval_every": 9}, [0, 3]),
        ({"rounds": 3, "eval_every": 2, "score": "trained"}, [2, 3]),
    ],
)
def test_rounds_that_are_scored(options: dict[str, Any], scored: list[int]) -> None:
    state = simulate(setup(FedAvg(), **options))
    assert [record.round for record in state.history.records] == scored
    assert state.history.last.round == state.round


def test_scoring_less_often_changes_nothing_else() -> None:
    often, seldom = (simulate(setup(FedAvg(), rounds=4, cohort=0.6, eval_every=n)) for n in (1, 4))
    assert gap(often.server, seldom.server) == 0
    assert often.history.last.tallies["local"].correct.tolist() == seldom.history.last.tallies["local"].correct.tolist()
    assert (often.bytes_up, often.bytes_down) == (seldom.bytes_up, seldom.bytes_down), "scoring is no traffic"


def without_tests(empty: Sequence[int]) -> Federation:
    """The toy federation whose clients `empty` have no test sample."""
    data = federation()
    lists = [np.array([], dtype=np.int64) if k in empty else data.indices("local", k).numpy() for k in range(5)]
    data.sets["local"] = Ragged.of(lists, data.device)
    return data


@pytest.mark.parametrize("empty", sampled([[0, 3], [0, 1, 2, 3, 4]], every=2))
def test_clients_without_test_samples_train_but_do_not_count(empty: list[int]) -> None:
    chosen = setup(Ditto(), without_tests(empty))
    full = simulate(setup(Ditto()))
    for trainer in trainers(chosen):
        state = simulate(chosen, trainer)
        tally = state.history.last.tallies["local"]
        assert [k for k in range(5) if tally.total[k] == 0] == empty
        kept = [k for k in range(5) if k not in empty]
        assert tally.correct[kept].tolist() == full.history.last.tallies["local"].correct[kept].tolist()
        assert np.isnan(tally.mean()) == (not kept)
        assert gap(state.memory, full.memory) < 1e-9


# A model that all clients share is scored once on the set that all share, with the same counts.

ROUND = Clock(0, 2)


def both_trainers(method: str) -> list[Trainer]:
    """The looped and the stacked engine on five clients of digits that are scored on both sets."""
    where = ["dataset=digits", "partition=homo", "partition.num_clients=5", "model=mlp", "hardware=cpu"]
    run = resolve(compose.compose([*where, f"method={method}", "protocol.test.sets=both", "protocol.test.pool=false"]))
    setup = build(run)
    return [LoopedTrainer(setup), StackedTrainer(setup, 5)]


def models(trainer: Trainer, count: int) -> list[Tree]:
    return [trainer.setup.task.init(torch.Generator().manual_seed(i)) for i in range(count)]


@pytest.fixture
def gathered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many samples each call of `Federation.gather` took."""
    counts: list[int] = []
    gather = Federation.gather

    def spy(federation: Federation, indices: Tensor) -> tuple[Tensor, Tensor]:
        counts.append(indices.numel())
        return gather(federation, indices)

    monkeypatch.setattr(Federation, "gather", spy)
    return counts


@pytest.mark.parametrize("index", [0, 1])
def test_one_model_is_scored_once_on_the_global_set_and_different_ones_each(index: int, gathered: list[int]) -> None:
    trainer = both_trainers("fedavg")[index]
    tests = len(trainer.setup.federation.global_test)
    each = models(trainer, 5)
    apart = trainer.evaluate(torch.arange(5), trees.stack(each), {}, ROUND, ("global",))["global"]
    assert sum(gathered) == 5 * tests
    assert len({tuple(row.tolist()) for row in apart[0]}) > 1
    for k, model in enumerate(each):
        gathered.clear()
        shared = trainer.evaluate(torch.arange(5), trees.expand(model, 5), {}, ROUND, ("global",))["global"]
        assert sum(gathered) == tests
        for ours, theirs in zip(shared, apart, strict=True):
            assert torch.equal(ours, theirs[k].expand_as(ours))


def test_only_classes_that_weigh_anything_are_scored(gathered: list[int]) -> None:
    """Under label shares a client's model sees its own classes of the global set; a shared one each class once."""
    labels = [[0], [0, 1], [1, 2], [0, 1, 2], [2]]
    chosen = setup(FedAvg(), federation(labels=labels), test=TestConfig(sets="global", weighting="label_shares"))
    _, y = chosen.federation.gather(chosen.federation.global_test)
    tests = torch.bincount(y, minlength=4)
    counts = chosen.population.label_counts
    own = counts > 0
    assert bool((own.sum(1) < 3).any()), "a client without all classes"
    assert bool((tests[:3] > 0).all())
    looped, stacked = LoopedTrainer(chosen), StackedTrainer(chosen, 5)
    for shared in (True, False):
        several = [trees.map_leaves(torch.Tensor.double, model) for model in models(looped, 5)]
        message = trees.expand(several[0], 5) if shared else trees.stack(several)
        gathered.clear()
        correct, total = looped.evaluate(torch.arange(5), message, {}, ROUND, ("global",))["global"]
        assert sum(gathered) == (tests[own.any(0)] if shared else own * tests).sum()
        assert torch.equal(total, (own * tests).to(total.dtype))
        theirs = stacked.evaluate(torch.arange(5), message, {}, ROUND, ("global",))["global"]
        assert torch.equal(correct, theirs[0])
        assert torch.equal(total, theirs[1])


def test_mini_batches_do_not_depend_on_who_was_scored_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a worker's scores are the same to the bit whichever clients it is dealt, and in whatever order."""
    chosen = setup(
        FedAvg(),
        federation(labels=[[0], [0, 1], [1, 2], [0, 1, 2], [2]]),
        test=TestConfig(sets="global", weighting="label_shares"),
    )
    (model,) = models(LoopedTrainer(chosen), 1)
    message = trees.expand(trees.map_leaves(torch.Tensor.double, model), 5)
    batches: list[set[tuple[int, ...]]] = []
    gather = Federation.gather

    def spy(federation: Federation, indices: Tensor) -> tuple[Tensor, Tensor]:
        batches[-1].add(tuple(indices.tolist()))
        return gather(federation, indices)

    monkeypatch.setattr(Federation, "gather", spy)
    for order in ([0, 1, 2, 3, 4], [3, 4, 0, 1, 2], [4, 0, 2, 1, 3]):
        batches.append(set())
        LoopedTrainer(chosen).evaluate(torch.tensor(order), message, {}, ROUND, ("global",))
    assert batches[0] == batches[1] == batches[2]
    assert len(batches[0]) == 3, "one for each class that somebody has"


def test_a_model_changed_by_adaptation_is_not_taken_for_the_shared_one() -> None:
    trainer = both_trainers("finetune")[0]
    (model,) = models(trainer, 1)
    counts = trainer.evaluate(torch.arange(5), trees.expand(model, 5), {}, ROUND, ("global",))["global"][0]
    assert len({tuple(row.tolist()) for row in counts}) > 1


@pytest.mark.slow
def test_the_global_model_alone_on_the_whole_test_set(tmp_path: Path) -> None:
    """sets=common spares scoring every client's model there, and finds the same of what it scores."""
    where = ["dataset=digits", "partition=homo", "partition.num_clients=5", "model=mlp", "hardware=cpu"]
    brief = [
        "method=fedavg",
        "protocol.test.pool=false",
        "protocol.rounds=3",
        "progress=none",
        f"runs_dir={tmp_path}",
    ]

    def row(sets: str) -> dict[str, Any]:
        return execute(resolve(compose.compose([*where, *brief, f"protocol.test.sets={sets}"]))).row

    common, both = row("common"), row("both")
    for name in ("acc", "acc_on_local", "acc_on_common", "ipr", "score"):
        assert common[name] == both[name]
    assert both["acc_on_global"] == pytest.approx(both["acc_on_common"]), "everyone has the global model"
    assert "acc_on_global" not in common


def test_a_score_of_trained_models_alone_leaves_the_global_one_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chosen = ["method=fedavg", "protocol.test.pool=false", "protocol.test.sets=common", "protocol.score=trained"]
    run = execute(resolve(compose.compose([*chosen, "protocol.rounds=1", "progress=none", f"runs_dir={tmp_path}"])))
    assert "acc_on_common" not in run.row
    assert "protocol.test.sets=common is of models as received, score=trained of none" in caplog.text


def test_weights_without_effect_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They give the run another key."""
    chosen = ["method=fedavg", "protocol.test.weighting=label_shares", "protocol.rounds=1", "progress=none"]
    said = "protocol.test.weighting=label_shares is of the global test set; sets=local has none"
    for sets in (["protocol.test.sets=both", "protocol.test.pool=false"], ["protocol.test.sets=local"]):
        assert said not in caplog.text
        execute(resolve(compose.compose([*chosen, *sets, f"runs_dir={tmp_path}"])))
    assert said in caplog.text
