"""What a study is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from fedbench.runs.config import RunConfig


@dataclass(frozen=True)
class Study(ABC):
    """Numbers about a federation, by name: the measure `result` reads them as it reads a run's columns."""

    @abstractmethod
    def run(self, config: RunConfig) -> dict[str, float]:
        """The numbers, for the data, partition, model, method, protocol and seed of `config`.

        Raises:
            FedbenchError: the study does not fit them.
        """
