"""Whether a run has what its config asks to be recorded; it may have been made without, as its key does not tell."""

from __future__ import annotations

from fedbench.core.errors import FedbenchError
from fedbench.engine.recording import Arrays
from fedbench.results.finished import Run
from fedbench.results.folder import RunFolder
from fedbench.runs.config import RunConfig
from fedbench.runs.places import folder_of


def lacking(run: RunConfig) -> list[str]:
    """The recorders that `run`, which is finished, asks for and was made without."""
    return _lacking(run, kept(folder_of(run)), run.protocol.rounds)


def kept(folder: RunFolder) -> Arrays:
    """Return what a finished run keeps in arrays.npz."""
    return Run(folder.path).arrays


def require(run: RunConfig, folder: RunFolder, arrays: Arrays, completed: int) -> None:
    """Refuse to show a run, or to go on with it after `completed` rounds, if `arrays` lack what was to be recorded.

    Raises:
        FedbenchError: says how to make the run again.
    """
    if lost := _lacking(run, arrays, completed):
        raise FedbenchError(f"{folder.path} was made without record={lost[0]}; force=true makes it again")


def _lacking(run: RunConfig, arrays: Arrays, completed: int) -> list[str]:
    return [each.name for each in run.recorders if each.lacks(arrays, completed, run.protocol.rounds)]
