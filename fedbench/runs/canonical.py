"""A component as what its run's key is hashed over."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from fedbench.config.schema import ADDED, KEYED, RETIRED


def _as_it_is(value: Any) -> Any:
    return value


def canonical(value: Any) -> Any:
    """Plain JSON for a component: its class and fields, nested ones too."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            f.name: canonical(f.metadata.get(KEYED, _as_it_is)(getattr(value, f.name)))
            for f in dataclasses.fields(value)
            if f.init and not (f.metadata.get(ADDED) and getattr(value, f.name) == f.default)
        }
        return {**getattr(value, RETIRED, {}), **fields, "class": type(value).__name__}
    if isinstance(value, Mapping):
        return {str(key): canonical(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [canonical(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
