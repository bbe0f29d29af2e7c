"""pFedFDA: Bayes' rule on Gaussians, FedBABU's body, a round by hand, weights as another optimiser finds them."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import multivariate_normal
from torch import Tensor

from fedbench.config.schema import OptimizerConfig
from fedbench.core import rng, trees
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client
from fedbench.methods.fedbabu import FedBABU
from fedbench.methods.pfedfda import PFedFDA, discriminant, logits
from tests.helpers.tiers import sampled
from tests.methods.toys import close, cross_entropy, descend, features, initial, models, run, samples

ONE: dict[str, object] = {"rounds": 1, "epochs": 1, "batch": 50, "optimizer": OptimizerConfig(lr=0.2)}
SIZES = (6, 13, 8, 21)


def test_the_discriminant_is_bayes_rule_of_gaussians_with_one_covariance() -> None:
    """Differences of logits are those of log joint densities."""
    draw = np.random.default_rng(0)
    means, root, prior = draw.normal(size=(3, 2)), draw.normal(size=(2, 2)), np.array([0.5, 0.3, 0.2])
    S, x = root @ root.T + np.eye(2), draw.normal(size=(7, 2))
    given = {"means": torch.tensor(means), "covariance": torch.tensor(S)}
    made = discriminant(given, torch.tensor(np.log(prior)), 1e-12)
    found = logits(trees.join(lda=made), torch.tensor(x)).softmax(1).numpy()
    joint = np.stack([p * multivariate_normal(m, S).pdf(x) for p, m in zip(prior, means, strict=True)], axis=1)
    np.testing.assert_allclose(found, joint / joint.sum(1, keepdims=True), atol=1e-9)


def rule(means: Tensor, S: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """(weight, bias) of a discriminant, written out with an inverse."""
    S = (1 - 1e-4) * S + 1e-4 * S.trace() / len(S) * torch.eye(len(S), dtype=S.dtype)
    prior = (shares + 1e-4) / (shares + 1e-4).sum()
    weight = torch.stack([torch.linalg.inv(S) @ m for m in means])
    return weight, torch.stack([p.log() - m @ w / 2 for p, m, w in zip(prior, means, weight, strict=True)])


def estimated(z: Tensor, y: Tensor, given: Tensor, ridge: float, shift: float) -> tuple[Tensor, Tensor]:
    """(means, covariance) of features z, by loops."""
    means = torch.stack([z[y == c].mean(0) if bool((y == c).any()) else given[c] for c in range(4)])
    S = sum((torch.outer(v - means[c], v - means[c]) for v, c in zip(z, y, strict=True)), torch.zeros(1, 1))
    return means, S / (len(y) - 1) + shift + ridge * torch.eye(z.shape[1], dtype=z.dtype)


def shares_of(y: Tensor) -> Tensor:
    return torch.bincount(y, minlength=4).double() / len(y)


@functools.cache
def first(method: PFedFDA) -> Tree:
    """The server's state before the first round."""
    chosen = run(method, **ONE)[0]
    server, _ = method.init(chosen.task, chosen.population, rng.torch_rng(chosen.seed, "init"))
    return {name: leaf.double() for name, leaf in server.items()}


