"""Augmentation: each transform by hand, drawn alike for every engine, on training batches only."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedbench.config.schema import ProtocolConfig
from fedbench.core import rng, trees
from fedbench.core.errors import ConfigError, FedbenchError, UnknownName
from fedbench.core.trees import Tree
from fedbench.data.federation import Crop, Flip, Rotate, augment, augmentations, rotate
from fedbench.engine import schedule
from fedbench.engine.contract import Clock, Stage
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.setup import Setup
from fedbench.engine.stacked import StackedTrainer
from fedbench.methods.ditto import Ditto
from fedbench.methods.fedavg import FedAvg
from fedbench.models.small import MLP
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
    return run.batches(client, stage, run.client(client, {}, {}, clock), "batches")[1]


def chosen(method=None, names=("crop1", "flip"), **fields):
    data = federation((1, 13, 8, 21, 5), (3, 6, 6))
    return setup(method or FedAvg(), data, MLP(hidden=(7,)), augment=names, **fields)


@pytest.mark.parametrize("names", [("crop1", "flip"), ("flip", "rotate30", "crop2")])
@pytest.mark.parametrize("method", [FedAvg(), Ditto()], ids=["fedavg", "ditto"])
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
