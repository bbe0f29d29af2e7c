"""Images as a client sees them turned: against the definition, and what their corners hold."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedbench.config.schema import TestConfig as Protocol
from fedbench.data.dataset import Dataset
from fedbench.data.federation import Federation, rotate
from fedbench.data.partition import make_partition
from tests.data.toys import build, data


def test_clients_see_rotated_images_and_only_their_own_angle():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (700, 3, 9, 9), dtype=np.uint8)
    toy = Dataset("toy", x, np.arange(700) % 10, 600, 10, (0.4, 0.5, 0.6), (0.2, 0.3, 0.2))
    partition = make_partition(build("feature_shift", angles=(90.0, 180.0, 0.0, -90.0)), toy, Protocol(), 0)
    federation = Federation(toy, partition)
    mean, std = (np.array(v).reshape(1, 3, 1, 1) for v in (toy.mean, toy.std))
    for client, turns in ((1, 1), (9, 2), (10, 0), (15, -1)):
        for name, samples in (("train", partition.train), ("local", partition.test)):
            seen, _ = federation.gather(federation.indices(name, client))
            turned = np.rot90(x[samples[client]], turns, axes=(2, 3))  # NumPy turns counter-clockwise too
            np.testing.assert_allclose(seen.numpy(), (turned / 255 - mean) / std, atol=1e-4)
    assert federation.x.dtype == torch.uint8
    np.testing.assert_array_equal(toy.x, x)  # the data set itself, shared by other runs, is untouched


def ramp(size=33):
    """A smooth image [1, 1, size, size] in [0, 1]."""
    axis = torch.linspace(0, 1, size, dtype=torch.float64)
    return (0.25 + 0.5 * (axis[:, None] * axis[None]) + 0.1 * axis[:, None]).view(1, 1, size, size)


@pytest.mark.parametrize("degrees", [25.0, -25.0, 155.0, -155.0])
def test_a_rotation_equals_the_definition(degrees):
    """Each inner pixel is the bilinear value of the original at the back-rotated place."""
    x = ramp()
    turned = rotate(x, torch.tensor([degrees]), torch.zeros(()))[0, 0].numpy()
    image, centre, angle = x[0, 0].numpy(), 16.0, np.deg2rad(degrees)
    rng = np.random.default_rng(0)
    checked = 0
    for row, column in rng.integers(0, 33, (200, 2)):
        right, up = column - centre, centre - row  # the usual axes: counter-clockwise is positive
        source_right = np.cos(angle) * right + np.sin(angle) * up
        source_up = -np.sin(angle) * right + np.cos(angle) * up
        r, c = centre - source_up, centre + source_right
        if not (0 <= r <= 31.9 and 0 <= c <= 31.9):
            continue
        i, j = int(r), int(c)
        a, b = r - i, c - j
        patch = image[i : i + 2, j : j + 2]
        expected = np.array([1 - a, a]) @ patch @ np.array([1 - b, b])
        assert turned[row, column] == pytest.approx(expected, abs=1e-6)
        checked += 1
    assert checked > 100


def test_rotations_undo_each_other_and_turn_oblong_images_without_stretching():
    x = ramp()
    there = rotate(x, torch.tensor([25.0]), torch.zeros(()), "edge")
    back = rotate(there, torch.tensor([-25.0]), torch.zeros(()), "edge")
    assert (back - x)[..., 10:23, 10:23].abs().max() < 2e-3
    bar = torch.zeros(1, 1, 5, 11, dtype=torch.float64)
    bar[..., 2, 3:8] = 1  # five pixels to the right
    upright = rotate(bar, torch.tensor([90.0]), torch.zeros(()))
    np.testing.assert_allclose(upright[0, 0, :, 5].numpy(), np.ones(5), atol=1e-6)
    assert float(upright.sum()) == pytest.approx(5)


def test_corners():
    x = torch.full((1, 2, 16, 16), 200.0)
    fill = torch.tensor([10.0, 20.0]).view(1, 2, 1, 1)
    corner = {
        mode: rotate(x, torch.tensor([45.0]), fill if mode == "mean" else torch.zeros(()), mode)[0, :, 0, 0]
        for mode in ("mean", "black", "edge", "reflect")
    }
    np.testing.assert_allclose(corner["mean"], [10, 20], atol=1e-4)
    np.testing.assert_allclose(corner["black"], [0, 0], atol=1e-4)
    np.testing.assert_allclose(corner["edge"], [200, 200], atol=1e-3)
    np.testing.assert_allclose(corner["reflect"], [200, 200], atol=1e-3)
    rows = torch.arange(16.0).view(1, 1, 16, 1).expand(1, 1, 16, 16)  # the corner's source is row 7.5 - 7.5 sqrt 2
    turned = {mode: rotate(rows, torch.tensor([45.0]), torch.zeros(()), mode) for mode in ("edge", "reflect")}
    assert float(turned["edge"][0, 0, 0, 0]) == pytest.approx(0, abs=1e-4)
    assert float(turned["reflect"][0, 0, 0, 0]) == pytest.approx(-1 - (7.5 - 7.5 * 2**0.5), abs=1e-4)


def test_mean_corners_are_zero_after_normalisation():
    x = np.full((60, 1, 8, 8), 250, dtype=np.uint8)
    toy = Dataset("toy", x, np.arange(60) % 10, 50, 10, (0.2,), (0.1,))
    spec = build("feature_shift", angles=(45.0,) * 4)
    seen = {}
    for corners in ("mean", "black"):
        partition = make_partition(build("feature_shift", angles=(45.0,) * 4, corners=corners), toy, Protocol(), 0)
        seen[corners], _ = Federation(toy, partition).gather(torch.as_tensor(partition.train[0]))
    assert spec.corners == "mean"
    assert seen["mean"][:, 0, 0, 0].abs().max() < 0.02  # rounded to a grey level
    np.testing.assert_allclose(seen["black"][:, 0, 0, 0], -2.0, atol=1e-5)
    assert (seen["mean"][:, 0, 4, 4] > 7).all()


def test_angles_make_domains_where_there_are_none():
    toy = data(600, 60, 10)
    partition = make_partition(build("domain", clients_per_domain=4, angles=[0, 90, 45]), toy, Protocol(), 0)
    assert partition.rotation.tolist() == [0] * 4 + [90] * 4 + [45] * 4
    owned = [np.concatenate(p) for p in zip(partition.train, partition.test, strict=True)]
    assert [len(each) for each in owned] == [50] * 12
    assert sorted(np.concatenate(owned)) == list(range(600))
    assert all(len(set(toy.y[each])) > 5 for each in owned)
