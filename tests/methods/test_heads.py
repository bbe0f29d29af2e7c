"""FedRep and FedRoD, heads beside bodies: limits, rounds computed by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedbench.config.schema import LocalConfig
from fedbench.core import rng, trees
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.engine import schedule
from fedbench.engine.contract import Clock, Stage
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.method import Method
from fedbench.engine.simulation import Simulation
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedbabu import FedBABU
from fedbench.methods.fedcp import FedCP
from fedbench.methods.fedpac import FedPAC
from fedbench.methods.fedper import FedPer
from fedbench.methods.fedproto import FedProto
from fedbench.methods.fedrema import FedReMa
from fedbench.methods.fedrep import FedRep
from fedbench.methods.fedrod import FedRoD
from fedbench.methods.gpfl import GPFL
from fedbench.methods.knnper import KNNPer
from fedbench.methods.lg_fedavg import LGFedAvg
from fedbench.methods.moon import Moon
from fedbench.methods.pfedsim import PFedSim
from fedbench.models.small import MLP, LeNet5
from tests.methods.toys import (
    BODY,
    HEAD,
    ONE_STEP,
    close,
    cross_entropy,
    descend,
    features,
    federation,
    gap,
    initial,
    logits,
    models,
    samples,
    setup,
    simulate,
)

# ---- FedRep


@pytest.mark.parametrize(
    ("method", "local", "head", "body"),
    [
        (FedRep(), {"epochs": 5}, (4, None), (1, None)),  # pFedSim: the body in the last epoch only
        (FedRep(), {"epochs": 1}, (1, None), (1, None)),
        (FedRep(head_epochs=10), {"epochs": 5}, (10, None), (1, None)),  # the paper
        (FedRep(head_iterations=80), {"iterations": 200}, (None, 80), (None, 120)),
        (FedRep(head_iterations=80, whole_body=True), {"iterations": 200}, (None, 80), (None, 200)),  # pFedGraph
        (FedRep(head_iterations=80, whole_body=True), {"iterations": 20}, (None, 80), (None, 20)),
        (FedRep(), {"iterations": 10}, (None, 4), (None, 6)),
        (FedRep(), {"iterations": 1}, (None, 0), (None, 1)),
    ],
)
def test_fedreps_budget(
    method: FedRep,
    local: dict[str, int],
    head: tuple[int | None, int | None],
    body: tuple[int | None, int | None],
) -> None:
    config = LocalConfig(**{"epochs": None, **local})
    found = [schedule.local_work(stage, config) for stage in method.stages(config, Clock(0, 1))]
    assert found == [head, body]


def test_fedrep_refuses_a_head_that_takes_everything() -> None:
    with pytest.raises(ConfigError, match="leaves nothing"):
        simulate(setup(FedRep(head_iterations=5), iterations=5))
    with pytest.raises(ConfigError, match="counts only where the protocol counts iterations"):
        simulate(setup(FedRep(whole_body=True), epochs=5))


def test_fedrep_is_a_plain_loop_of_head_then_body() -> None:
    chosen = setup(FedRep(head_epochs=2, body_epochs=1), federation((13, 4)), rounds=2)
    heads = [{k: v for k, v in initial(chosen).items() if k in HEAD}] * 2
    body = {k: v for k, v in initial(chosen).items() if k in BODY}
    for t in range(2):
        bodies = []
        for k in (0, 1):
            w = {**body, **heads[k]}
            x, y = samples(chosen, k)
            for order, (part, epochs) in enumerate((("head", 2), ("fc", 1))):
                keyed = rng.torch_rng(0, "batches", t, k, order)
                for rows in schedule.batches(len(y), chosen.protocol.local, Stage(epochs=epochs, order=order), keyed):
                    w = descend(lambda v, r=rows, x=x, y=y: cross_entropy(logits(v, x[r]), y[r]), w, 0.1, [part])
            heads = [{name: w[name] for name in HEAD} if i == k else heads[i] for i in (0, 1)]
            bodies.append(w)
        body = {name: (13 * bodies[0][name] + 4 * bodies[1][name]) / 17 for name in BODY}
    state = simulate(chosen)
    assert close(state.server, body)
    assert close(state.memory, trees.stack(heads))


def test_without_body_epochs_fedrep_trains_heads_on_fixed_features() -> None:
    chosen = setup(FedRep(body_epochs=0, head_epochs=2), rounds=2)
    state = simulate(chosen)
    assert close(state.server, {k: initial(chosen)[k] for k in BODY}, 1e-14)
    assert gap(trees.row(state.memory, 1), {k: initial(chosen)[k] for k in HEAD}) > 1e-3


# ---- FedRoD


def test_fedrod_by_hand() -> None:
    """Two steps: the generic part by balanced softmax alone; the personal head on features it does not move."""
    chosen = setup(FedRoD(), federation((9,)), **{**ONE_STEP, "epochs": 2})
    w = initial(chosen)
    x, y = samples(chosen, 0)
    counts = torch.bincount(y, minlength=4).double()
    own = {"weight": torch.zeros_like(w["head.weight"]), "bias": torch.zeros_like(w["head.bias"])}

    def balanced(v: trees.Tree) -> Tensor:
        mass = counts * logits(v, x).exp()
        return -(mass / mass.sum(1, keepdim=True))[torch.arange(9), y].log().mean()

    for _ in range(2):
        z, generic = features(w, x), logits(w, x)

        def empirical(v: trees.Tree, z: Tensor = z, generic: Tensor = generic) -> Tensor:
            return cross_entropy(generic + z @ v["weight"].t() + v["bias"], y)

        own = descend(empirical, own, 0.2, ["weight", "bias"])
        w = descend(balanced, w, 0.2)
    state = simulate(chosen)
    assert close(state.server, w, 1e-6)  # an absent class counts 1e-8
    assert close(state.memory["own/head.weight"][0], own["weight"], 1e-6)
    assert close(state.memory["own/head.bias"][0], own["bias"], 1e-6)
    shown = chosen.method.predict(trees.row(models(chosen, state), 0), x, chosen.task)
    assert close(shown, logits(w, x) + features(w, x) @ own["weight"].t() + own["bias"], 1e-5)


def test_a_personal_head_alone_by_hand() -> None:
    """Two steps of one loss: balanced softmax of h_G, and cross-entropy of h_P(z), which moves the body too."""
    chosen = setup(FedRoD(alone=True), federation((9,)), **{**ONE_STEP, "epochs": 2})
    w = initial(chosen)
    x, y = samples(chosen, 0)
    counts = torch.bincount(y, minlength=4).double()
    v = {**w, "own.weight": w["head.weight"], "own.bias": w["head.bias"]}

    def risks(v: trees.Tree) -> Tensor:
        mass = counts * logits(v, x).exp()
        balanced = -(mass / mass.sum(1, keepdim=True))[torch.arange(9), y].log().mean()
        return balanced + cross_entropy(features(v, x) @ v["own.weight"].t() + v["own.bias"], y)

    for _ in range(2):
        v = descend(risks, v, 0.2, ("fc", "head", "own"))
    state = simulate(chosen)
    assert close(state.server, {name: v[name] for name in w}, 1e-6)  # an absent class counts 1e-8
    shown = chosen.method.predict(trees.row(models(chosen, state), 0), x, chosen.task)
    assert close(shown, features(v, x) @ v["own.weight"].t() + v["own.bias"], 1e-5)


def test_a_generic_head_that_stays_by_hand() -> None:
    """The body alone crosses the network; each client's h_G and h_P go on from where its own last round left them."""
    data = federation((9, 6))
    chosen = setup(FedRoD(generic_stays=True), data, **{**ONE_STEP, "rounds": 2})
    start = initial(chosen)
    body = {name: start[name] for name in BODY}
    heads = [{name: start[name] for name in HEAD}] * 2
    owns = [{name.removeprefix("head."): start[name] for name in HEAD}] * 2
    for _ in range(2):
        trained = []
        for k in (0, 1):
            x, y = samples(chosen, k)
            w, own, counts = {**body, **heads[k]}, owns[k], torch.bincount(y, minlength=4).double()

            def balanced(v: trees.Tree, x: Tensor = x, y: Tensor = y, counts: Tensor = counts) -> Tensor:
                return cross_entropy(logits(v, x) + counts.clamp(min=1e-8).log(), y)

            def empirical(v: trees.Tree, w: Tree = w, x: Tensor = x, y: Tensor = y) -> Tensor:
                return cross_entropy(logits(w, x) + features(w, x) @ v["weight"].t() + v["bias"], y)

            owns = [descend(empirical, own, 0.2, ["weight", "bias"]) if i == k else owns[i] for i in (0, 1)]
            trained.append(descend(balanced, w, 0.2))
        heads = [{name: w[name] for name in HEAD} for w in trained]
        body = {name: (9 * trained[0][name] + 6 * trained[1][name]) / 15 for name in BODY}
    state = simulate(chosen)
    assert close(state.server, body, 1e-6)
    assert sorted(state.server) == BODY
    for k in (0, 1):
        assert close({name: state.memory[name][k] for name in HEAD}, heads[k], 1e-6)
        assert close({name: state.memory[f"own/head.{name}"][k] for name in owns[k]}, owns[k], 1e-6)
    assert gap(heads[0], heads[1]) > 1e-3
    both = simulate(setup(FedRoD(), data, **{**ONE_STEP, "rounds": 2}))
    assert state.bytes_up / both.bytes_up == sum(map(torch.Tensor.numel, body.values())) / sum(
        map(torch.Tensor.numel, start.values())
    )


