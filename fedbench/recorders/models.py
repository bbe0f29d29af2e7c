"""Recorders of what clients trained: layers, classifiers, weights, updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedbench.core import trees
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.engine.recording import Arrays, Moment, Recorder
from fedbench.methods.parts.mixing import cosines
from fedbench.models.task import Task

SAMPLES = 256  # inputs that layers are compared on
VALUE = "value"


@dataclass(frozen=True)
class CKA(Recorder):
    """Linear centred kernel alignment of two clients' outputs of a layer, [layers, N, N] (pFedSim, Figure 1).

    X, Y [n, p] are centred over the samples: |Y^T X|_F^2 / (|X^T X|_F |Y^T Y|_F) (Kornblith et al., ICML 2019, Eq. 4).
    Layers are the convolutions and linear maps; the inputs are spread evenly over the test set.
    """

    name: ClassVar[str] = "cka"

    def look(self, moment: Moment) -> Arrays:
        """See Recorder.look."""
        federation = moment.setup.federation
        pool = federation.global_test
        if not len(pool):
            pool = torch.arange(len(federation.y), device=federation.device)
        x, _ = federation.gather(pool[:: max(1, len(pool) // SAMPLES)][:SAMPLES])
        each = [
            outputs(moment.setup.task, trees.row(moment.models, client), x)
            for client in range(len(moment.cohort.ids))
        ]
        layers = [torch.stack([kernel(model[layer]) for model in each]) for layer in range(len(each[0]))]
        return {VALUE: moment.square(torch.stack([kernels @ kernels.t() for kernels in layers]))}


def outputs(task: Task, model: Tree, x: Tensor) -> list[Tensor]:
    """What each convolution and linear map of the network yields for `x`, [n, ...]."""
    net, found = task.fresh().to(x.device).eval(), []
    net.load_state_dict(model)
    hooks = [
        module.register_forward_hook(lambda _module, _inputs, output: found.append(output))
        for module in net.modules()
        if isinstance(module, (nn.Conv2d, nn.Linear))
    ]
    net(x)
    for hook in hooks:
        hook.remove()
    return found


def kernel(output: Tensor) -> Tensor:
    """The centred Gram matrix of `output` [n, ...] as a vector of length 1: products of two are linear CKA."""
    rows = output.flatten(1).to(torch.float64)
    rows = rows - rows.mean(0)
    return functional.normalize((rows @ rows.t()).flatten(), dim=0)


@dataclass(frozen=True)
class ClassifierCosine(Recorder):
    """Cosine of two clients' rows of the classifier for each class, [K, N, N] (pFedSim, Eq. 2 before its mean)."""

    name: ClassVar[str] = "classifier_cosine"

    def look(self, moment: Moment) -> Arrays:
        """See Recorder.look."""
        names = [name for name in moment.setup.task.groups["@head"] if moment.models[name].dim() > 2]
        rows = torch.cat([moment.models[name].flatten(2) for name in sorted(names)], dim=2)  # [C, K, d]
        return {VALUE: moment.square(torch.stack([cosines(each) for each in rows.unbind(1)]))}


@dataclass(frozen=True)
class ModelCosine(Recorder):
    """Cosine of two clients' weights, [N, N] (FedSaC, Eq. 4)."""

    name: ClassVar[str] = "model_cosine"

    def look(self, moment: Moment) -> Arrays:
        """See Recorder.look."""
        weights = moment.setup.task.weights(moment.models)
        return {VALUE: moment.square(cosines(trees.flatten(weights)))}


@dataclass(frozen=True)
class UpdateCosine(Recorder):
    """Cosine of what a round's training changed in two clients' weights, [N, N]."""

    name: ClassVar[str] = "update_cosine"

    def look(self, moment: Moment) -> Arrays:
        """See Recorder.look."""
        weights = moment.setup.task.weights(moment.models)
        if missing := sorted(set(weights) - set(moment.message)):
            raise ConfigError(f"the server does not send '{missing[0]}', so its change is not known")
        change = {name: leaf - moment.message[name] for name, leaf in weights.items()}
        return {VALUE: moment.square(cosines(trees.flatten(change)))}


@dataclass(frozen=True)
class UpdateVariance(Recorder):
    """Sum over clients of |d_k - mean d|^2 of the classifier's updates d (SosicFL, Eq. 10).

    Every leaf of the classifier layer that is sent and uploaded counts, so all endpoints of a simplex do.
    """

    name: ClassVar[str] = "update_variance"
    always: ClassVar[bool] = True

    def look(self, moment: Moment) -> Arrays:
        """See Recorder.look."""
        head = moment.setup.task.groups["@head"]
        moved = {
            name: leaf - moment.message[name]
            for name, leaf in moment.uploads.items()
            if name.rpartition("/")[2] in head and name in moment.message
        }
        if not moved:
            raise ConfigError("its clients are not sent, or do not upload, a classifier")
        change = trees.flatten(moved).to(torch.float64)
        return {VALUE: (change - change.mean(0)).square().sum().cpu().numpy()}
