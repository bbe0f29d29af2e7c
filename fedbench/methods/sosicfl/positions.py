"""Clients as points of a simplex: LDA on label counts, or PCA of trained heads projected onto it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

SIZES = np.linspace(1e-4, 1, 1000)  # of the simplices that scores are projected onto
NEAREST = 1e-4  # distance below which two points count as this far apart


def topics(counts: Array, count: int, seed: int, iterations: int = 100) -> Array:
    """Latent Dirichlet allocation: documents are clients, words are labels; mixing weights [N, count].

    Variational Bayes (Hoffman et al., NIPS 2010) as scikit-learn implements it, with its default priors, on all clients
    at once: its online steps need thousands of passes over so few documents. The clients are fed in an order that
    depends on their counts alone, so relabelling them permutes the result.

    Args:
        counts: samples of each class, [N, K].
        count: topics, M + 1.
        seed: of the topics' random start.
        iterations: passes over the clients.
    """
    from sklearn.decomposition import LatentDirichletAllocation

    model = LatentDirichletAllocation(count, max_iter=iterations, random_state=seed % 2**32)
    model.fit(counts[np.lexsort(counts.T)])
    return np.asarray(model.transform(counts), dtype=np.float64)


def spread_scores(heads: Array, count: int) -> Array:
    """Principal component scores of trained heads [N, P] as points of the simplex that keep apart: [N, count].

    As the authors' code (Floco): scores are projected onto the simplices of size z, for z of SIZES, and scaled to sum
    1; taken is the z with the least Riesz energy of the points. With fewer clients than components the missing scores
    are zero.
    """
    centred = heads - heads.mean(0)
    left, values, right = np.linalg.svd(centred, full_matrices=False)
    left = left * np.sign(
        right[np.arange(len(values)), np.abs(right).argmax(1)]
    )  # as scikit-learn fixes signs
    scores = np.zeros((len(heads), count))
    kept = min(count, len(values))
    scores[:, :kept] = (left * values)[:, :kept]
    found = (project(scores, size) / size for size in SIZES)
    return min(found, key=riesz_energy)


def riesz_energy(points: Array) -> float:
    """Mean over pairs of `points` [N, n] of one over their squared distance, of which none is below NEAREST."""
    first, second = np.triu_indices(len(points), 1)
    squares = ((points[first] - points[second]) ** 2).sum(1)
    return float((1 / np.maximum(squares, NEAREST**2)).mean()) if len(squares) else 0.0


def project(points: Array, size: float = 1.0) -> Array:
    """Euclidean projection of each row of `points` [N, n] onto {x >= 0: sum x = size} (Held, Wolfe, Crowder 1974)."""
    ordered = -np.sort(-points, axis=1)
    excess = (ordered.cumsum(1) - size) / np.arange(1, points.shape[1] + 1)
    last = (ordered > excess).sum(1) - 1
    return np.asarray(np.maximum(points - excess[np.arange(len(points)), last][:, None], 0))
