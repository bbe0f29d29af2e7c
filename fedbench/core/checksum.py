"""Checksums of files, against accidents: fedbench.core.sealed keeps them."""

from __future__ import annotations

import zlib
from pathlib import Path

CHUNK = 2**20  # bytes read at once


def checksum(content: bytes) -> str:
    """Length and CRC-32 of a file's content: enough against accidents, and as quick as large arrays need."""
    return f"{len(content)}-{zlib.crc32(content):08x}"


def checksum_of(path: Path) -> str:
    """`checksum` of a file too large to be held. Raises OSError."""
    length = crc = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            length, crc = length + len(chunk), zlib.crc32(chunk, crc)
    return f"{length}-{crc:08x}"
