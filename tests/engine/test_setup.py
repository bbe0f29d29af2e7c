"""What every engine is given and makes of it, against tables and loops: setups, single steps, checks, errors."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedbench.config.schema import OptimizerConfig
from fedbench.core import trees
from fedbench.core.batch import Batch
from fedbench.core.errors import ConfigError, Diverged
from fedbench.core.trees import Tree
from fedbench.engine import hooks, looped, method, optim, trainer
from fedbench.engine import setup as setups
from fedbench.engine.contract import Client, Clock, Stage
from fedbench.engine.hooks import HookCaller
from fedbench.engine.looped import LoopedTrainer, SharedScores
from fedbench.engine.setup import ScoredSets, assemble, check_fits
from fedbench.engine.stacked import StackedTrainer
from fedbench.engine.trainer import ModalitiesTrainer, Outcome
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedsac import FedSaC
from fedbench.methods.fml import FML
from fedbench.models.modalities import TextCNN
from fedbench.models.small import MLP, LeNet5
from fedbench.models.task import Task
from tests.helpers.pair import pair
from tests.methods.toys import federation, gap, initial, setup

CLOCK = Clock(0, 2)


def test_classes_of_the_global_set_that_count_for_a_client_by_hand() -> None:
    counts = torch.tensor([[1.0, 0, 2], [0, 0, 0], [0, 5, 1]], dtype=torch.float64)
    data: Any = SimpleNamespace(
        global_test=torch.arange(10, 16), y=torch.tensor([*[9] * 10, 2, 0, 2, 1, 0, 2]), classes=3,
        population=SimpleNamespace(label_counts=counts), indices=lambda name, client: (name, client),
    )  # fmt: skip
    own, whole = ScoredSets(data, by_class=True), ScoredSets(data, by_class=False)
    assert [part.tolist() for part in own.parts] == [[11, 14], [13], [10, 12, 15]]
    assert [own.parts_of(client) for client in range(3)] == [[0, 2], [], [1, 2]]
    assert [own.indices("global", client).tolist() for client in range(3)] == [
        [11, 14, 10, 12, 15],
        [],
        [13, 10, 12, 15],
    ]
    assert ([part.tolist() for part in whole.parts], whole.parts_of(1)) == ([list(range(10, 16))], [0])
    assert whole.indices("global", 1).tolist() == list(range(10, 16))
    assert [each.classes(1).tolist() for each in (own, whole)] == [[False] * 3, [True] * 3]
    assert whole.classes(0).dtype == torch.bool
    assert own.indices("val", 2) == ("val", 2)


def test_clients_of_kinds_by_hand() -> None:
    """Two of one kind and three of another: of a cohort of C the first are two at most, the others three."""
    for cohort, at_once in (("1", [1, 1]), ("3", [2, 3]), ("2", [2, 2]), ("5", [2, 3])):
        whole = pair(FedAvg(), cohort=cohort)
        assert [part.at_once for part in whole.parts] == at_once
        assert whole.at_once == int(cohort)
    assert whole.cohort(torch.tensor([1, 3]), CLOCK).steps.dtype == torch.float64
    with pytest.raises(ConfigError, match=r"FedSaC .*, but clients have 2 different networks; choose one of"):
        pair(FedSaC())
    with pytest.raises(ConfigError) as caught:
        check_fits(FedSaC(), [MLP(), MLP()], regression=False)
    able = str(caught.value).split("choose one of ")[1].split(", where")[0].split(", ")
    assert {"fedavg", "local", "per_kind"} <= set(able)
    assert not {"fedsac", "fedamp", "kmeans"} & set(able)
    assert {"fml", "fedkd", "fedmrl", "fedgh"} <= set(able)
    check_fits(FedSaC(), [MLP()], regression=False)
    check_fits(FedAvg(), [MLP(), TextCNN()], regression=False)
    with pytest.raises(ConfigError, match=r"FML .* but clients see different parts of the samples; choose") as caught:
        check_fits(FML(), [MLP(), TextCNN()], regression=False)
    able = str(caught.value).split("choose one of ")[1].split(", ")
    assert {"fedavg", "fedgh", "fedproto"} <= set(able)
    assert not {"fml", "fedkd", "fedmrl", "fedsac", "ditto"} & set(able), "unfit for several networks"


def test_a_client_learns_whose_stages_have_a_loss_and_a_step() -> None:
    chosen, loss = setup(FedAvg()), FedAvg().loss
    towards, none = Stage(direction=FedAvg().loss), Stage(loss, epochs=0)  # type: ignore[arg-type]
    for stages, learns in (
        ((Stage(loss),), True), ((Stage(loss, iterations=1),), True), ((none,), False), ((), False),
        ((towards,), False),
        ((towards, none, Stage(loss)), True), ((towards, none), False),
    ):  # fmt: skip
        assert chosen.learns(0, stages) is learns


def test_engines_of_kinds_are_all_closed() -> None:
    closed: list[int] = []
    engines: Any = [SimpleNamespace(close=lambda place=place: closed.append(place)) for place in range(2)]
    ModalitiesTrainer(pair(FedAvg()), engines).close()
    assert closed == [0, 1]


@pytest.mark.parametrize(
    ("sizes", "smallest", "droppable"),
    [((16, 13), 5, True), ((16, 8), 8, False), ((9, 30), 1, True), ((3, 6), 3, False), ((9, 7), 1, False)],
)
def test_a_network_is_tried_on_the_shortest_batch(
    sizes: tuple[int, ...], smallest: int, droppable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where that is a short last one, and everybody has another, it can be left out."""
    tried: list[Any] = []
    data, made = federation(sizes), setup(FedAvg())
    whole_batches = dataclasses.replace(made.protocol, local=dataclasses.replace(made.protocol.local, drop_last=True))
    protocol = dataclasses.replace(made.protocol, cohort="3")
    monkeypatch.setattr(setups, "Federation", lambda *_: data)
    monkeypatch.setattr(setups, "check_input", lambda *given: tried.append(given))
    partition: Any = [0] * len(sizes)
    source: Any = SimpleNamespace(shape=data.shape)
    model = MLP(hidden=(7,))
    monkeypatch.setattr(MLP, "view", lambda _, dataset: dataset)
    monkeypatch.setattr(MLP, "dealt", lambda _, partition: (partition, torch.zeros(len(partition)).numpy()))
    for bf16 in (True, False):
        whole = assemble(FedAvg(), model, source, partition, made.protocol, 0, bf16=bf16)
        assert tried.pop() == (whole.task, smallest, droppable)
        assert whole.task.bf16 is bf16
        if min(sizes) >= 8:
            whole = assemble(FedAvg(), model, source, partition, whole_batches, 0, bf16=bf16)
            assert tried.pop() == (whole.task, 8, False)
            continue
        with pytest.raises(ConfigError, match=f"a client with {min(sizes)} training samples in batches of 8"):
            assemble(FedAvg(), model, source, partition, whole_batches, 0, bf16=bf16)
    with pytest.raises(ConfigError, match=r"protocol.cohort=3 is more than the 2 clients"):
        assemble(FedAvg(), model, source, partition, protocol, 0)
    assert not tried


