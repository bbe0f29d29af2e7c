"""`python -m fedbench.reproduce table=all --dry-run`: what tables take on a GPU, here or elsewhere, by a model."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

import torch

from fedbench.core.errors import ConfigError
from fedbench.engine.pick.arithmetic import DEVICES, Peaks, found_peaks, peaks
from fedbench.tables import day
from fedbench.tables.cell_config import Wish
from fedbench.tables.render.day import drawn
from fedbench.tables.spec import TableSpec


def show(tables: Sequence[TableSpec], wish: Wish, name: str) -> None:
    """Print the demands of `tables` on the GPU called `name` ("": this machine's) and their sum, as Markdown.

    Raises:
        UnknownName: no GPU of that name is known.
        ConfigError: this machine has none that is.
    """
    device = peaks(name) if name else _here()
    command = shlex.join(["python", "-m", "fedbench.reproduce", *sys.argv[1:]])
    print(drawn(day.needed(tables, wish), device, name or torch.cuda.get_device_name(), command), end="")


def _here() -> Peaks:
    found = found_peaks(torch.device("cuda")) if torch.cuda.is_available() else None
    if found is None:
        raise ConfigError(f"this machine has no GPU that can be modelled; add --device {'|'.join(DEVICES)}")
    return found
