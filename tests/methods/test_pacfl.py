"""PACFL: its limits are FedAvg and Local; angles and merges by hand; groups in orthogonal subspaces are found."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedbench.core import trees
from fedbench.data.dataset import Dataset
from fedbench.data.federation import Federation
from fedbench.data.partition import Partition
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.simulation import Simulation
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.local import Local
from fedbench.methods.pacfl import PACFL, directions, groups, smallest_angle
from tests.helpers.tiers import sampled
from tests.methods.toys import close, models, run, same_groups, setup

ANGLES = ("columns", "signed", "principal")


@pytest.mark.parametrize("angle", sampled(ANGLES, every=3))
def test_beyond_every_angle_it_is_fedavg_and_below_none_local(angle: str) -> None:
    chosen, state = run(PACFL(threshold=180.0, angle=angle), cohort=0.75)
    assert close(models(chosen, state), trees.expand(run(FedAvg(), cohort=0.75)[1].server, 4))
    alone, local = run(PACFL(threshold=-1.0, angle=angle)), run(Local())
    assert sorted(alone[1].server["coalition"].tolist()) == [0, 1, 2, 3]
    assert close(models(*alone), models(*local))


def planted(order: list[int], scale: tuple[int, ...] = (60, 250)) -> Federation:
    """Clients 0 and 2 see pixels of the left half, 1 and 3 of the right half, two classes each; `order` of samples."""
    rng = np.random.default_rng(0)
    own, x, y = [], np.zeros((32, 1, 1, 4), dtype=np.uint8), np.tile([0, 1], 16)
    for k in range(4):
        own.append(np.arange(8 * k, 8 * k + 8))
        half = slice(0, 2) if k % 2 == 0 else slice(2, 4)
        x[own[-1], 0, 0, half] = rng.integers(*scale, (8, 2))
    sets = [rows[:6][order] for rows in own], [rows[6:7] for rows in own], [rows[7:] for rows in own]
    data = Dataset("planted", x, y, 32, 2, (0.5,), (0.25,))
    return Federation(data, Partition("planted", 0, "planted", 2, *sets), dtype=torch.float64)


@pytest.mark.parametrize("angle", ANGLES)
@pytest.mark.parametrize("linkage", ["average", "maximum", "minimum"])
def test_groups_in_orthogonal_subspaces_are_found_in_any_order_of_samples(angle: str, linkage: str) -> None:
    found = [
        setup(PACFL(p=2, threshold=45.0, angle=angle, linkage=linkage), planted(order))
        for order in ([0, 1, 2, 3, 4, 5], [5, 2, 0, 4, 1, 3])
    ]
    states = [Simulation(chosen, LoopedTrainer(chosen)).begin() for chosen in found]
    assert all(same_groups(state.server["coalition"].tolist(), [0, 1, 0, 1]) for state in states)
    np.testing.assert_allclose(*(state.arrays["distances"] for state in states), atol=1e-5)
    assert np.all(states[0].arrays["distances"][0, [1, 3]] > 89.9)


def test_the_bases_are_charged() -> None:
    """Each client sends p vectors of d pixels for each of its classes, once."""
    chosen = setup(PACFL(p=2), planted([0, 1, 2, 3, 4, 5]))
    state = Simulation(chosen, LoopedTrainer(chosen)).begin()
    assert state.bytes_up == 4 * 2 * 2 * 4 * 8, "clients, classes, vectors, pixels, bytes"


def test_directions_by_hand() -> None:
    """Class 0 along (3, 4), class 1 along both axes, the second of them stronger; one sample of class 2."""
    x = torch.tensor([[3.0, 4.0], [6.0, 8.0], [1.0, 0.0], [0.0, -2.0], [0.0, 0.0]], dtype=torch.float64)
    y = torch.tensor([0, 0, 1, 1, 2])
    expected = torch.tensor([[0.6, 0.0, 1.0], [0.8, 1.0, 0.0]], dtype=torch.float64)
    assert close(directions(x, y, 2), expected, 1e-9), "no second direction of class 0, none of class 2"
    assert close(directions(x, y, 1), expected[:, :2], 1e-9)


@pytest.mark.parametrize(("angle", "degrees"), [("columns", 30.0), ("signed", 120.0), ("principal", 0.0)])
def test_the_smallest_angle_by_hand(angle: str, degrees: float) -> None:
    """(1, 0, 0) and (0, 0, 1) against minus one at 30 degrees from the first, and one at 120 from it: a plane each."""
    at = np.radians([30.0, 120.0])
    one = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]).T
    other = np.array([[-np.cos(at[0]), -np.sin(at[0]), 0.0], [np.cos(at[1]), np.sin(at[1]), 0.0]]).T
    signed = min(90.0, degrees) if angle == "signed" else degrees  # (0, 0, 1) is at right angles to both
    assert smallest_angle(one, other, angle) == pytest.approx(signed, abs=1e-5)
    assert smallest_angle(one[:, :1], other, angle) == pytest.approx(degrees, abs=1e-5)
    assert smallest_angle(one, other[:, :0], angle) == 180


@pytest.mark.parametrize(("linkage", "joins"), [("minimum", 2.0), ("average", 5.25), ("maximum", 9.0)])
def test_merges_by_hand(linkage: str, joins: float) -> None:
    """0 and 1 merge at 1, with 2 at 2, and 3 is at 9, 2 and 5: WPGMA's ((9 + 2) / 2 + 5) / 2, not the mean 16 / 3."""
    distances = np.array([[0, 1, 2, 9], [1, 0, 2, 2], [2, 2, 0, 5], [9, 2, 5, 0]], dtype=float)
    assert same_groups(groups(distances, joins - 0.01, linkage).tolist(), [0, 0, 0, 1] if joins > 2 else [0, 0, 1, 2])
    assert same_groups(groups(distances, joins, linkage).tolist(), [0, 0, 0, 0])
    assert same_groups(groups(distances, 1.0, linkage).tolist(), [0, 0, 1, 2])
    pair = distances[np.ix_([2, 3], [2, 3])]
    assert [groups(pair, threshold, linkage).tolist() for threshold in (4.9, 5.0)] == [[0, 1], [0, 0]]
    for few in (0, 1):
        alone = groups(distances[:few, :few], 1.0, linkage)
        assert (alone.tolist(), alone.dtype) == ([0] * few, np.int64)