# ---- one step of one client


def test_the_leaves_that_move_by_hand() -> None:
    task = setup(FedAvg(), federation((9, 9), (1, 16, 16)), LeNet5(batch_norm=True)).task
    work = task.init(torch.Generator()) | {"choice": torch.tensor(1), "extra": torch.ones(2)}
    floats = {name for name in work if work[name].is_floating_point() and "running" not in name}
    head = {name for name in work if name.startswith("head.")}
    for stage, expected in (
        (Stage(), floats), (Stage(moves=("@head",)), head), (Stage(fixed=("@head",)), floats - head),
        (Stage(moves=("@head",), fixed=("*.bias",)), {"head.weight"}), (Stage(fixed=("*",)), set[str]()),
    ):  # fmt: skip
        assert set(looped.moved(stage, work, task)) == expected


def test_a_step_leaves_no_graph_behind_and_leaves_alone_what_the_loss_does_not_read() -> None:
    def towards(work: Tree, client: Client, batch: Batch) -> Tree:
        weight = work["a"].clone().requires_grad_()
        return {"a": 2 * weight, "mean": weight.sum().view(1)}

    start = {"a": torch.tensor([1.0, 2.0]), "unread": torch.ones(2), "mean": torch.zeros(1)}
    none: Any = None
    for stage, step, mean in (
        (Stage(lambda work, *_: work["a"].square().sum()), [0.8, 1.6], 0.0),
        (Stage(direction=towards), [0.8, 1.6], 3.0),
    ):
        work, moves = trees.clone(start), ["a", "unread"] if stage.loss else ["a"]
        optimizer = optim.Optimizer(OptimizerConfig(lr=0.1), {name: work[name] for name in moves})
        with torch.enable_grad():
            loss = looped.step_once(stage, work, moves, none, none, optimizer)
        assert work["a"].tolist() == pytest.approx(step)
        assert (work["unread"].tolist(), work["mean"].item()) == ([1, 1], mean)
        assert not any(leaf.requires_grad for leaf in work.values())
        assert loss is None or (float(loss), loss.requires_grad) == (5, False)
        assert (loss is None) == (stage.loss is None)


