"""What a method may ask of the engines: stages, directions, noise, samples; what is refused, and how a hook fails."""

from __future__ import annotations

import pickle
import re
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from fedbench.config import groups
from fedbench.config.schema import LocalConfig, OptimizerConfig, TestConfig
from fedbench.core import rng, trees
from fedbench.core.batch import Batch
from fedbench.core.errors import ConfigError, Diverged, UnknownName
from fedbench.core.trees import Tree
from fedbench.engine import schedule
from fedbench.engine.contract import Client, ClientHook, Clock, Stage
from fedbench.engine.hooks import HookError, check_selectors
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.method import Method
from fedbench.engine.setup import Setup
from fedbench.engine.stacked import StackedTrainer
from fedbench.engine.trainer import Trainer
from fedbench.engine.workers import WorkersTrainer
from fedbench.methods.fedavg import FedAvg
from fedbench.models.small import MLP, LeNet5
from fedbench.models.task import Model, Task
from tests.engine.broken import Broken
from tests.engine.toys import both
from tests.helpers.tiers import sampled
from tests.methods.toys import SIZES, close, federation, gap, setup, simulate

HEAVY = OptimizerConfig(lr=0.05, momentum=0.9, weight_decay=1e-2, clip=1.0)


def on_lenet(method: FedAvg, **options: object) -> Setup:
    return setup(method, federation(SIZES, (1, 16, 16)), LeNet5(batch_norm=True), optimizer=HEAVY, **options)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Directed(FedAvg):
    """FedAvg told as a direction: the gradient, and the statistics that the forward pass moved."""

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        return (Stage(direction=self.direction),)

    def direction(self, work: Tree, client: Client, batch: Batch) -> Tree:
        weights, statistics = trees.split(work, client.task.parameters)

        def loss(weights: Tree) -> tuple[Tensor, Tree]:
            moved = trees.map_leaves(torch.clone, statistics)
            return client.task.loss({**weights, **moved}, batch), moved

        gradient, moved = torch.func.grad(loss, has_aux=True)(weights)
        return {**gradient, **moved}


@pytest.mark.parametrize("kind", sampled(["mlp", "batch_norm"], every=2))
def test_a_direction_equal_to_the_gradient_is_the_gradient(kind: str) -> None:
    def made(method: FedAvg) -> Setup:
        return on_lenet(method) if kind == "batch_norm" else setup(method, optimizer=HEAVY)

    looped, stacked = both(made(Directed()))
    assert gap(looped.server, simulate(made(FedAvg())).server) < 1e-9
    assert torch.isnan(torch.tensor([r.train_loss for r in looped.history.records])).all(), "no loss to report"
    assert torch.isnan(torch.tensor([r.train_loss for r in stacked.history.records])).all()


@dataclass(frozen=True)
class HeadThenBody(FedAvg):
    """Two stages with their own length, rate and batches."""

    same_batches: bool = False

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        order = 0 if self.same_batches else 1
        return (
            Stage(self.loss, moves=("@head",), epochs=3, optimizer=OptimizerConfig(name="adam", lr=0.01)),
            Stage(self.loss, moves=("@body",), iterations=2, lr=0.02, order=order),
        )


def hand_staged(chosen: Setup, client: int, second_order: int) -> Tree:
    """HeadThenBody's first round on one client, with torch.optim on the toy MLP's leaves."""
    data, local = chosen.federation, chosen.protocol.local
    start = {k: v.double() for k, v in chosen.task.init(rng.torch_rng(chosen.seed, "init")).items()}
    leaves = {k: v.requires_grad_(True) for k, v in start.items()}
    head = [leaves[k] for k in sorted(leaves) if k.startswith("head.")]
    body = [leaves[k] for k in sorted(leaves) if not k.startswith("head.")]
    x, y = data.gather(data.indices("train", client))
    momentum, decay = chosen.protocol.optimizer.momentum, chosen.protocol.optimizer.weight_decay
    plan: list[tuple[torch.optim.Optimizer, Stage, int]] = [
        (torch.optim.Adam(head, lr=0.01), Stage(epochs=3), 0),
        (
            torch.optim.SGD(body, lr=0.02, momentum=momentum, weight_decay=decay),
            Stage(iterations=2),
            second_order,
        ),
    ]
    for optimizer, stage, order in plan:
        keyed = rng.torch_rng(chosen.seed, "batches", 0, client, order)
        for rows in schedule.batches(len(y), local, stage, keyed):
            hidden = torch.relu(x[rows].flatten(1) @ leaves["fc.0.weight"].t() + leaves["fc.0.bias"])
            logits = hidden @ leaves["head.weight"].t() + leaves["head.bias"]
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(logits, y[rows]).backward()
            optimizer.step()
    return {k: v.detach() for k, v in leaves.items()}


