"""Imports run down through the rooms of the package, and never in a circle."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.delitem(sys.modules, "import_graph", raising=False)
    import import_graph

    return import_graph


def test_imports_run_down_and_in_no_circle(script: Any) -> None:
    modules = script.module_graph()
    assert len(modules) > 200
    assert script.circles(modules) == []
    assert script.circles(script.room_graph(modules)) == []
    assert script.upward(modules) == []


def test_the_ground_room_stands_alone(script: Any) -> None:
    assert script.room_graph(script.module_graph())["core"] == frozenset()


def test_imports_in_functions_and_for_types_count(
    script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = {
        "core/ground": "def late():\n    from fedbench.config import registry\n",
        "config/__init__": "",
        "config/registry": "if TYPE_CHECKING:\n    import fedbench.core.ground\n",
        "plots/one": "from fedbench.metrics.other import thing\nfrom fedbench.plots.one import own\n",
        "metrics/other": "from fedbench.core import ground\nimport os\n",
        "attic/found": "",
        "command": "from fedbench.plots import one\n",
    }
    for name, text in texts.items():
        file = tmp_path / "fedbench" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    modules = script.module_graph(tmp_path)
    assert script.circles(modules) == [("fedbench.config.fields", "fedbench.core.ground")]
    assert script.upward(modules) == [
        "attic: no place in ORDER",
        "fedbench.core.ground -> fedbench.config.fields",
        "fedbench.plots.one -> fedbench.metrics.other",
    ]
    assert script.main(tmp_path) == 1
    assert "7 modules, 6 rooms, 5 arrows" in capsys.readouterr().out