@dataclass(frozen=True)
class UnderTheDiscriminant(FedBABU):
    """FedBABU whose frozen head is the first discriminant of each client."""

    def start(self, client: Client) -> Tree:
        """The body, under that head."""
        given, y = trees.part(first(PFedFDA()), "gaussian"), client.data.y
        weight, bias = rule(given["means"], given["covariance"], shares_of(y))
        return {**client.message, "head.weight": weight, "head.bias": bias}

    @property
    def reads_data(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({"start", "personal"})


def test_its_first_body_is_fedbabus_under_the_discriminant() -> None:
    """Several steps of each client, so a discriminant that learned would show."""
    found = run(PFedFDA(), rounds=1, epochs=3)[1].server
    other = trees.part(run(UnderTheDiscriminant(tune_epochs=0), rounds=1, epochs=3)[1].server, "body")
    assert set(other) == {name for name in found if "/" not in name}
    assert close({name: found[name] for name in other}, other)


def held_out(b: np.ndarray, z: Tensor, y: Tensor, given: Tree, shares: Tensor) -> float:
    """The sum over two folds of the cross-entropy with weights b, one sample at a time."""
    often = torch.tensor([int((y == c).sum()) >= 2 for c in y.tolist()])
    place = torch.tensor([int((y[: i + 1] == y[i]).sum()) % 2 for i in range(len(y))])
    total = 0.0
    for fold in (0, 1):
        learn, test = often & (place != fold), often & (place == fold)
        means, S = estimated(z[learn], y[learn], given["means"], 1e-4, 0.0)
        weight, bias = rule(
            b[0] * means + (1 - b[0]) * given["means"], b[-1] * S + (1 - b[-1]) * given["covariance"], shares
        )
        total += float(cross_entropy(z[test] @ weight.t() + bias, y[test]))
    return total


@pytest.mark.parametrize("betas", ["two", "single"])
def test_the_weights_are_those_a_general_optimiser_finds(betas: str) -> None:
    """Features of four classes whose means move by some of what the given ones are off."""
    draw = torch.Generator().manual_seed(1)
    y = torch.arange(24) % 4
    true = torch.randn(4, 3, generator=draw, dtype=torch.float64)
    z = true[y] + torch.randn(24, 3, generator=draw, dtype=torch.float64)
    given = {"means": true + 0.6 * torch.randn(4, 3, generator=draw, dtype=torch.float64)}
    given["covariance"] = torch.diag(torch.tensor([2.0, 0.3, 0.3], dtype=torch.float64))
    shares = shares_of(y)
    method = PFedFDA(betas=betas, ridge=1e-4, shift=0.0)
    member = torch.nn.functional.one_hot(y, 4).double()
    found = method.weights(z, member, given, method.log_shares(member.sum(0)))
    chosen = np.array([float(b) for b in found])
    assert 0.05 < chosen.min() <= chosen.max() < 0.95
    start = np.full(1 if betas == "single" else 2, 0.5)
    best = minimize(held_out, start, args=(z, y, given, shares), bounds=[(0, 1)] * len(start))
    np.testing.assert_allclose(chosen, np.resize(best.x, 2), atol=0.02)
    assert held_out(chosen, z, y, given, shares) < best.fun + 5e-4


@pytest.mark.parametrize("seed", sampled([0, 1], every=2))
@pytest.mark.parametrize("betas", ["two", "single"])
def test_the_weights_are_the_best_of_a_grid_and_of_a_finer_one_around_it(betas: str, seed: int) -> None:
    """Tenths, then fiftieths within a tenth, cut to [0, 1]; a class of one sample has no part."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.tensor([0, 1, 2, 0, 1, 0, 3, 1, 2, 0, 0])
    z = torch.randn(4, 3, generator=draw, dtype=torch.float64)[y]
    z = z + torch.randn(len(y), 3, generator=draw, dtype=torch.float64)
    means = torch.randn(4, 3, generator=draw, dtype=torch.float64)
    given, shares = {"means": means, "covariance": torch.eye(3, dtype=torch.float64)}, shares_of(y)
    method = PFedFDA(betas=betas, ridge=1e-4, shift=0.0)
    member = torch.nn.functional.one_hot(y, 4).double()
    found = method.weights(z, member, given, method.log_shares(member.sum(0)))

    def best(first: list[float], second: list[float]) -> tuple[float, float]:
        pairs = [(b, b) for b in second] if betas == "single" else [(a, b) for b in second for a in first]
        return min(pairs, key=lambda pair: held_out(np.array(pair), z, y, given, shares))

    tenths = [i / 10 for i in range(11)]
    coarse = best(tenths, tenths)
    fine = best(*([min(1.0, max(0.0, b + (i - 5) / 50)) for i in range(11)] for b in coarse))
    assert [float(b) for b in found] == pytest.approx(fine, abs=1e-9)


def test_a_client_with_one_sample_a_class_takes_the_given_statistics() -> None:
    method, z = PFedFDA(), torch.randn(3, 5, dtype=torch.float64)
    given = {"means": torch.zeros(4, 5).double(), "covariance": torch.eye(5).double()}
    member = torch.eye(3, 4, dtype=torch.float64)
    assert [float(b) for b in method.weights(z, member, given, method.log_shares(member.sum(0)))] == [0, 0]


@pytest.mark.parametrize("method", [PFedFDA(), PFedFDA(ridge=1e-4, shift=0.0), PFedFDA(betas="local")])
def test_a_round_by_hand(method: PFedFDA) -> None:
    """A step on the body under the discriminant, statistics of what it made of the samples, mixed, averaged, scored."""
    server = first(method)
    given, body = trees.part(server, "gaussian"), trees.plain(server)
    chosen, state = run(method, **ONE)
    sums: Tree = {}
    local = method.betas == "local"
    for k, n in enumerate(SIZES):
        x, y = samples(chosen, k)
        weight, bias = rule(given["means"], given["covariance"], shares_of(y))
        start = {**initial(chosen), **body}
        trained = descend(
            lambda w, x=x, y=y, W=weight, b=bias: cross_entropy(features(w, x) @ W.t() + b, y), start, 0.2, ("fc",)
        )  # type: ignore[misc]
        z = features(trained, x)
        means, S = estimated(z, y, given["means"], method.ridge, method.shift)
        member = torch.nn.functional.one_hot(y, 4).double()
        found = method.weights(z, member, given, method.log_shares(member.sum(0)))
        a, b = (1.0, 1.0) if local else (float(found[0]), float(found[1]))
        sent = {name: trained[name] for name in body}
        sent["gaussian/means"] = a * means + (1 - a) * given["means"]
        sent["gaussian/covariance"] = b * S + (1 - b) * given["covariance"]
        sums = {name: sums.get(name, 0.0) + n / sum(SIZES) * leaf for name, leaf in sent.items()}
    assert close(state.server, sums, 1e-8)
    for k in range(4):  # what is scored next: the new body, own statistics beside the new ones
        x, y = samples(chosen, k)
        z = features({**initial(chosen), **{name: sums[name] for name in body}}, x)
        now = trees.part(sums, "gaussian")
        means, S = estimated(z, y, now["means"], method.ridge, method.shift)
        member = torch.nn.functional.one_hot(y, 4).double()
        a, b = (float(v) for v in method.weights(z, member, now, method.log_shares(member.sum(0))))
        expected = rule(a * means + (1 - a) * now["means"], b * S + (1 - b) * now["covariance"], shares_of(y))
        scored = trees.row(models(chosen, state), k)
        assert close(scored["lda/weight"], expected[0], 1e-6)
        assert close(scored["lda/bias"], expected[1], 1e-6)
