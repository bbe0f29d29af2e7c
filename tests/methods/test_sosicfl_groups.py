"""The five groups of SosicFL's 5-Fold in the simplex: how many endpoints keep them apart."""

from __future__ import annotations

import numpy as np
import pytest

from fedbench.core import rng
from fedbench.data.partitions.fold import Fold
from fedbench.methods.sosicfl import clustering, positions

GROUP = np.repeat(np.arange(5), 20)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_ten_endpoints_keep_five_groups_apart_and_three_do_not(seed: int) -> None:
    """Section 4.1 needs the groups separable; three corners put two pairs of them in one place."""
    counts = Fold(folds=5).counts(np.full(10, 5000)).astype(float)
    for endpoints, apart in ((10, True), (3, False)):
        found = positions.topics(counts, endpoints, rng.derive(seed, "topics"))
        means = np.stack([found[group == GROUP].mean(0) for group in range(5)])
        nearest = min(np.abs(means[a] - means[b]).sum() for a in range(5) for b in range(a))
        assert (float(nearest) > 0.5) is apart
        labels, _ = clustering.cluster(found, 5, clustering.METRICS["hilbert"])
        assert (len(set(zip(GROUP.tolist(), labels.tolist(), strict=True))) == 5) or not apart