@pytest.mark.parametrize("same", [True, False])
def test_stages_have_leaves_lengths_rates_and_batches_of_their_own(same: bool) -> None:
    sgd = OptimizerConfig(lr=0.3, momentum=0.9, weight_decay=0.1)
    chosen = setup(HeadThenBody(private=("*",), same_batches=same), rounds=1, optimizer=sgd)
    looped, _ = both(chosen)
    for client in range(5):
        expected = hand_staged(chosen, client, 0 if same else 1)
        assert close(trees.row(looped.memory, client), expected)
    differently = hand_staged(chosen, 3, 1 if same else 0)
    assert gap(trees.row(looped.memory, 3), differently) > 1e-4, "the stage's order keys its batches"


@dataclass(frozen=True)
class Noisy(FedAvg):
    """Each step's loss is weighted by normal numbers drawn for it; all that is drawn is written down."""

    stage_order: int = 0
    drawn: ClassVar[dict[tuple[int, int, int], Tensor]] = {}

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        return (Stage(self.loss, order=self.stage_order),)

    def draw(self, generator: torch.Generator, steps: int, client: Client) -> Tree:
        weight = torch.randn(steps, 2, generator=generator, dtype=torch.float64)
        self.drawn[int(client.size), client.clock.round, self.stage_order] = weight
        return {"weight": weight}

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        return super().loss(work, client, batch) * batch.noise["weight"].sum().square()