def test_with_balanced_classes_fedrods_server_is_fedavg() -> None:
    data = federation((8, 16, 4))
    for k in range(3):
        rows = data.indices("train", k)
        data.y[rows] = torch.arange(len(rows)) % 4
    data.population = data._population()
    fedrod, fedavg = setup(FedRoD(), data, rounds=2), setup(FedAvg(), data, rounds=2)
    assert close(simulate(fedrod).server, simulate(fedavg).server, 1e-9)


def test_fedrods_personal_prediction_starts_as_the_generic_one() -> None:
    chosen = setup(FedRoD())
    state = Simulation(chosen, LoopedTrainer(chosen)).begin()
    x, _ = samples(chosen, 3)
    shown = chosen.method.predict(trees.row(models(chosen, state), 3), x, chosen.task)
    assert close(shown, chosen.task.apply(state.server, x), 1e-12)


# model.classifier: selectors, features and every method with a body and a head part the network at one place.

SHAPE = (1, 16, 16)
METHODS: list[Method] = [
    FedBABU(tune_epochs=1),
    FedCP(),
    FedPAC(),
    FedPer(),
    FedProto(),
    FedReMa(),
    FedRep(),
    FedRoD(),
    GPFL(),
    KNNPer(),
    LGFedAvg(),
    Moon(),
    PFedSim(rho=0.0),
]


