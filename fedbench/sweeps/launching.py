"""Starting jobs through a launcher, wherever it makes them run, and stopping them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.core.interruption import passed_on

if TYPE_CHECKING:
    from hydra.core.utils import JobReturn


def launch(launcher: Any, folder: Path, batch: Sequence[Sequence[str]], first: int) -> list[JobReturn]:
    """What a launcher's jobs, numbered from `first`, return; `folder` is theirs (hydra.sweep.dir).

    Raises:
        Stopped: a signal came; the jobs under way have saved what they can.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with passed_on(folder) as signals:
        returned: list[JobReturn] = []
        try:
            returned = list(launcher.launch(batch, initial_job_idx=first))
        except Exception:
            if not signals.asked:
                raise
        if signals.asked:
            raise signals.stopped("\n".join(filter(None, map(_saved, returned))))
    return returned


def _saved(job: JobReturn) -> str:
    try:
        return str(job.return_value.stopped)
    except Exception:  # noqa: BLE001 - whatever ended its process saved nothing
        return ""
