"""Augmentation: each transform by hand, drawn alike for every engine, on training batches only."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedbench.config.schema import ProtocolConfig
from fedbench.config.schema import TestConfig as Protocol
from fedbench.core import rng, trees
from fedbench.core.errors import ConfigError, FedbenchError, UnknownName
from fedbench.core.trees import Tree
from fedbench.data.dataset import Dataset
from fedbench.data.federation import Crop, Federation, Flip, Rotate, augment, augmentations, rotate
from fedbench.data.partition import make_partition
from fedbench.engine import schedule
from fedbench.engine.contract import Clock, Stage
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.setup import Setup
from fedbench.engine.stacked import StackedTrainer
from fedbench.methods.ditto import Ditto
from fedbench.methods.fedavg import FedAvg
from fedbench.models.small import MLP
from tests.data.toys import build, data
from tests.helpers.tiers import sampled
from tests.methods.toys import federation, gap, models, setup, simulate

BLACK = torch.tensor([-2.0, -3.0]).view(1, 2, 1, 1)


def images(count: int = 6, height: int = 7, width: int = 9) -> Tensor:
    return torch.randn(count, 2, height, width, generator=torch.Generator().manual_seed(0))


# --- transforms


def test_a_crop_is_a_window_of_the_padded_image() -> None:
    x, pad = images(), 3
    shifts = torch.tensor([[0, 0], [3, 3], [-3, -3], [1, -2], [-3, 2], [2, 0]], dtype=torch.int16)
    cropped = Crop(pad).apply(x, shifts, BLACK)
    for image, result, (down, right) in zip(x, cropped, shifts.tolist(), strict=True):
        padded = BLACK[0].expand(2, 7 + 2 * pad, 9 + 2 * pad).clone()
        padded[:, pad : pad + 7, pad : pad + 9] = image
        window = padded[:, pad + down : pad + down + 7, pad + right : pad + right + 9]
        torch.testing.assert_close(result, window)


def test_a_flip_mirrors_the_chosen_images() -> None:
    x = images(3)
    flipped = Flip().apply(x, torch.tensor([True, False, True]), BLACK)
    np.testing.assert_array_equal(flipped[0], x[0].numpy()[:, :, ::-1])
    torch.testing.assert_close(flipped[1], x[1])


def test_a_rotation_turns_each_image_by_its_angle() -> None:
    x, angles = images(3, 8, 8), torch.tensor([0.0, 90.0, -15.0])
    turned = Rotate(180).apply(x, angles, BLACK)
    torch.testing.assert_close(turned[0], x[0])
    np.testing.assert_allclose(turned[1], np.rot90(x[1].numpy(), 1, (1, 2)), atol=1e-5)
    torch.testing.assert_close(turned[2:], rotate(x[2:], angles[2:], BLACK, "black"))


def test_draws_are_uniform_over_what_the_names_say() -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (200, 50)
    shifts = Crop(4).draw(generator, shape)
    assert shifts.shape == (200, 50, 2)
    counts = torch.bincount((shifts.flatten().long() + 4), minlength=9)
    assert len(counts) == 9
    assert ((counts / counts.sum() - 1 / 9).abs() < 0.01).all()
    assert abs(float(Flip().draw(generator, shape).double().mean()) - 0.5) < 0.02
    angles = Rotate(15).draw(generator, shape)
    assert -15 <= float(angles.min()) < -14.9
    assert 14.9 < float(angles.max()) <= 15
    assert abs(float(angles.mean())) < 0.3


@pytest.mark.parametrize("name", ["crop", "crop0", "flip2", "mirror", "rotate", "rotate181", "crop4 ", "crop-1"])
def test_names_are_checked_when_the_protocol_is_read(name: str) -> None:
    with pytest.raises((UnknownName, ConfigError), match=r"protocol\.augment"):
        ProtocolConfig(augment=(name,))
    assert augmentations(("crop4", "flip", "rotate15")) == (Crop(4), Flip(), Rotate(15))


# --- in training


def noise(run: Setup, client: int, stage: Stage, clock: Clock) -> Tree:
    """What a client's stage is given beside its samples, leaves [steps, ...]."""
    return run.source(run, client, stage, run.client(client, {}, {}, clock), "batches")[1]


def chosen(method=None, names=("crop1", "flip"), **fields):
    data = federation((1, 13, 8, 21, 5), (3, 6, 6))
    return setup(method or FedAvg(), data, MLP(hidden=(7,)), augment=names, **fields)


