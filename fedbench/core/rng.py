"""Keyed randomness: every draw is a function of (seed, purpose, keys), and never of earlier draws.

So every method sees the same partition, cohorts, initial weights and batch order, at any chunk size, worker
count or resume. Nothing in fedbench reads or writes a global random state.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def derive(seed: int, purpose: str, *keys: int | str) -> int:
    """A 63-bit seed that depends on every argument: a cryptographic hash, so nearby keys are unrelated."""
    text = "/".join([str(seed), purpose, *map(str, keys)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def numpy_rng(seed: int, purpose: str, *keys: int | str) -> np.random.Generator:
    """A NumPy generator for (seed, purpose, keys)."""
    return np.random.Generator(np.random.PCG64(derive(seed, purpose, *keys)))


def torch_rng(seed: int, purpose: str, *keys: int | str) -> torch.Generator:
    """A CPU torch generator for (seed, purpose, keys). Draw on the CPU and then move, so that all devices agree."""
    import torch

    generator = torch.Generator()
    generator.manual_seed(derive(seed, purpose, *keys))
    return generator
