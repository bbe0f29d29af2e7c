"""A filled table as it is looked at from Python: cells, runs and curves as data frames, the drawing in notebooks."""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fedbench.core.errors import FedbenchError, nearest
from fedbench.tables import staleness, store
from fedbench.tables.render import cells, markdown
from fedbench.tables.result import TableResult

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd


@dataclass(frozen=True)
class Filled:
    """One filled table. Every part is read from its folder when it is first asked for."""

    folder: Path

    @classmethod
    def named(cls, name: str, results: Path | str = "results") -> Filled:
        """The table kept in the folder `name`.

        Raises:
            FedbenchError: there is none.
        """
        folders = {folder.name: folder for folder in store.folders(results)}
        if name not in folders:
            near = f"; filled are {nearest(name, folders)}" if folders else ""
            raise FedbenchError(
                f"no filled table '{name}' below {results}; python -m fedbench reproduce table=NAME fills one{near}"
            )
        return cls(folders[name])

    @cached_property
    def table(self) -> TableResult:
        """The specification with its cells, and what of it other code made."""
        return staleness.load(self.folder)[0]

    @cached_property
    def cells(self) -> pd.DataFrame:
        """One line a cell and metric: mean, standard deviation, values by seed, published value, verdict."""
        import pandas as pd

        frame: pd.DataFrame = pd.read_csv(io.StringIO(cells.render(self.table)))
        return frame

    @cached_property
    def rows(self) -> pd.DataFrame:
        """One line a run: its whole result row."""
        return store.files_of(self.folder).frame(store.ROWS)

    @cached_property
    def curves(self) -> pd.DataFrame:
        """The learning curves behind the cells."""
        return store.files_of(self.folder).frame(store.CURVES)

    @cached_property
    def matrices(self) -> dict[str, np.ndarray]:
        """Collaboration matrices [N, N] by "row|column|seed"."""
        return store.load_matrices(self.folder)

    def __repr__(self) -> str:
        """The table as Markdown."""
        return markdown.render(self.table)

    def _repr_markdown_(self) -> str:
        """The same, which notebooks draw."""
        return repr(self)
