"""How an engine calls a method's hooks: with the samples they announced, and with errors that say where they arose."""

from __future__ import annotations

import inspect
import pickle
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, TypeVar, cast

from torch import Tensor

from fedbench.core.batch import Batch
from fedbench.core.errors import FedbenchError, is_out_of_memory, unknown
from fedbench.engine.contract import CLIENT_HOOKS, Client, ClientHook, Clock, Cohort
from fedbench.engine.method import Method

P = ParamSpec("P")
T = TypeVar("T")

NAMED = 8  # clients at most that an error names
LISTED = 40  # leaves at most of a tree


class HookError(Exception):
    """A hook of a method failed; says which, where, and on what. What it raised is the cause."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Through a pipe go the cause, which exceptions lose, and its traceback, as text."""
        cause = cast("Exception", self.__cause__)
        return _restored, (str(self), portable(cause), "".join(traceback.format_exception(cause)))


@dataclass(frozen=True)
class Calls:
    """Calls hooks of `method` in a round, for `ids` [C]: clients that train together, or that a server speaks to."""

    method: Method
    clock: Clock | None  # None: before the first round or after the last
    ids: Sequence[int] | Tensor

    def __call__(self, hook: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `function`, which runs `hook`, returns.

        Raises:
            HookError: it raised an error, other than one that a user or the engine can act on.
        """
        try:
            return function(*args, **kwargs)
        except (HookError, FedbenchError):
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise
            raise HookError("\n  ".join(self._told(hook, function, args, error))) from error

    def view(self, hook: ClientHook, client: Client) -> Client:
        """`client` as `hook` is given it: with its samples only if the method announced that the hook reads them."""
        return replace(
            client,
            message={**client.message, **client.heard} if hook == "draw" else client.message,
            fetch=client.fetch if hook in self.method.reads_data else None,
            fetch_validation=client.fetch_validation if hook in self.method.reads_validation else None,
        )

    def _told(
        self, hook: str, function: Callable[..., object], args: Sequence[object], error: Exception
    ) -> Iterator[str]:
        ids = [int(client) for client in self.ids]
        who = (
            f"client {ids[0]}" if len(ids) == 1 else f"{len(ids)} clients, {', '.join(map(str, ids[:NAMED]))}"
        )
        if len(ids) > NAMED:
            who += ", ..."
        when = "" if self.clock is None else f" in round {self.clock.round + 1}"
        where = f" for {who}" if ids else ""
        name = type(self.method).__name__
        yield f"{name}.{hook} failed{when}{where}: {type(error).__name__}: {error}"
        for parameter, value in zip(inspect.signature(function).parameters, args, strict=False):
            yield from _described(parameter, value)


def check_announced(method: Method) -> None:
    """Refuse a method that announces what no engine would ever look up.

    Raises:
        UnknownName: `reads_data` or `reads_validation` names no client hook.
    """
    for where in ("reads_data", "reads_validation"):
        for hook in getattr(method, where):
            if hook not in CLIENT_HOOKS:
                raise unknown(f"client hook in {where} of {type(method).__name__}", hook, CLIENT_HOOKS)


def portable(error: Exception) -> Exception:
    """`error`, or where it does not survive a pipe, one that tells its name and text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - whatever its own code raises
        return FedbenchError(f"{type(error).__name__}: {error}")
    return error


def _restored(text: str, cause: Exception, trace: str) -> HookError:
    error = HookError(text)
    error.__cause__ = cause
    cause.__cause__ = RuntimeError(f"in a worker process\n{trace}")
    return error


def _described(name: str, value: object) -> Iterator[str]:
    """Names, types and shapes of all leaves in an argument, a line for each tree."""
    if isinstance(value, Client):
        yield from _described("message", value.message)
        yield from _described("memory", value.memory)
    elif isinstance(value, Batch):
        parts = {"x": value.x, "y": value.y, "mask": value.mask, **value.noise}
        yield from _described(name, {key: leaf for key, leaf in parts.items() if leaf is not None})
    elif isinstance(value, Cohort):
        yield f"{name}: ids {value.ids.tolist()}"
    elif isinstance(value, Mapping):
        leaves = {key: leaf for key, leaf in value.items() if isinstance(leaf, Tensor)}
        texts = [f"{key} {_shape(leaf)}" for key, leaf in leaves.items()]
        more = f", and {len(texts) - LISTED} more" if len(texts) > LISTED else ""
        if texts or not value:
            yield f"{name}: {', '.join(texts[:LISTED]) or 'no leaves'}{more}"
        for key, part in value.items():
            if key not in leaves:
                yield from _described(key, part)


def _shape(leaf: Tensor) -> str:
    return f"{list(leaf.shape)} {str(leaf.dtype).removeprefix('torch.')}"
