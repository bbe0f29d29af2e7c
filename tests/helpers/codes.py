"""Code that changes while a test runs, as far as the hashes of it are concerned."""

from __future__ import annotations

import pytest

from fedbench.core import source
from fedbench.runs import fingerprint

ROOMS = {
    "method": "fedbench.methods",
    "model": "fedbench.models",
    "partition": "fedbench.data",
    "engine": "fedbench.core.rng",
}


def forget() -> None:
    """Look hashes up again, and warn again."""
    for cached in (fingerprint._digest, fingerprint._same, fingerprint.warn_once):
        cached.cache_clear()


def edit(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """From now on the code of `part` is another."""
    real = source.digest

    def digest(modules: tuple[str, ...], within: tuple[str, ...]) -> str:
        found = real(modules, within)
        return found[::-1] if ROOMS[part] in within else found

    monkeypatch.setattr(source, "digest", digest)
    fingerprint._digest.cache_clear()
