"""A finished run as it is looked at: its row, its rounds and clients as data frames, W, its models."""

from __future__ import annotations

import html
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.core.errors import FedbenchError
from fedbench.results.console import COLUMNS
from fedbench.results.run_files import ARRAYS, CLIENTS, COLLABORATION, CONFIG, MODEL, RESULT, ROUNDS, files_of
from fedbench.results.units import decimals, human_bytes, human_seconds

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    from fedbench.core.trees import Tree

SHOWN = ("dataset", "partition", "model", "protocol", "seed")  # of the row, above the metrics


@dataclass(frozen=True)
class Run:
    """A finished run. Every part is read from its folder when it is first asked for.

    Whatever is read raises Damaged where a file is not as it was written.
    """

    folder: Path
    earlier: bool = False  # it was there when it was asked for
    code_changed: tuple[
        str, ...
    ] = ()  # the parts of the code that are not what made it, when it was asked for

    @cached_property
    def row(self) -> dict[str, Any]:
        """Labels, metrics (accuracies and IPR in percent, RSD in percentage points), bytes, seconds, versions."""
        return files_of(self.folder).json(RESULT)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The resolved config that made it."""
        import yaml

        content: dict[str, Any] = yaml.safe_load(files_of(self.folder).read(CONFIG))
        return content

    @cached_property
    def history(self) -> pd.DataFrame:
        """One line a scored round: accuracies, loss, bytes and seconds so far."""
        return files_of(self.folder).frame(ROUNDS)

    @cached_property
    def clients(self) -> pd.DataFrame:
        """One line a client: samples, accuracy, and that of Local."""
        return files_of(self.folder).frame(CLIENTS)

    @cached_property
    def W(self) -> NDArray[np.float64] | None:  # noqa: N802 - the papers' name
        """The collaboration matrix [N, N], row i: whose models client i's is made of; None without one."""
        files = files_of(self.folder)
        return files.npz(COLLABORATION)["W"] if files.has(COLLABORATION) else None

    @cached_property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """What the method found (distances, coalitions, ...), by name; empty if nothing."""
        files = files_of(self.folder)
        return files.npz(ARRAYS) if files.has(ARRAYS) else {}

    @cached_property
    def models(self) -> Tree:
        """The final state of server and clients as tensors, by leaf: `server/...` and `memory/...` [N, ...].

        Raises:
            FedbenchError: they were not kept.
        """
        from fedbench.results import checkpoint

        if not (self.folder / MODEL).is_file():
            raise FedbenchError(
                f"{self.folder} kept no models; run it again with save_models=true and force=true"
            )
        return checkpoint.load(self.folder / MODEL)[0]

    @property
    def _title(self) -> str:
        return str(self.row["method"])

    def _lines(self) -> list[tuple[str, str]]:
        row = self.row
        seconds = row.get("seconds_total")
        return [
            *((name, str(row[name])) for name in SHOWN),
            *((heading, decimals(row.get(name))) for name, heading in COLUMNS.items()),
            ("traffic up, down", f"{human_bytes(row['bytes_up'])}, {human_bytes(row['bytes_down'])}"),
            *([("time", human_seconds(seconds))] if seconds is not None else []),
            ("folder", str(self.folder)),
            *(
                [("made by other code", f"{', '.join(self.code_changed)} changed")]
                if self.code_changed
                else []
            ),
        ]

    def __repr__(self) -> str:
        """Method, setting and metrics, a line each."""
        return "\n".join([self._title, *(f"  {name}: {value}" for name, value in self._lines())])

    def _repr_html_(self) -> str:
        """The same as a table, for notebooks."""
        lines = (
            f"<tr><th style='text-align:left'>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>"
            for name, value in self._lines()
        )
        return f"<table><caption>{html.escape(self._title)}</caption>{''.join(lines)}</table>"
