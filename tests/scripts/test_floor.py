"""The floor of a step: what is counted, by hand; its time; what each way reaches; and when no further case begins."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from tests.helpers.accelerator import DEVICE, Accelerator

CPU = torch.device("cpu")
TABLES = {  # step -> its table, and the group of columns
    "FedSaC": ("fedsac_t1", "CIFAR-10"),
    "FedReMa-CNN": ("fedrema_t1", "MNIST"),
    "pFedSim": ("pfedsim_t3", "CIFAR-10 (LeNet5)"),
    "SosicFL": ("sosicfl_t2", "CIFAR-10 (SimpleCNN)"),
    "FedCollab": ("fedcollab_t1", "CIFAR-10"),
    "FedReMa-AlexNet": ("fedrema_t1", "CIFAR-10"),
}


@pytest.fixture
def bench(load: Callable[[str], Any]) -> Any:
    """scripts/bench.py as a module."""
    return load("bench")


def tiny(bench: Any, *overrides: str, name: str = "T") -> Any:
    """Three clients of two batches of four images of 1 x 8 x 8."""
    chosen = ("model=mlp", "protocol=quick", "protocol.local.batch_size=4", "protocol.cohort=all", *overrides)
    return bench.rounds.Workload(name, "three clients", chosen, (8,) * 3, (1, 8, 8))


def given(bench: Any, monkeypatch: pytest.MonkeyPatch, out: Path, *steps: Any) -> None:
    """Let FLOOR measure `steps` alone."""
    monkeypatch.setattr(bench, "STEPS", {each.name: each for each in steps})
    monkeypatch.setattr(sys, "argv", ["bench.py", "--only", "FLOOR", "--quick", "--device=cpu", f"--out={out}"])


# --- what is counted


@pytest.mark.parametrize(("rule", "moments"), [("momentum=0.0", 0), ("momentum=0.9", 1), ("name=adam", 2)])
def test_operations_and_bytes_of_a_perceptron_by_hand(bench: Any, rule: str, moments: int) -> None:
    """Batch 4, 64 -> 5 -> 10: products forward, over the weights, and over the hidden layer's activations."""
    setup = tiny(bench, "model.hidden=[5]", f"protocol.optimizer.{rule}").setup(CPU)
    operations, size = bench.floor.counted(setup)
    assert operations == 2 * 4 * (2 * 64 * 5 + 3 * 5 * 10)
    parameters, activations = 64 * 5 + 5 + 5 * 10 + 10, 4 * 5 + 4 * 10  # hidden ones after ReLU, and log softmax
    assert size == 4 * (2 * ((2 + moments) * parameters + activations) + 4 * 64)


def test_operations_of_a_convolution_by_hand(bench: Any) -> None:
    """LeNet5: convolutions, then linear layers; nothing is differentiated over the images."""
    setup = dataclasses.replace(tiny(bench, "model=lenet5"), shape=(3, 32, 32)).setup(CPU)
    first, others = 6 * 28 * 28 * 75, 16 * 10 * 10 * 150 + 400 * 120 + 120 * 84 + 84 * 10
    assert bench.floor.counted(setup)[0] == 2 * 4 * (2 * first + 3 * others)


def test_a_floor_is_the_larger_of_two_times(bench: Any) -> None:
    rates = {"float32": 100.0, "tf32": 800.0, "bytes": 10.0}
    assert bench.floor.floors(400.0, 20.0, rates) == {"float32": 4.0, "tf32": 2.0}


@pytest.mark.parametrize("name", TABLES)
def test_a_papers_step_is_that_of_its_table(bench: Any, name: str) -> None:
    file, group = TABLES[name]
    table = yaml.safe_load((Path(__file__).parents[2] / "conf" / "table" / f"{file}.yaml").read_text())
    columns = [each for each in table["columns"] if group in (each.get("group"), each["label"])]
    common = {*columns[0]["overrides"], *table.get("base", [])}
    step = bench.STEPS[name]
    assert {each for each in step.overrides if each.startswith(("model=", "protocol="))} <= common
    batch = step.what.rpartition(" of ")[2]
    assert step.sizes == (8 * int(batch),) * len(step.sizes)
    assert dataclasses.replace(step, sizes=(9,)).setup(CPU).protocol.local.batch_size == int(batch)


