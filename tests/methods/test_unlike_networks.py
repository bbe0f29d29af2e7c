"""FedGH, FML, FedKD and FedMRL: rounds by hand, their limits, and clients whose networks differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedbench.core import trees
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.engine.method import Method
from fedbench.engine.stacked import StackedTrainer
from fedbench.methods.fedgh import FedGH
from fedbench.methods.fedkd import FedKD, approximated, low_rank
from fedbench.methods.fedmrl import FedMRL
from fedbench.methods.fml import FML
from fedbench.methods.local import Local
from fedbench.methods.per_kind import PerKind
from fedbench.models.small import MLP, LeNet5
from fedbench.models.task import Model
from tests.helpers.pair import apart, pair, personal
from tests.helpers.pair import simulate as pair_simulate
from tests.methods.test_histories import LR, SIZES, average, loss_on, played, same, stacked
from tests.methods.test_histories_of_servers import begun, joined
from tests.methods.toys import (
    BODY,
    HEAD,
    close,
    cross_entropy,
    derivative,
    features,
    federation,
    final,
    initial,
    logits,
    samples,
    setup,
)

FOUR = range(4)
UNLIKE: dict[str, Model] = {"low": MLP(hidden=(6,)), "high": MLP(hidden=(9, 6))}
NAMES = sorted([*BODY, *HEAD])


def kl(target: Tensor, scores: Tensor) -> Tensor:
    """KL of each sample's probabilities by classes."""
    p, q = target.softmax(1), scores.softmax(1)
    return (p * (p.log() - q.log())).sum(1)


def part(w: Tree, name: str) -> Tree:
    return {n.removeprefix(f"{name}/"): v for n, v in w.items() if n.startswith(f"{name}/")}


def stepped(loss: Any, w: Tree) -> Tree:
    slope = derivative(loss, w)
    return {n: v - LR * slope[n] for n, v in w.items()}


def test_rounds_of_fedgh() -> None:
    """The server's steps go through pairs of a class mean and its class, two at a time, in two shuffled passes."""
    method = FedGH(epochs=2, batch=2, lr=0.4)
    chosen, found = played(method, data=federation(SIZES, labels=[[0, 1], [0, 1, 2, 3], [1, 2], [0, 3]]))
    data, header, mine = [samples(chosen, k) for k in FOUR], initial(chosen), [initial(chosen)] * 4
    header = {n: header[n] for n in HEAD}
    for done, each in enumerate(found):
        same(each.message, {n: leaf.expand(3, *leaf.shape) for n, leaf in header.items()})
        points, classes = [], []
        for i, k in enumerate(each.ids):
            x, y = data[k]
            w = stepped(loss_on(data[k]), {**{n: mine[k][n] for n in BODY}, **header})
            mine[k], z = w, features(w, x)
            counts = torch.tensor([float((y == c).sum()) for c in FOUR], dtype=torch.float64)
            same(trees.row(each.uploads, i), {"sums": torch.stack([z[y == c].sum(0) for c in FOUR]), "counts": counts})
            for c in y.unique().tolist():
                points.append(z[y == c].mean(0))
                classes.append(c)
        assert len(classes) > 4
        generator = chosen.cohort(torch.tensor(each.ids), Clock(done, 3)).generator
        for order in [torch.randperm(len(classes), generator=generator) for _ in range(2)]:
            for rows in order.split(2):

                def loss(w: Tree, rows: Tensor = rows, points: Any = points, of: Any = classes) -> Tensor:
                    scores = torch.stack([w["head.weight"] @ points[r] + w["head.bias"] for r in rows.tolist()])
                    return cross_entropy(scores, torch.tensor([of[r] for r in rows.tolist()]))

                slope = derivative(loss, header)
                header = {n: v - 0.4 * slope[n] for n, v in header.items()}
        same(each.server, header)
        same(each.memory, stacked(mine, BODY))
        same(each.scored, stacked([{**{n: mine[k][n] for n in BODY}, **header} for k in FOUR], NAMES))


def test_a_header_that_takes_no_step_stays_as_it_was_drawn() -> None:
    chosen, found = played(FedGH(epochs=0))
    assert all(close(each.server, {n: initial(chosen)[n] for n in HEAD}) for each in found)


