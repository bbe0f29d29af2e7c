"""What a method declares to the checks of fedbench.testing where it cannot promise what others do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Conformance:
    """Exceptions, each with its reason. A declared exception must be one, or its check fails."""

    smallest: int = 1  # training samples a client needs; a smaller one raises ConfigError
    draws_by_position: str = ""  # why relabelled clients meet other draws of the server
    sends_by_cohort: str = ""  # why the message to a client depends on who else is in the cohort
    settings: Mapping[str, Any] = field(
        default_factory=dict
    )  # fields that toys need, as {"solver.restarts": 3}
