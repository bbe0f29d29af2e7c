"""What a figure says of the paper's claim: agrees, does not, or cannot tell; a rule a figure, by its numbers alone."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

import numpy as np

from fedbench.figures.judges.verdict import Verdict


def judge(name: str, arrays: Mapping[str, np.ndarray]) -> Verdict:
    """The verdict on figure `name`, as fedsac_f1."""
    paper, _, figure = name.rpartition("_")
    verdict: Verdict = getattr(importlib.import_module(f"{__name__}.{paper}"), figure)(arrays)
    return verdict
