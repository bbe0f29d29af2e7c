"""Draw README's picture of a leaderboard: the best rows of each federation beside Local and FedAvg.

    python scripts/board_picture.py [FOLDER]

A dot is the mean test accuracy of a tuned row over all seeds of the board, a bar its 95 % interval. Rows that lost a
seed are left out. Local and FedAvg are lines, over the seeds that they have.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fedbench.papers.standings import Table, read_standings
from fedbench.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "results" / "figures" / "board"
BEST = 6  # rows of a federation
LINES = {"local": "Local", "fedavg": "FedAvg"}


def draw(axis: Axes, table: Table) -> None:
    """Draw one federation."""
    rows = {line.row: line for line in table.lines if line.scores}
    whole = [line for line in rows.values() if len(line.scores) == table.declared and line.row not in LINES]
    best = sorted(whole, key=lambda line: line.mean)[-BEST:]
    means, halves = [line.mean for line in best], [line.half for line in best]
    axis.errorbar(means, [line.row for line in best], xerr=halves, fmt="o", capsize=2, color=style.INK)
    for i, (row, label) in enumerate(LINES.items()):
        mean = rows[row].mean
        axis.axvline(mean, color=style.COLOURS[i], linestyle=style.DASHES[i], label=f"{label} {mean:.1f}")
    axis.set(title=table.label, xlabel="test accuracy, %")
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.28), ncols=2)


if __name__ == "__main__":
    standings = read_standings(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "results" / "leaderboard" / "v2")
    with style.styled(PICTURE.name):
        count = len(standings.federations)
        figure, axes = style.panels(1, count, width=min(8.5, 5.0 * count), height=2.4)
        for axis, table in zip(axes[0], standings.federations, strict=True):
            draw(axis, table)
        figure.suptitle(standings.title)
        style.save_as(figure, PICTURE, formats=("svg", "png"))
    print(PICTURE.with_suffix(".svg"))
