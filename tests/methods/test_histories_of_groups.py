"""Rounds by hand as in test_histories.py, of batch normalisation kept at home, of coalitions found from the data, and
of methods inside each kind of client.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import subspace_angles
from torch import Tensor
from torch.nn import functional

from fedbench.core import trees
from fedbench.core.rng import torch_rng
from fedbench.core.trees import Tree
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation
from fedbench.methods import METHODS
from fedbench.methods.fedbn import FedBN
from fedbench.methods.fedcollab import distances
from fedbench.methods.fedcollab.distances import DiscriminatorConfig
from fedbench.methods.fedcollab.fedcollab import FedCollab
from fedbench.methods.pacfl import PACFL
from fedbench.methods.parts.clustered import prepares
from fedbench.methods.per_kind import PerKind
from fedbench.models.small import LeNet5
from fedbench.testing.toys import ToyMeter
from tests.helpers.pair import KIND, pair, trainer
from tests.helpers.tiers import sampled
from tests.methods.games import by_loops, partitions
from tests.methods.literal import Literal, literal_accuracy, literal_round
from tests.methods.test_histories import LR, SIZES, average, loss_on, played, same, stacked
from tests.methods.toys import (
    cross_entropy,
    derivative,
    descend,
    federation,
    initial,
    samples,
    setup,
)

FOUR = range(4)


# ---- batch normalisation


def stepped(w: Tree, x: Tensor, y: Tensor) -> Tree:
    """LeNet5 with batch normalisation: a step on all weights; its statistics go a tenth of the way to the batch's."""
    statistics: Tree = {}

    def normalised(v: Tree, name: str, h: Tensor) -> Tensor:
        mean, var = h.mean((0, 2, 3)), h.var((0, 2, 3), unbiased=False)
        many = h.numel() // h.shape[1]
        for leaf, now in (("mean", mean), ("var", var * many / (many - 1))):
            statistics[f"{name}.running_{leaf}"] = 0.9 * w[f"{name}.running_{leaf}"] + 0.1 * now.detach()
        h = (h - mean.view(-1, 1, 1)) / (var + 1e-5).sqrt().view(-1, 1, 1)
        return h * v[f"{name}.weight"].view(-1, 1, 1) + v[f"{name}.bias"].view(-1, 1, 1)

    def loss(v: Tree) -> Tensor:
        h = x
        for conv, norm in (("conv.0", "conv.1"), ("conv.4", "conv.5")):
            h = normalised(v, norm, functional.conv2d(h, v[f"{conv}.weight"], v[f"{conv}.bias"]))
            h = functional.max_pool2d(h, 2).relu()
        h = h.flatten(1)
        for layer in ("fc.0", "fc.2"):
            h = functional.linear(h, v[f"{layer}.weight"], v[f"{layer}.bias"]).relu()
        return cross_entropy(functional.linear(h, v["head.weight"], v["head.bias"]), y)

    slope = derivative(loss, {n: leaf for n, leaf in w.items() if "running" not in n})
    return {n: w[n] - LR * s for n, s in slope.items()} | statistics


@pytest.mark.parametrize("whole", [True, False])
def test_rounds_of_fedbn(whole: bool) -> None:
    """Of batch normalisation all stays, or its statistics alone."""
    method = FedBN() if whole else FedBN(private=("@stats",))
    chosen, found = played(method, rounds=2, cohort=2, epochs=2, data=federation(SIZES, (1, 16, 16)), model=NORMALISED)
    data, shared = [samples(chosen, k) for k in FOUR], initial(chosen)
    own = [n for n in shared if n.startswith(("conv.1.", "conv.5.")) and (whole or "running" in n)]
    rest = [n for n in shared if n not in own]
    assert len(own) == (8 if whole else 4)
    kept = [{n: shared[n] for n in own}] * 4
    for each in found:
        trained = {}
        for k in each.ids:
            w = stepped(stepped({**shared, **kept[k]}, *data[k]), *data[k])
            trained[k], kept = w, [{n: w[n] for n in own} if j == k else kept[j] for j in FOUR]
        same(each.message, stacked([shared] * 2, rest))
        same(each.uploads, stacked([trained[k] for k in each.ids], rest))
        shared = {**shared, **average(trained, rest)}
        same(each.server, {n: shared[n] for n in rest})
        same(each.memory, stacked(kept, own))
        same(each.scored, stacked([{**shared, **kept[k]} for k in FOUR], [*rest, *own]))


NORMALISED = LeNet5(batch_norm=True)


# ---- coalitions from the data


def pixels(chosen: Setup, client: int) -> np.ndarray:
    """Training samples as rows in [0, 1]."""
    return (samples(chosen, client)[0].flatten(1) * 0.25 + 0.5).numpy()


