"""What FedCollab's authors publish: their partition as a preset, accuracies client by client, distances."""

from __future__ import annotations

import numpy as np
import pytest

from fedbench.config.compose import compose
from fedbench.core.errors import ConfigError, UnknownName
from fedbench.data import authors
from fedbench.data.dataset import Dataset
from fedbench.data.datasets.small_images import FashionMnist
from fedbench.data.partition import make_partition
from fedbench.methods.fedcollab import solver
from fedbench.runs.config import resolve

RUN = resolve(compose(["partition=fedcollab_label_shift_seed0", "dataset=fashion_mnist"]))


def test_the_partition_comes_with_the_package_and_has_the_papers_sizes() -> None:
    with np.load(authors.FOLDER / "fedcollab_label_shift_seed0.npz") as split:
        assert [len(split[f"train_{k}"]) for k in range(20)] == [2100] * 10 + [14] * 10
        assert [len(split[f"test_{k}"]) for k in range(20)] == [350] * 20
        samples = np.concatenate([split[name] for name in split.files if name != "dataset"])
    assert len(np.unique(samples)) == len(samples)
    assert (samples.min() >= 0, samples.max() < 70_000) == (True, True)
    assert RUN.labels["partition"].startswith("file-")


@pytest.mark.slow
def test_the_partition_is_of_the_papers_labels() -> None:
    source = FashionMnist()
    if not source.state().ready:
        pytest.skip("Fashion-MNIST is not on this machine")
    data = source.load()
    found = make_partition(RUN.partition, data, RUN.protocol.test, 7).label_counts(data.y)
    for kind, (odd, shared, count) in enumerate(((0, 1, 600), (4, 1, 600), (5, 6, 4), (9, 6, 4))):
        expected = np.zeros(10, dtype=np.int64)
        expected[shared : shared + 3], expected[odd] = count, count // 2
        assert (found[5 * kind : 5 * kind + 5] == expected).all()


def test_the_partition_is_refused_for_other_data() -> None:
    x, y = np.zeros((70_000, 1, 1, 1), dtype=np.uint8), np.arange(70_000) % 10
    other = Dataset("fashion_mnist", x, y, 60_000, 10, (0.5,), (0.5,))
    with pytest.raises(ConfigError, match=r"divides fashion_mnist-\w+, this data set is fashion_mnist-\w+ .*use that"):
        make_partition(RUN.partition, other, RUN.protocol.test, 0)


@pytest.mark.parametrize("method", authors.METHODS)
@pytest.mark.parametrize(
    ("scenario", "tested", "rounds"),
    [("label_shift", 350, 200), ("feature_shift", 500, 500), ("concept_shift", 500, 200)],
)
def test_accuracies_are_shares_of_the_partitions_test_samples(
    method: str, scenario: str, tested: int, rounds: int
) -> None:
    right = authors.clients(method, scenario) * tested / 100
    assert right.shape == (20,)
    assert right == pytest.approx(right.round(), abs=2e-3)
    assert authors.rounds(method, scenario).shape == (rounds,)
    assert authors.rounds(method, scenario)[-1] == pytest.approx(authors.clients(method, scenario).mean(), abs=1e-3)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownName, match="unknown scenario 'labels'; nearest: label_shift"):
        authors.distances("labels")
    with pytest.raises(UnknownName, match="unknown method 'ditto'"):
        authors.clients("ditto")


@pytest.mark.parametrize(
    ("scenario", "sizes", "C"),
    [("label_shift", (2100, 14), 10), ("feature_shift", (2500, 340), 10), ("concept_shift", (2500, 120), 8)],
)
def test_the_distances_give_the_authors_coalitions(scenario: str, sizes: tuple[int, int], C: float) -> None:
    """Those of the files in collab/ of their repository, the same in all three scenarios."""
    distances = authors.distances(scenario)
    assert np.array_equal(distances, distances.T)
    kept = np.clip(distances, 0, None)  # as their solver does
    found = solver.solve(np.repeat(sizes, 10), kept, C, 100, np.random.default_rng(0))
    assert found.coalitions == ((0, 1, 2, 3, 4), (5, 6, 7, 8, 9), tuple(range(10, 20)))
