"""fedbench: a benchmark harness for personalised and clustered federated learning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedbench.api import load, run, sweep, table
    from fedbench.results.finished import Run

__version__ = "0.1.0"
__all__ = ["Run", "load", "run", "sweep", "table"]


def __getattr__(name: str) -> Any:
    """The names above on demand, so that `import fedbench` is light."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fedbench import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
