"""Part one: every method by every engine on the device, against the plain loop on the CPU.

Each preset's toy of the conformance suite (five clients of 1 to 21 samples, three rounds, checkpoints aside) runs in
float64, where a right program differs by rounding only, and then in float32, whose difference is written down: methods
that choose by a comparison may choose otherwise. Last, FedAvg with each network on 3 x 32 x 32, and what
serves clients of several kinds on two of them.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import torch

from checks.record import Deadline, Lines
from fedbench.config import groups
from fedbench.config.schema import HardwareConfig
from fedbench.core.trees import Tree
from fedbench.engine.hardware import pick_trainer
from fedbench.engine.setup import Setup
from fedbench.methods.fedavg import FedAvg
from fedbench.models import MODELS
from fedbench.models.base import Model
from fedbench.testing.checks import everything
from fedbench.testing.toys import KINDS, Subject, federation, gap, setup, simulate
from tests.helpers.pair import UNLIKE, pair, serving

TOLERANCE = 1e-6  # of everything that a run leaves behind, in float64
NETWORKS: dict[str, dict[str, Any]] = {
    "lenet5": {},
    "fedrema_cnn": {},
    "fedrema_alexnet": {},
    "simple_cnn": {},
    "cnn5": {},
    "resnet18": {"pretrained": False},
    "mobilenet_v2": {"pretrained": False},
    "squeezenet": {"pretrained": False},
}
Toy = Callable[[torch.device | str, torch.dtype], Setup]


def run(device: torch.device, deadline: Deadline, out: Lines) -> None:
    """Compare until the deadline; a line a comparison."""
    presets = sorted(file.stem for file in (groups.conf_dir() / "method").glob("*.yaml"))
    for dtype in (torch.float64, torch.float32):
        for kind in KINDS:
            for preset in presets:
                if deadline.left < 0:
                    return
                compare(preset, kind, toy_of(preset, kind), dtype, device, out)
    for name, options in NETWORKS.items():
        if deadline.left < 0:
            return
        compare("fedavg", name, network_toy(name, options), torch.float64, device, out)
    for name in UNLIKE:
        if deadline.left < 0:
            return
        compare(name, "two kinds", kinds_toy(name), torch.float64, device, out)


def engines(device: torch.device) -> dict[str, HardwareConfig]:
    """The engines of `device` by name; a stacked step captured in a CUDA graph is one of them where there is any."""
    found = {"looped": HardwareConfig(engine="looped")} if device.type != "cpu" else {}
    capture = "graph" in {field.name for field in dataclasses.fields(HardwareConfig)}
    eager: dict[str, Any] = {"graph": "off"} if capture else {}
    found["stacked"] = HardwareConfig(engine="stacked", **eager)
    found["stacked, in chunks"] = HardwareConfig(engine="stacked", chunk=2, **eager)
    if capture:
        found["captured"] = HardwareConfig(engine="stacked")
    return found


def toy_of(preset: str, kind: str) -> Toy:
    """The conformance suite's run of a preset."""

    def toy(device: torch.device | str, dtype: torch.dtype) -> Setup:
        return _subject(preset).toy(kind, device=device, dtype=dtype)

    return toy


@functools.cache
def _subject(preset: str) -> Subject:
    return Subject.of(preset)


def network_toy(name: str, options: dict[str, Any]) -> Toy:
    """Two rounds of FedAvg on two clients with the network `name`."""

    def toy(device: torch.device | str, dtype: torch.dtype) -> Setup:
        model: Model = MODELS.build({"name": name, **options})
        data = federation((9, 6), (3, 32, 32), dtype=dtype, device=device)
        return setup(FedAvg(), data, model, epochs=1)

    return toy


def kinds_toy(name: str) -> Toy:
    """Three rounds of the method `name` on five clients of two kinds."""
    return lambda device, dtype: pair(serving(name), device=device, dtype=dtype)


def compare(preset: str, kind: str, toy: Toy, dtype: torch.dtype, device: torch.device, out: Lines) -> None:
    """One line an engine: the largest difference from the CPU's plain loop, or what went wrong."""
    what = {"preset": preset, "model": kind, "dtype": str(dtype).removeprefix("torch.")}
    try:
        expected = result(toy("cpu", dtype), HardwareConfig(engine="looped"))
    except Exception as error:  # noqa: BLE001 - the others are to be tried
        missing = any("No module named" in text for text in (str(error), str(error.__cause__)))
        out.add(**what, engine="reference", **{"lacking" if missing else "error": first_line(error)})
        return
    for name, hardware in engines(device).items():
        begin = time.perf_counter()
        try:
            apart = gap(result(toy(device, dtype), hardware), expected)
        except Exception as error:  # noqa: BLE001 - is what is looked for
            out.add(**what, engine=name, error=first_line(error))
            continue
        seconds = round(time.perf_counter() - begin, 2)
        verdict = {} if dtype == torch.float32 else {"agrees": apart <= TOLERANCE}
        out.add(**what, engine=name, gap=apart, seconds=seconds, **verdict)


def result(chosen: Setup, hardware: HardwareConfig) -> Tree:
    """All that a run leaves behind, on the CPU."""
    state = simulate(chosen, pick_trainer(chosen, hardware))
    return {name: leaf.cpu() for name, leaf in everything(state).items()}


def first_line(error: Exception) -> str:
    """Kind and message of an error in one line."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
