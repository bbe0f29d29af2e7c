"""What several runs have in common at their beginning (Method.beginning) is trained once and kept in the cache.

A new run goes on from what is kept, as from a checkpoint, if that is no longer than its own beginning, and then keeps
its own in that place. So runs whose beginnings grow train each common round once. Bytes, scores and seconds are part of
the state, so a row counts all rounds as if the run had trained them.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fedbench.core import trees
from fedbench.core.cache import cache_dir
from fedbench.core.errors import CheckpointError
from fedbench.engine import state as states
from fedbench.engine.clients.storage import Storage
from fedbench.engine.state import State
from fedbench.engine.train.trainer import Trainer
from fedbench.results import checkpoint
from fedbench.results.environment import machine
from fedbench.runs import fingerprint
from fedbench.runs.config import RunConfig, run_key

SHARE = 0.1  # of the free disk that all beginnings together may take

log = logging.getLogger("fedbench")


@dataclass(frozen=True)
class Beginning:
    """The first `rounds` of a run. `key` names all that their numbers depend on, the engine and machine included."""

    key: str
    rounds: int
    last: bool  # nobody goes on with a longer one

    @classmethod
    def of(cls, run: RunConfig, trainer: Trainer) -> Beginning:
        """Of a run that `trainer` trains."""
        rounds, method = run.method.beginning(run.protocol.rounds)
        code = fingerprint.code_of(run)
        engine = (type(trainer).__name__, run.hardware, machine(), torch.__version__, torch.get_num_threads())
        parts = (common_key(run), code, fingerprint.content(run.dataset), run.recorders, *engine)
        if "edited" in code:  # nobody knows what runs here
            rounds = 0
        return cls(hashlib.sha256(repr(parts).encode()).hexdigest()[:16], rounds, method == run.method)

    @property
    def path(self) -> Path:
        """File of the state, whichever run kept it."""
        return cache_dir() / "beginnings" / f"{self.key}.safetensors"

    def found(self, device: torch.device, storage: Storage) -> State | None:
        """The state to go on from; None if there is none, or a longer one, or a damaged one."""
        if not self.rounds or not self.path.is_file() or self._kept() > self.rounds:
            return None
        try:
            return states.load(self.path, self.key, device, storage)
        except CheckpointError:
            log.warning("%s is damaged, or of an earlier version: it is made again", self.path)
            with contextlib.suppress(OSError):
                self.path.unlink()
            return None

    def keep(self, state: State) -> None:
        """Keep `state` after the last of the rounds, in the place of a shorter one; the last run to need it removes it.

        Not if its rows are in a file of the run's own, it is large for the disk, or the cache cannot be written.
        """
        if state.round != self.rounds:
            return
        with contextlib.suppress(OSError, CheckpointError):
            if self.last:
                self.path.unlink(missing_ok=True)
            elif not state.memory.mapped and self._kept() < self.rounds:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                if self._room(sum(map(trees.leaf_bytes, states.pack(state)[0].values()))):
                    states.save(self.path, state, self.key)

    def _room(self, size: int) -> bool:
        """Whether `size` bytes may be kept, once the beginnings that were kept longest ago have made way."""
        allowed = SHARE * shutil.disk_usage(self.path.parent).free
        others = sorted(self.path.parent.glob("*.safetensors"), key=lambda file: file.stat().st_mtime)
        taken = sum(file.stat().st_size for file in others)
        while size <= allowed < taken + size and others:
            taken -= others[0].stat().st_size
            others.pop(0).unlink()
        return taken + size <= allowed

    def _kept(self) -> int:
        """Rounds of the state in the file; 0 if there is none to read."""
        try:
            return int(checkpoint.meta_of(self.path)["round"])
        except (CheckpointError, KeyError, TypeError, ValueError):
            return 0


def common_key(run: RunConfig) -> str:
    """The key of the run whose beginning is that of `run`."""
    return run_key(replace(run, method=run.method.beginning(run.protocol.rounds)[1]))
