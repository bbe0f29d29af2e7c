"""FedSaC and pFedGraph: limits, and rounds by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import cvxpy
import numpy as np
import pytest
import scipy.linalg
import torch
from sklearn.decomposition import PCA

from fedbench.config.schema import OptimizerConfig
from fedbench.core import rng, trees
from fedbench.core.batch import Batch
from fedbench.core.errors import Diverged, FedbenchError
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock, Cohort
from fedbench.engine.setup import Setup
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedsac import FedSaC
from fedbench.methods.local import Local
from fedbench.methods.parts.features import complementarity, directions, products
from fedbench.methods.pfedgraph import PFedGraph
from fedbench.models.task import Task
from tests.methods.toys import (
    FOUR,
    bases,
    close,
    cross_entropy,
    derivative,
    features,
    federation,
    final,
    gap,
    initial,
    logits,
    models,
    samples,
    setup,
    simulate,
)


def test_without_similarity_complementarity_and_pull_it_is_fedavg() -> None:
    assert close(final(FedSaC(alpha=0.0, beta=0.0, lam=0.0)), final(FedAvg()))
    assert close(final(PFedGraph(alpha=1e9, lam=0.0)), final(FedAvg()), 1e-7)
    assert gap(final(FedSaC(lam=0.0)), final(FedAvg())) > 1e-4


def test_with_all_weight_on_similarity_it_is_local() -> None:
    assert close(final(FedSaC(alpha=0.0, beta=1e9, lam=0.0)), final(Local()))
    assert close(final(PFedGraph(alpha=1e-9, lam=0.0, snap=None)), final(Local()))


def test_without_complementarity_it_is_pfedgraph() -> None:
    same: dict[str, Any] = {"lam": 0.3, "similarity": "updates", "snap": 0.9}
    assert close(final(FedSaC(alpha=0.0, beta=1 / 0.8, **same)), final(PFedGraph(alpha=0.8, **same)))


LR = 0.1
FULL: dict[str, Any] = {"epochs": 2, "batch": 50, "optimizer": OptimizerConfig(lr=LR)}


def length(w: Tree) -> torch.Tensor:
    return torch.cat([w[k].flatten() for k in sorted(w)]).norm()


def inner(a: Tree, b: Tree) -> torch.Tensor:
    return torch.cat([a[k].flatten() for k in sorted(a)]) @ torch.cat([b[k].flatten() for k in sorted(a)])


def nothing(_: Tree) -> float:
    return 0.0


def two_steps(chosen: Setup, client: int, start: Tree, term: Any) -> Tree:
    """Gradient descent on F(w) + term(w) over all of a client's samples."""
    x, y = samples(chosen, client)
    w = start
    for _ in range(2):
        slope = derivative(lambda w: cross_entropy(logits(w, x), y) + term(w), w)
        w = {k: w[k] - LR * slope[k] for k in w}
    return w


def test_the_pull_by_hand() -> None:
    """A round of two clients: both train on F_i - lambda cos(w, w_0), then W mixes."""
    lam = 3.0
    chosen = setup(FedSaC(lam=lam), federation((6, 9)), rounds=1, **FULL)
    w = initial(chosen)

    def pull(v: Tree) -> torch.Tensor:
        return -lam * inner(v, w) / (length(v) * length(w))

    trained = [two_steps(chosen, k, w, pull) for k in (0, 1)]
    assert gap(trained[0], two_steps(chosen, 0, w, nothing)) > 1e-4
    state = simulate(chosen)
    W = chosen.method.collaboration(state.server, chosen.population)
    assert W is not None
    assert 0 < float(W[0, 1]) < 1
    found = models(chosen, state)
    for i in (0, 1):
        expected = {k: W[i, 0] * trained[0][k] + W[i, 1] * trained[1][k] for k in w}
        assert close(trees.row(found, i), expected)


