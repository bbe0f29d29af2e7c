"""Code that changes while a test runs, as far as the hashes of it are concerned."""

from __future__ import annotations

import pytest

from fedbench.core.errors import warn_once
from fedbench.runs import fingerprint

PARTS = ("method", "model", "partition", "engine")


def forget() -> None:
    """Look hashes up again, and warn again."""
    warn_once.cache_clear()
    for name in ("_digest", "_same"):
        clear = getattr(getattr(fingerprint, name), "cache_clear", None)
        if clear is not None:  # none while `edit` stands in for it
            clear()


def edit(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """From now on the code of `part` is another."""
    real = fingerprint._digest

    def digest(of: str, roots: tuple[str, ...]) -> str:
        return real(of, roots)[::-1] if of == part else real(of, roots)

    monkeypatch.setattr(fingerprint, "_digest", digest)
