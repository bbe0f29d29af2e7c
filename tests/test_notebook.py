"""docs/tour.ipynb runs from its first cell to its last, and shows what it says."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

TOUR = Path(__file__).resolve().parents[1] / "docs" / "tour.ipynb"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_tour_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TOUR.parents[1]))
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    notebook = nbformat.read(TOUR, as_version=4)
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert "<caption>fedcollab</caption>" in shown[0]["data"]["text/html"]
    assert any("image/png" in output.get("data", {}) for output in shown)
    assert "nearest: fedcollab" in shown[-1]["text"]
    assert (tmp_path / "runs").is_dir()


def test_the_tour_is_kept_without_outputs() -> None:
    notebook = nbformat.read(TOUR, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.outputs for cell in notebook.cells if cell.cell_type == "code")
