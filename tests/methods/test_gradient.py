"""Gradients inside hooks: the same one client at a time and batched, nested, in corners."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedbench.core.trees import Tree
from fedbench.models.task import gradient


class Bare:
    """As much of a task as gradient needs: all leaves are weights."""

    def is_buffer(self, name: str) -> bool:
        return False

    def weights(self, model: Tree) -> Tree:
        return model


def of(loss: object, model: Tree) -> Tree:
    return gradient(loss, model, Bare())[0]  # type: ignore[arg-type]


def cubes(model: Tree) -> Tensor:
    return model["a"].pow(3).sum() + 2 * model["b"].sum()


def test_one_at_a_time_and_batched_agree() -> None:
    model = {"a": torch.tensor([[1.0, 2.0], [3.0, -1.0]]), "b": torch.tensor([[0.5], [1.5]])}
    batched = torch.vmap(lambda each: of(cubes, each))(model)
    for row in range(2):
        alone = of(cubes, {name: leaf[row] for name, leaf in model.items()})
        assert torch.equal(alone["a"], 3 * model["a"][row] ** 2)
        assert all(torch.equal(leaf[row], alone[name]) for name, leaf in batched.items())
    assert not any(leaf.requires_grad for leaf in model.values())


@pytest.mark.parametrize("grad", [True, False])
def test_a_gradient_of_a_gradient(grad: bool) -> None:
    """d/da of |3 a^2|^2 = 36 a^3, also where nothing else is being differentiated."""
    model = {"a": torch.tensor([1.0, -2.0]), "b": torch.tensor([1.0])}
    with torch.set_grad_enabled(grad):
        twice = of(lambda m: of(cubes, m)["a"].pow(2).sum(), model)
    assert torch.allclose(twice["a"], 36 * model["a"] ** 3)
    assert torch.equal(twice["b"], torch.zeros(1)), "it does not depend on b"


def test_a_loss_that_does_not_depend_on_the_weights_is_flat() -> None:
    model = {"a": torch.tensor([1.0])}
    assert torch.equal(of(lambda _: torch.tensor(3.0), model)["a"], torch.zeros(1))
    linear = of(lambda m: of(lambda n: 2 * n["a"].sum(), m)["a"].sum(), model)
    assert torch.equal(linear["a"], torch.zeros(1))


def test_one_tensor_under_two_names_has_two_gradients() -> None:
    shared = torch.tensor([2.0])
    assert of(lambda m: m["a"].sum() + 2 * m["b"].sum(), {"a": shared, "b": shared})["b"] == 2
    with torch.enable_grad():
        shared = shared.requires_grad_(True)
        found = of(lambda m: m["a"].pow(2).sum() + 2 * m["b"].pow(2).sum(), {"a": shared, "b": shared})
    assert (found["a"].item(), found["b"].item()) == (4.0, 8.0)
