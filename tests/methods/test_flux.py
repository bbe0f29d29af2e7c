"""FLUX: descriptors, groups and rounds by loops; the elbow; a client that no round met."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedbench.core import trees
from fedbench.core.batch import Batch
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.engine.newcomers import Newcomers
from fedbench.engine.simulation import pack, unpack
from fedbench.methods import flux
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedcollab.fedcollab import FedCollab
from fedbench.methods.flux import FLUX
from tests.methods.test_histories import loss_on
from tests.methods.toys import ONE_STEP, close, descend, features, federation, initial, models, samples, setup, steps

SIZES, LABELS = (9, 13, 8, 21, 10), [[0, 1], [0, 1], [2, 3], [2, 3], [2, 3]]


def weighted(each: list[Tree], sizes: list[int]) -> Tree:
    """The average by samples."""
    return {n: sum(s / sum(sizes) * w[n] for s, w in zip(sizes, each, strict=True)) for n in each[0]}  # type: ignore[misc]


def described(chosen: object, w: Tree, clients: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(Unscaled blocks [N, 10, 4], axes, centre) by loops: the axes by the covariance of the code's points."""
    z = [features(w, samples(chosen, k)[0]).numpy() for k in range(clients)]  # type: ignore[arg-type]
    np.random.seed(1)  # noqa: NPY002 - the code's generator
    points = np.random.uniform(0, 1.02 * max(each.max() for each in z), (200, 7))  # noqa: NPY002
    centre = points.mean(0)
    axes, _ = flux.principal_axes(max(each.max() for each in z), 4, 7)
    _, vectors = np.linalg.eigh((points - centre).T @ (points - centre))
    for axis, vector in zip(axes, vectors[:, ::-1].T[:4], strict=True):
        assert abs(axis @ vector) == pytest.approx(1, abs=1e-9)
    blocks = []
    for k in range(clients):
        projected, y = (z[k] - centre) @ axes.T, samples(chosen, k)[1].numpy()  # type: ignore[arg-type]
        rows = [projected, *(projected[y == c] for c in range(4))]
        means = [[r[:, j].mean() if len(r) > 1 else -1 for j in range(4)] for r in rows]
        spread = [
            [np.sqrt(((r[:, j] - r[:, j].mean()) ** 2).mean()) if len(r) > 1 else -1 for j in range(4)] for r in rows
        ]
        blocks.append([means[0], spread[0], *means[1:], *spread[1:]])
    return np.array(blocks), axes, centre


def test_rounds_of_flux_and_where_a_new_client_goes() -> None:
    """One round of FedAvg, then two groups from its model; the fifth client is met by none and has other labels."""
    data = federation(SIZES, labels=LABELS)
    whole = setup(FLUX(cluster_round=1, eps_scale=1.5), data, **{**ONE_STEP, "rounds": 3}, unseen=1)
    chosen = whole.seen
    own = [samples(chosen, k) for k in range(4)]
    received = weighted([descend(loss_on(own[k]), initial(chosen), 0.2) for k in range(4)], list(SIZES[:4]))
    blocks, axes, centre = described(chosen, received, 4)
    low, high = blocks.min((0, 2)), blocks.max((0, 2))
    scaled = np.array(
        [[(block - lo) / ((hi - lo) or 1) for block, lo, hi in zip(each, low, high, strict=True)] for each in blocks]
    )
    apart = np.array([[np.sqrt(((a - b) ** 2).sum()) for b in scaled] for a in scaled])

    simulation, state = steps(chosen, 1)
    assert np.abs(state.arrays["distances"] - apart).max() < 1e-9
    assert state.arrays["coalition"].tolist() == state.server["coalition"].tolist() == [0, 0, 1, 1]
    groups, pairs = {0: received, 1: received}, {0: (0, 1), 1: (2, 3)}
    for _ in range(2):
        assert all(close(trees.row(trees.part(state.server, "base"), g), groups[g]) for g in groups)
        simulation.step(state)
        for g, pair in pairs.items():
            trained = [descend(loss_on(own[k]), groups[g], 0.2) for k in pair]
            groups[g] = weighted(trained, [SIZES[k] for k in pair])
    assert all(close(trees.row(trees.part(state.server, "base"), g), groups[g]) for g in groups)
    assert close(trees.row(models(chosen, state), 3), groups[1])
    assert close(trees.part(state.server, "seer"), received)

    z = (features(received, samples(whole, 4)[0]).numpy() - centre) @ axes.T
    block = np.stack([(z.mean(0) - low[0]) / (high[0] - low[0]), (z.std(0) - low[1]) / (high[1] - low[1])])
    gaps = [np.sqrt(((block - scaled[list(pair), :2].mean(0)) ** 2).sum()) for pair in pairs.values()]
    nearest = int(np.argmin(gaps))
    assert nearest == 1
    newcomers = Newcomers(whole, chosen)
    place = newcomers._joined(state, Clock(3, 3))
    assert place["coalition"].tolist() == [0, 0, 1, 1, nearest]
    (view,) = newcomers._views(state, Clock(3, 3), place, lend=False)
    assert close(whole.method.personal(view), groups[nearest])
    found = newcomers.score(state)
    assert (found.note, set(found.tallies)) == ("", {"received", "1", "5"})


