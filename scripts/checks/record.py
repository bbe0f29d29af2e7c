"""Lines of results, written as they come: what a part had found is there when it is stopped."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any


class Lines:
    """A file of one JSON object a line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def add(self, **values: Any) -> None:
        """Append one and show it."""
        text = json.dumps(values)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text + "\n")
        print(text, flush=True)

    def read(self) -> list[dict[str, Any]]:
        """All so far; a last line that was cut off is no result."""
        if not self.path.exists():
            return []
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]


class Deadline:
    """Seconds on the clock until a part has to end."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds."""
        return self._end - time.monotonic()
