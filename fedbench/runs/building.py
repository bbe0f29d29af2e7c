"""Build data, network and method from a run's config, and predict with a finished run's models."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from fedbench.core import trees
from fedbench.core.errors import ConfigError, FedbenchError, reason_of, warn_once
from fedbench.core.trees import Tree
from fedbench.data.dataset import Dataset
from fedbench.data.datasets.table import fitted
from fedbench.data.memory import plain
from fedbench.data.partition import Partition, make_partition
from fedbench.engine.client_state import ClientMemory
from fedbench.engine.contract import Clock
from fedbench.engine.hardware import check_memory, pick_device
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.scored_models import model_of, restored, sources_of
from fedbench.engine.setup import Setup, assemble
from fedbench.engine.simulation import State, received, scored_together
from fedbench.models.task import Model, Task
from fedbench.runs import fingerprint
from fedbench.runs.config import RunConfig, from_plain


def build(run: RunConfig) -> Setup:
    """Return the setup of a run without executing it: data, network and method, checked against each other."""
    return set_up(run, *split_data(run)).seen


def split_data(run: RunConfig) -> tuple[Dataset, Partition]:
    """Return a run's samples and its partition."""
    dataset = fingerprint.load_data(run.dataset)
    partition = make_partition(run.partition, dataset, run.protocol.test, run.partition_seed)
    clients = run.model.dealt(partition)[0].train
    return fitted(dataset, np.concatenate(clients[: run.protocol.seen(len(clients))])), partition


def set_up(run: RunConfig, dataset: Dataset, partition: Partition) -> Setup:
    """Return the method, the network and all clients' data, also of unseen ones, on the run's device."""
    if dataset.tokens and not all(network.tokens for network in run.model.networks.values()):
        raise ConfigError(
            f"{dataset.name} holds token ids, which model={run.model.label} would read as numbers; use "
            "model=embedding, or dataset.kind=table if they are"
        )
    if partition.looks is not None and 1 < dataset.shape[0] <= partition.looks[..., 1].max():
        raise ConfigError(
            f"partition {partition.label} colours images of one channel or three, {dataset.name} has "
            f"{dataset.shape[0]}; choose partition.level=4 or less"
        )
    if partition.looks is not None and partition.rotation is not None:  # which of them is first would matter
        raise ConfigError(f"partition {partition.label} has the arrays rotation and looks; give one of them")
    device, bf16 = pick_device(run.hardware), run.hardware.precision == "bf16"
    check_memory(run.model, dataset, device)
    for network in run.model.networks.values():
        check_network(network, network.view(dataset))
    setup = assemble(run.method, run.model, dataset, partition, run.protocol, run.seed, device, bf16=bf16)
    for modality in setup.modalities:
        refuse_random(modality.task)
    return setup


def check_network(model: Model, data: Dataset) -> None:
    """Refuse a network that would not train here as it does in torch.

    Raises:
        ConfigError: layers share a weight, a stage stands twice, or a tensor is in no state dict.
    """
    try:
        with torch.random.fork_rng(devices=[]):
            net = model.build(data.shape, data.classes)
    except Exception:  # noqa: BLE001 - `assemble` builds it again, and says what is wrong
        return
    owners: dict[Any, str] = {}
    for place, layer in net.named_modules():
        for name, leaf in layer.named_parameters(place, recurse=False):
            if (other := owners.setdefault(leaf, name)) != name:
                raise ConfigError(f"model {model.label}: {other} and {name} are one weight; clients would train two")
        if isinstance(layer, nn.modules.batchnorm._NormBase) and layer.track_running_stats and layer.momentum is None:
            raise ConfigError(f"model {model.label}: {place} averages all batches (momentum=None); set momentum=0.1")
    if len({*map(id, net)}) < len(net):
        raise ConfigError(f"model {model.label}: a stage stands twice; make a layer for each place")
    if unkept := {name for name, _ in net.named_buffers()} - net.state_dict().keys():
        raise ConfigError(f"model {model.label}: {min(unkept)} is in no state dict; register it with persistent=True")


def refuse_random(task: Task) -> None:
    """Refuse a network whose training draws random numbers: engines would draw different ones.

    Raises:
        ConfigError: two forward passes of training differ.
    """
    drawn = torch.Generator().manual_seed(0)
    model, x = task.init(drawn), torch.rand(2, *task.shape, generator=drawn)
    with torch.no_grad():  # each pass updates the batch statistics of its own copy
        first, second = (task.apply(trees.clone(model), x, train=True).nan_to_num() for _ in range(2))
    if not first.equal(second):
        raise ConfigError(
            "the network draws random numbers in training, which no engine repeats; leave out its dropout"
        )