def test_rounds_of_fml() -> None:
    alpha, beta = 0.3, 0.8
    chosen, found = played(FML(alpha=alpha, beta=beta))
    data, start = [samples(chosen, k) for k in FOUR], begun(chosen)
    meme, mine = part(start.server, "meme"), [initial(chosen)] * 4
    assert not close(meme, mine[0], 1e-3), "the meme is drawn by itself"
    for each in found:
        same(each.message, {f"meme/{n}": leaf.expand(3, *leaf.shape) for n, leaf in meme.items()})
        memes = {}
        for k in each.ids:
            x, y = data[k]
            own, other = logits(mine[k], x), logits(meme, x)

            def loss(w: Tree, x: Tensor = x, y: Tensor = y, fixed: Tensor = other, weight: float = alpha) -> Tensor:
                z = logits(w, x)
                return weight * cross_entropy(z, y) + (1 - weight) * kl(fixed, z).mean()

            trained = stepped(loss, mine[k])
            memes[k] = stepped(lambda w, x=x, y=y, own=own, f=loss: f(w, x, y, own, beta), meme)  # type: ignore[misc]
            mine[k] = trained
        same(each.uploads, joined(meme=stacked([memes[k] for k in each.ids])))
        meme = average(memes)
        same(each.server, joined(meme=meme))
        same(each.memory, stacked(mine))
        same(each.scored, stacked(mine))
    common = chosen.method.common(found[-1].server, chosen.task)
    assert common is not None
    same(common, meme)


def truncated(matrix: Tensor, energy: float) -> tuple[Tensor, int]:
    """By the singular values: the fewest that hold a share of their squares' sum."""
    u, s, v = np.linalg.svd(matrix.numpy(), full_matrices=False)
    rank = next(k for k in range(len(s) + 1) if (s[:k] ** 2).sum() >= energy * (s**2).sum() - 1e-12)
    return torch.from_numpy((u[:, :rank] * s[:rank]) @ v[:rank]), rank


def compressed(w: Tree, energy: float) -> tuple[Tree, float]:
    found, numbers = {}, 0.0
    for name, leaf in w.items():
        found[name] = leaf
        numbers += leaf.numel() if leaf.dim() < 2 else 0
        if leaf.dim() == 2:
            found[name], rank = truncated(leaf.detach(), energy)
            numbers += rank * (1 + sum(leaf.shape))
    return found, numbers


@pytest.mark.parametrize("code", [False, True])
def test_rounds_of_fedkd(code: bool) -> None:
    """Shares of .7, .8 and .9 in the three rounds, so that directions are left out on clients and server."""
    chosen, found = played(FedKD(lowest=0.6, highest=0.9, apart=not code, kl="entry" if code else "sample"))
    data, start = [samples(chosen, k) for k in FOUR], begun(chosen)
    mentee, mine = part(start.server, "mentee"), [trees.row(start.memory, k) for k in FOUR]
    same({n: mine[0][n] for n in NAMES}, initial(chosen))
    total, left_out = np.zeros(2), 0
    assert (tuple(mine[0]["map/weight"].shape), 0.25 < float(mine[0]["map/weight"].abs().max()) <= 7**-0.5) == (
        (7, 7),
        True,
    )
    for done, each in enumerate(found):
        energy = (0.7, 0.8, 0.9)[done]
        same(each.message, {f"mentee/{n}": leaf.expand(3, *leaf.shape) for n, leaf in mentee.items()})
        updates: dict[int, Tree] = {}
        for i, k in enumerate(each.ids):
            x, y = data[k]

            def terms(w: Tree, other: Tree, x: Tensor = x, y: Tensor = y) -> tuple[Tensor, Tensor]:
                """The losses of mentor and mentee, whose values in the other's place are those of `other`."""
                own, small = {n: w[n] for n in NAMES}, part(w, "mentee")
                own_, small_ = {n: other[n] for n in NAMES}, part(other, "mentee")

                def one(z: Tensor, ce: Tensor, z_: Tensor, ce_: Tensor, h: Tensor, g: Tensor) -> Tensor:
                    gap = kl(z_, z).mean() / (4 if code else 1) + (h - g).square().mean()
                    return ce + gap / (ce + ce_)

                def of(from_: Tree, m: Tree) -> Tensor:
                    return features(m, x) @ from_["map/weight"].t()

                y_, z_ = logits(own_, x), logits(small_, x)
                y__, z__ = logits(own, x), logits(small, x)
                first = one(y__, cross_entropy(y__, y), z_, cross_entropy(z_, y), features(own, x), of(other, small_))
                second = one(z__, cross_entropy(z__, y), y_, cross_entropy(y_, y), features(own_, x), of(w, small))
                return first, second

            w = {**mine[k], **joined(mentee=mentee)}
            fixed = {n: v.detach() for n, v in w.items()}
            after = stepped(lambda v, fixed=fixed, f=terms: sum(f(v, v if code else fixed)), w)  # type: ignore[misc]
            mine[k] = {n: after[n] for n in mine[k]}
            updates[k], numbers = compressed({n: v - mentee[n] for n, v in part(after, "mentee").items()}, energy)
            total[0] += numbers
            left_out += numbers < sum(leaf.numel() for leaf in mentee.values())
            assert close(part(trees.row(each.uploads, i), "update"), updates[k], 1e-9)
            assert float(each.uploads["numbers"][i]) == numbers
        mean, numbers = compressed(average(updates), energy)
        total[1] += 3 * numbers
        mentee = {n: v + mean[n] for n, v in mentee.items()}
        assert close(part(each.server, "mentee"), mentee, 1e-9)
        assert chosen.method.record(each.server)["numbers"].tolist() == total.tolist()
        assert close(each.memory, stacked(mine, sorted(mine[0])), 1e-9)
        assert close(each.scored, stacked(mine, NAMES), 1e-9)
        mentee = part(each.server, "mentee")
    assert left_out


