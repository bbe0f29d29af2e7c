"""scripts/figures.py: what is drawn is what the runs kept and what the solver did."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbench.methods.fedcollab import solver

SMALL = ["--set", "dataset=digits", "protocol=quick", "protocol.rounds=2"]


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
    monkeypatch.setenv("FEDBENCH_RUNS", str(tmp_path / "runs"))
    yield importlib.import_module("figures")
    del sys.modules["figures"]


@pytest.mark.slow
def test_distances_are_those_the_methods_kept(figures: Any, tmp_path: Path) -> None:
    cut = "method.eps1=10"  # FedCluster looks at once; another method has no such key
    eager = {"FedCluster": [cut]}
    plain = figures.config
    figures.config = lambda label, seed, changes: plain(label, seed, [*changes, *eager.get(label, [])])
    assert figures.main(["fedcollab_distances", "--out", str(tmp_path), *SMALL]) == 0
    with np.load(tmp_path / "fedcollab_distances.npz") as found:
        assert set(found) == {"FedCollab", "FedCluster", "FeSEM", "KMeans"}
        for label, matrix in found.items():
            assert matrix.shape == (20, 20)
            assert np.allclose(matrix, matrix.T)
            assert np.abs(np.diag(matrix)).max() < 1e-6
            same, other = matrix[:5, 1:5].max(), matrix[:10, 10:].mean()
            if label == "FeSEM":
                assert len(np.unique(matrix.round(6))) <= 1 + 4 * 3 / 2, "of four centres, drawn at random"
            else:
                assert same < other, (
                    "the large clients of a type are nearer to each other than to the small ones"
                )
    assert (tmp_path / "fedcollab_distances.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_every_order_of_the_solver_goes_down_to_its_own_end(figures: Any, tmp_path: Path) -> None:
    assert figures.main(["fedcollab_solver", "--out", str(tmp_path), "--seed", "1", *SMALL]) == 0
    with np.load(tmp_path / "fedcollab_solver.npz") as found:
        values = found["values"]
    assert len(values) == 100
    assert (np.diff(values, axis=1) <= 1e-9).all()
    run = figures.config("FedCollab", 1, SMALL[1:])
    sizes = figures.build(run)[0].population.sizes.numpy()
    distances = figures.found_distances("FedCollab", 1, SMALL[1:])
    alone = solver.objective(np.arange(20), sizes, distances, run.method.C)
    assert values[:, 0] == pytest.approx(alone), "from singletons"
    again = solver.solve(sizes, distances, run.method.C, 100, np.random.default_rng(1))
    assert values[:, -1] == pytest.approx(again.values)
    before = (tmp_path / "fedcollab_solver.svg").read_bytes()
    assert figures.main(["fedcollab_solver", "--out", str(tmp_path), "--redraw"]) == 0
    assert (tmp_path / "fedcollab_solver.svg").read_bytes() == before


def test_an_unknown_figure_is_refused(figures: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        figures.main(["figure_nine"])
    assert "there are fedcollab_distances, fedcollab_solver" in capsys.readouterr().err


def test_a_table_is_drawn_from_what_is_stored(figures: Any, tmp_path: Path) -> None:
    assert figures.main(["fedcollab_t1", "--out", str(tmp_path), "--redraw"]) == 0
    drawn = (tmp_path / "fedcollab_t1.svg").read_bytes()
    assert drawn == (Path("results") / "figures" / "fedcollab_t1.svg").read_bytes(), "run `make tables`"
    values = figures.collect_table(0, [])
    assert list(values) == ["Acc %", "IPR %", "RSD"]
    assert values["Acc %"].shape == (15, 4)
    assert values["Acc %"][0] == pytest.approx([86.82, 0.70, 86.05, 0.28], abs=0.005)
    assert np.isnan(values["IPR %"][0]).all(), "of Local there is none"
    assert np.isfinite(values["RSD"][1:]).all()
