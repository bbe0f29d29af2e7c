"""Checkpoints: one safetensors file, replaced atomically, that notices damage and a change of configuration.

The safetensors metadata holds the format version, the key of the run, the caller's JSON and a checksum over
all of these and every tensor. So a file that is truncated, altered or of another run is refused as a whole.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fedbench.core.errors import CheckpointError, reason_of
from fedbench.core.files import replacing
from fedbench.core.trees import Tree

FORMAT = "fedbench-checkpoint-1"
_FIELDS = ("format", "key", "meta", "checksum")


def write_checkpoint(
    path: Path | str, tree: Mapping[str, torch.Tensor], meta: Mapping[str, Any], *, key: str = ""
) -> None:
    """Write `tree` and the JSON-able `meta` to `path`; the previous file stays until this one is complete.

    Tensors may be non-contiguous, expanded, aliases of each other or on any device; each is stored in full.

    Raises:
        CheckpointError: the file cannot be written (disk full, no permission); the previous one is kept.
        TypeError: `meta` is not JSON-able.
    """
    path = Path(path)
    plain = _plain(tree)
    metadata = {"format": FORMAT, "key": key, "meta": json.dumps(dict(meta))}
    metadata["checksum"] = _checksum(metadata, plain)
    try:
        with replacing(path) as temporary:
            save_file(plain, temporary, metadata)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"cannot write checkpoint {path} ({reason_of(error)}); the previous one is kept: make room or choose "
            "another folder, then run again"
        ) from error


def read_checkpoint(path: Path | str, *, key: str | None = None) -> tuple[Tree, dict[str, Any]]:
    """Read the checkpoint at `path`: CPU tensors bit-equal to those saved, and the meta.

    Args:
        path: the file.
        key: key of the run that asks; None accepts any.

    Raises:
        CheckpointError: missing, unreadable, damaged, of another format or of another configuration.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"no checkpoint at {path}; start the run again")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            # Cloned: the tensors of safetensors are views of the mapped file.
            tree = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except Exception as error:  # whatever a foreign parser raises on damaged bytes, the file is unreadable
        raise _unusable(path, f"cannot be read ({reason_of(error)})") from error
    if any(field not in metadata for field in _FIELDS) or metadata["format"] != FORMAT:
        raise _unusable(path, f"is not in the format {FORMAT}")
    if _checksum(metadata, tree) != metadata["checksum"]:
        raise _unusable(path, "is damaged (its checksum does not match)")
    if key is not None and metadata["key"] != key:
        raise _unusable(path, f"belongs to another configuration (key {metadata['key']}, not {key})")
    return tree, json.loads(metadata["meta"])


def _unusable(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(f"checkpoint {path} {reason}; delete it to start over")


def _plain(tree: Mapping[str, torch.Tensor]) -> Tree:
    """Contiguous CPU tensors, no two of which share memory, as safetensors demands; copied only if needed."""
    plain: Tree = {}
    seen: set[int] = set()
    for name, tensor in tree.items():
        dense = tensor.detach().cpu().contiguous()
        if dense.numel() == 1:  # torch calls it contiguous whatever its strides are
            dense = dense.clone(memory_format=torch.contiguous_format)
        storage = dense.untyped_storage().data_ptr()
        plain[name] = dense.clone() if storage in seen else dense
        seen.add(storage)
    return plain


def _checksum(metadata: Mapping[str, str], tree: Tree) -> str:
    """Hash of format, key and meta, and of name, dtype, shape and bytes of every tensor."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps([metadata[field] for field in _FIELDS[:-1]]).encode())
    for name in sorted(tree):
        tensor = tree[name]
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        if tensor.numel():  # an empty one may have no stride to view as bytes
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
