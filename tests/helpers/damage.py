"""Damage to files, and what reading them gives."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fedbench.core.errors import FedbenchError

DAMAGES = 20  # places of each file that are tried


def damages(content: bytes, count: int, chance: random.Random) -> Iterator[bytes | None]:
    """Flipped bits, cut ends, zeroed and repeated blocks, an appended byte; None: no file at all."""
    yield None
    yield b""
    yield content + b"0"
    for _ in range(count):
        place, length = chance.randrange(len(content)), chance.randrange(1, 64)
        flipped = bytearray(content)
        flipped[place] ^= 1 << chance.randrange(8)
        yield bytes(flipped)
        yield content[:place]
        yield content[:place] + bytes(len(content[place : place + length])) + content[place + length :]
        yield content[:place] + content[place : place + length] + content[place:]
        yield content[:place] + content[place + length :]


def tried(
    file: Path,
    read: Callable[[], Any],
    count: int = DAMAGES,
    seed: int = 0,
) -> Counter[str]:
    """How many damages of `file` were refused and how many made no difference, reading what depends on it."""
    whole, found = file.read_bytes(), Counter[str]()
    before = repr(read())
    for content in damages(whole, count, random.Random(seed)):
        if content == whole:
            continue
        file.unlink()
        if content is not None:
            file.write_bytes(content)
        try:
            after = repr(read())
        except FedbenchError as error:
            told = str(error)
            found["refused" if str(file.parent) in told and "\n" not in told else f"not clear: {told}"] += 1
        else:
            assert after == before, f"{file.name}: another number, {content!r}"
            found["no difference"] += 1
        file.write_bytes(whole)
    return found
