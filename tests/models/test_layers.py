"""The layers that networks share, each against torch's function or a loop."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedbench.core.batch import Batch
from fedbench.models.layers import (
    BatchNorm,
    Conv2d,
    GlobalMean,
    MaxPool2,
    Places,
    PlacesMean,
    replace_batch_norm,
    replace_convolutions,
)
from fedbench.models.modalities import GlobalMax, WordEmbedding
from fedbench.models.small import LeNet5


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)), dtype=torch.float64)


@pytest.mark.parametrize("shape", [(6, 3), (6, 3, 5), (6, 3, 4, 2)])
def test_padding_takes_no_part_in_batch_normalisation(shape: tuple[int, ...]) -> None:
    """Outputs, slopes and running statistics are those of the real samples alone, by torch's function."""
    norm = BatchNorm(3, momentum=0.3, eps=1e-2).double().train()
    norm.load_state_dict({name: normal(3).abs() + k for k, name in enumerate(norm.state_dict())})
    kept = {name: leaf.clone() for name, leaf in norm.state_dict().items()}
    x, weights, real = normal(*shape).requires_grad_(), normal(*shape) + 1, torch.tensor([1, 0, 1, 1, 0, 1]).bool()
    norm.mask = real
    out = norm(x)
    assert not norm.running_mean.requires_grad
    assert not norm.running_var.requires_grad
    (out * weights)[real].sum().backward()
    alone = x.detach()[real].requires_grad_()
    affine = [kept[name].requires_grad_() for name in ("weight", "bias")]
    mean, var = kept["running_mean"], kept["running_var"]
    expected = functional.batch_norm(alone, mean, var, *affine, True, 0.3, 1e-2)
    (expected * weights[real]).sum().backward()
    for ours, theirs in (
        *((out[real], expected), (norm.running_mean, mean), (norm.running_var, var)),
        *((x.grad[real], alone.grad), (norm.weight.grad, affine[0].grad), (norm.bias.grad, affine[1].grad)),
    ):
        torch.testing.assert_close(ours, theirs)
    assert not x.grad[~real].any()
    norm.eval()
    torch.testing.assert_close(norm(x), functional.batch_norm(x, mean, var, *affine, False, 0.3, 1e-2))


@pytest.mark.parametrize(("layer", "dims"), [(nn.BatchNorm1d, 0), (nn.BatchNorm2d, 2), (nn.BatchNorm3d, 3)])
def test_every_batch_norm_of_torch_is_replaced_at_any_depth(layer: type[nn.Module], dims: int) -> None:
    made = [layer(2, eps=0.2, momentum=0.4), layer(2, momentum=None), layer(2, momentum=0.0)]
    for number, each in enumerate(made):
        each.load_state_dict({name: leaf + number + 2 for name, leaf in each.state_dict().items()})
    net = nn.Sequential(nn.Sequential(nn.ReLU(), nn.Sequential(made[0])), *made[1:])
    assert replace_batch_norm(net) is net
    for ours, theirs, momentum in ((net[0][1][0], made[0], 0.4), (net[1], made[1], 0.1), (net[2], made[2], 0.0)):
        assert isinstance(ours, BatchNorm)
        assert (ours.momentum, ours.eps) == (momentum, theirs.eps)
        theirs.momentum = momentum
        x = normal(4, 2, *[3] * dims).float()
        torch.testing.assert_close(ours(x), theirs(x))
        assert set(ours.state_dict()) == set(theirs.state_dict()) - {"num_batches_tracked"}
        assert all(torch.allclose(leaf, theirs.state_dict()[name]) for name, leaf in ours.state_dict().items())


def test_reductions_are_loops_over_places() -> None:
    x = normal(2, 3, 5, 4)
    means, places = GlobalMean()(x), Places()(x)
    for b in range(2):
        for c in range(3):
            values = [float(x[b, c, i, j]) for i in range(5) for j in range(4)]
            assert float(means[b, c]) == pytest.approx(sum(values) / 20)
            assert places[b, :, c].tolist() == values
            assert float(PlacesMean()(places)[b, c]) == pytest.approx(sum(values) / 20)
            assert float(GlobalMax()(x.flatten(2))[b, c]) == max(values)
    assert torch.equal(Places()(x[:, :, :1, :1]), x[:, :, 0, 0])
    assert torch.equal(PlacesMean()(x[:, :, 0, 0]), x[:, :, 0, 0])
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            pooled = MaxPool2()(x)
        assert pooled.shape == (2, 3, 2, 2)
        for place in ((0, 1, 0, 1), (1, 2, 1, 0)):
            b, c, i, j = place
            assert float(pooled[place]) == max(float(x[b, c, 2 * i + k, 2 * j + m]) for k in (0, 1) for m in (0, 1))


def test_words_are_rows_and_the_first_is_nothing() -> None:
    layer = WordEmbedding(5, 3)
    tokens = torch.tensor([[[[0.0, 3.0, 4.0]]], [[[1.0, 0.0, 1.0]]]])
    found = layer(tokens + 0.3)  # rounded
    assert found.shape == (2, 3, 3)
    for b in range(2):
        for place in range(3):
            token = int(tokens[b, 0, 0, place])
            assert found[b, :, place].tolist() == (layer.weight[token].tolist() if token else [0.0] * 3)


def test_only_plain_convolutions_are_made_ours() -> None:
    class Other(nn.Conv2d):
        """A library's own."""

    plain = [nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3, 2, 1, bias=False), nn.Conv2d(4, 4, (1, 3), padding=(0, 1))]
    others = [
        *(nn.Conv2d(4, 4, 3, padding="same"), nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")),
        *(nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(4, 4, 3, dilation=2), nn.Conv2d(4, 4, 3, dilation=(1, 2))),
        *(Other(4, 4, 3), nn.Conv1d(4, 4, 3)),
    ]
    kinds = [type(each) for each in others]
    net = nn.Sequential(*plain, nn.Sequential(*others))
    assert replace_convolutions(net) is net
    assert [type(each) for each in plain] == [Conv2d] * 3
    assert [type(each) for each in others] == kinds


@pytest.mark.parametrize("fails", [False, True])
def test_a_task_holds_on_to_nothing_that_it_was_called_with(fails: bool) -> None:
    """The leaves of a call and its mask are let go, also after an error; networks keep frozen placeholders."""
    task = LeNet5(batch_norm=True).task((1, 16, 16), 4)
    model = task.init(torch.Generator().manual_seed(0))
    x, mask = torch.zeros(3, 1 + fails, 16, 16), torch.tensor([True, True, False])
    with torch.no_grad():
        try:
            task.loss(model, Batch(x, torch.zeros(3, dtype=torch.int64), mask))
        except RuntimeError:
            assert fails
    held = [weakref.ref(leaf) for leaf in (*model.values(), mask)]
    del model, mask
    assert all(each() is None for each in held)
    assert not any(leaf.requires_grad for leaf in (*task.fresh().parameters(), *task._nets[True].parameters()))
