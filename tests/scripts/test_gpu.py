"""The GPU's check, tried on the CPU: every engine is compared, and what goes wrong is a line of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedbench.engine.setup import Setup
from fedbench.testing.toys import Subject


@pytest.mark.slow
def test_a_method_by_every_engine(load: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "gpu" / "engines.jsonl"
    monkeypatch.setattr(sys, "argv", ["gpu.py", "fedavg", "--device", "cpu", "--out", str(out)])
    gpu = load("gpu")
    assert gpu.main() == 0
    lines = [json.loads(text) for text in out.read_text(encoding="utf-8").splitlines()]
    assert [line["engine"] for line in lines] == [*gpu.ENGINES] * 4, "two toys in two precisions"
    assert all(line["gap"] <= gpu.AGREE for line in lines if line["dtype"] == "torch.float64")


@pytest.mark.slow
def test_other_numbers_and_failures_are_wrong(load: Callable[[str], Any]) -> None:
    gpu = load("gpu")
    subject = Subject.of("fedavg")

    def other(device: str) -> Setup:
        if device == "cpu":
            return subject.toy("mlp", device="cpu")
        return subject.toy("mlp", device="cpu", epochs=2)

    def none(device: str) -> Setup:
        raise RuntimeError("no such device")

    assert all(line["wrong"] for line in gpu.compare({}, other, "another"))
    (error, *_) = gpu.compare({}, none, "cuda")
    assert (error["wrong"], error["error"]) == (True, "RuntimeError: no such device")
