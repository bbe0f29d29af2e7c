"""What some figures need besides their runs' files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np
import torch

from fedbench.core import rng
from fedbench.core.errors import ConfigError
from fedbench.data import authors as published
from fedbench.data.split import make_partition
from fedbench.figures.plan import FigurePlan
from fedbench.methods.fedcollab import solver
from fedbench.methods.fedcollab.fedcollab import FedCollab
from fedbench.methods.sosicfl import region
from fedbench.methods.sosicfl.sosicfl import SosicFL
from fedbench.runs import fingerprint
from fedbench.runs.config import RunConfig
from fedbench.runs.execution import build

Arrays = Mapping[str, np.ndarray]
MethodT = TypeVar("MethodT")
RESTARTS = 100  # FedCollab, Figure 8
DRAWN = 800  # points a subregion, SosicFL, Figure 3


def _first(plan: FigurePlan) -> RunConfig:
    return plan.runs.entries[0].jobs[0].config


def _method(run: RunConfig, kind: type[MethodT]) -> MethodT:
    if not isinstance(run.method, kind):
        raise ConfigError(f"the figure's first row must be a {kind.__name__}")
    return run.method


def orders(plan: FigurePlan, arrays: Arrays) -> dict[str, np.ndarray]:
    """FedCollab's solver from 100 orders: `values` [orders, visits] of Eq. 10, `iterations` [orders], `clients`.

    An order that has stopped stays where it is.
    """
    run = _first(plan)
    sizes = build(run)[0].population.sizes.numpy()
    generator = np.random.default_rng(run.seed)
    solved = solver.solve(
        sizes, arrays["array/distances/0/0"][0], _method(run, FedCollab).C, RESTARTS, generator, trace=True
    )
    curves = solved.trajectories or ()
    longest = max(map(len, curves))
    return {
        "values": np.array([np.pad(curve, (0, longest - len(curve)), mode="edge") for curve in curves]),
        "iterations": solved.iterations,
        "clients": np.array(len(sizes)),
    }


def label_map(plan: FigurePlan, _arrays: Arrays) -> dict[str, np.ndarray]:
    """`label_map` [N, K]: what each client sees in the place of each label."""
    run = _first(plan)
    dataset = fingerprint.load(run.dataset)
    partition = make_partition(run.partition, dataset, run.protocol.test, run.partition_seed)
    return {"label_map": np.asarray(partition.label_map)}


def draws(plan: FigurePlan, arrays: Arrays) -> dict[str, np.ndarray]:
    """`draws` [clusters, points, 3]: where the clients of each cluster of SosicFL draw, within the L1 `radius`."""
    run, centres = _first(plan), arrays["array/centers/0/0"][0]
    radius = _method(run, SosicFL).rho * region.mean_distance(centres)
    clouds = [
        region.uniform(DRAWN, torch.from_numpy(centre), radius, rng.torch_rng(run.seed, "figure", index))
        for index, centre in enumerate(centres)
    ]
    return {"draws": torch.stack(clouds).numpy(), "radius": np.array(radius)}


def images(plan: FigurePlan, _arrays: Arrays) -> dict[str, np.ndarray]:
    """`images` [domains, H, W, C] in [0, 1], a sample of one class of each domain, and the domains' names.

    Where the data have no domains, the images of clients whose data are transformed stand for them.
    """
    run = _first(plan)
    dataset = fingerprint.load(run.dataset)
    setup, partition, _ = build(run)
    domain = None if dataset.domain is None else np.asarray(dataset.domain)
    chosen, names = [], []
    label = int(dataset.y[partition.train[0][0]])
    if domain is not None:
        for index, name in enumerate(getattr(dataset, "domains", ()) or map(str, np.unique(domain))):
            chosen.append(int(np.flatnonzero((domain == index) & (dataset.y == label))[0]))
            names.append(str(name))
    elif partition.rotation is not None:
        for angle in dict.fromkeys(partition.rotation.tolist()):
            client = int(np.flatnonzero(partition.rotation == angle)[0])
            own = partition.train[client]
            chosen.append(int(own[np.argmax(dataset.y[own] == label)]))
            names.append(f"{angle:+.0f}°")
    shown = setup.federation.unit(torch.tensor(chosen)).clamp(0, 1).permute(0, 2, 3, 1)
    return {"images": shown.cpu().numpy(), "domains": np.array(names)}


def joining(plan: FigurePlan, _arrays: Arrays) -> dict[str, np.ndarray]:
    """`join_round` of FedCollab's newcomers."""
    return {"join_round": np.array(_method(_first(plan), FedCollab).join_round)}


def authors(plan: FigurePlan, _arrays: Arrays) -> dict[str, np.ndarray]:
    """`authors` [N, N]: the distances that FedCollab's authors publish for the partition's scenario, if it is one."""
    name = _first(plan).labels["partition"]
    return {"authors": published.distances(name)} if name in published.SCENARIOS else {}


EXTRAS: dict[str, Callable[[FigurePlan, Arrays], dict[str, np.ndarray]]] = {
    "authors": authors,
    "draws": draws,
    "images": images,
    "joining": joining,
    "label_map": label_map,
    "orders": orders,
}