# --- what is measured


def test_every_way_and_its_share_of_the_floor(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round of n steps takes 5 s, and each step 2 s more; the floor is half a second for three clients' steps."""
    seconds = lambda work, _device: (5.0 + 2.0 * (count := work()) / 3, count)  # noqa: E731
    monkeypatch.setattr(bench.floor, "timed", seconds)
    monkeypatch.setattr(bench.floor, "counted", lambda _setup: (100, 1))
    row = bench.floor.run(tiny(bench), CPU, {"float32": 600.0, "bytes": 60.0}, 1, quick=True)
    assert set(row["ways"]) == {"plain", "looped", "stacked"}
    assert row["floor"] == {"float32": 0.5}
    for way in row["ways"].values():
        assert way == {"rate": pytest.approx(1.5), "besides": pytest.approx(5.0), "share": pytest.approx(0.25)}


@pytest.mark.slow
def test_it_runs_where_a_gpu_would_refuse(bench: Any) -> None:
    workload = tiny(bench)
    with Accelerator():
        measured = bench.floor.rates(DEVICE, quick=True)
        row = bench.floor.run(workload, DEVICE, measured, 1, quick=True)
    failed = {name: way["failed"] for name, way in row["ways"].items() if "failed" in way}
    assert all("too busy" in reason for reason in failed.values()), failed


def test_profiles_of_a_gpu_stand_beside_its_times(bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All steps are timed before the first is profiled; what a GPU would measure is given."""
    given(bench, monkeypatch, tmp_path, tiny(bench), tiny(bench, name="U"))
    monkeypatch.setattr(sys, "argv", ["bench.py", "--only", "FLOOR", "KERNELS", "--device=cuda", f"--out={tmp_path}"])
    asked = []
    way = {"rate": 5000.0, "share": 0.25, "besides": 0.002}

    def timings(work: Any, *_: Any, **__: Any) -> Any:
        asked.append(f"times of {work.name}")
        return {
            "workload": work.name,
            "what": "",
            **ROW,
            "ways": {"plain": {**way, "rate": 250.0}, "captured": {**way}},
        }

    def profiles(work: Any, _: Any) -> Any:
        asked.append(f"profile of {work.name}")
        top = [{"kernel": "gemm", "us": 100.0, "calls": 10.0}]
        return {"captured": {"launches": 1.0, "waits": 2, "kernels": 10.0, "kernels_us": 100.0, "top": top}}

    monkeypatch.setattr(bench.floor, "rates", lambda *_, **__: {"float32": 5e13, "tf32": 3e14, "bytes": 3e12})
    monkeypatch.setattr(bench.floor, "run", timings)
    monkeypatch.setattr(bench.floor, "profiles", profiles)
    assert bench.main() == 0
    assert asked == ["times of T", "times of U", "profile of T", "profile of U"]
    (page,) = tmp_path.glob("*.md")
    told = page.read_text(encoding="utf-8")
    assert "50 T operations a second in float32, 300 T operations a second in tf32; 3000 GB a second" in told
    assert "| T | plain | 250 | 0.250 | 1 | 2 | - | - | - | - |" in told
    assert "| T | captured | 5,000 | 0.250 | 20 | 2 | 1 | 2 | 10 | 0.1 |" in told
    assert "| U, captured: kernel | calls a step | us a step |" in told
    assert "| gemm | 10 | 100 |" in told


def test_a_profile_becomes_launches_waits_and_kernels_of_a_step(bench: Any) -> None:
    host = [("cudaLaunchKernel", False, 12, 0.0), ("cudaMemcpyAsync", False, 3, 0.0), ("aten::mm", False, 9, 50.0)]
    waits = [("cudaStreamSynchronize", False, 4, 0.0), ("cudaDeviceSynchronize", False, 2, 0.0)]
    short = [*host, *waits, ("gemm", True, 10, 100.0), ("copy", True, 2, 3.0)]
    long = [("cudaLaunchKernel", False, 12, 0.0), ("cudaGraphLaunch", False, 7, 0.0), *waits]
    long += [("gemm", True, 50, 500.0), ("copy", True, 2, 3.0)]
    found = bench.floor.a_step(short, long, [("cudaDeviceSynchronize", False, 2, 0.0)], 4)
    assert found["launches"] == (12 + 7 - 15) / 4
    assert (found["waits"], found["kernels"], found["kernels_us"]) == (4, 10, 100)
    assert found["top"][0] == {"kernel": "gemm", "us": 100, "calls": 10}


# --- the part


@pytest.mark.slow
def test_each_case_is_stored_and_one_that_fails_ends_nothing(
    bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given(bench, monkeypatch, tmp_path, tiny(bench), tiny(bench, name="U"))

    def refuse(*_: Any) -> None:
        raise RuntimeError("no kernel image")

    monkeypatch.setattr(bench.floor, "contestants", refuse)
    assert bench.main() == 0
    (stored,) = tmp_path.glob("*.json")
    rows = json.loads(stored.read_text(encoding="utf-8"))["floor"]
    assert [row["workload"] for row in rows] == ["T", "U"]
    assert rows[0]["ways"]["looped"] == {"failed": "RuntimeError: no kernel image"}
    page = stored.with_suffix(".md").read_text(encoding="utf-8")
    assert "| U | stacked | failed: RuntimeError: no kernel image |" in page


@pytest.mark.slow
def test_no_case_begins_when_the_minutes_are_over(
    bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given(bench, monkeypatch, tmp_path, tiny(bench), tiny(bench, name="U"))
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--minutes=2"])
    clock = iter([0.0, 119.0, 121.0])
    monkeypatch.setattr(bench, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(bench.floor, "run", lambda work, *_, **__: {"workload": work.name, "what": "", **ROW})
    assert bench.main() == 0
    assert "2 minutes are over: left out from U on" in capsys.readouterr().out
    (stored,) = tmp_path.glob("*.json")
    assert [row["workload"] for row in json.loads(stored.read_text(encoding="utf-8"))["floor"]] == ["T"]


ROW = {"operations": 1.0, "bytes": 1.0, "floor": {"float32": 1.0}, "quick": True, "ways": {}}


@pytest.mark.slow
def test_a_cell_in_both_precisions(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.precision, "PRECISIONS", ("float32", "bf16"))  # a CPU has no TF32
    cells = {"none": ("dataset=fashion_mnist",), "toy": ("dataset=digits", "model=mlp", "protocol=quick")}
    monkeypatch.setattr(bench.precision, "CELLS", {"toy": (*cells["toy"], "protocol.rounds=2")})
    assert bench.precision.cell() == "toy"
    found = bench.precision.both("toy", 1, "cpu")
    assert all(found[name]["seconds"] > 0 and 10 < found[name]["acc"] < 100 for name in ("float32", "bf16"))
    page = bench.markdown({**HEAD, "tf32": [{"workload": "toy", "load_before": 0.0, "pairs": [PAIR]}]})
    assert page.endswith("| toy | 1 | 90.00 | 89.50 | 20.00 | 10.00 | 0.0 |\n")


HEAD = {"machine": "one", "device": "cuda", "version_torch": "2.11", "date": "2026-01-01"}
PAIR = {"seed": 1, "float32": {"acc": 90.0, "seconds": 20.0}, "tf32": {"acc": 89.5, "seconds": 10.0}}