def test_fitting_on_the_server_leaves_what_it_began_from() -> None:
    start = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0])}
    found = optim.fit(
        start,
        lambda w, _: w["a"].square().sum() + w["b"].sum(),
        [{"rows": torch.zeros(1)}] * 2,
        OptimizerConfig(lr=0.1),
    )
    assert found["a"].tolist() == pytest.approx([0.64, 1.28])
    assert found["b"].tolist() == pytest.approx([2.8])
    assert [leaf.tolist() for leaf in start.values()] == [[1, 2], [3]]
    assert not any(leaf.requires_grad for leaf in (*found.values(), *start.values()))
    kept = optim.kept_leaves(OptimizerConfig(name="adam", state="kept"), start)
    assert {name: (leaf.dtype, leaf.tolist()) for name, leaf in kept.items()} == {
        **{f"{k}/{name}": (torch.float32, [0.0] * len(leaf)) for k in (0, 1) for name, leaf in start.items()},
        "count": (torch.float64, 0.0),
    }


def test_a_lone_leaf_moves_as_a_row_of_a_program() -> None:
    params = {"a": torch.ones(2, 3)}
    optim.Optimizer(OptimizerConfig(name="adam", lr=0.5), params, axes=1).step([torch.ones(2, 3)], 2)
    assert torch.allclose(params["a"], torch.full((2, 3), 0.5))
    numbers = {"scale": torch.ones(2), "a": torch.zeros(2, 2)}  # of each client a number, and a leaf of two
    grads = [torch.tensor([3.0, 0.3]), torch.tensor([[0.0, 4.0], [0.4, 0.0]])]
    optim.Optimizer(OptimizerConfig(lr=1.0, clip=1.0), numbers, axes=1).step(grads, 2)
    assert torch.allclose(numbers["scale"], torch.tensor([0.4, 0.7]))
    optim.Optimizer(OptimizerConfig(name="adam"), {}, axes=1).step([], 2)


@dataclass(frozen=True)
class Weighed(FedAvg):
    """The loss of each step is weighted by a number drawn for it."""

    def draw(self, generator: torch.Generator, steps: int, client: Client) -> Tree:
        return {"weight": torch.rand(steps, generator=generator, dtype=torch.float64)}

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        return super().loss(work, client, batch) * batch.noise["weight"]


def test_samples_gathered_for_some_steps_at_once_are_those_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = setup(Weighed(), epochs=3)
    given: Any = torch.arange(5), trees.expand(initial(chosen), 5), {}, CLOCK
    whole, trainer = StackedTrainer(chosen, 5).train(*given), LoopedTrainer(chosen)
    assert trainer.gathered_batches == 2**22 // (16 * 8 * 8)
    for count in (1, 2, 4):
        monkeypatch.setattr(looped, "GATHERED_BYTES", count * 16 * 8 * 8 + 1023 - 1024 * (count == 1))
        part = LoopedTrainer(chosen)
        assert part.gathered_batches == count
        assert gap(part.train(*given).uploads, whole.uploads) < 1e-12


