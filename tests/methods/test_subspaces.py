"""FedSaC's subspaces: angles against SciPy, their directions, and what cannot be decomposed."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch
from sklearn.decomposition import PCA

from fedbench.config.schema import OptimizerConfig
from fedbench.core.batch import Batch
from fedbench.core.errors import Diverged
from fedbench.methods.fedsac import FedSaC
from fedbench.methods.parts.features import complementarity, directions, products
from tests.methods.toys import FOUR, bases, close, features, federation, initial, samples, setup, simulate


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