def merged(apart: np.ndarray, threshold: float, linkage: str) -> list[set[int]]:
    """Agglomeration: the nearest two groups become one until they are farther apart than `threshold`."""
    groups, D = [{k} for k in range(len(apart))], {(i, j): apart[i, j] for i in FOUR for j in FOUR if i < j}
    joins = {"average": lambda a, b: (a + b) / 2, "maximum": max, "minimum": min}[linkage]
    alive = list(FOUR)
    while D and min(D.values()) <= threshold:
        i, j = min(D, key=D.__getitem__)
        groups[i] |= groups[j]
        alive.remove(j)
        for k in alive:
            if k != i:
                D[min(i, k), max(i, k)] = joins(D[min(i, k), max(i, k)], D[min(j, k), max(j, k)])
        D = {pair: d for pair, d in D.items() if j not in pair}
    return [groups[k] for k in alive]


def coalition_rounds(chosen: Setup, found: list[Any], before: list[set[int]], after: list[set[int]]) -> None:
    """FedAvg inside each coalition, as it is `before` two rounds are over and `after`."""
    data, models = [samples(chosen, k) for k in FOUR], [initial(chosen)] * len(before)
    for done, each in enumerate(found):
        groups = before if done < 2 else after
        place = {k: c for c, group in enumerate(groups) for k in group}
        same(each.message, stacked([models[place[k]] for k in each.ids]))
        trained = {k: descend(loss_on(data[k]), models[place[k]], LR) for k in each.ids}
        for c in range(len(groups)):
            present = {k: w for k, w in trained.items() if place[k] == c}
            models[c] = average(present) if present else models[c]
        same(trees.part(each.server, "base"), stacked(models))
        scored = {k: c for c, group in enumerate(before if done < 1 else after) for k in group}
        same(each.scored, stacked([models[scored[k]] for k in FOUR]))


@pytest.mark.parametrize("angle", sampled(["columns", "signed", "principal"], every=2))
@pytest.mark.parametrize("linkage", ["average", "maximum", "minimum"])
def test_rounds_of_pacfl(angle: str, linkage: str) -> None:
    """Angles of the classes' two leading directions by loops, merged by loops; bases are sent once."""
    data = federation(SIZES, labels=[[0, 1], [2, 3], [0, 1, 2], [3]])
    probe, bases = setup(PACFL(), data), []
    for k in FOUR:
        x, y, columns = pixels(probe, k), samples(probe, k)[1].numpy(), []
        for label in np.unique(y):
            leading = np.linalg.svd(x[y == label])[2][: min(2, (y == label).sum())]
            columns += [v * np.sign(v[np.abs(v).argmax()]) for v in leading]
        bases.append(np.stack(columns, axis=1))
    products = [[a.T @ b for b in bases] for a in bases]
    largest = {
        "columns": lambda i, j: np.abs(products[i][j]).max(),
        "signed": lambda i, j: products[i][j].max(),
        "principal": lambda i, j: np.cos(subspace_angles(bases[i], bases[j]).min()),
    }[angle]
    apart = np.array([[np.degrees(np.arccos(min(1.0, largest(i, j)))) for j in FOUR] for i in FOUR])
    for threshold in (np.sort(apart[np.triu_indices(4, 1)])[[0, 3]] + 1e-3).tolist():
        method = PACFL(p=2, threshold=threshold, angle=angle, linkage=linkage)
        chosen, found = played(method, rounds=4, cohort=2, data=data)
        groups = merged(apart, threshold, linkage)
        state = Simulation(chosen, ToyMeter(chosen)).begin()
        np.testing.assert_allclose(state.arrays["distances"], apart, atol=2e-5)
        assert state.bytes_up == 8 * 16 * sum(basis.shape[1] for basis in bases)
        coalition = state.arrays["coalition"].tolist()
        numbered = [{k for k in FOUR if coalition[k] == c} for c in range(len(groups))]
        assert sorted(map(sorted, numbered)) == sorted(map(sorted, groups))
        assert all(each.server["coalition"].tolist() == coalition for each in found)
        coalition_rounds(chosen, found, numbered, numbered)