def final(method: Method, classifier: str) -> Tree:
    chosen = setup(method, federation((6, 9, 8), SHAPE), LeNet5(classifier=classifier), rounds=2, epochs=2, batch=8)
    return models(chosen, simulate(chosen))


@pytest.mark.parametrize(("split", "stage", "width"), [("own", "head", 84), ("last", "head", 84), ("linear", "fc", 16)])
def test_selectors_and_features_agree(split: str, stage: str, width: int) -> None:
    task = LeNet5(batch_norm=True, classifier=split).task(SHAPE, 4)
    names = sorted(task.parameters | task.buffers)
    head = [name for name in names if name.startswith("head.") or (stage == "fc" and name.startswith("fc."))]
    assert (task.boundary, task.select(names, ["@head"])) == (stage, head)
    assert task.select(names, ["@body"]) == [name for name in names if name not in head]
    every = [name for name in names if name.startswith(("fc.", "head."))]
    assert task.select(names, ["@classifier"]) == (every if split == "own" else head)
    model, x = task.init(torch.Generator().manual_seed(0)), torch.rand(3, *SHAPE)
    z = task.features(model, x)
    assert z.shape == (3, width)
    only_head = {name: model[name] for name in head}
    assert torch.equal(task.head(only_head, z), task.apply(model, x))


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_every_method_obeys(method: Method) -> None:
    last, linear = final(method, "last"), final(method, "linear")
    shared = set(last) & set(linear)
    assert shared
    assert any(last[k].shape != linear[k].shape or gap({k: last[k]}, {k: linear[k]}) > 1e-6 for k in shared)
    own = "linear" if isinstance(method, FedReMa) else "last"
    assert close(final(method, "own"), {"last": last, "linear": linear}[own])


def test_the_split_is_where_a_selector_would_put_it() -> None:
    assert close(final(FedPer(), "linear"), final(FedPer(private=("@classifier",)), "own"))
    assert close(final(FedReMa(), "last"), final(FedReMa(classifier=("@head",)), "own"))


def test_fedpac_keeps_all_linear_layers_apart() -> None:
    received = final(FedPAC(), "linear")
    assert close(trees.row(received, 0)["conv.0.weight"], trees.row(received, 1)["conv.0.weight"])
    assert not close(received["fc.0.weight"][0], received["fc.0.weight"][1], 1e-6)


def test_a_network_without_a_body_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model.classifier=linear: .* choose another model"):
        MLP(classifier="linear").task(SHAPE, 4)
