"""What a run can store besides its scores: `record=[cka,similarity@1,50]`, by recorder and rounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedbench.config.fields import Registry
from fedbench.core import trees
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.data.dataset import spread
from fedbench.engine.recording import PREFIX, ROUND, Arrays, Recorder, RoundContext
from fedbench.methods import fedrema
from fedbench.methods.parts import features, simplex
from fedbench.methods.parts.mixing import cosines
from fedbench.methods.sosicfl import model_at, without_regions
from fedbench.models.task import Task


def parse(entries: Sequence[str], rounds: int) -> tuple[Recorder, ...]:
    """The recorders that `record` of a run of `rounds` lists; a number alone is another round of the entry before it.

    Raises:
        UnknownName: no such recorder.
        ConfigError: a round that is no number or not there, or without a recorder, or a recorder named twice.
    """
    found: dict[str, list[int]] = {}
    for entry in map(str, entries):
        name, _, first = (f"{list(found)[-1]}@{entry}" if entry.isdigit() and found else entry).partition("@")
        if first and not first.isdigit():
            raise ConfigError(f"record={entry}: rounds are numbers, as in record=[{name}@1,50,100]")
        if name in found and not entry.isdigit():
            raise ConfigError(f"record: '{name}' is named twice; list its rounds, as in record=[{name}@1,50]")
        found.setdefault(name, []).extend([int(first)] if first else [])
    recorders = [RECORDERS.build({"name": name, "rounds": sorted(set(chosen))}) for name, chosen in found.items()]
    for name, done in ((each.name, done) for each in recorders for done in each.rounds):
        if not 1 <= done <= rounds:
            raise ConfigError(f"record={name}@{done}: the run has rounds 1 to {rounds}")
    return tuple(recorders)


def listed(wanted: Iterable[Recorder], kept: Mapping[str, np.ndarray], rounds: int) -> list[str]:
    """Return the `record` entries with which a run of `rounds` has all that is `wanted` and that arrays `kept` have."""
    found: dict[str, set[int]] = {}
    for key, array in kept.items():
        parts = key.split("/")
        if parts[0] == PREFIX and parts[-1] == ROUND and parts[1] in RECORDERS:
            found.setdefault(parts[1], set()).update(np.asarray(array).tolist())
    for each in wanted:
        found.setdefault(each.name, set()).update(r for r in range(1, rounds + 1) if each.due(r, rounds))
    return [
        f"{name}@{done}" if place == 0 else str(done)
        for name in sorted(found)
        for place, done in enumerate(sorted(found[name]))
    ]


SAMPLES = 256  # inputs that layers are compared on
VALUE = "value"


@dataclass(frozen=True)
class CKA(Recorder):
    """Linear centred kernel alignment of two clients' outputs of a layer, [layers, N, N] (pFedSim, Figure 1).

    X, Y [n, p] are centred over the samples: |Y^T X|_F^2 / (|X^T X|_F |Y^T Y|_F) (Kornblith et al., ICML 2019, Eq. 4).
    Layers are the convolutions and linear maps; the inputs are spread evenly over the test set.
    """

    name: ClassVar[str] = "cka"

    def look(self, moment: RoundContext) -> Arrays:
        federation = moment.setup.federation
        pool = federation.global_test
        if not len(pool):
            pool = torch.arange(len(federation.y), device=federation.device)
        x, _ = federation.gather(pool[spread(len(pool), min(len(pool), SAMPLES))])
        each = [
            outputs(moment.setup.task, trees.row(moment.models, client), x) for client in range(len(moment.cohort.ids))
        ]
        layers = [torch.stack([kernel(model[layer]) for model in each]) for layer in range(len(each[0]))]
        return {VALUE: moment.square(torch.stack([kernels @ kernels.t() for kernels in layers]))}


def outputs(task: Task, model: Tree, x: Tensor) -> list[Tensor]:
    """Return the output of each convolution and linear map of the network for `x`, [n, ...]."""
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
    several: ClassVar[bool] = True

    def look(self, moment: RoundContext) -> Arrays:
        last = moment.setup.task.split(moment.models, ("head.*",))[0].values()
        rows = torch.cat([leaf.flatten(2) for leaf in last if leaf.dim() > 2], dim=2)  # [C, K, d]
        return {VALUE: moment.square(torch.stack([cosines(each) for each in rows.unbind(1)]))}


@dataclass(frozen=True)
class ModelCosine(Recorder):
    """Cosine of two clients' weights, [N, N] (FedSaC, Eq. 4)."""

    name: ClassVar[str] = "model_cosine"

    def look(self, moment: RoundContext) -> Arrays:
        weights = moment.setup.task.weights(moment.models)
        return {VALUE: moment.square(cosines(trees.flatten(weights)))}


def changes(leaves: Tree, message: Tree) -> Tree:
    """Return `leaves` minus the sent leaves, where one of each name is sent; IFCA sends several."""
    sent = {name: leaf for name, leaf in leaves.items() if name in message and message[name].shape == leaf.shape}
    return {name: leaf - message[name] for name, leaf in sent.items()}


@dataclass(frozen=True)
class UpdateCosine(Recorder):
    """Cosine of the changes of two clients' weights in a round's training, [N, N]."""

    name: ClassVar[str] = "update_cosine"

    def look(self, moment: RoundContext) -> Arrays:
        weights = moment.setup.task.weights(moment.models)
        change = changes(weights, moment.message)
        if missing := sorted(set(weights) - set(change)):
            raise ConfigError(f"the server does not send one '{missing[0]}', so its change is not known")
        return {VALUE: moment.square(cosines(trees.flatten(change)))}


