"""Calling a method's hooks: what they return is checked, and an error names the hook, the round and the clients."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, TypeVar, cast

from torch import Tensor

from fedbench.config.fields import SELECTS, Selects
from fedbench.core.batch import Batch
from fedbench.core.errors import ConfigError, FedbenchError, is_out_of_memory, nearest, unknown
from fedbench.core.trees import Tree
from fedbench.engine.contract import CLIENT_HOOKS, Client, ClientHook, Clock, Cohort
from fedbench.engine.method import Method
from fedbench.models.task import Task

P = ParamSpec("P")


T = TypeVar("T")


NAMED = 8  # clients at most that an error names


LISTED = 40  # leaves at most of a tree


class HookError(Exception):
    """A hook of a method failed. The message names hook, place and input; the original error is the cause."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Send the cause, which exceptions lose in a pipe, and its traceback as text."""
        cause = cast("Exception", self.__cause__)
        return _restored, (str(self), portable(cause), "".join(traceback.format_exception(cause)))


@dataclass(frozen=True)
class HookCaller:
    """Calls hooks of `method` in a round for `ids` [C], clients that train together or that share a server."""

    method: Method
    clock: Clock | None  # None: before the first round or after the last
    ids: Sequence[int] | Tensor

    def __call__(self, hook: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of `function`, which runs `hook`.

        Raises:
            HookError: it raised an error on which neither the user nor the engine can act.
        """
        try:
            return function(*args, **kwargs)
        except (HookError, FedbenchError):
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise
            raise HookError("\n  ".join(self._told(hook, function, args, error))) from error

    def client_view(self, hook: ClientHook, client: Client) -> Client:
        """Return `client` as `hook` gets it: with its samples only if the method announces that the hook reads them."""
        if hook == "draw" and client.on_host is not None:
            client = replace(client, message=cast("Tree", client.on_host))
        return client if hook in self.method.reads_data else replace(client, fetch=None, fetch_validation=None)

    def _told(
        self, hook: str, function: Callable[..., object], args: Sequence[object], error: Exception
    ) -> Iterator[str]:
        ids = [int(client) for client in self.ids]
        who = f"client {ids[0]}" if len(ids) == 1 else f"{len(ids)} clients, {', '.join(map(str, ids[:NAMED]))}"
        if len(ids) > NAMED:
            who += ", ..."
        when = "" if self.clock is None else f" in round {self.clock.round + 1}"
        where = f" for {who}" if ids else ""
        name = type(self.method).__name__
        yield f"{name}.{hook} failed{when}{where}: {type(error).__name__}: {error}"
        for parameter, value in zip(inspect.signature(function).parameters, args, strict=False):
            yield from _described(parameter, value)


def check_announced(method: Method) -> None:
    """Refuse a method that announces a hook which no engine looks up.

    Raises:
        UnknownName: `reads_data` names no client hook.
    """
    for hook in method.reads_data:
        if hook not in CLIENT_HOOKS:
            raise unknown(f"client hook in reads_data of {type(method).__name__}", hook, CLIENT_HOOKS)


def portable(error: Exception) -> Exception:
    """Return `error`, or, if it cannot pass through a pipe, an error with its name and text."""
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
    """Return names, types and shapes of all leaves in an argument, with a line for each tree."""
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


# Selectors of leaves in a method's fields, checked against a network: one that finds nothing is a mistake.


def check_selectors(method: Method, task: Task, where: str = "method") -> None:
    """Refuse a method, or a method inside it, with a selector that finds nothing in the network.

    A glob must match a leaf. Groups that the network lacks (@norm, @stats) are allowed together with others, or if the
    field allows it; alone they would silently make the method another one.

    Raises:
        ConfigError: names the field, and the existing leaves and groups.
    """
    for field in dataclasses.fields(method):
        value, rule = getattr(method, field.name), field.metadata.get(SELECTS)
        if isinstance(value, Method):
            check_selectors(value, task, f"{where}.{field.name}")
        elif isinstance(rule, Selects) and value:
            _check(f"{where}.{field.name}", value, rule, task)


def _check(key: str, selectors: tuple[str, ...], rule: Selects, task: Task) -> None:
    names = sorted(task.parameters if rule.among == "weights" else task.parameters | task.buffers)
    found = {selector: task.select(names, (selector,)) for selector in selectors}
    globs = [selector for selector in selectors if not selector.startswith("@")]
    groups = [group for group in task.groups if task.select(names, (group,))]
    if lost := next((glob for glob in globs if not found[glob]), None):
        raise ConfigError(
            f"{key}: '{lost}' matches none of the network's {rule.among}; nearest: {nearest(lost, names)}; "
            f"groups: {', '.join(groups)}"
        )
    if not any(found.values()) and not rule.may_be_empty:
        raise ConfigError(
            f"{key}=[{','.join(selectors)}] matches none of the network's {rule.among}; it has {', '.join(groups)}: "
            "choose another model, or other leaves"
        )
