"""A cohort cut into blocks that worker processes are dealt as they become free."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

BLOCKS_PER_WORKER = 6  # pieces a cohort is cut into, for balance
SCORED_BLOCK = 5000  # samples a piece has at least where clients are only scored: dealing takes a core, too


def scored_blocks(samples: int, workers: int) -> int:
    """Blocks a worker that scoring is cut into: many for balance, few where there is little to do."""
    return max(1, min(BLOCKS_PER_WORKER, samples // (SCORED_BLOCK * workers)))


def in_blocks(work: Sequence[float], count: int) -> list[list[int]]:
    """Rows in up to `count` blocks of similar work [C], the largest first; each goes where there is least so far."""
    blocks: list[tuple[float, int, list[int]]] = [(0.0, index, []) for index in range(min(count, len(work)))]
    for row in sorted(range(len(work)), key=lambda row: -work[row]):
        filled, index, rows = heapq.heappop(blocks)
        heapq.heappush(blocks, (filled + work[row], index, [*rows, row]))
    return [rows for _, _, rows in sorted(blocks, key=lambda block: -block[0]) if rows]
