"""gpu_check.py: parts end at their deadline, what they found is kept and summed up; a bundle brings what is missing."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    yield importlib.import_module("gpu_check")
    for name in [name for name in sys.modules if name == "gpu_check" or name.split(".")[0] == "checks"]:
        del sys.modules[name]


def test_a_part_ends_at_its_deadline(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "GRACE", 0.5)
    sleep = "import time; time.sleep(60)"
    deaf = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); {sleep}"
    assert check.supervise([sys.executable, "-c", sleep], {}, 1.0)["why"] == "deadline"
    assert "did not end by itself" in check.supervise([sys.executable, "-c", deaf], {}, 2.0)["why"]
    assert check.supervise([sys.executable, "-c", "raise SystemExit(3)"], {}, 30.0)["why"] == "exit 3"


def test_engines_are_compared_with_the_cpu_and_a_wrong_one_is_found(
    check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines, record = (importlib.import_module(f"checks.{name}") for name in ("engines", "record"))
    lines = record.Lines(tmp_path / "engines.jsonl")
    arguments = ("fedavg", "mlp", engines.toy_of("fedavg", "mlp"), torch.float64, torch.device("cpu"), lines)
    engines.compare(*arguments)
    assert {line["engine"] for line in lines.read()} >= {"stacked", "stacked, in chunks"}
    assert all(line["agrees"] for line in lines.read())
    kinds = ("per_kind", "two kinds", engines.kinds_toy("per_kind"), torch.float64, torch.device("cpu"))
    engines.compare(*kinds, record.Lines(tmp_path / "kinds.jsonl"))
    (row, *_) = importlib.import_module("checks.report").compared(
        record.Lines(tmp_path / "kinds.jsonl").read()
    )
    assert (row["toy"], row["of"], row["wrong"]) == ("two kinds", "per_kind", {})
    right = engines.result

    def wrong(chosen: Any, hardware: Any) -> Any:
        found = right(chosen, hardware)
        return {name: leaf + (hardware.chunk == 2) for name, leaf in found.items()}

    monkeypatch.setattr(engines, "result", wrong)
    engines.compare(*arguments)
    report = importlib.import_module("checks.report")
    assert report.write(tmp_path, {"engines": {"code": 0, "why": "exit 0", "seconds": 1.0}}, 5.0)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "float64, mlp, stacked, in chunks, fedavg: differs by 1" in text
    (bad,) = [row for row in json.loads((tmp_path / "report.json").read_text())["engines"] if row["wrong"]]
    assert (bad["engine"], bad["compared"]) == ("stacked, in chunks", 2)


def test_a_missing_package_is_left_out_and_a_line_cut_off_is_no_result(check: Any, tmp_path: Path) -> None:
    engines, record, report = (
        importlib.import_module(f"checks.{name}") for name in ("engines", "record", "report")
    )
    lines = record.Lines(tmp_path / "engines.jsonl")

    def toy(device: Any, dtype: Any) -> Any:
        raise ModuleNotFoundError("No module named 'scipy'")

    engines.compare("kmeans", "mlp", toy, torch.float64, torch.device("cpu"), lines)
    with lines.path.open("a") as file:
        file.write('{"preset": "fedavg", "mod')
    assert [line["preset"] for line in lines.read()] == ["kmeans"]
    assert not report.write(tmp_path, {"engines": {"code": -15, "why": "deadline", "seconds": 1.0}}, 5.0)
    assert "a package is missing: kmeans" in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_a_bundles_packages_take_the_place_of_older_and_missing_ones(
    check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = importlib.import_module("checks.machine")
    for name, version in (("numpy", "0.1"), ("nobody-has-it", "1.0"), ("hydra-core", "99.0")):
        info = tmp_path / "packages" / name / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    monkeypatch.setattr(machine, "TOP", tmp_path)
    found = machine.from_bundle()
    assert [
        Path(each).name for each in found["PYTHONPATH"].split(":") if Path(each).parent.name == "packages"
    ] == [
        "hydra-core",
        "nobody-has-it",
    ]
    assert found["FEDBENCH_DATA"] == str(tmp_path / "data")


def test_the_tables_begin_with_what_the_claims_rest_on(check: Any) -> None:
    cells = importlib.import_module("checks.cells")
    order = cells.order()
    assert order[: len(cells.FIRST)] == list(cells.FIRST)
    assert len(order) == len(set(order)) == 15 + 11