class _Noted:
    """The process-wide settings of torch before the first open block of `own_torch`."""

    lock = threading.Lock()
    blocks = 0
    threads = 0
    dtype: ClassVar[Any] = None  # of a tensor that is made without one
    precise: ClassVar[dict[Any, bool]] = {}  # part of torch -> whether it may use TensorFloat-32


@contextlib.contextmanager
def own_torch() -> Iterator[None]:
    """Suspend the caller's torch modes during the block, and restore its torch settings afterwards."""
    with _Noted.lock:
        if not _Noted.blocks:
            _Noted.threads, _Noted.dtype = torch.get_num_threads(), torch.get_default_dtype()
            torch.set_default_dtype(torch.float32)
            _Noted.precise.clear()
            for part in (torch.backends.cuda.matmul, torch.backends.cudnn):
                with contextlib.suppress(RuntimeError):  # what was set by torch's newer names is not told by this one
                    _Noted.precise[part] = part.allow_tf32
        _Noted.blocks += 1
    try:
        with contextlib.ExitStack() as left:
            left.enter_context(torch.inference_mode(mode=False))
            if torch.get_default_device().type != "cpu":
                left.enter_context(torch.device("cpu"))
            for kind in ("cpu", "cuda"):
                if torch.is_autocast_enabled(kind):
                    left.enter_context(torch.autocast(kind, enabled=False))
            yield
    finally:
        with _Noted.lock:
            _Noted.blocks -= 1
            torch.set_num_threads(_Noted.threads)  # a thread's own too
            if not _Noted.blocks:
                torch.set_default_dtype(_Noted.dtype)
                for part, allowed in _Noted.precise.items():
                    part.allow_tf32 = allowed


@dataclass(frozen=True, eq=False)
class Prediction:
    """A client's predictions for n samples, in their order, and the true labels; a quantity is in the data's units."""

    scores: NDArray[np.float64]  # [n, K], by which the method ranks the classes; of regression [n, 1], the quantity
    y: NDArray[Any] | None  # [n], the labels, int64, or the quantity; None of samples that came without

    @property
    def values(self) -> NDArray[np.float64]:
        """The predicted quantity in regression, [n].

        Raises:
            FedbenchError: the run predicts classes.
        """
        self._check(regression=True, instead="classes")
        return self.scores[:, 0]

    @property
    def classes(self) -> NDArray[np.int64]:
        """The class of the highest score, [n].

        Raises:
            FedbenchError: of a quantity.
        """
        self._check(regression=False, instead="values")
        return np.asarray(self.scores.argmax(axis=1), dtype=np.int64)

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """The softmax of the scores, [n, K].

        Raises:
            FedbenchError: of a quantity.
        """
        self._check(regression=False, instead="values")
        return torch.from_numpy(self.scores).softmax(1).numpy()

    def _check(self, *, regression: bool, instead: str) -> None:
        if (self.scores.shape[1] == 1) is not regression:
            raise FedbenchError(f"this run predicts {'classes' if regression else 'a quantity'}: read `{instead}`")


