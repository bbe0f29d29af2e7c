"""Many pictures on one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedbench.plots import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ACROSS = 3


def sheet(pictures: Sequence[Path], names: Sequence[str]) -> Figure:
    """A contact sheet of PNGs, with their names above them."""
    from matplotlib.image import imread

    down = -(-len(pictures) // ACROSS)
    figure, axes = style.panels(down, ACROSS, width=16, height=3.4)
    for axis in axes.flat:
        axis.set_axis_off()
    for axis, picture, name in zip(axes.flat, pictures, names, strict=False):
        axis.imshow(imread(picture))
        axis.set_title(name, fontsize=9)
    return figure