def test_directions_that_hold_a_share() -> None:
    """Singular values 4 and 3: the first holds 16 of 25."""
    turn = torch.linalg.qr(torch.randn(2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64))[0]
    wide = turn @ torch.tensor([[4.0, 0, 0], [0, 3, 0]], dtype=torch.float64)
    for matrix in (wide, wide.t()):
        for energy, rank in ((0.0, 0), (0.6, 1), (0.65, 2), (1.0, 2)):
            near, kept = low_rank(matrix, energy)
            assert (int(kept), near.shape) == (rank, matrix.shape)
            assert close(near, truncated(matrix, energy)[0], 1e-9)
    assert close(low_rank(wide, 1.0)[0], wide, 1e-9)
    none, kept = low_rank(torch.zeros(3, 2), 0.9)
    assert (float(none.abs().sum()), int(kept)) == (0.0, 0)
    lost, _ = low_rank(torch.tensor([[torch.nan, 1.0]]), 0.9)
    assert not bool(lost.isfinite().all()), "what diverged is not hidden"
    kernel = torch.randn(4, 2, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    near_kernel, numbers = approximated({"w": kernel, "b": torch.ones(5)}, 0.8)
    expected, rank = truncated(kernel.view(4, 18), 0.8)
    assert close(near_kernel["w"], expected.view_as(kernel), 1e-9)
    assert float(numbers) == rank * (4 + 18 + 1) + 5


@pytest.mark.parametrize("width", [None, 3])
def test_rounds_of_fedmrl(width: int | None) -> None:
    """Seven features to three: windows of 0 to 2, 2 to 4, 4 to 6, as adaptive pooling has them."""
    chosen, found = played(FedMRL(width=width))
    data, start = [samples(chosen, k) for k in FOUR], begun(chosen)
    small, mine = part(start.server, "small"), [trees.row(start.memory, k) for k in FOUR]
    narrow = width or 7
    shapes = {"projector/weight": (7, narrow + 7), "projector/bias": (7,), "head.weight": (4, 7)}
    assert {n: tuple(mine[0][n].shape) for n in shapes} == shapes
    assert tuple(small["head.weight"].shape) == (4, narrow)
    same({n: mine[0][n] for n in NAMES}, initial(chosen))

    def fused(w: Tree, small: Tree, x: Tensor) -> Tensor:
        g = features(small, x)
        if width:
            g = torch.stack([g[:, 0:3].mean(1), g[:, 2:5].mean(1), g[:, 4:7].mean(1)], dim=1)
        return torch.cat([g, features(w, x)], 1) @ w["projector/weight"].t() + w["projector/bias"]

    for each in found:
        same(each.message, {f"small/{n}": leaf.expand(3, *leaf.shape) for n, leaf in small.items()})
        trained: dict[int, Tree] = {}
        for k in each.ids:
            x, y = data[k]

            def loss(w: Tree, x: Tensor = x, y: Tensor = y) -> Tensor:
                common = part(w, "small")
                R = fused(w, common, x)
                coarse = R[:, :narrow] @ common["head.weight"].t() + common["head.bias"]
                return cross_entropy(R @ w["head.weight"].t() + w["head.bias"], y) + cross_entropy(coarse, y)

            after = stepped(loss, {**mine[k], **joined(small=small)})
            trained[k], mine[k] = part(after, "small"), {n: after[n] for n in mine[k]}
        same(each.uploads, joined(small=stacked([trained[k] for k in each.ids])))
        small = average(trained)
        same(each.server, joined(small=small))
        same(each.memory, stacked(mine, sorted(mine[0])))
        one = trees.row(each.scored, 1)
        R = fused(mine[1], small, data[1][0])
        scores = R @ mine[1]["head.weight"].t() + mine[1]["head.bias"]
        assert close(chosen.method.predict(one, data[1][0], chosen.task), scores, 1e-11)


def test_a_projector_that_passes_own_features_on_leaves_the_own_network() -> None:
    chosen = setup(FedMRL(width=2), federation(SIZES))
    state = begun(chosen)
    model = {**trees.row(state.memory, 0), **state.server}
    eye = torch.eye(7, dtype=torch.float64)
    model["projector/weight"] = torch.cat([torch.zeros(7, 2, dtype=torch.float64), eye], dim=1)
    model["projector/bias"] = torch.zeros(7, dtype=torch.float64)
    x, _ = samples(chosen, 0)
    assert close(chosen.method.predict(model, x, chosen.task), logits(initial(chosen), x))


def test_a_prefix_wider_than_the_features_or_of_several_layers_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"method\.width=8 is more than the 7 features"):
        begun(setup(FedMRL(width=8), federation(SIZES)))
    with pytest.raises(ConfigError, match=r"method\.width=3 needs a header of one layer"):
        begun(setup(FedMRL(width=3), federation(SIZES, (1, 16, 16)), LeNet5(classifier="linear")))