@dataclass(frozen=True)
class UpdateVariance(Recorder):
    """Sum over clients of |d_k - mean d|^2 of the classifier's updates d (SosicFL, Eq. 10).

    Every leaf of the classifier layer that is sent and uploaded counts, so all endpoints of a simplex do.
    """

    name: ClassVar[str] = "update_variance"
    always: ClassVar[bool] = True
    several: ClassVar[bool] = True

    def look(self, moment: RoundContext) -> Arrays:
        head = moment.setup.task.groups["@head"]
        uploads = {name: leaf for name, leaf in moment.uploads.items() if name.rpartition("/")[2] in head}
        if not (moved := changes(uploads, moment.message)):
            raise ConfigError("its clients do not receive or do not upload one classifier")
        change = trees.flatten(moved).to(torch.float64)
        return {VALUE: (change - change.mean(0)).square().sum().cpu().numpy()}


TEMPERATURE = 0.5  # of FedReMa's soft predictions
DIRECTIONS = 3  # of FedSaC's subspaces


@dataclass(frozen=True)
class Collaboration(Recorder):
    """The collaboration matrix W [N, N] after the round."""

    name: ClassVar[str] = "collaboration"
    several: ClassVar[bool] = True

    def look(self, moment: RoundContext) -> Arrays:
        matrix = moment.setup.method.collaboration(moment.server, moment.setup.population)
        if matrix is None:
            raise ConfigError("it has no collaboration matrix")
        return {VALUE: matrix.double().cpu().numpy()}


@dataclass(frozen=True)
class Similarity(Recorder):
    """S [N, N], cosines of the outputs of clients' classifiers for one random feature (FedReMa, Eqs. 4-5, Figure 3)."""

    name: ClassVar[str] = "similarity"

    def look(self, moment: RoundContext) -> Arrays:
        stage = fedrema.classifier_stage(moment.setup.task, ("@classifier",))
        probe = fedrema.Probe(TEMPERATURE, 1.0, per_client=False, temper_all=True)
        cohort = replace(moment.cohort, generator=moment.generator(self.name))
        return {VALUE: moment.square(probe.similarities(moment.models, stage, cohort))}


@dataclass(frozen=True)
class Complementarity(Recorder):
    """C [N, N], cosines of the mean angle between clients' subspaces of features (FedSaC, Eqs. 5-7, k = 3)."""

    name: ClassVar[str] = "complementarity"

    def look(self, moment: RoundContext) -> Arrays:
        setup = moment.setup
        products = [
            features.products(trees.row(moment.models, place), setup.federation.all_of(client), setup.task)
            for place, client in enumerate(moment.cohort.ids.tolist())
        ]
        bases = torch.vmap(lambda each: features.directions(each, DIRECTIONS))(trees.stack(products))
        return {VALUE: moment.square(features.complementarity(bases))}


POINTS = 2000


@dataclass(frozen=True)
class Simplex(Recorder):
    """Accuracy of the models at `points` [2000, M + 1] drawn uniformly from the simplex.

    `global` [2000] is on the test set (nan where there is none), `local` [2000, N] on each client's own test samples.
    """

    name: ClassVar[str] = "simplex"

    def fits(self, moment: RoundContext) -> None:
        """Raise ConfigError where there are no endpoints."""
        if not trees.under(moment.server, "endpoints"):
            raise ConfigError("its model has no endpoints; sosicfl and its presets have")

    def look(self, moment: RoundContext) -> Arrays:
        self.fits(moment)
        setup, work = moment.setup, without_regions(moment.server)
        corners = len(next(iter(trees.part(work, "endpoints").values())))
        points = simplex.dirichlet(POINTS, corners, moment.generator(self.name))
        federation = setup.federation
        tests = [federation.global_test, *(federation.sets["local"][k] for k in range(federation.clients))]
        samples = torch.cat(tests)
        hits = torch.from_numpy(self._hits(moment, work, points, samples))  # [P, all samples]
        each = hits.split([len(test) for test in tests], dim=1)
        found = np.stack([part.double().mean(1).numpy() for part in each], axis=1)
        # Where the splits are pooled, clients train on the test set too.
        trained = bool(torch.isin(federation.global_test, federation.sets["train"].values).any())
        return {
            "points": points.numpy(),
            "global": np.full(POINTS, np.nan) if trained else found[:, 0],
            "local": found[:, 1:],
        }

    def _hits(self, moment: RoundContext, work: Tree, points: Tensor, samples: Tensor) -> np.ndarray:
        """Whether the model at each point is right, bool [P, n]; the part without endpoints runs once."""
        task = moment.setup.task
        x, y = moment.setup.federation.gather(samples)
        model = model_at(work, points[0].to(x))
        inside = set(trees.part(work, "endpoints")) <= task.groups["@head"]
        z = task.apply(model, x, until="head") if inside else x
        since = "head" if inside else None
        rows = [task.apply(model_at(work, alpha.to(x)), z, since=since).argmax(1) == y for alpha in points]
        return torch.stack(rows).cpu().numpy()


CLASSES: tuple[type[Recorder], ...] = (CKA, ClassifierCosine, Collaboration, Complementarity, ModelCosine)
CLASSES += (Similarity, Simplex, UpdateCosine, UpdateVariance)
RECORDERS: Registry[Recorder] = Registry("recorder", {each.name: f"{__name__}:{each.__name__}" for each in CLASSES})
