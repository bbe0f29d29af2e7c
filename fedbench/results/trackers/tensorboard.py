"""TensorBoard (pip install 'fedbench-harness[tensorboard]'): event files in the run's folder, under tensorboard/.

`tensorboard --logdir runs` shows all runs. A resumed run writes one more event file; TensorBoard joins them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from fedbench.results.observer import Labels
from fedbench.results.trackers.base import FINAL, Tracker, title
from fedbench.results.units import number


class TensorBoardTracker(Tracker):
    """Scalars by round, the config as text, the final metrics as scalars of their own."""

    name: ClassVar[str] = "tensorboard"
    _writer: Any

    def open(self, labels: Labels, rounds: int, resumed_from: int) -> None:
        """See Tracker.open."""
        import yaml
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(
            str(self.folder / "tensorboard"), purge_step=resumed_from + 1 if resumed_from else None
        )
        text = yaml.safe_dump(self.config, sort_keys=False)
        self._writer.add_text(title(labels), f"```\n{text}```")

    def log(self, round_: int, row: Mapping[str, Any]) -> None:
        """See Tracker.log."""
        for name, value in row.items():
            known = number(value)
            if name != "round" and known is not None:
                self._writer.add_scalar(name, known, round_)

    def summarise(self, result: Mapping[str, Any]) -> None:
        """See Tracker.summarise."""
        for name in FINAL:
            known = number(result.get(name))
            if known is not None:
                self._writer.add_scalar(f"final/{name}", known)

    def end(self, *, complete: bool) -> None:
        """See Tracker.end."""
        self._writer.close()