@pytest.mark.parametrize("blind", sampled([{}, {"quantities": False}, {"distances": False}], every=3))
def test_rounds_of_fedcollab(blind: dict[str, bool]) -> None:
    """Distances by loops on batches of all, coalitions the best of all partitions; client 2 joins after two rounds."""
    config, C = DiscriminatorConfig(hidden=6, rounds=30, lr=0.5, batch=2), 3.0
    method = FedCollab(C=C, restarts=40, newcomers=(2,), join_round=2, discriminator=config, **blind)
    chosen, found = played(method, rounds=4, data=federation(SIZES, labels=[[0, 1], [0, 1], [2, 3], [2, 3]]))
    x = torch.cat([torch.from_numpy(pixels(chosen, k)) for k in FOUR])
    y = torch.cat([samples(chosen, k)[1] for k in FOUR])
    rows = list(torch.arange(len(y)).split(list(SIZES)))
    weights = distances.initial(16, 4, 6, torch_rng(0, "discriminator weights"))
    D = np.zeros((4, 4))
    for i in FOUR:
        for j in range(i + 1, 4):
            (a, left), (b, right) = (distances.split(rows[k], y, 2, 0, k) for k in (i, j))
            model = Literal(weights).double()
            for _ in range(30):
                literal_round(model, (a, b), x, y, 0.5)
            D[i, j] = D[j, i] = max(0.0, 2 * literal_accuracy(model, (left, right), x, y) - 1)
    state = Simulation(chosen, ToyMeter(chosen)).begin()
    arrays, bytes_of_one = state.arrays, 4 * sum(leaf.numel() for leaf in weights.values())
    np.testing.assert_allclose(arrays["distances"], D, atol=1e-12)
    told = state.bytes_up, state.bytes_down  # 30 rounds of both clients of six pairs, and the check after them
    assert told == (12 * (30 * bytes_of_one + 4), 12 * (30 + 1) * bytes_of_one)
    n = np.array(SIZES, dtype=float) if blind.get("quantities", True) else np.full(4, np.mean(SIZES))
    old = [0, 1, 3]

    def seen(members: list[int]) -> np.ndarray:
        part = D[np.ix_(members, members)]
        away = 1 - np.eye(len(members))
        return part if blind.get("distances", True) else away * part.sum() / away.sum()

    sizes = n if blind.get("quantities", True) else np.full(4, np.mean([SIZES[k] for k in old]))
    best = min(partitions(3), key=lambda p: by_loops(p, sizes[old], seen(old), C))
    assert arrays["coalition"][old].tolist() == best
    assert arrays["coalition"][2] == max(best) + 1
    first = [{old[i] for i in range(3) if best[i] == c} for c in range(max(best) + 1)]

    def joining(choice: int) -> float:
        placed = dict(zip(old, best, strict=True)) | {2: choice}
        return by_loops([placed[k] for k in FOUR], n, seen(list(FOUR)), C)

    choice = min(range(max(best) + 2), key=joining)
    assert choice <= max(best), "else nobody joins"
    then = [group | {2} if c == choice else group for c, group in enumerate(first)]
    joined = [best[0], best[1], choice, best[2]]
    assert [each.server["coalition"].tolist() for each in found] == [arrays["coalition"].tolist(), *[joined] * 3]
    coalition_rounds(chosen, found, [*first, {2}], then)


# ---- inside each kind


def test_a_method_around_another_prepares_only_if_that_does() -> None:
    """Robust and FedAdam do not, so that they may run inside each kind, there each with its own average."""
    assert not any(prepares(METHODS.build({"name": name})) for name in ("robust", "fedadam"))
    assert prepares(METHODS.build({"name": "fedcollab"}))
    chosen = pair(PerKind(base={"name": "robust", "rule": "krum"}), rounds=1)
    engine, uploads = trainer(chosen), []
    real = engine.train

    def train(*given: Any) -> Any:
        outcome = real(*given)
        uploads.append(trees.clone(outcome.uploads))
        return outcome

    engine.train = train  # type: ignore[method-assign]
    simulation = Simulation(chosen, engine)
    state = simulation.begin()
    simulation.step(state)
    for kind, members in (("image", (0, 1)), ("text", (2, 3, 4))):
        leaves = trees.part(state.server, f"base:{kind}")["base/head.weight"]
        assert any(torch.equal(leaves, uploads[0]["head.weight"][k]) for k in members), "Krum takes one upload"


def test_rounds_of_scaffold_inside_each_kind() -> None:
    """From what clients uploaded: a kind's server has its own clients' means, and counts no others."""
    chosen = pair(PerKind(base={"name": "scaffold", "server_lr": 0.7}), cohort="2", rounds=5)
    engine, sent = trainer(chosen), []
    real = engine.train

    def train(ids: Tensor, message: Tree, *rest: Any) -> Any:
        outcome = real(ids, message, *rest)
        sent.append((ids.tolist(), trees.clone(message), trees.clone(outcome.uploads)))
        return outcome

    engine.train = train  # type: ignore[method-assign]
    simulation = Simulation(chosen, engine)
    state = simulation.begin()
    kinds, servers = ("image", "text"), {}
    for kind in kinds:
        servers[kind] = {n: leaf.clone() for n, leaf in trees.part(state.server, f"base:{kind}").items()}
        assert not any(leaf.any() for n, leaf in servers[kind].items() if n.startswith("control/"))
    heads = [servers[kind]["model/head.weight"] for kind in kinds]
    assert torch.equal(*heads), "what they share begins alike"
    members = {"image": [0, 1], "text": [2, 3, 4]}
    for _ in range(5):
        simulation.step(state)
        ids, message, uploads = sent[-1]
        for kind, of_kind in members.items():
            at, server = [i for i, k in enumerate(ids) if k in of_kind], servers[kind]
            for name, leaf in server.items():
                assert all(torch.equal(message[name][i], leaf) for i in at)
                part, _, weight = name.partition("/")
                if at:
                    mean = sum(uploads[f"{'change' if part == 'model' else part}/{weight}"][i] for i in at) / len(at)
                    server[name] = leaf + (0.7 if part == "model" else len(at) / len(of_kind)) * mean
            same(trees.part(state.server, f"base:{kind}"), server)
    assert state.server["kind"].tolist() == list(KIND)
    assert any(len({KIND[k] for k in ids}) == 1 for ids, *_ in sent)
    assert any(len({KIND[k] for k in ids}) == 2 for ids, *_ in sent)
