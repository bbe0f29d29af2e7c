"""FedPer, FedBN, LG-FedAvg, FedRep, FedBABU, FedRoD, FedPAC: who owns which leaf, limits, rounds computed by hand."""

from __future__ import annotations

from functools import partial
from typing import Any

import cvxpy
import numpy as np
import pytest
import torch
from torch import Tensor

from fedbench.config.schema import LocalConfig, OptimizerConfig
from fedbench.core import rng, trees
from fedbench.core.errors import ConfigError
from fedbench.engine import schedule
from fedbench.engine.contract import Clock, Stage
from fedbench.engine.method import Method
from fedbench.engine.simulation import Simulation
from fedbench.engine.state import State
from fedbench.engine.train.looped import LoopedTrainer
from fedbench.methods import fedpac
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedbabu import FedBABU
from fedbench.methods.fedbn import FedBN
from fedbench.methods.fedpac import FedPAC
from fedbench.methods.fedper import FedPer
from fedbench.methods.fedrep import FedRep
from fedbench.methods.fedrod import FedRoD
from fedbench.methods.lg_fedavg import LGFedAvg
from fedbench.methods.local import Local
from fedbench.methods.parts import simplex_qp
from fedbench.models.lenet5 import LeNet5
from tests.methods.toys import (
    adapted,
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

HEAD = ["head.bias", "head.weight"]
BODY = ["fc.0.bias", "fc.0.weight"]
ONE_STEP: dict[str, Any] = {
    "rounds": 1,
    "epochs": 1,
    "batch": 50,
    "optimizer": OptimizerConfig(lr=0.2),
}


def bytes_of(tree: trees.Tree, names: list[str]) -> int:
    return sum(tree[name].numel() * tree[name].element_size() for name in names)


# ---- who owns what


@pytest.mark.parametrize(
    ("method", "shared"),
    [(FedPer(), BODY), (LGFedAvg(), HEAD), (FedRep(), BODY), (FedBABU(), BODY)],
)
def test_only_the_shared_leaves_cross_the_network(method: Method, shared: list[str]) -> None:
    chosen = setup(method, rounds=3, cohort=0.8)
    state = simulate(chosen)
    size = bytes_of(initial(chosen), shared)
    assert state.bytes_up == state.bytes_down == 3 * 4 * size


@pytest.mark.parametrize("method", [FedPer, LGFedAvg, FedBN])
def test_sharing_all_is_fedavg_and_nothing_is_local(method: type[FedAvg]) -> None:
    everything, nothing = setup(method(private=()), cohort=0.8), setup(method(private=("*",)), cohort=0.8)
    assert close(simulate(everything).server, simulate(setup(FedAvg(), cohort=0.8)).server, 0)
    assert close(simulate(nothing).memory, simulate(setup(Local(), cohort=0.8)).memory, 0)


@pytest.mark.parametrize(("method", "own"), [(FedPer(), "head"), (LGFedAvg(), "fc")])
def test_a_round_of_shared_body_or_head_by_hand(method: Method, own: str) -> None:
    chosen = setup(method, federation((5, 15)), **ONE_STEP)
    w = initial(chosen)
    trained = []
    for k in (0, 1):
        x, y = samples(chosen, k)
        trained.append(descend(lambda v, x=x, y=y: cross_entropy(logits(v, x), y), w, 0.2))
    state = simulate(chosen)
    found = models(chosen, state)
    for name in w:
        mean = 0.25 * trained[0][name] + 0.75 * trained[1][name]
        for k in (0, 1):
            expected = trained[k][name] if name.startswith(own) else mean
            assert close(found[name][k], expected, 1e-12), name


def batch_norm(method: Method) -> tuple[set[str], set[str], State]:
    """Names of batch normalisation's (affine parameters, statistics) of a network, and a run on it."""
    data = federation((6, 12), (1, 16, 16))
    chosen = setup(method, data, LeNet5(batch_norm=True), rounds=1, epochs=1)
    norm = set(chosen.task.groups["@norm"])
    return norm - chosen.task.buffers, set(chosen.task.buffers), simulate(chosen)


def test_fedbn_keeps_affine_parameters_and_statistics() -> None:
    affine, statistics, state = batch_norm(FedBN())
    assert len(affine) == len(statistics) == 4
    assert set(state.memory) == affine | statistics
    assert not set(state.server) & (affine | statistics)
    for name in affine | statistics:
        assert gap({"": state.memory[name][0]}, {"": state.memory[name][1]}) > 1e-4, name


@pytest.mark.parametrize("method", [FedPer(), FedRep(), FedBABU(), FedRoD(), FedPAC()])
def test_batch_norm_below_the_head_is_shared(method: Method) -> None:
    affine, statistics, state = batch_norm(method)
    kept = {name.rpartition("/")[2] for name in state.memory}
    sent = {name.rpartition("/")[2] for name in state.server}
    assert not kept & (affine | statistics)
    assert affine | statistics <= sent


def test_fedpers_statistics_are_the_clients_average() -> None:
    """After one round, of the statistics that FedAvg's clients arrive at (the head's privacy changes no local work)."""
    _, statistics, state = batch_norm(FedPer())
    fedavg = batch_norm(FedAvg())[2]
    assert all(close(state.server[name], fedavg.server[name], 1e-12) for name in statistics)


def test_lg_fedavg_is_fedpers_complement() -> None:
    mine, theirs = simulate(setup(LGFedAvg())), simulate(setup(FedPer()))
    assert set(mine.server) == set(theirs.memory) == set(HEAD)
    assert set(mine.memory) == set(theirs.server)


# ---- FedRep


@pytest.mark.parametrize(
    ("method", "local", "head", "body"),
    [
        (FedRep(), {"epochs": 5}, (4, None), (1, None)),  # pFedSim: the body in the last epoch only
        (FedRep(), {"epochs": 1}, (1, None), (1, None)),
        (FedRep(head_epochs=10), {"epochs": 5}, (10, None), (1, None)),  # the paper
        (FedRep(head_iterations=80), {"iterations": 200}, (None, 80), (None, 120)),  # FedSaC
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
                for rows in schedule.batches(
                    len(y), chosen.protocol.local, Stage(epochs=epochs, order=order), keyed
                ):
                    w = descend(
                        lambda v, r=rows, x=x, y=y: cross_entropy(logits(v, x[r]), y[r]), w, 0.1, [part]
                    )
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


# ---- FedBABU


def test_fedbabus_head_is_frozen_until_it_is_tuned() -> None:
    chosen = setup(FedBABU(tune_epochs=2), federation((5, 15)), **ONE_STEP)
    w = initial(chosen)
    state = simulate(chosen)
    each = []
    for k in (0, 1):
        x, y = samples(chosen, k)
        each.append(descend(lambda v, x=x, y=y: cross_entropy(logits(v, x), y), w, 0.2, ["fc"]))
    mean = {name: 0.25 * each[0][name] + 0.75 * each[1][name] for name in w}
    common = chosen.method.common(state.server, chosen.task)
    assert common is not None
    assert close(common, mean)
    assert close(trees.row(models(chosen, state), 0), mean)
    tuned = adapted(chosen, state)
    for k in (0, 1):
        expected = mean
        x, y = samples(chosen, k)
        for _ in range(2):
            expected = descend(lambda v, x=x, y=y: cross_entropy(logits(v, x), y), expected, 0.2)
        assert close(trees.row(tuned, k), expected)


def test_fedbabu_without_a_frozen_part_or_tuning_is_fedavg() -> None:
    chosen = setup(FedBABU(private=(), tune_epochs=0))
    common = chosen.method.common(simulate(chosen).server, chosen.task)
    assert common is not None
    assert close(common, simulate(setup(FedAvg())).server, 0)
    assert chosen.method.adapt(chosen.protocol.local, Clock(0, 1)) == ()


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


# ---- FedPAC


def by_cvxpy(Q: np.ndarray) -> np.ndarray:
    x = cvxpy.Variable(len(Q))
    problem = cvxpy.Problem(
        cvxpy.Minimize(cvxpy.quad_form(x, cvxpy.psd_wrap(Q))), [cvxpy.sum(x) == 1, x >= 0]
    )
    problem.solve(solver=cvxpy.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    return np.asarray(x.value)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
@pytest.mark.parametrize("count", [1, 2, 7, 20])
def test_the_simplex_qp_is_cvxpys(count: int, scale: float) -> None:
    generator = np.random.default_rng(count)
    problems = []
    for rank in (count, max(1, count // 2)):
        root = generator.normal(size=(count, rank)) + generator.normal(size=rank)
        problems.append(scale * (root @ root.T + np.diag(generator.uniform(0.001, 0.1, count))))
    found = simplex_qp.minimise(torch.from_numpy(np.stack(problems)))
    assert float(found.min()) >= 0
    assert close(found.sum(1), torch.ones(2, dtype=torch.float64), 1e-12)
    for row, Q in zip(found.numpy(), problems, strict=True):
        assert row == pytest.approx(by_cvxpy(Q), abs=1e-5)
        slope = Q @ row  # optimality: the objective's slope is least, and equal, where there is weight
        assert np.all(slope >= row @ Q @ row - 1e-9 * np.abs(Q).max())


def test_the_simplex_qp_without_a_unique_solution_treats_all_alike() -> None:
    for Q in (torch.zeros(1, 3, 3), torch.ones(1, 3, 3)):
        assert simplex_qp.minimise(Q)[0].tolist() == pytest.approx([1 / 3] * 3, abs=1e-9)


def test_fedpacs_weights_are_cvxpys_on_its_definition() -> None:
    generator = np.random.default_rng(0)
    h, V = generator.normal(size=(6, 3, 5)) / 4, generator.uniform(0.01, 0.5, 6)
    found = fedpac.weights(torch.from_numpy(h), torch.from_numpy(V)).numpy()
    for i in range(6):
        G = np.array([[((h[i] - h[j]) * (h[i] - h[m])).sum() for m in range(6)] for j in range(6)])
        assert found[i] == pytest.approx(by_cvxpy(G + np.diag(V)), abs=1e-5)
    same = fedpac.weights(torch.ones(4, 3, 5), torch.tensor([0.1, 0.1, 0.2, 0.4])).numpy()
    assert same == pytest.approx(np.tile(np.array([4, 4, 2, 1]) / 11, (4, 1)), abs=1e-8)  # inverse variances
    order = [3, 1, 5, 0, 2, 4]
    again = fedpac.weights(torch.from_numpy(h[order]), torch.from_numpy(V[order])).numpy()
    assert again == pytest.approx(found[np.ix_(order, order)], abs=1e-8)


def test_alone_and_unaligned_fedpac_is_fedrep() -> None:
    data = federation((6, 13, 4))
    options: dict[str, Any] = {"rounds": 3, "epochs": 2, "cohort": 2}
    method = FedPAC(lam=0.0, classifier_lr=0.1, collaborate=False)
    fedpac_run = setup(method, data, **options)
    fedrep_run = setup(FedRep(head_epochs=1, body_epochs=2), data, **options)
    one, other = simulate(fedpac_run), simulate(fedrep_run)
    found = models(fedpac_run, one)
    assert close(found, models(fedrep_run, other))
    together = setup(FedPAC(lam=0.0), data, **options)
    assert gap(models(together, simulate(together)), found) > 1e-3


def aligned(x: Tensor, y: Tensor, lam: float, centroids: dict[int, Tensor], w: trees.Tree) -> Tensor:
    pulls = [
        (features(w, x[i : i + 1])[0] - centroids[int(label)]).square().mean()
        for i, label in enumerate(y)
        if int(label) in centroids
    ]
    return cross_entropy(logits(w, x), y) + lam * sum(pulls, torch.zeros(())) / len(y)


def test_two_rounds_of_fedpac_by_hand() -> None:
    lr, fast, lam = 0.2, 0.4, 3.0
    options = {**ONE_STEP, "rounds": 2}
    method = FedPAC(lam=lam, classifier_lr=fast)
    chosen = setup(method, federation((5, 9), labels=[[0, 1], [1, 2]]), **options)
    w = initial(chosen)
    body, heads = {k: w[k] for k in BODY}, [{k: w[k] for k in HEAD}] * 2
    centroids: dict[int, Tensor] = {}
    data = [samples(chosen, k) for k in (0, 1)]
    for _ in range(2):
        trained, h, V = [], [], []
        for (x, y), head in zip(data, heads, strict=True):
            w = {**body, **head}
            z = features(w, x)
            rows = [z[y == c].mean(0) * (y == c).double().mean() for c in range(4) if bool((y == c).any())]
            means = torch.zeros(4, 7, dtype=torch.float64)
            means[torch.unique(y)] = torch.stack(rows)
            h.append(means.numpy())
            V.append((float(z.square().sum(1).mean()) - float(means.square().sum())) / len(y))
            w = descend(lambda v, x=x, y=y: cross_entropy(logits(v, x), y), w, fast, ["head"])
            trained.append(descend(partial(aligned, x, y, lam, dict(centroids)), w, lr, ["fc"]))
        for c in range(3):
            of_class = [features(w, x)[y == c] for w, (x, y) in zip(trained, data, strict=True)]
            centroids = {**centroids, c: torch.cat(of_class).mean(0)}
        W = []
        for i in (0, 1):
            G = np.array([[((h[i] - h[j]) * (h[i] - h[m])).sum() for m in (0, 1)] for j in (0, 1)])
            W.append(by_cvxpy(G + np.diag(V)))
        heads = [{k: W[i][0] * trained[0][k] + W[i][1] * trained[1][k] for k in HEAD} for i in (0, 1)]
        body = {k: (5 * trained[0][k] + 9 * trained[1][k]) / 14 for k in BODY}
    state = simulate(chosen)
    assert close(trees.part(state.server, "body"), body, 1e-6)
    assert close(trees.part(state.server, "heads"), trees.stack(heads), 1e-5)
    assert close(state.server["W"], torch.from_numpy(np.stack(W)), 1e-5)
    assert 0.01 < float(state.server["W"][0, 1]) < 0.99
    assert state.server["seen"].tolist() == [True, True, True, False]
    assert close(state.server["centroids"][:3], torch.stack([centroids[c] for c in range(3)]), 1e-6)


def test_absent_clients_keep_their_classifier_and_their_row_of_w() -> None:
    chosen = setup(FedPAC(), rounds=1, cohort=0.6)
    state = simulate(chosen)
    ids = chosen.draw_cohort(Clock(0, 1)).tolist()
    absent = [k for k in range(5) if k not in ids]
    start = initial(chosen)
    for k in absent:
        assert close(trees.row(trees.part(state.server, "heads"), k), {n: start[n] for n in HEAD}, 0)
        assert state.server["W"][k].tolist() == [float(j == k) for j in range(5)]
    assert float(state.server["W"][ids][:, absent].abs().sum()) == 0
