"""Files of ImageNet weights: where torchvision keeps them, fetching them, reading them without executing anything."""

from __future__ import annotations

import functools
import hashlib
import pickle
from pathlib import Path
from typing import Any

import torch

from fedbench.core.errors import DataCorrupt, DataMissing


def _official(architecture: str) -> Any:
    from torchvision.models import get_model_weights

    return get_model_weights(architecture).DEFAULT


def hub_file(architecture: str) -> Path:
    """Where torchvision keeps the weights; the name ends in the first digits of the content's SHA-256."""
    return Path(torch.hub.get_dir()) / "checkpoints" / str(_official(architecture).url).rpartition("/")[2]


def fetch(architecture: str) -> None:
    """Let torchvision download the weights of `architecture`.

    Raises:
        DataMissing: no network, no space, or what came has another hash.
    """
    try:
        _official(architecture).get_state_dict(progress=False, check_hash=True)
    except (OSError, RuntimeError) as error:  # no network, no space, a hash that differs
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataMissing(
            f"the ImageNet weights of {architecture} could not be downloaded: {reason}; "
            "set model.weights=FILE or model.pretrained=false"
        ) from error


@functools.lru_cache(maxsize=1)
def read(path: Path) -> dict[str, torch.Tensor]:
    """The state dict in `path`, which is not executed: tensors only.

    Raises:
        DataCorrupt: it holds none that torch can read.
    """
    try:
        state: dict[str, torch.Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise DataCorrupt(
            f"{path} holds no weights that torch can read; delete it or set model.weights=FILE"
        ) from error
    return state


@functools.lru_cache(maxsize=4)
def file_hash(path: Path) -> str:
    """8 hexadecimal digits over a file's content.

    Raises:
        DataMissing: it cannot be read.
    """
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    except OSError as error:
        raise DataMissing(f"model.weights={path}: {error.strerror or error}") from error