# ---- clients whose networks differ


SHARED = [FML(), FedKD(), FedMRL()]


@pytest.mark.parametrize("method", SHARED, ids=lambda each: type(each).__name__)
def test_what_all_clients_share_is_of_the_first_clients_network(method: Method) -> None:
    chosen = pair(method, networks=UNLIKE, rounds=2)
    state = pair_simulate(chosen)
    shared = {name.partition("/")[2]: leaf for name, leaf in state.server.items() if "/" in name}
    plain = UNLIKE["low"].task((1, 4, 4), 4).init(torch.Generator().manual_seed(0))
    assert {name: leaf.shape for name, leaf in shared.items()} == {name: leaf.shape for name, leaf in plain.items()}
    assert all(bool(leaf.isfinite().all()) for leaf in shared.values())
    for k, model in enumerate(personal(chosen, state)):
        own, other = ("low.", "high.") if k < 2 else ("high.", "low.")
        assert any(name.startswith(own) for name in model)
        assert not any(name.startswith(other) for name in model)
    assert chosen.method.common(state.server, chosen.task) is None


@pytest.mark.parametrize("method", [*SHARED, FedGH()], ids=lambda each: type(each).__name__)
def test_clients_with_unlike_networks_train_stacked_as_one_by_one(method: Method) -> None:
    """With running statistics of the shared network, which are none of the other clients' own."""
    networks: dict[str, Model] = {"plain": LeNet5(batch_norm=True), "wide": MLP(hidden=(84,))}
    for nets in (UNLIKE, networks if not isinstance(method, FedGH) else UNLIKE):
        chosen = pair(method, networks=nets, rounds=1, **({"size": 16} if nets is networks else {}))
        expected = personal(chosen, pair_simulate(chosen))
        found = personal(chosen, pair_simulate(chosen, lambda each: StackedTrainer(each, 2)))
        assert apart(expected, found) < 1e-9


def test_one_network_for_views_that_differ_is_refused() -> None:
    for method in (*SHARED, PerKind(base={"name": "fml"})):
        with pytest.raises(
            ConfigError, match=r"but clients see different parts of the samples; choose one of fed[^;]*$"
        ):
            pair(method)


def test_without_the_other_s_opinion_own_networks_are_local_ones() -> None:
    assert close(final(FML(alpha=1.0)), final(Local()))
    chosen, found = played(FML(beta=1.0), rounds=2)
    meme = part(begun(chosen).server, "meme")
    data = [samples(chosen, k) for k in FOUR]
    for each in found:  # FedAvg's rounds from the meme as it was drawn
        meme = average({k: stepped(loss_on(data[k]), meme) for k in each.ids})
        same(each.server, joined(meme=meme))