@pytest.mark.parametrize("names", [("crop1", "flip"), ("flip", "rotate30", "crop2")])
@pytest.mark.parametrize("method", sampled([FedAvg(), Ditto()], every=2), ids=["fedavg", "ditto"])
def test_both_engines_train_on_the_same_images(names, method) -> None:
    run = chosen(method, names, cohort=0.8)
    plain = simulate(chosen(method, (), cohort=0.8))
    looped = simulate(run, LoopedTrainer(run))
    assert gap(models(run, looped), models(run, plain)) > 1e-3  # it does something
    for chunk in (1, 2, 99):
        stacked = simulate(run, StackedTrainer(run, chunk))
        assert gap(stacked.server, looped.server) < 1e-9
        assert gap(models(run, stacked), models(run, looped)) < 1e-9


def test_training_equals_augmenting_raw_pixels_one_by_one() -> None:
    """A plain loop that pads and mirrors single uint8 images as torchvision does, and normalises them after."""
    run = chosen(rounds=1)
    data, local = run.federation, run.protocol.local
    start = run.task.init(rng.torch_rng(run.seed, "init"))
    average: dict[str, Tensor] = {}
    for k in range(data.clients):
        net = MLP(hidden=(7,)).build(data.shape, data.classes).to(torch.float64)
        net.load_state_dict(start)
        sgd = torch.optim.SGD(net.parameters(), lr=0.1)
        order = schedule.batches(data.size(k), local, Stage(), rng.torch_rng(run.seed, "batches", 0, k, 0))
        keyed = rng.torch_rng(run.seed, "batches/augment", 0, k, 0)
        shifts = torch.randint(-1, 2, (len(order), 8, 2), generator=keyed, dtype=torch.int16)
        mirrored = torch.rand((len(order), 8), generator=keyed) < 0.5
        owned = data.indices("train", k)
        for step, rows in enumerate(order):
            x = []
            for place, sample in enumerate(owned[rows]):
                padded = nn.functional.pad(data.x[sample], (1, 1, 1, 1))
                down, right = shifts[step, place].tolist()
                image = padded[:, 1 + down : 7 + down, 1 + right : 7 + right]
                x.append(image.flip(2) if mirrored[step, place] else image)
            pixels = (torch.stack(x).double() / 255 - 0.5) / 0.25
            sgd.zero_grad()
            nn.functional.cross_entropy(net(pixels), data.y[owned[rows]]).backward()
            sgd.step()
        for name, leaf in net.state_dict().items():
            average[name] = average.get(name, 0) + leaf * data.size(k) / 48
    assert gap(simulate(run).server, average) < 1e-10


def test_draws_depend_on_round_client_and_stage_order_alone() -> None:
    run = chosen(names=("crop2", "flip", "rotate10"))
    clock, later = Clock(3, 9), Clock(4, 9)
    first = noise(run, 1, Stage(), clock)
    assert set(first) == {"augment/0", "augment/1", "augment/2"}
    assert gap(first, noise(run, 1, Stage(), clock)) == 0
    for client, stage, when in ((2, Stage(), clock), (1, Stage(order=1), clock), (1, Stage(), later)):
        other = noise(run, client, stage, when)
        assert any(not torch.equal(first[n][0], other[n][0]) for n in first)


def test_only_training_batches_change() -> None:
    run, plain = chosen(), chosen(names=())
    whole = [each.federation.all_of(3) for each in (run, plain)]
    assert torch.equal(whole[0].x, whole[1].x)
    start = trees.map_leaves(torch.Tensor.double, run.task.init(rng.torch_rng(run.seed, "init")))
    scores = [LoopedTrainer(each).count(3, start, ("local", "val")) for each in (run, plain)]
    for name in ("local", "val"):
        assert torch.equal(scores[0][name][0], scores[1][name][0])


def test_a_method_s_own_noise_is_kept_apart() -> None:
    run = chosen()
    indices = run.federation.indices("train", 3)[:4]
    drawn = noise(run, 3, Stage(), Clock(0, 1))
    step = {name: leaf[0] for name, leaf in drawn.items()} | {"alpha": torch.ones(2)}
    plain, _ = run.federation.gather(indices)
    x, kept = run.augmented(plain, step)
    assert set(kept) == {"alpha"}
    assert not torch.equal(x, plain)
    expected = augment(run.augmentations, plain, trees.part(step, "augment"), run.federation.black)
    assert torch.equal(x, expected)


def test_text_cannot_be_cropped() -> None:
    run = setup(FedAvg(), federation((4, 4), (1, 1, 9)), augment=("flip",))
    with pytest.raises(FedbenchError, match="changes images"):
        simulate(run)


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