@pytest.mark.parametrize("model", [MLP(hidden=(7,)), LeNet5(), LeNet5(batch_norm=True)], ids=["mlp", "lenet", "norm"])
def test_models_are_scored_in_batches_that_fit_a_cache_and_are_not_touched(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    class Seen(FedAvg):
        def predict(self, model: Tree, x: Tensor, task: Task) -> Tensor:
            last = [leaf.is_contiguous(memory_format=torch.channels_last) for leaf in model.values() if leaf.dim() == 4]
            seen.append((len(x), all(last) if last else None))
            return super().predict(model, x, task)

    monkeypatch.setattr(looped, "CONVOLVED_BATCH", 2)
    monkeypatch.setattr(looped, "EVALUATION_BATCH", 4)
    chosen = setup(Seen(), federation((4, 4), (3, 16, 16), tests=5), model)
    given = initial(chosen)
    before = dict(given)
    known = SharedScores()
    counts = LoopedTrainer(chosen).count(1, given, ("local", "global"), known)
    plain = LoopedTrainer(chosen).count(1, trees.clone(given), ("local", "global"))
    assert [leaf.tolist() for pair in counts.values() for leaf in pair] == [
        leaf.tolist() for pair in plain.values() for leaf in pair
    ]
    layout = None if isinstance(model, MLP) else not model.batch_norm
    sizes = [4, 1, *[4] * 4] if layout is None else [2, 2, 1, *[2] * 8]
    assert seen == [(size, layout) for size in sizes] * 2
    assert all(given[name] is leaf for name, leaf in before.items())
    assert known.of(given) == {0: known.counts[0]}


def test_scores_are_known_of_the_very_model_alone() -> None:
    known, a, b = SharedScores(), torch.arange(4.0), torch.ones(2)
    known.of({"a": a, "b": b})[0] = (a, a)
    assert known.of({"a": a, "b": b})
    for other in (
        {"a": a.clone(), "b": b}, {"a": a, "b": b.clone()}, {"a": a}, {"a": a, "b": b, "c": b},
        {"a": a.view(2, 2), "b": b},
        {"a": a[:2], "b": b}, {"a": a.view(2, 2).t(), "b": b}, {},
    ):  # fmt: skip
        assert known.of(other) == {}
        assert known.of({"a": a, "b": b}) == {}
        known.of({"a": a, "b": b})[0] = (a, a)


# ---- what is not finite


def check(losses: Sequence[float], learns: Sequence[bool], **leaves: list[Any]) -> None:
    """Wait for clients 5, 6, ... in round 3."""
    ids = torch.arange(5, 5 + len(losses))
    method: Any = SimpleNamespace(stages=lambda *_: ())
    chosen: Any = SimpleNamespace(
        method=method, protocol=SimpleNamespace(local=None), learns=lambda client, _: learns[client - 5]
    )
    uploads = {name: torch.tensor(leaf) for name, leaf in leaves.items()}
    trainer.synchronize([(chosen, ids, Outcome(uploads, {}, torch.tensor(losses).double()))], Clock(2, 9))


NAN, INF = float("nan"), float("inf")


def test_the_first_client_with_anything_that_is_not_finite_is_told() -> None:
    check([1.0, NAN, 2.0], [True, False, True], a=[[1.0], [2.0], [3.0]], count=[1, 2, 3])
    for losses, learns, leaf, told in (
        ([1.0, NAN, 1.0], [True] * 3, [[1.0, 2.0]] * 3, "client 6: the training loss is"),
        ([NAN, 1.0, INF], [False, True, True], [[1.0, 2.0]] * 3, "client 7: the training loss is"),
        ([1.0, 1.0, 1.0], [True] * 3, [[1.0, 2.0], [1.0, 2.0], [1.0, INF]], "client 7: leaf 'b' is"),
        ([NAN, 1.0, 1.0], [False, True, True], [[1.0, 2.0], [NAN, 2.0], [NAN, NAN]], "client 6: leaf 'b' is"),
    ):
        with pytest.raises(Diverged, match=rf"diverged in round 3 on {told} not finite; lower protocol.optimizer.lr"):
            check(losses, learns, a=[[1.0], [2.0], [3.0]], count=[1, 2, 3], b=leaf)
    good, one = torch.ones(3, 2), torch.tensor([[1.0, 1.0], [1.0, NAN], [NAN, NAN]])
    trainer.check_scores(4, torch.tensor([8, 7, 9]), [good, good])
    trainer.check_scores(4, torch.tensor([8, 7, 9]), [])
    for totals in ([one], [good, one], [one, good]):
        with pytest.raises(Diverged, match="in round 4 on client 7: its model's scores are not finite"):
            trainer.check_scores(4, torch.tensor([8, 7, 9]), totals)
    assert trainer.samples(torch.tensor([[1.0, NAN], [1.0, 2.0], [INF, INF]])).isnan().tolist() == [True, False, True]
    scores = torch.tensor([[1.0, 0.0], [NAN, NAN], [3.0, NAN]])
    correct, total = trainer.count_correct(scores, torch.tensor([0, 1, 1]), 2)
    assert (float(total[0]), float(correct[0])) == (1, 1)
    assert total[1].isnan()


@pytest.mark.parametrize(
    ("family", "reads", "adapts", "report", "score"),
    [
        ("global", ("personal",), True, "best_val", "received"), ("personalised", (), False, "best_val", "trained"),
        ("personalised", ("personal",), False, "last", "received"), ("clustered", (), True, "last", "received"),
        ("clustered", ("loss",), False, "best_val", "trained"), ("mixture", (), False, "best_test", "both"),
        ("mixture", (), False, "last", "trained"), ("mixture", (), True, "best_val", "received"),
    ],
)  # fmt: skip
def test_which_of_its_models_a_method_is_scored_by(
    family: str, reads: tuple[str, ...], adapts: bool, report: str, score: str
) -> None:
    def adapt(local: object, clock: Clock) -> list[int]:
        assert (local, clock) == ("local", Clock(7, 7))
        return [1] * adapts

    chosen: Any = SimpleNamespace(family=family, reads_data=reads, adapt=adapt)
    protocol: Any = SimpleNamespace(local="local", rounds=7, report=report)
    assert method.own_score(chosen, protocol)[0] == score


def test_a_stage_has_something_to_follow_and_a_rate() -> None:
    plain, loss = OptimizerConfig(lr=0.3), FedAvg().loss
    own = OptimizerConfig(name="adam", lr=0.2)
    assert [stage.hook for stage in (Stage(loss), Stage(direction=FedAvg().start))] == ["loss", "start"]  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a stage needs a loss or a direction"):
        _ = Stage().hook
    for stage, expected in (
        (Stage(loss), plain), (Stage(loss, optimizer=own), own), (Stage(loss, lr=0.1), OptimizerConfig(lr=0.1)),
        (Stage(loss, optimizer=own, lr=0.1), OptimizerConfig(name="adam", lr=0.1)),
    ):  # fmt: skip
        assert stage.optimizer_or(plain) == expected


# ---- what a hook is given, and what is told when it fails


def test_a_hook_is_given_the_message_as_it_is_sent_and_draw_the_one_on_the_host() -> None:
    chosen = setup(FedAvg())
    model = initial(chosen)
    host: Any = trees.OnHost(trees.expand(model, 2)).row(1)
    call = HookCaller(FedAvg(), CLOCK, [0])
    for on_host in (host, None):
        view = chosen.client(0, model, {}, CLOCK, on_host)
        assert call.client_view("draw", view).message is (model if on_host is None else on_host)
        assert call.client_view("start", view).message is model
        assert (call.client_view("start", view).fetch, call.client_view("start", view).fetch_validation) == (None, None)


def described(value: object) -> list[str]:
    return list(hooks._described("it", value))


def test_arguments_of_a_hook_that_failed_are_told_by_their_shapes() -> None:
    chosen = setup(FedAvg())
    leaf = torch.zeros(2, 3)
    view = chosen.client(0, {"a": leaf}, {}, CLOCK)
    assert described(view) == ["message: a [2, 3] float32", "memory: no leaves"]
    assert described(Batch(leaf, torch.zeros(2).long())) == ["it: x [2, 3] float32, y [2] int64"]
    mask = torch.ones(2).bool()
    told = "it: x [2, 3] float32, y [2] int64, mask [2] bool, n [2, 3] float32"
    assert described(Batch(leaf, torch.zeros(2).long(), mask, {"n": leaf})) == [told]
    assert described(chosen.cohort(torch.tensor([3, 1]), CLOCK)) == ["it: ids [3, 1]"]
    assert described({"in": {"a": leaf}, "number": 3}) == ["in: a [2, 3] float32"]
    assert described({"b": leaf, "in": {}}) == ["it: b [2, 3] float32", "in: no leaves"]
    assert described(3) == described([leaf]) == []
    for count, more in ((40, ""), (41, ", and 1 more"), (43, ", and 3 more")):
        (line,) = described({f"l{k}": leaf for k in range(count)})
        assert line == "it: " + ", ".join(f"l{k} [2, 3] float32" for k in range(40)) + more


@pytest.mark.parametrize(
    ("ids", "clock", "told"),
    [
        ([], None, ""), ([4], None, " for client 4"), ([4], Clock(1, 9), " in round 2 for client 4"),
        ([4, 5], Clock(0, 9), " in round 1 for 2 clients, 4, 5"),
        ([*range(8)], None, " for 8 clients, 0, 1, 2, 3, 4, 5, 6, 7"),
        ([*range(9)], None, " for 9 clients, 0, 1, 2, 3, 4, 5, 6, 7, ..."), ([], Clock(2, 9), " in round 3"),
    ],
)  # fmt: skip
def test_a_hook_that_fails_tells_when_and_for_whom(ids: list[int], clock: Clock | None, told: str) -> None:
    with pytest.raises(hooks.HookError) as caught:
        HookCaller(FedAvg(), clock, ids)("hook", lambda: 1 / 0)
    assert str(caught.value) == f"FedAvg.hook failed{told}: ZeroDivisionError: division by zero"
