"""fedbench: a benchmark harness for personalised and clustered federated learning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedbench.core.version import __version__

if TYPE_CHECKING:
    from fedbench.api import load, run, sweep, table
    from fedbench.core.errors import FedbenchError
    from fedbench.runs.run import Run

__all__ = ["FedbenchError", "Run", "__version__", "load", "run", "sweep", "table"]


def __getattr__(name: str) -> Any:
    """The names above on demand, so that `import fedbench` is light."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fedbench import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