@pytest.mark.parametrize("reference", ["mixed", "directions"])
def test_a_model_of_zeros_pulls_nobody(reference: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cosine to it is 0, and so is its gradient at a model that is zeros itself."""
    nought = Task.init
    monkeypatch.setattr(Task, "init", lambda *given: {k: torch.zeros_like(v) for k, v in nought(*given).items()})
    pulled, plain = (final(FedSaC(lam=lam, reference=reference), (6, 9), rounds=1, **FULL) for lam in (3.0, 0.0))
    assert close(pulled, plain)
    assert any(leaf.any() for leaf in plain.values())


def test_the_codes_push_by_hand() -> None:
    """Round 1 is plain; round 2 adds lambda <sum_j W_ij w_j / |w_j|, w> / |w|."""
    lam = 3.0
    method = FedSaC(lam=lam, attract=False, reference="directions", from_round=1)
    chosen = setup(method, federation((6, 9)), rounds=2, **FULL)
    w = initial(chosen)
    first = [two_steps(chosen, k, w, nothing) for k in (0, 1)]
    once = setup(method, federation((6, 9)), rounds=1, **FULL)
    W = once.method.collaboration(simulate(once).server, once.population)
    assert W is not None
    second = []
    for i in (0, 1):
        mixed = {k: W[i, 0] * first[0][k] + W[i, 1] * first[1][k] for k in w}
        towards = {k: sum(W[i, j] * first[j][k] / length(first[j]) for j in (0, 1)) for k in w}
        second.append(
            two_steps(chosen, i, mixed, lambda v, towards=towards: lam * inner(towards, v) / length(v))  # type: ignore[misc]
        )
    state = simulate(chosen)
    W = chosen.method.collaboration(state.server, chosen.population)
    assert W is not None
    found = models(chosen, state)
    for i in (0, 1):
        assert close(trees.row(found, i), {k: W[i, 0] * second[0][k] + W[i, 1] * second[1][k] for k in w})


def test_traffic_is_the_model_and_the_subspace() -> None:
    chosen = setup(FedSaC(k=2), federation(FOUR), rounds=3)
    state = simulate(chosen)
    parameters = sum(v.numel() for v in initial(chosen).values())
    assert state.bytes_up == 3 * 4 * 8 * (parameters + 7 * 2)
    assert state.bytes_down == 3 * 4 * 8 * parameters


@pytest.mark.parametrize(
    "wrong",
    [
        {"angles": "acute"},
        {"reference": "none"},
        {"similarity": "x"},
        {"solver": "x"},
        {"k": 0},
        {"lam": -1.0},
    ],
)
def test_impossible_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(FedbenchError):
        FedSaC(**wrong)
    with pytest.raises(FedbenchError):
        PFedGraph(alpha=0.0)


def uploaded(chosen: Setup, seed: int = 0) -> Tree:
    """Random models and bases of all clients."""
    generator = rng.torch_rng(seed, "test")
    start = initial(chosen)
    drawn = {k: v + 0.3 * torch.randn(4, *v.shape, generator=generator).double() for k, v in start.items()}
    return {**drawn, "subspace/U": bases(4, 7, 3, seed)}


def started(chosen: Setup) -> Tree:
    """What the server holds for S."""
    return trees.join(initial=initial(chosen))


def cohort(chosen: Setup, at: int = 0) -> Cohort:
    return chosen.cohort(torch.arange(4), Clock(at, 10))


def solved(linear: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Rows minimising |W_i - p|^2 + linear_i^T W_i over the simplex."""
    rows = []
    for cost in linear:
        x = cvxpy.Variable(len(p))
        objective = cvxpy.Minimize(cvxpy.sum_squares(x - p) + cost @ x)
        cvxpy.Problem(objective, [x >= 0, cvxpy.sum(x) == 1]).solve(solver="CLARABEL")
        rows.append(x.value)
    return np.array(rows)


def by_loops(chosen: Setup, uploads: Tree, since: Tree | None = None) -> tuple[np.ndarray, np.ndarray]:
    """(S, C) of uploads, pair by pair."""
    names = [k for k in uploads if "/" not in k]
    rows = [
        np.concatenate([(uploads[k][i] - (0 if since is None else since[k])).flatten().numpy() for k in names])
        for i in range(4)
    ]
    S, C = np.eye(4), np.eye(4)
    for i in range(4):
        for j in range(4):
            if i != j:
                S[i, j] = rows[i] @ rows[j] / np.linalg.norm(rows[i]) / np.linalg.norm(rows[j])
                U, V = uploads["subspace/U"][i].numpy(), uploads["subspace/U"][j].numpy()
                C[i, j] = np.cos(scipy.linalg.subspace_angles(U, V).mean())
    return S, C


@pytest.mark.parametrize(("alpha", "beta"), [(0.9, 1.4), (0.5, 1.6), (0.0, 1.4), (0.9, 0.0)])
def test_rows_of_w_are_the_solvers(alpha: float, beta: float) -> None:
    chosen = setup(FedSaC(alpha=alpha, beta=beta, similarity="parameters", snap=None), federation(FOUR))
    uploads = uploaded(chosen)
    found = chosen.method.graph(started(chosen), uploads, cohort(chosen))["*"].numpy()  # type: ignore[attr-defined]
    S, C = by_loops(chosen, uploads)
    np.testing.assert_allclose(found, solved(alpha * C - beta * S, np.array(FOUR) / sum(FOUR)), atol=1e-5)


def test_pfedgraphs_rows_are_the_solvers() -> None:
    chosen = setup(PFedGraph(alpha=0.8, snap=None), federation(FOUR))
    uploads, start = uploaded(chosen), initial(chosen)
    server = trees.join(initial=start)
    found = chosen.method.graph(server, uploads, cohort(chosen))["*"].numpy()  # type: ignore[attr-defined]
    S, _ = by_loops(chosen, uploads, start)
    np.testing.assert_allclose(found, solved(-S / 0.8, np.array(FOUR) / sum(FOUR)), atol=1e-5)
    snapped = PFedGraph(snap=-0.5).similarities(server, uploads, cohort(chosen))
    assert bool((snapped == 1).all())


@pytest.mark.parametrize("method", [FedSaC(), FedSaC(collaborators=2), PFedGraph()], ids=repr)
def test_the_printed_programme_gives_the_closed_forms_w(method: FedSaC | PFedGraph) -> None:
    chosen = setup(method, federation(FOUR))
    uploads, server = uploaded(chosen), started(chosen)
    closed, solved = (
        dataclasses.replace(method, solver=solver).graph(server, uploads, cohort(chosen))["*"]
        for solver in ("closed", "cvxpy")
    )
    assert close(solved, closed, 1e-6)
    assert not torch.equal(solved, closed), "it was solved otherwise"


def test_complementarity_counts_in_the_first_seven_tenths_of_the_rounds() -> None:
    chosen = setup(FedSaC(), federation(FOUR))
    uploads = uploaded(chosen)
    early, last, after, similarity = (
        method.graph(started(chosen), uploads, cohort(chosen, at))["*"]
        for method, at in ((FedSaC(), 0), (FedSaC(), 6), (FedSaC(), 7), (FedSaC(alpha=0.0), 0))
    )
    assert torch.equal(early, last)
    assert torch.equal(after, similarity)
    assert gap({"": early}, {"": after}) > 1e-2
    assert torch.equal(FedSaC(alpha_share=1.0).graph(started(chosen), uploads, cohort(chosen, 9))["*"], early)


def test_clients_mix_with_the_drawn_and_themselves() -> None:
    chosen = setup(FedSaC(collaborators=2, beta=0.0, alpha=0.0), federation(FOUR))
    weights = chosen.method.graph(started(chosen), uploaded(chosen), cohort(chosen))["*"]  # type: ignore[attr-defined]
    drawn = [j for j in range(4) if bool((weights[:, j] > 0).all())]
    assert len(drawn) == 2
    for i in range(4):
        allowed = sorted({*drawn, i})
        total = sum(FOUR[j] for j in allowed)
        assert weights[i].tolist() == pytest.approx([FOUR[j] / total * (j in allowed) for j in range(4)])
    again = chosen.method.graph(started(chosen), uploaded(chosen), cohort(chosen))["*"]  # type: ignore[attr-defined]
    assert torch.equal(weights, again)


def test_angles_are_scipys() -> None:
    U = bases(5, 9, 3)
    U[4, :, 2] = 0  # a client with two directions
    found = complementarity(U)
    for i in range(5):
        for j in range(5):
            few = 2 if 4 in (i, j) else 3
            cosines = np.linalg.svd(U[i].numpy().T @ U[j].numpy(), compute_uv=False)[:few]
            angles = np.arccos(np.clip(cosines, -1, 1))
            if few == 3:
                np.testing.assert_allclose(
                    angles[::-1], scipy.linalg.subspace_angles(U[i].numpy(), U[j].numpy()), atol=1e-7
                )
            assert float(found[i, j]) == pytest.approx(np.cos(angles.mean()), abs=1e-7)
    assert float(found.min()) > -1e-9
    assert close(found, found.t())


def test_the_codes_matching_takes_signed_entries_greedily() -> None:
    M = 0.6 * np.array([[0.9, 0.8], [0.85, -0.2]])
    U = np.vstack([np.eye(2), np.zeros((2, 2))])
    V = np.vstack([M, np.real(scipy.linalg.sqrtm(np.eye(2) - M.T @ M))])
    found = complementarity(torch.from_numpy(np.stack([U, V])), greedy=True)
    assert float(found[0, 1]) == pytest.approx(np.cos((np.arccos(0.54) + np.arccos(-0.12)) / 2))
    principal = np.cos(scipy.linalg.subspace_angles(U, V).mean())
    assert float(complementarity(torch.from_numpy(np.stack([U, V])))[0, 1]) == pytest.approx(principal)
    assert principal != pytest.approx(float(found[0, 1]), abs=1e-3)


def test_directions_are_the_singular_vectors_and_the_principal_components() -> None:
    chosen = setup(FedSaC(), federation((600,)))
    x, y = samples(chosen, 0)
    model = initial(chosen)
    X = features(model, x).numpy()
    expected = np.linalg.svd(X)[2][:3].T
    components = PCA(3).fit(X).components_.T
    padded = torch.cat([x, torch.full((5, *x.shape[1:]), 7.0, dtype=x.dtype)])
    mask = torch.arange(605) < 600
    for centred, truth in ((False, expected), (True, components)):
        for batch in (Batch(x, y), Batch(padded, torch.nn.functional.pad(y, (0, 5)), mask)):
            found = directions(products(model, batch, chosen.task, centred), 3)
            np.testing.assert_allclose(np.abs(found.numpy()), np.abs(truth), atol=1e-7)
            assert bool((found.gather(0, found.abs().argmax(0, keepdim=True)) > 0).all())


@pytest.mark.parametrize("raises", [False, True])
def test_directions_where_the_decomposition_fails_are_those_of_double_precision(
    raises: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LAPACK fails for some Gram matrices of a few samples; those of other clients keep every bit, alone or stacked."""
    X = torch.randn(3, 5, 40, generator=torch.Generator().manual_seed(0))
    grams, least = X.mT @ X, torch.zeros(3)
    before = [directions({"gram": gram, "least": least[0]}, 3) for gram in grams]
    eigh, bad = torch.linalg.eigh, grams[1]

    def failing(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, vectors = eigh(matrix)
        hit = (matrix == bad.to(matrix.dtype)).all(-1).all(-1) & (matrix.dtype == torch.float32)
        if raises and hit.any():
            raise torch.linalg.LinAlgError("failed to converge")
        return values.masked_fill(hit[..., None], torch.nan), vectors.masked_fill(hit[..., None, None], torch.nan)

    monkeypatch.setattr(torch.linalg, "eigh", failing)
    alone = torch.stack([directions({"gram": gram, "least": least[0]}, 3) for gram in grams])
    stacked = torch.vmap(lambda gram, least: directions({"gram": gram, "least": least}, 3))(grams, least)
    for found in (alone, stacked):
        assert torch.equal(found[0], before[0])
        assert torch.equal(found[2], before[2])
        torch.testing.assert_close(found[1], before[1], rtol=0, atol=1e-5)


def test_few_samples_span_few_directions() -> None:
    chosen = setup(FedSaC(), federation((2,)))
    x, y = samples(chosen, 0)
    for centred, rank in ((False, 2), (True, 1)):
        found = directions(products(initial(chosen), Batch(x, y), chosen.task, centred), 3)
        assert found.square().sum(0).tolist() == pytest.approx([1.0] * rank + [0.0] * (3 - rank))


def test_features_that_diverged_are_told_before_anything_is_decomposed() -> None:
    chosen = setup(FedSaC(), federation(FOUR), optimizer=OptimizerConfig(lr=1e200), epochs=5)
    with pytest.raises(Diverged, match=r"round 1 on client \d"):
        simulate(chosen)
