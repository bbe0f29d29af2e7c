"""An environment of its own for each rival framework, made once with pip, and running a program in it."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fedbench.core.cache import cache_dir
from fedbench.core.errors import FedbenchError

INSTALL_SECONDS = 1800
RUN_SECONDS = 900
PROGRAMS = Path(__file__).parent
SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # Ray would let its workers yield to whatever else runs
}


class RivalError(FedbenchError):
    """A rival's environment could not be made, or its program failed."""


@dataclass(frozen=True)
class Rival:
    """A framework to be compared with."""

    name: str  # as in the results
    package: str  # as the registry knows it
    version: str
    extra: str = ""
    program: str = ""

    @property
    def requirement(self) -> str:
        """As pip wants it."""
        return f"{self.package}{self.extra}=={self.version}"

    @property
    def folder(self) -> Path:
        """Where its environment lies: `rivals` in fedbench's cache (FEDBENCH_CACHE moves it)."""
        return cache_dir() / "rivals" / self.package

    @property
    def python(self) -> Path:
        """Its interpreter: this one, where it is installed here."""
        if importlib.util.find_spec(self.package):
            return Path(sys.executable)
        return self.folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


PFL = Rival("pfl", "pfl", "0.6.0", program="rival_pfl.py")
FLOWER = Rival("Flower", "flwr", "1.35.0", "[simulation]", "rival_flower.py")


def torch_release() -> str:
    """This process's torch without its build: rivals get the same, or kernels would be compared."""
    return str(torch.__version__).partition("+")[0]


def prepare(rival: Rival) -> None:
    """Make the rival's environment unless it is there.

    Raises:
        RivalError: pip could not install it.
    """
    if _holds(rival):
        return
    print(f"{rival.requirement}: making {rival.folder} (several minutes, once)", flush=True)
    _install([sys.executable, "-m", "venv", "--clear", str(rival.folder)], rival)
    wanted = [rival.requirement, f"torch=={torch_release()}"]
    pip = [str(rival.python), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    _install([*pip, "install", *wanted], rival)
    if not _holds(rival):
        raise RivalError(f"{rival.requirement} is installed in {rival.folder} but not what it holds")


def _holds(rival: Rival) -> bool:
    """Whether the environment holds the rival and this torch, in these versions."""
    asked = f"from importlib.metadata import version as v; print(v('{rival.package}'), v('torch'))"
    try:
        found = subprocess.run(
            [str(rival.python), "-c", asked], capture_output=True, text=True, check=True, timeout=60
        ).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return False
    return [each.partition("+")[0] for each in found] == [rival.version, torch_release()]


def _install(command: Sequence[str], rival: Rival) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RivalError(f"{rival.requirement} could not be installed: {error}") from error
    if done.returncode:
        raise RivalError(f"{rival.requirement} could not be installed: {_last(done.stderr)}")


def run(rival: Rival, arguments: Sequence[str], log: Path, *, device: str, processes: int = 1) -> None:
    """Run the rival's program on one core a process; with `processes`, that many ranks of torch.distributed.

    Raises:
        RivalError: it failed, or took too long; the message ends with its last words.
    """
    ranks = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [
        str(rival.python),
        *(ranks if processes > 1 else []),
        str(PROGRAMS / rival.program),
        *arguments,
    ]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {**SETTINGS, "FLWR_HOME": str(log.parent / "flower")}
    if device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""  # else pfl takes the GPU it sees
    with log.open("w", encoding="utf-8") as words:
        process = subprocess.Popen(
            command, stdout=words, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            code = process.wait(timeout=RUN_SECONDS)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)  # ranks and actors too
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise RivalError(f"{rival.name} did not end within {RUN_SECONDS} s") from error
            raise
    if code:
        raise RivalError(f"{rival.name} failed: {_last(log.read_text(encoding='utf-8', errors='replace'))}")


def _last(words: str) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no message"
