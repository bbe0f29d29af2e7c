"""Starting and ending worker processes that a script neither has to allow for nor can get in the way of."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

import torch.multiprocessing as torch_multiprocessing

from fedbench.core.errors import ConfigError


def start(
    serve: Callable[[Connection, Any], None], argument: Any, count: int, preload: str
) -> tuple[list[Any], list[Connection]]:
    """`count` processes that run `serve` on a link and `argument`, and our ends of the links.

    `preload`: the module that is imported once for all of them.

    Raises:
        ConfigError: `argument` holds something that the script defines.
    """
    _name_a_known_start_method()
    context = torch_multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([preload])
    with _unheard(
        signal.SIGINT, signal.SIGTERM
    ):  # which a terminal sends to all, also to one that still imports
        forkserver.ensure_running()
    processes: list[Any] = []
    links: list[Connection] = []
    for _ in range(count):
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs, argument), daemon=True)
        with _without_main():
            process.start()
        theirs.close()
        links.append(ours)
        processes.append(process)
    return processes, links


def end(processes: list[Any], links: list[Connection]) -> None:
    """Close the links, at which processes end; kill those that do not."""
    for link in links:
        link.close()
    for process in processes:
        process.join(timeout=5)
        if process.is_alive():
            process.kill()
            process.join()
    links.clear()
    processes.clear()


@contextmanager
def _unheard(*numbers: signal.Signals) -> Iterator[None]:
    """Processes that are started here never hear of these signals; this one does afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _without_main() -> Iterator[None]:
    """Start processes that do not import the script: one without `if __name__ == "__main__"` would run once more.

    multiprocessing has no setting for it, but leaves out a main module that has neither a file nor a specification.

    Raises:
        ConfigError: something that the processes need is defined in the script.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    except (pickle.PicklingError, AttributeError) as error:
        raise ConfigError(
            f"worker processes do not import the script, and cannot have what it defines ({error}): put it into a "
            "module that the script imports, or run with hardware.engine=looped"
        ) from error
    finally:
        sys.modules["__main__"] = main


def _name_a_known_start_method() -> None:
    """In a process of joblib the default is a method of its own, which no child of ours would know."""
    if multiprocessing.get_start_method(allow_none=True) not in (
        None,
        *multiprocessing.get_all_start_methods(),
    ):
        multiprocessing.set_start_method("spawn", force=True)
