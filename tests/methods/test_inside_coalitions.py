"""A method inside coalitions is, in each, that method run on the members alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from fedbench.core import trees
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.methods.fedcollab.fedcollab import FedCollab
from fedbench.methods.oracle import Oracle
from fedbench.methods.parts import clustered
from tests.methods.toys import FOUR, adapted, close, federation, gap, setup, simulate

BASES: list[dict[str, Any]] = [
    {"name": "fedavg"},
    {"name": "fedprox", "mu": 0.5},
    {"name": "fednova"},
    {"name": "finetune"},
    {"name": "perfedavg", "alpha": 0.1},
    {"name": "pfedme", "lam": 1.0, "personal_lr": 0.1},
    {"name": "ditto"},
    {"name": "scaffold"},
    {"name": "scaffold", "weighted": True, "option": 1},
    {"name": "feddyn", "weighted": True},
    {"name": "fedbabu", "tune_epochs": 1},
    {"name": "apfl"},
]


def pairs(base: dict[str, Any]) -> Oracle:
    """Coalitions {0, 2} and {1, 3}."""
    return Oracle(base=base, coalition=(0, 1, 0, 1))


@dataclass(frozen=True)
class Pairs(FedCollab):
    """FedCollab after it has found the same."""

    def prepare(self, preparation: Any, server: Tree, memory: Tree) -> tuple[Tree, Tree]:
        return Oracle(self.base, (0, 1, 0, 1)).prepare(preparation, server, memory)


@pytest.mark.parametrize("outer", [pairs, lambda base: Pairs(base=base)], ids=["oracle", "fedcollab"])
@pytest.mark.parametrize("base", BASES, ids=lambda base: "-".join(map(str, base.values())))
def test_a_coalition_is_the_base_on_its_members(base: dict[str, Any], outer: Any) -> None:
    chosen = setup(outer(base), federation(FOUR), rounds=2, epochs=1)
    everyone = adapted(chosen, simulate(chosen))
    for members in ([0, 2], [1, 3]):
        alone = setup(pairs(base).inner, federation(FOUR, ids=members), rounds=2, epochs=1)
        expected = adapted(alone, simulate(alone))
        assert close({k: v[members] for k, v in everyone.items()}, expected, 1e-9)
    first, second = (trees.row(everyone, k) for k in (0, 1))
    assert gap(first, second) > 1e-3


@pytest.mark.parametrize("base", [{"name": "scaffold"}, {"name": "feddyn"}])
def test_a_coalitions_server_counts_its_members_not_all_clients(base: dict[str, Any]) -> None:
    """With two of four clients a round, one or none of a coalition: shares are of its two members."""
    chosen = setup(pairs(base), federation(FOUR), rounds=3, cohort=0.5)
    assert len({chosen.draw_cohort(Clock(t, 3)).tolist()[0] for t in range(3)}) > 1
    state = simulate(chosen)
    for k, members in enumerate(([0, 2], [1, 3])):
        own = trees.row(trees.part(state.server, "base"), k)
        mean = {name: leaf[members].mean(0) for name, leaf in state.memory.items()}
        kept = trees.part(own, "control") or {name: -leaf for name, leaf in trees.part(own, "drift").items()}
        assert close(kept, mean, 1e-10)


def collaboration(base: dict[str, Any], **options: Any) -> tuple[Tensor | None, Tensor | None]:
    """(W inside coalitions {0, 2} and {1, 3}, W of either run alone put together) after two rounds."""
    chosen = setup(pairs(base), federation(FOUR), rounds=2, epochs=1, **options)
    found = chosen.method.collaboration(simulate(chosen).server, chosen.population)
    expected = torch.zeros(4, 4, dtype=torch.float64)
    for members in ([0, 2], [1, 3]):
        alone = setup(pairs(base).inner, federation(FOUR, ids=members), rounds=2, epochs=1, **options)
        own = alone.method.collaboration(simulate(alone).server, alone.population)
        if own is None:
            return found, None
        expected[torch.tensor(members).unsqueeze(1), members] = own.to(torch.float64)
    return found, expected


@pytest.mark.parametrize("base", ["pfedgraph", "fedsac", "fedamp", "fedfomo", "fedrema", "pfedsim"])
def test_who_shares_is_as_the_base_says_within_each_coalition(base: str) -> None:
    found, expected = collaboration({"name": base})
    assert found is not None
    assert expected is not None
    assert close(found, expected, 1e-9)


def test_who_shares_by_clusters_within_coalitions() -> None:
    base = {"name": "oracle", "coalition": [0, 0, 0, 1]}
    chosen = setup(pairs(base), federation((6, 9, 18, 8)), rounds=1)
    found = chosen.method.collaboration(simulate(chosen).server, chosen.population)
    assert found is not None
    expected = [[0.25, 0, 0.75, 0], [0, 1, 0, 0], [0.25, 0, 0.75, 0], [0, 0, 0, 1]]
    assert close(found, torch.tensor(expected, dtype=torch.float64), 1e-12)


@pytest.mark.parametrize("base", ["fedavg", "ditto", "fedper", "scaffold"])
def test_who_shares_an_average_has_shares(base: str) -> None:
    found, _ = collaboration({"name": base})
    assert found is not None
    assert torch.equal(found, torch.from_numpy(clustered.size_weights([0, 1, 0, 1], FOUR)))


@pytest.mark.parametrize(
    "base",
    [
        {"name": "local"},
        {"name": "fedavg", "private": ["*"]},
        {"name": "fedproto"},
        {"name": "pfedhn"},
        {"name": "ifca"},
        {"name": "oracle", "base": {"name": "local"}},
    ],
    ids=lambda base: "-".join(map(str, base.values())),
)
def test_who_shares_is_not_said_where_the_base_averages_nothing(base: dict[str, Any]) -> None:
    chosen = setup(pairs(base), federation(FOUR), rounds=1)
    assert chosen.method.collaboration(simulate(chosen).server, chosen.population) is None


def test_what_the_base_records_is_kept_of_each_coalition() -> None:
    chosen = setup(pairs({"name": "fedrema"}), federation(FOUR), rounds=2, epochs=1)
    kept = chosen.method.record(simulate(chosen).server)
    assert {name: leaf.nonzero().flatten().tolist() for name, leaf in kept.items()} == {
        "ccp_rounds:0": [0, 2],
        "ccp_rounds:1": [1, 3],
    }
