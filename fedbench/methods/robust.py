"""Robust averages under attack: other averages of the uploads than the mean, and clients that attack them.

The server of a method that averages (`base`) takes another average of the round's C uploads u_k, by `rule`:
- median: of each entry (Yin et al., ICML 2018);
- trimmed: the mean of each entry without the b largest and the b smallest, b = floor(trim C) (Yin et al.);
- krum: the upload whose C - b - 2 nearest others are nearest, by the sum of squared distances (Blanchard et al.,
  NeurIPS 2017);
- geometric: argmin_z sum_k (n_k / n) ||u_k - z||, by Weiszfeld's steps (RFA; Pillutla et al., IEEE TSP 2022);
- mean: the base's own, for comparison.
A share `attackers` of all clients, drawn once, attacks in every round in which it takes part. m is the server's model,
and u what an honest client would upload. By `attack` an attacker uploads
- sign: m - scale (u - m);
- noise: u + scale e, with e standard normal;
- labels: what it trains with labels K - 1 - y instead of y.

Deviations:
- All rules count clients alike, except mean and geometric.
- There are 200 steps of Weiszfeld. RFA's code takes at most four.
- Attackers are scored as all others: their test samples and what they tune before scoring are honest. So are clients
  that no round met.

Batch normalisation: statistics are attacked and averaged as weights are. They count in Krum's distances.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedbench.config.fields import one_of, positive, share
from fedbench.config.schema import LocalConfig
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Clock, Cohort, Conformance, Stage
from fedbench.methods.parts.clustered import WrapperMethod, default_base
from fedbench.models.task import Task

STEPS, NEAR = 200, 1e-8  # of Weiszfeld; the least distance that it divides by


@dataclass(frozen=True)
class Robust(WrapperMethod):
    """Another average than the mean, and clients that attack it.

    Server: base/**; attacker [N], 1 for one that attacks
    Memory: ** [N, ...] if the base has any; attack/labels [N] if labels are attacked
    Message: **, the base's
    Upload: **, the base's
    """

    base: Any = field(default_factory=default_base)  # the method inside
    rule: str = one_of("median", "trimmed", "krum", "geometric", "mean")
    trim: float = share(0.2, below=True)  # of a round's clients: how many trimmed cuts at either end, krum distrusts
    attack: str = one_of("none", "sign", "noise", "labels")
    attackers: float = share(0.0)  # of all clients
    scale: float = positive(1.0)  # of what attackers upload

    paper: ClassVar[str] = "Yin et al., ICML 2018"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_average()
        if self.attackers and self.attack == "none":
            raise ConfigError(
                f"method.attackers={self.attackers} has no effect with attack=none; choose an attack, or attackers=0"
            )
        if self.scale != 1 and self.attack not in ("sign", "noise"):
            raise ConfigError(f"method.scale={self.scale} needs attack=sign or noise")

    @property
    def family(self) -> str:  # type: ignore[override]
        """That of the method inside."""
        return self.inner.family

    @property
    def unfit(self) -> Mapping[str, str]:
        mislabelled = {"regression": "turns classes around"} if self.attack == "labels" else {}
        return {**super().unfit, **mislabelled}

    @property
    def conformance(self) -> Conformance:
        return replace(self.inner.conformance, draws_by_position="attackers are drawn" if self.attackers else "")

    def shares(self, sizes: Tensor) -> Tensor | None:
        return super().shares(sizes) if self.rule == "mean" else None

    # ---- server

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Start as the method inside; then draw who attacks.

        Raises:
            ConfigError: nobody is to attack although some should.
        """
        server, memory = super().init(task, population, generator)
        attacker, count = torch.zeros(population.clients), rounded_down(self.attackers, population.clients)
        if self.attackers and not count:
            raise ConfigError(
                f"method.attackers={self.attackers} of {population.clients} clients is nobody; give at least "
                f"{math.ceil(1000 / population.clients) / 1000:g}, or attackers=0"
            )
        drawn = torch.randperm(population.clients, generator=generator)
        attacker[drawn[:count]] = 1
        known = {"attack/labels": attacker} if self.attack == "labels" else {}
        return {**server, "attacker": attacker}, memory | known

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Average what arrives, attacked where attackers sent it."""
        base = trees.under(server, "base")
        uploads = self.attacked(base, uploads, server["attacker"].cpu()[cohort.ids] > 0, cohort)
        return {**server, **trees.join(base={**base, **self.average(uploads, cohort)})}

    def attacked(self, base: Tree, uploads: Tree, attacking: Tensor, cohort: Cohort) -> Tree:
        """Return what the clients send, of what they would [C, ...]; `attacking` is bool [C]."""
        if self.attack not in ("sign", "noise") or not attacking.any():
            return uploads
        ids, sent = attacking.nonzero().flatten(), {}
        for name in sorted(uploads):
            honest = uploads[name][ids.to(uploads[name].device)]
            if self.attack == "sign":
                held = base[name]
                sent[name] = held - self.scale * (honest - held)
            else:
                noise = torch.randn(honest.shape, generator=cohort.generator)
                sent[name] = honest + self.scale * noise.to(honest)
        return trees.put(uploads, ids, sent)

    def average(self, uploads: Tree, cohort: Cohort) -> Tree:
        """Return the average by `rule` of uploads [C, ...]."""
        count = len(cohort.ids)
        if self.rule == "mean":
            return cohort.mean(uploads)
        if self.rule in ("median", "trimmed"):
            cut = (count - 1) // 2 if self.rule == "median" else min(rounded_down(self.trim, count), (count - 1) // 2)
            return {name: leaf.sort(dim=0).values[cut : count - cut].mean(0) for name, leaf in uploads.items()}
        points = trees.flatten(uploads).double()
        squared = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").square().cpu()
        if self.rule == "krum":
            weights = nearest_to_others(squared, max(1, count - rounded_down(self.trim, count) - 2))
        else:
            weights = geometric_median(squared, cohort.weights)
        return trees.mean(uploads, weights)

    # ---- client: attackers train with the labels K - 1 - y

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        stages = super().stages(local, clock)
        if self.attack != "labels" or clock.round >= clock.rounds:  # after the last round clients only fit a model
            return stages
        return tuple(
            replace(
                stage,
                loss=None if stage.loss is None else Misled(stage.loss),
                direction=None if stage.direction is None else Misled(stage.direction),
            )
            for stage in stages
        )

    def start(self, client: Client) -> Tree:
        return super().start(honest(client))

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload as the method inside, and remember who one is."""
        upload, memory = super().finish(work, honest(client))
        return upload, memory | {name: leaf for name, leaf in client.memory.items() if name == "attack/labels"}

    def model(self, work: Tree, client: Client) -> Tree:
        return super().model(work, honest(client))

    def personal(self, client: Client) -> Tree:
        return super().personal(honest(client))

    def draw(self, generator: torch.Generator, steps: int, client: Client) -> Tree:
        return super().draw(generator, steps, honest(client))


@dataclass(frozen=True)
class Misled:
    """A loss or direction on the labels that attackers train with."""

    function: Callable[[Tree, Client, Batch], Any]

    def __call__(self, work: Tree, client: Client, batch: Batch) -> Any:
        attacks = client.memory["attack/labels"] > 0
        labels = torch.where(attacks, client.task.classes - 1 - batch.y, batch.y)
        return self.function(work, honest(client), replace(batch, y=labels))


def rounded_down(share: float, count: int) -> int:
    """Return `share` of `count` clients, rounded down: 29 of 100 for the share 0.29, whose float is a little less."""
    return int(share * count + 1e-9)


def honest(client: Client) -> Client:
    """Return the client as the method inside knows it."""
    return replace(client, memory=trees.without(client.memory, "attack"))


def nearest_to_others(squared: Tensor, count: int) -> Tensor:
    """Return weights [C] of 1 for the point with the least sum of squared distances to its `count` nearest others.

    `squared` [C, C] are the squared distances.
    """
    others = squared.sort(dim=1).values[:, 1 : 1 + count].sum(1)
    return torch.nn.functional.one_hot(others.argmin(), len(squared)).to(squared.dtype)


def geometric_median(squared: Tensor, shares: Tensor) -> Tensor:
    """Return weights [C] of points whose sum is their geometric median, in which each counts by its `shares` [C].

    `squared` [C, C] are the squared distances.
    """
    weights = shares
    for _ in range(STEPS):
        apart = squared @ weights - weights @ squared @ weights / 2  # of each point from the weighted sum, squared
        weights = shares / apart.clamp(min=0).sqrt().clamp(min=NEAR)
        weights = weights / weights.sum()
    return weights