class ScoredModels:
    """The models behind the numbers of a finished run."""

    def __init__(self, config: Mapping[str, Any], row: Mapping[str, Any], models: Tree) -> None:
        """`models`: what the run kept, see fedbench.engine.simulation.models.

        Raises:
            FedbenchError: the run did not keep them, or its data are not on this machine.
        """
        self._lock = threading.Lock()  # one network computes all models, so threads take turns
        # How clients were trained plays no part, and may have settings that are gone, or a GPU that is not here.
        read = {"precision"} if str(config["hardware"].get("device")).startswith("cuda") else {"precision", "device"}
        hardware = {key: value for key, value in config["hardware"].items() if key in read}
        run = from_plain({**config, "hardware": hardware})
        protocol = run.protocol
        if protocol.report == "mean_last_5":
            raise FedbenchError(
                "the accuracies of this run are means over the models of five rounds (protocol.report=mean_last_5), so "
                "they belong to no single model; run it with protocol.report=last"
            )
        self._of_final_state = (protocol.score, protocol.report) == ("received", "last")
        sources = trees.under(models, "scored")
        if not (sources or self._of_final_state):
            raise FedbenchError(
                f"the run did not store its scored models (protocol.score={protocol.score}, "
                f"protocol.report={protocol.report}), only those after its last round; run it again with "
                "save_models=true and force=true"
            )
        if row.get("data", (found := fingerprint.content(run.dataset))) != found:
            raise FedbenchError(f"the run used other samples than those of dataset={run.labels['dataset']} now")
        if parts := fingerprint.changed(str(row.get("code") or ""), fingerprint.code_of(run)):
            warn_once(
                f"the run was made by other code ({', '.join(parts)} changed since), so that predictions may differ"
            )
        dataset, partition = split_data(run)
        self.setup = set_up(run, dataset, partition).seen
        self._encode = dataset.encode
        self._tokens = min(network.tokens for network in run.model.networks.values()) if dataset.tokens else 0
        clients, device = self.setup.federation.clients, self.setup.federation.device
        self._sources = restored(sources, clients)
        if self._of_final_state:
            server, memory = (self.setup.federation.placed(trees.under(models, each)) for each in ("server", "memory"))
            kept, none = (ClientMemory(tree, clients, device) for tree in (memory, {}))
            self._state = State(server, kept, none, round=protocol.rounds)
        self._test_set = str(row["test_set"])

    def predict(self, client: int, x: ArrayLike | None) -> Prediction:
        """Predict with the model of `client` for samples x [n, ...] in the data set's units; None: its test samples.

        For a table, x may be a frame with its columns.

        Raises:
            ConfigError: there is no such client, or x are not samples of its kind.
            FedbenchError: the client has no scored model.
        """
        clients = self.setup.federation.clients
        if not 0 <= client < clients:
            raise ConfigError(f"client={client}: this run trained the clients 0 to {clients - 1}")
        modality = self.setup.modality_of(client)
        federation, labels = modality.federation, None
        if x is None:
            inputs, _ = federation.gather(modality.scored.indices(self._test_set, client))
            labels = modality.scored.labels(self._test_set, client)
        else:
            array = self._read(x)
            if array.dtype.kind not in "biuf":
                raise ConfigError(f"x holds {array.dtype}; samples must be numbers")
            given, whole = torch.as_tensor(array), [size for size in federation.shape if size > 1]
            flat = given.dim() == 2 and given.shape[1] == math.prod(federation.shape)
            if not len(given.shape) or not (flat or [size for size in given.shape[1:] if size > 1] == whole):
                raise ConfigError(
                    f"x has the shape {list(given.shape)}; n samples of client {client} have [n, "
                    f"{', '.join(map(str, federation.shape))}]"
                )
            if self._tokens and not np.isin(array, np.arange(self._tokens)).all():
                raise ConfigError(f"x holds {array.min()} to {array.max()}; token ids are 0 to {self._tokens - 1}")
            small = given.is_floating_point() and given.numel() and 0 < given.max() <= 1 < federation.scale
            if small and (most := int(federation.x.max())) > 1:
                warn_once(f"x holds nothing above 1, the data up to {most}; give x in the data's units")
            inputs = federation.normalised(given.reshape(-1, *federation.shape))
            if not inputs.isfinite().all():
                raise ConfigError("x holds nan, inf or a number outside float32; leave these samples out")
        with self._lock:
            scores = LoopedTrainer(modality).predict(model_of(self.setup, client, self._source(client)), inputs)
        found = scores.double().cpu().numpy()
        return Prediction(federation.in_units(found) if modality.task.regresses else found, labels)

    def _read(self, x: ArrayLike) -> NDArray[Any]:
        """Return samples as an array, those of a table as networks read them.

        Raises:
            ConfigError: they are no samples, or words where the table has numbers.
        """
        try:
            return np.array(plain(x)) if self._encode is None else self._encode(x)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"x cannot be read as samples: {reason_of(error)}") from error

    def _source(self, client: int) -> Tree:
        """The sources of the model of `client`. Raises FedbenchError if it has no scored model."""
        if not self._of_final_state:
            if self._sources["round"][client] < 0:
                raise FedbenchError(f"client={client} has no scored model, because no round drew it")
            return trees.row(self._sources, client)
        setup, state = self.setup, self._state
        ids = next(ids for ids in scored_together(setup, state) if client in ids)
        clock = Clock(state.round, setup.protocol.rounds)
        found = sources_of(*received(setup, state, ids), clock, len(ids), trained=False)
        return trees.row(found, int((ids == client).nonzero()))