def test_noise_is_drawn_for_every_step_and_keyed_by_client_round_and_order() -> None:
    Noisy.drawn.clear()
    gentle = OptimizerConfig(lr=0.02)
    looped, _ = both(setup(Noisy(), optimizer=gentle))
    assert gap(looped.server, simulate(setup(FedAvg(), optimizer=gentle)).server) > 1e-3
    simulate(setup(Noisy(stage_order=1), optimizer=gentle))
    assert {(size, t): len(noise) for (size, t, order), noise in Noisy.drawn.items() if order == 0} == {
        (size, t): 2 * -(-size // 8) for size in SIZES for t in (0, 1)
    }, "two epochs of ceil(n / 8) steps"
    assert len({tuple(noise[0].tolist()) for noise in Noisy.drawn.values()}) == len(SIZES) * 2 * 2


def test_augmentation_is_the_same_for_either_engine_and_changes_training_only() -> None:
    data = federation(SIZES, (1, 8, 8))
    chosen = setup(FedAvg(), data, MLP(hidden=(7,)), augment=("crop4", "flip"))
    plain = setup(FedAvg(), data, MLP(hidden=(7,)))
    looped, _ = both(chosen)
    assert gap(looped.server, simulate(plain).server) > 1e-3
    before = looped.history.records[0].tallies["local"].correct.tolist()
    assert before == simulate(plain).history.records[0].tallies["local"].correct.tolist()


# A hook reads its client's samples only if the method announced it, whichever engine calls it.

ENGINES = {"looped": LoopedTrainer, "stacked": lambda chosen: StackedTrainer(chosen, 2)}


@dataclass(frozen=True)
class Reader(FedAvg):
    """Reads the samples in one hook, and announces that it does in others."""

    hook: str = ""
    what: str = "data"
    announced: tuple[str, ...] = ()

    @property
    def reads_data(self) -> frozenset[ClientHook]:
        return frozenset(self.announced)  # type: ignore[arg-type]

    def read(self, name: str, client: Client) -> None:
        if name == self.hook:
            getattr(client, self.what)

    def start(self, client: Client) -> Tree:
        self.read("start", client)
        return super().start(client)

    def draw(self, generator: torch.Generator, steps: int, client: Client) -> Tree:
        self.read("draw", client)
        return {}

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        self.read("loss", client)
        return client.task.loss(work, batch)

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        self.read("finish", client)
        return super().finish(work, client)

    def model(self, work: Tree, client: Client) -> Tree:
        self.read("model", client)
        return work

    def personal(self, client: Client) -> Tree:
        self.read("personal", client)
        return client.message


HOOKS = ("start", "draw", "loss", "finish", "model", "personal")


@pytest.mark.parametrize("engine", sampled(ENGINES, every=2))
@pytest.mark.parametrize("what", ["data", "validation"])
@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_reads_only_what_the_method_announced(hook: str, what: str, engine: str) -> None:
    options: dict[str, Any] = {"rounds": 1, "score": "received" if hook == "personal" else "trained"}
    if what == "validation":
        options["test"] = TestConfig(val_fraction=0.1)
    others = tuple(name for name in HOOKS if name != hook)
    for announced in ((), others):
        told = setup(Reader(hook=hook, what=what, announced=announced), **options)
        with pytest.raises(HookError, match=rf"Reader.{hook} failed .*client\.{what}: list its name in .*`reads_data`"):
            simulate(told, ENGINES[engine](told))
    allowed = setup(Reader(hook=hook, what=what, announced=(hook,)), **options)
    simulate(allowed, ENGINES[engine](allowed))


def test_a_hook_that_does_not_exist_cannot_be_announced() -> None:
    with pytest.raises(UnknownName, match="hook in reads_data of Reader 'finsh'; nearest: finish"):
        setup(Reader(announced=("finsh",)))


# A method whose selector finds nothing in the network is refused: it would be another method under its name.


def method(name: str, **fields: Any) -> Method:
    built: Method = groups.registry("method").build({"name": name, **fields})
    return built


def task(model: Model) -> Task:
    return model.task((1, 16, 16), 4)


PLAIN, NORMALISED = task(MLP(hidden=(6,))), task(LeNet5(batch_norm=True))


REFUSED: list[tuple[Method, str]] = [
    (method("fedper", private=["nosuch"]), "method.private: 'nosuch' matches none of the network's leaves"),
    (method("fedper", private=["@head", "hed.*"]), "nearest: head.bias, head.weight"),
    (
        method("fedbn"),
        "method.private=[@norm] matches none of the network's leaves; it has @head, @body, @classifier:",
    ),
    (method("fedavg", private=["@stats"]), "method.private=[@stats] matches none"),
    (method("fedamp", private=["@stats", "nosuch"]), "'nosuch' matches none"),
    (method("finetune", tuned=["haed.*"]), "method.tuned: 'haed.*' matches none"),
    (method("kmeans", compared=["@stats"]), "method.compared=[@stats] matches none of the network's weights"),
    (method("sosicfl", simplex=["tail"]), "method.simplex: 'tail' matches none of the network's weights"),
    (method("fedper", private=["@nosuch"]), "unknown leaf group '@nosuch'"),
    (method("fedcollab", base={"name": "fedbn"}), "method.base.private=[@norm] matches none"),
]


@pytest.mark.parametrize(("chosen", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_finds_nothing_is_refused_in_one_line(chosen: Method, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_selectors(chosen, PLAIN)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["fedamp", "pfedsim", "fedap", "pfedhn", "fedavg", "local", "fedper", "lg_fedavg"])
def test_what_may_find_nothing_or_finds_something_is_accepted(name: str) -> None:
    check_selectors(method(name), PLAIN)
    check_selectors(method(name), NORMALISED)


def test_groups_that_a_network_lacks_may_stand_beside_others() -> None:
    check_selectors(method("fedper", private=["@head", "@stats"]), PLAIN)
    check_selectors(method("fedbn"), NORMALISED)
    check_selectors(method("fedavg", private=["@stats"]), NORMALISED)


def test_a_run_does_not_begin() -> None:
    with pytest.raises(ConfigError, match="matches none"):
        setup(method("fedbn"))


# A hook that fails says which it was, where and on what, whichever engine called it; what users can act on stays.


def chosen(hook: str, **options: Any) -> Setup:
    """Two rounds of clients 1 and 4 (then 0 and 3, or whoever is drawn)."""
    score = "received" if hook in ("personal", "adapt", "common") else "trained"
    test = TestConfig(sets="global") if hook == "common" else TestConfig()
    return setup(Broken(hook=hook, **options), cohort=2, score=score, test=test)


def failure(broken: Setup, trainer: Trainer) -> HookError:
    with pytest.raises(HookError) as caught:
        simulate(broken, trainer)
    return caught.value


DEBUGGED = {"looped": LoopedTrainer, "stacked": lambda broken: StackedTrainer(broken, 2)}
ON_CLIENTS = ("start", "draw", "loss", "towards", "finish", "model", "stages")


@pytest.mark.parametrize("engine", DEBUGGED)
@pytest.mark.parametrize("hook", ON_CLIENTS)
def test_a_failing_client_hook_names_itself_its_clients_and_the_round(hook: str, engine: str) -> None:
    broken = chosen(hook)
    first, second = broken.draw_cohort(Clock(1, 2)).tolist()
    error = failure(broken, DEBUGGED[engine](broken))
    head, *rest = str(error).splitlines()
    whose = (
        f"client {first}",
        f"client {second}",
        f"2 clients, {first}, {second}",
        f"2 clients, {second}, {first}",
    )
    assert head in [f"Broken.{hook} failed in round 2 for {who}: KeyError: 'momentum'" for who in whose]
    assert ("2 clients" in head) == (engine == "stacked" and hook != "draw")
    assert error.__cause__ is broken.method.error  # type: ignore[attr-defined]
    if hook != "stages":
        (message,) = [line for line in rest if line.startswith("  message: ")]
        assert "fc.0.weight [7, 16] float64" in message
    if hook in ("loss", "finish", "model") and engine == "looped":
        (work,) = [line for line in rest if line.startswith("  work: ")]
        assert "head.weight [4, 7] float64" in work
    if hook == "finish" and engine == "stacked":
        (work,) = [line for line in rest if line.startswith("  work: ")]
        assert "head.weight [2, 4, 7] float64" in work


@pytest.mark.parametrize("engine", DEBUGGED)
@pytest.mark.parametrize("hook", ["personal", "adapt", "predict"])
def test_so_does_one_that_scores(hook: str, engine: str) -> None:
    broken = chosen(hook)
    assert str(failure(broken, DEBUGGED[engine](broken))).startswith(f"Broken.{hook} failed in round ")


@pytest.mark.parametrize("hook", ["init", "prepare", "send", "aggregate", "common"])
def test_a_failing_server_hook_names_itself_its_cohort_and_trees(hook: str) -> None:
    broken = chosen(hook)
    error = failure(broken, LoopedTrainer(broken))
    head, *rest = str(error).splitlines()
    assert head.startswith(f"Broken.{hook} failed")
    assert isinstance(error.__cause__, KeyError)
    if hook in ("init", "prepare"):
        assert head == f"Broken.{hook} failed: KeyError: 'momentum'", "no round has begun"
    if hook in ("send", "aggregate"):
        first, second = broken.draw_cohort(Clock(1, 2)).tolist()
        assert f"in round 2 for 2 clients, {first}, {second}: KeyError" in head
        assert "  cohort: ids" in "\n".join(rest)
    if hook != "init":
        assert "  server: " in "\n".join(rest)
    if hook == "aggregate":
        assert "  uploads: " in "\n".join(rest)
        assert "head.bias [2, 4] float64" in "\n".join(rest)


def test_worker_processes_tell_as_much() -> None:
    broken = chosen("loss")
    error = failure(broken, WorkersTrainer(broken, 2))
    assert re.match(r"Broken\.loss failed in round 2 for client \d: KeyError: 'momentum'\n", str(error))
    assert "  work: " in str(error)
    assert repr(error.__cause__) == "KeyError('momentum')"
    where = str(error.__cause__.__cause__)  # type: ignore[union-attr]
    assert "in loss" in where
    assert where.count("Traceback") == 1


@pytest.mark.parametrize("engine", DEBUGGED)
@pytest.mark.parametrize(
    "error",
    sampled(
        [
            Diverged("on its own terms"),
            ConfigError("of its own"),
            torch.OutOfMemoryError(),
            MemoryError(),
            RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        ],
        every=4,
    ),
)
def test_errors_that_someone_can_act_on_pass_unchanged(error: Exception, engine: str) -> None:
    broken = setup(Broken(hook="aggregate", error=error))
    with pytest.raises(type(error)) as caught:
        simulate(broken, DEBUGGED[engine](broken))
    assert caught.value is error


def test_what_cannot_pass_a_pipe_is_told_in_words() -> None:
    class Local(Exception):
        pass

    error = HookError("Broken.loss failed")
    error.__cause__ = Local("why")
    found = pickle.loads(pickle.dumps(error))
    assert str(found) == "Broken.loss failed"
    assert str(found.__cause__) == "Local: why"
