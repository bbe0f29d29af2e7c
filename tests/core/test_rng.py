"""Every draw is a function of (seed, purpose, keys), the same on every machine and in every version."""

from __future__ import annotations

import torch

from fedbench.core import rng


def test_seeds_are_pinned() -> None:
    """Stored results are drawn from these: a change of the derivation would change them all."""
    assert rng.derive(0, "init") == 3912388711783151084
    assert rng.derive(3, "batches", 7, 2) == 4451958741721694522
    assert rng.numpy_rng(0, "partition", "dir0.1").integers(10**6) == 792787


def test_purposes_and_keys_are_told_apart() -> None:
    keys = [(0, "a"), (1, "a"), (0, "b"), (0, "a", 1), (0, "a", 1, 2), (0, "a", 2, 1), (0, "a", 12), (0, "a", 1, 2, 0)]
    seeds = {rng.derive(*key) for key in keys}
    assert all(0 <= seed < 2**63 for seed in seeds)
    tensors = {float(torch.rand((), generator=rng.torch_rng(*key))) for key in keys}
    arrays = {float(rng.numpy_rng(*key).random()) for key in keys}
    assert len(seeds) == len(tensors) == len(arrays) == len(keys)


def test_generators_repeat_and_leave_the_global_one_alone() -> None:
    before = torch.get_rng_state()
    first, again = (torch.rand(3, generator=rng.torch_rng(5, "x", 1)) for _ in range(2))
    assert torch.equal(first, again)
    assert torch.equal(torch.get_rng_state(), before)
