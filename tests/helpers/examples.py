"""How many examples a property is tried with: few and always the same ones, or as many as there is time for.

`make test` uses the profile `few`, `make fuzz` the profile `many` (pytest --hypothesis-profile=many), seed after
seed, on the same tests.
"""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, settings

from fedbench.config.messages import one_line
from fedbench.data.dataset import Dataset

PATIENT = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def register() -> None:
    """Make the profiles known, and use the short one unless the command line names another."""
    settings.register_profile(
        "few", max_examples=8, derandomize=True, database=None, deadline=None, suppress_health_check=PATIENT
    )
    settings.register_profile(
        "many", max_examples=50, database=None, deadline=None, suppress_health_check=PATIENT, print_blob=True
    )
    settings.load_profile("few")


def tried(times: float) -> settings:
    """`times` as many examples as the profile says: below 1 for what takes long, above for what takes no time."""
    return settings(max_examples=max(2, round(settings.default.max_examples * times)))


def line_of(error: Exception) -> str:
    """What the command line prints for `error`: a single line, no traceback."""
    line = one_line(error)
    assert line, f"a traceback: {error!r}"
    assert "\n" not in line
    return line


FORTY = Dataset(
    "toy",
    np.zeros((40, 1, 2, 2), np.uint8),
    np.arange(40) % 4,
    30,
    4,
    (0.5,),
    (0.5,),
    domain=np.arange(40) % 2,
)
