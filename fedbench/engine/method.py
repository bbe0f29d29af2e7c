"""The method interface: what crosses the network, and what each side does with it.

Server hooks see trees with a client axis; client hooks see one client and know nothing of the axis (the engine may
run them one by one or batched with vmap: no data-dependent Python branches, averages through `Batch.mean`). Hooks are
pure: no hook stores anything on `self`. Evaluation takes the same road: send -> personal -> predict.
"""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from fedbench.config.fields import SELECTS, Component, Selects
from fedbench.config.schema import LocalConfig, ProtocolConfig
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.errors import ConfigError, FedbenchError, is_out_of_memory, nearest, unknown
from fedbench.core.trees import Tree
from fedbench.engine.contract import CLIENT_HOOKS, Client, ClientHook, Clock, Cohort, Conformance, Preparation, Stage
from fedbench.models.task import Task


@dataclass(frozen=True)
class Method(Component, ABC):
    """Base of all methods; a subclass's fields are its hyper-parameters, and so its schema in the config.

    A method's docstring lists its leaves in four lines; one that it lacks is as its base's. `Server` and `Memory` are
    what `init` returns, `Message` and `Upload` what crosses the network to and from one client. Leaves are written
    `name [shape] if condition, remark`: `*` for those of the network, all or some, by their own names, `[...]` for
    their own shapes, `**` for any. N clients, K classes, d features before the classifier layer.
    """

    section: ClassVar[str] = "method"
    # global, personalised, clustered, or mixture (personalised by what the server mixes): see own_score
    family: ClassVar[str] = "global"
    paper: ClassVar[str] = ""  # authors, venue, year

    @property
    def why_one_kind(self) -> str:
        """Why all its clients must be of one kind; "" if its server serves several kinds, see Cohort.by_kind."""
        return f"{type(self).__name__} compares or averages models leaf by leaf"

    def shares(self, sizes: Tensor) -> Tensor | None:
        """What clients count by, up to a factor: `sizes` float64 [N], their samples.

        None: its clients' models, or what they share of them, are no averages of all clients' of its server.
        """
        return sizes

    @property
    def reads_data(self) -> frozenset[ClientHook]:
        """Names of the client hooks that use client.data or client.validation."""
        return frozenset()

    @property
    def conformance(self) -> Conformance:
        """What it cannot promise; fedbench.testing checks the rest."""
        return Conformance()

    @property
    def prepare_round(self) -> int:
        """Rounds that are completed when `prepare` is called; in a shorter run it never is."""
        return 0

    # ---- server: first axis is the client's

    @abstractmethod
    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """(server state, client memory with leaves [N, ...]) before round 0."""

    def prepare(self, preparation: Preparation, server: Tree, memory: Tree) -> tuple[Tree, Tree]:
        """Once, after `prepare_round` rounds, with access to the federation (distances, clusters, topic models).

        Before round 1 it may give clients' memory other leaves than `init` did, later only other values.
        """
        return server, memory

    def send(self, server: Tree, cohort: Cohort) -> Tree:
        """The message to each client of the cohort, leaves [C, ...]."""
        return trees.expand(server, len(cohort.ids))

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Fold uploads [C, ...] into the server state."""
        return {**server, **cohort.mean(uploads)}

    # ---- one client: no client axis

    @abstractmethod
    def start(self, client: Client) -> Tree:
        """Everything local training may move."""

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        """The phases of local training, in order."""
        return (Stage(self.loss),)

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """The local objective on one mini-batch, a scalar."""
        return client.task.loss(self.model(work, client), batch)

    @abstractmethod
    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """(upload, new memory) after local training."""

    def model(self, work: Tree, client: Client) -> Tree:
        """The client's own model within `work`."""
        return work

    def personal(self, client: Client) -> Tree:
        """The model that is scored as received, before local training."""
        return self.model(self.start(client), client)

    def predict(self, model: Tree, x: Tensor, task: Task) -> Tensor:
        """Logits (or any scores to rank classes by) [B, K] of a personal model."""
        return task.apply(model, x)

    # ---- optional

    def draw(self, generator: torch.Generator, steps: int, client: Client) -> Tree:
        """Per-step randomness of a client's stage, leaves [steps, ...]; reaches the loss as batch.noise.

        Drawn on the CPU before the stage and outside vmap, so it may branch on what the client was sent. A leaf of
        the message is fetched to the CPU when it is read, by its name.
        """
        return {}

    def adapt(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        """Stages a client trains before it is scored as received (Finetune, FedBABU); none by default."""
        return ()

    def common(self, server: Tree, task: Task) -> Tree | None:
        """The global model, where there is one."""
        names = task.parameters | task.buffers
        return server if names <= set(server) else None

    def collaboration(self, server: Tree, population: Population) -> Tensor | None:
        """The collaboration matrix W [N, N] (row i: whose models client i's is made of), where there is one."""
        return None

    def record(self, server: Tree) -> Mapping[str, Tensor]:
        """Arrays to keep with a finished run, by name, beside those of `prepare`; none by default."""
        return {}


# How an engine calls a method's hooks: with the samples they announced, and with errors that say where they arose.

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
class HookCaller:
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

    def client_view(self, hook: ClientHook, client: Client) -> Client:
        """`client` as `hook` is given it: with its samples only if the method announced that the hook reads them."""
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
    """Refuse a method that announces what no engine would ever look up.

    Raises:
        UnknownName: `reads_data` names no client hook.
    """
    for hook in method.reads_data:
        if hook not in CLIENT_HOOKS:
            raise unknown(f"client hook in reads_data of {type(method).__name__}", hook, CLIENT_HOOKS)


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


# Which of a client's models counts, where a protocol leaves it to the method.


def own_score(method: Method, protocol: ProtocolConfig) -> tuple[str, str]:
    """What `protocol.score=own` stands for: `received`, `trained` or `both`, and why.

    As FedSaC's code and that of Ye et al. score the methods that they compare.
    """
    if method.family == "global":
        return "received", "the one model of all clients"
    if "personal" in method.reads_data or method.adapt(protocol.local, Clock(protocol.rounds, protocol.rounds)):
        return "received", "fitted to the client's samples when it is scored"
    if method.family == "clustered":
        return "trained", "what the client trains of its cluster's model"
    if method.family == "mixture" and protocol.report.startswith("best"):
        return "both", "the mixture, and what the client trains of it"
    return "trained", "what the client trains"


# Selectors of leaves in a method's fields, checked against a network: one that finds nothing is a mistake.


def check_selectors(method: Method, task: Task, where: str = "method") -> None:
    """Refuse a method with a selector that finds nothing in the network; of a method inside, too.

    A glob must match a leaf. Groups that the network lacks (@norm, @stats) may be named beside others, or where the
    field says so; alone they would silently make the method another one.

    Raises:
        ConfigError: names the field, and the leaves and groups that there are.
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
            f"{key}=[{','.join(selectors)}] finds none of the network's {rule.among}; it has {', '.join(groups)}: "
            "choose another model, or other leaves"
        )
