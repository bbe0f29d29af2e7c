"""FedSaC's Table 2, which is of two kinds of client, on the procedural stand-in."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fedbench.cli import program
from fedbench.tables import store

SMALL = [
    "scale=smoke",
    "substitute=captioned",
    "jobs=1",
    "dataset.train=400",
    "dataset.test=100",
    "model.kinds.image.width=8",
    "model.kinds.text.width=8",
    "hardware=cpu",
    "hardware.engine=looped",
    "progress=none",
]


@pytest.mark.slow
def test_every_cell_of_table_2_is_filled(tmp_path: Path) -> None:
    arguments = ["table=fedsac_t2", *SMALL, f"results={tmp_path / 'tables'}", f"runs_dir={tmp_path / 'runs'}"]
    assert program.main(["reproduce", *arguments]) == 0
    (folder,) = store.folders(tmp_path / "tables")
    table = store.load_table(folder)
    assert len(table.cells) == 40
    assert not [cell for cell in table.cells if not cell.values or math.isnan(cell.values[0])]
    assert len({cell.keys for cell in table.cells}) == 20, "a run fills the cells of both modalities"
    per_row = {(cell.row, cell.column): cell.values[0] for cell in table.cells}
    assert any(per_row[row, "homo images"] != per_row[row, "homo text"] for row, _ in per_row)
