"""What this machine has, and what of a bundle's packages and data takes the place of what it lacks."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
PACKAGES = (  # of a bundle, by the name of the distribution
    "hydra-core",
    "omegaconf",
    "antlr4-python3-runtime",
    "PyYAML",
    "packaging",
    "filelock",
    "rich",
    "safetensors",
)
OPTIONAL = {  # what is left out where one is missing
    "scipy": "verdicts; methods that cluster hierarchically, by k-means, or by distances",
    "sklearn": "SosicFL's positions by LDA",
    "matplotlib": "figures",
    "pandas": "summaries of sweeps",
}


def from_bundle() -> dict[str, str]:
    """What a process needs in its environment to run from this folder; nothing but the path in a checkout.

    A package of the bundle is used where this machine has none, or an older one.
    """
    bundled = sorted((TOP / "packages").glob("*")) if (TOP / "packages").is_dir() else []
    chosen = [str(folder) for folder in bundled if _newer(folder)]
    given = os.environ.get("PYTHONPATH", "")
    paths = [str(TOP), str(TOP / "scripts"), *chosen, *([given] if given else [])]
    found = {"PYTHONPATH": os.pathsep.join(paths)}
    if bundled:
        found["FEDBENCH_DATA"] = str(TOP / "data")
    return found


def _newer(folder: Path) -> bool:
    """Whether the distribution in `folder` is missing here, or older."""
    (mine,) = importlib.metadata.distributions(path=[str(folder)])
    try:
        theirs = importlib.metadata.version(folder.name)
    except importlib.metadata.PackageNotFoundError:
        return True
    return _numbers(theirs) < _numbers(mine.version)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def lacking() -> dict[str, str]:
    """Optional packages that are not here, and what is left out without them."""
    return {name: what for name, what in OPTIONAL.items() if importlib.util.find_spec(name) is None}
