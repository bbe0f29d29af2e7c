"""Make a folder that `gpu_check.py` runs from on a machine without a package index.

    python scripts/gpu_bundle.py [--out build/gpu-bundle]
    cd build/gpu-bundle && python3 scripts/gpu_check.py --out RESULTS

It holds the source, the packages of `PACKAGES` (pure Python but for safetensors, whose library is the same for every
CPython on x86-64 Linux), Fashion-MNIST's idx files and scikit-learn's digits. The other machine must have Python 3.10
to 3.12, torch, torchvision and numpy. What else it lacks is told there: scipy (k-means and hierarchical clustering,
verdicts), scikit-learn (SosicFL's LDA).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import shutil
import sys
from pathlib import Path

from checks.machine import PACKAGES

from fedbench.core.errors import FedbenchError
from fedbench.core.files import write_json
from fedbench.data.datasets.small_images import FashionMnist, digits_file
from fedbench.runs.environment import source_commit, versions

TOP = Path(__file__).resolve().parents[1]
SOURCE = ("fedbench", "conf", "hydra_plugins", "scripts", "LICENSE", "pyproject.toml")
LARGEST = 60e6  # bytes


def main() -> int:
    """Fill the folder anew; returns 1 where something is missing, or it is too large to be carried."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=TOP / "build" / "gpu-bundle")
    out = parser.parse_args().out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    try:
        for name in SOURCE:
            copy_source(TOP / name, out / name)
        kept = {name: copy_package(name, out / "packages" / name) for name in PACKAGES}
        copy_data(out / "data")
    except (FedbenchError, importlib.metadata.PackageNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    commit, changed = source_commit()
    write_json(out / "bundle.json", {**versions(), "commit": commit, "changed": changed, "packages": kept})
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    print(f"{out}: {size / 1e6:.1f} MB; there: python3 scripts/gpu_check.py --out RESULTS")
    if size > LARGEST:
        print(f"error: more than {LARGEST / 1e6:.0f} MB", file=sys.stderr)
    return int(size > LARGEST)


def copy_source(source: Path, target: Path) -> None:
    """A file, or a folder without what Python compiled."""
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    else:
        shutil.copy2(source, target)


def copy_package(name: str, target: Path) -> str:
    """The files of an installed distribution, without command lines and other machines' libraries; its version."""
    found = importlib.metadata.distribution(name)
    for file in found.files or ():
        compiled = "__pycache__" in file.parts or (file.suffix == ".so" and ".abi3" not in file.name)
        if not compiled and ".." not in file.parts:
            place = target / file
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(Path(str(found.locate_file(file))), place)
    return found.version


def copy_data(target: Path) -> None:
    """Fashion-MNIST and digits, as `data_dir` is laid out.

    Raises:
        FedbenchError: one of them is not on this machine.
    """
    images, digits = FashionMnist(), digits_file()
    files = images.locate()
    if files is None:
        raise FedbenchError(f"Fashion-MNIST is not here: {images.state().how}")
    if digits is None:
        raise FedbenchError("digits are not here: pip install scikit-learn")
    for file, folder in [*((file, "fashion_mnist") for file in files), (digits, "digits")]:
        (target / folder).mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, target / folder / file.name)


if __name__ == "__main__":
    sys.exit(main())
