"""How much of a table's published setting is run: conf/scale/NAME.yaml."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from fedbench.config import cohort, groups
from fedbench.config.registry import typed
from fedbench.core.errors import ConfigError, unknown

LEAST_ROUNDS = 2  # so that what crosses the network between rounds is exercised


@dataclass(frozen=True)
class Scale:
    """What to change in a run's config; the defaults change nothing."""

    name: str
    rounds: float = 1.0  # factor
    epochs: int | None = None  # at most so many a round
    iterations: int | None = None  # at most so many a round, where the protocol counts iterations
    evaluations: int | None = None  # at most so many, evenly spread
    seeds: int | None = None  # instead of the table's
    limit: int | None = None  # training samples of the data set
    clients: int | None = None  # at most so many; a cohort that is a count shrinks with them
    trained: bool = True  # false: too little for the methods' order to mean anything
    partition: dict[str, Any] = field(default_factory=dict)  # name -> fields, for partitions of fixed sizes
    method: dict[str, Any] = field(default_factory=dict)  # name -> fields, for methods of fixed local work

    def __post_init__(self) -> None:
        if not 0 <= self.rounds <= 1:
            raise ConfigError(f"scale.rounds is a share of the rounds in [0, 1], got {self.rounds}")

    @property
    def words(self) -> str:
        """What it changes, in a sentence; "" if nothing."""
        limits = {
            "epochs a round": self.epochs,
            "mini-batches a round, where they are counted": self.iterations,
            "training samples": self.limit,
            "clients": self.clients,
        }
        parts = [f"{self.rounds:.0%} of the rounds but at least {LEAST_ROUNDS}"] if self.rounds < 1 else []
        parts += [f"{what} at most {most}" for what, most in limits.items() if most is not None]
        return f"Scale {self.name}: {'; '.join(parts)}." if parts else ""

    def overrides(self, plain: Mapping[str, Any]) -> list[str]:
        """Overrides that bring the resolved config `plain` to this scale."""
        protocol, local = plain["protocol"], plain["protocol"]["local"]
        rounds = max(min(LEAST_ROUNDS, protocol["rounds"]), math.ceil(self.rounds * protocol["rounds"]))
        found = [] if rounds == protocol["rounds"] else [f"protocol.rounds={rounds}"]
        if self.evaluations is not None:
            every = max(protocol["eval_every"], math.ceil(rounds / self.evaluations))
            found += [] if every == protocol["eval_every"] else [f"protocol.eval_every={every}"]
        kind = "iterations" if local["iterations"] else "epochs"
        most = getattr(self, kind)
        if most is not None and local[kind] > most:
            found.append(f"protocol.local.{kind}={most}")
        limit = plain["dataset"].get("limit")
        if self.limit is not None and (limit is None or limit > self.limit):
            found.append(f"dataset.limit={self.limit}")
        clients = plain["partition"].get("num_clients")
        if self.clients is not None and clients and clients > self.clients:
            found.append(f"partition.num_clients={self.clients}")
            drawn = cohort.parse(str(protocol["cohort"]))
            if isinstance(drawn, int):
                found.append(f"protocol.cohort={max(1, drawn * self.clients // clients)}")
        for group in ("partition", "method"):
            fields = getattr(self, group).get(plain[group]["name"], {})
            found += [f"{group}.{key}={value}" for key, value in fields.items()]
        return found


def load(name: str) -> Scale:
    """The scale in conf/scale/`name`.yaml.

    Raises:
        UnknownName: no such scale, or an unknown key.
    """
    from omegaconf import OmegaConf

    folder = groups.conf_dir() / "scale"
    known = sorted(file.stem for file in folder.glob("*.yaml"))
    if name not in known:
        raise unknown("scale", name, known)
    content = OmegaConf.to_container(groups.load_yaml(folder / f"{name}.yaml"), resolve=True)
    return typed(Scale, cast("dict[str, Any]", content), f"scale '{name}'")
