"""Where a result was made: versions, machine, source commit, command line."""

from __future__ import annotations

import datetime as dt
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from fedbench.core.version import __version__

MAKING = ("fedbench", "conf", "hydra_plugins", "pyproject.toml")  # what results are made by, in a checkout


def versions() -> dict[str, str]:
    """Columns of a result row: version_fedbench, version_python, version_torch, version_numpy, commit."""
    import numpy as np
    import torch

    found = {
        "version_fedbench": __version__,
        "version_python": platform.python_version(),
        "version_torch": str(torch.__version__),
        "version_numpy": np.__version__,
    }
    commit, dirty = source_commit()
    return {**found, "commit": commit + ("+changes" if dirty else "")}


def environment(device: str = "cpu") -> dict[str, Any]:
    """Everything that helps to explain a number or a time later; `device` as torch names it."""
    import torch

    commit, dirty = source_commit()
    return {
        **versions(),
        "commit": commit,
        "commit_has_changes": dirty,
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device,
        "gpu": torch.cuda.get_device_name(device) if device.startswith("cuda") else "",
        "command": sys.argv,
        "started": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
    }


def machine() -> str:
    """This machine in a few words: its processor, cores and GPU."""
    import torch

    words = f"{_cpu_name()}, {os.cpu_count()} cores"
    return f"{words}, {torch.cuda.get_device_name()}" if torch.cuda.is_available() else words


def source_commit(source: Path | None = None) -> tuple[str, bool]:
    """(commit, whether code or settings differ from it) of the checkout that `source` lies in the top level of.

    Other tracked files may differ: a table that was filled stands in results/ before it is committed.
    ("", False) for an installed package, even if it is installed somewhere inside another repository.
    """
    top = (source or Path(__file__).parents[1]).resolve().parent
    if not (top / ".git").exists():
        return "", False
    commit = _git(top, "rev-parse", "HEAD")
    return commit, bool(commit and _git(top, "status", "--porcelain", "--untracked-files=no", "--", *MAKING))


def _git(folder: Path, *arguments: str) -> str:
    """Output of a git command; empty when git is missing or refuses."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