def test_a_new_clients_deviation_is_that_of_its_samples() -> None:
    """Samples of 1 and 3 have mean 2 and deviation 1, halved those of group 1; n - 1 would give 2^.5, group 0."""
    task = setup(FLUX(), federation((2, 3))).task
    seer = {"fc.0.weight": torch.eye(7, 16), "fc.0.bias": torch.zeros(7)}
    x = torch.tensor([1.0, 3.0]).view(2, 1, 1, 1).expand(2, 1, 4, 4)
    px = {"axes": torch.eye(1, 7), "centre": torch.zeros(7), "low": torch.zeros(2), "high": torch.full((2,), 2.0)}
    px["groups"] = torch.tensor([[[1.0], [0.7]], [[1.0], [0.5]]])
    assert flux.nearest(seer, px, Batch(x, torch.tensor([0, 1])), task).item() == 1


def test_before_its_round_it_is_fedavg() -> None:
    options = {"rounds": 2, "cohort": 0.75}
    data = federation(SIZES[:4])
    _, late = steps(setup(FLUX(cluster_round=9), data, **options), 2)  # type: ignore[arg-type]
    _, fedavg = steps(setup(FedAvg(), data, **options), 2)  # type: ignore[arg-type]
    assert close(trees.row(trees.part(late.server, "base"), 0), fedavg.server)
    with pytest.raises(ConfigError, match="prepares after 3 rounds"):
        FedCollab(base={"name": "flux"})


def test_a_run_resumed_after_the_groups_is_the_run() -> None:
    chosen = setup(FLUX(cluster_round=1), federation(SIZES[:4], labels=LABELS[:4]), rounds=4)
    simulation, state = steps(chosen, 2)
    other = unpack(*pack(state), torch.device("cpu"))
    for _ in range(2):
        simulation.step(state)
        simulation.step(other)
    assert close(state.server, other.server, 0)


@pytest.mark.parametrize(
    ("values", "expected"),
    [  # of the package kneed 0.9.0
        ([0.1, 0.11, 0.12, 0.13, 0.15, 0.9, 1.5], 0.15),
        ([0.2, 0.2, 0.3, 0.31, 0.33, 0.35, 2.0, 2.1], 0.35),
        ([0.32, 0.32, 0.33, 0.33, 1.72, 1.72, 1.77, 1.95, 1.99, 2.1], 2.1),  # a run's: all clients join one group
        ([1.0, 2.0, 3.0, 4.0], 4.0),  # a line has none
        ([2.0, 2.0], 2.0),
        ([0.5], 0.5),
    ],
)
def test_the_elbow_is_where_values_leave_the_flat_part(values: list[float], expected: float) -> None:
    assert flux.elbow(np.array(values)) == expected


def test_groups_are_chains_and_a_client_without_a_neighbour_is_one() -> None:
    points = np.array([0.0, 1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 40.0])
    apart = np.abs(points[:, None] - points)
    assert flux.chains(apart, 1.0).tolist() == [0, 0, 0, 0, 1, 1, 1, 2]
    assert flux.chains(apart, 7.0).tolist() == [0] * 7 + [1]
    assert flux.chains(np.zeros((1, 1)), 1.0).tolist() == [0]


def test_a_class_with_one_sample_has_no_moments() -> None:
    """Two of class 0, one of class 1, none of class 2: means of all, deviations of all, classes' means, deviations."""
    found = flux.descriptor(np.array([[1.0, 2.0], [3.0, 8.0], [5.0, 2.0]]), np.array([0, 0, 1]), 3)
    spread = [np.sqrt(8 / 3), np.sqrt(8)]
    expected = [[3, 4], spread, [2, 5], [-1, -1], [-1, -1], [1, 3], [-1, -1], [-1, -1]]
    np.testing.assert_allclose(found, expected, atol=1e-12)
