"""FedSaC of two modalities and methods inside each kind: limits in which they are others, and rounds by hand."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.data.federation import Federation
from fedbench.engine.contract import Clock
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedsac import FedSaC, MultimodalFedSaC
from fedbench.methods.parts import features, mixing
from fedbench.methods.per_kind import PerKind
from tests.helpers.pair import KIND, apart, pair, personal, simulate, trainer
from tests.helpers.tiers import sampled
from tests.methods import toys
from tests.methods.toys import close

TEXT: dict[str, Any] = {"similarity": "parameters", "snap": None, "alpha": 0.9, "beta": 1.4}
CODE: dict[str, Any] = {
    "alpha": 0.9,
    "beta": 1.4,
    "reference": "directions",
    "similarity": "updates",
    "snap": 0.9,
    "attract": False,
    "from_round": 1,
}


# ---- multimodal FedSaC


@pytest.mark.parametrize("fields", sampled([TEXT, CODE], every=2), ids=["text", "code"])
def test_with_one_modality_it_is_fedsac(fields: dict[str, Any]) -> None:
    ours, plain = (toys.setup(cls(**fields), rounds=3) for cls in (MultimodalFedSaC, FedSaC))
    assert close(toys.models(ours, toys.simulate(ours)), toys.models(plain, toys.simulate(plain)))


@pytest.mark.parametrize("fields", sampled([TEXT, CODE], every=2), ids=["text", "code"])
def test_without_weights_across_it_is_fedsac_inside_each_modality(fields: dict[str, Any]) -> None:
    ours = pair(MultimodalFedSaC(heads="apart", **fields))
    inside = pair(PerKind(base=FedSaC(**fields)))
    assert apart(personal(ours, simulate(ours)), personal(inside, simulate(inside))) < 1e-10


def test_without_similarity_and_complementarity_it_averages_each_leaf_over_its_clients() -> None:
    ours, average = pair(MultimodalFedSaC(alpha=0.0, beta=0.0, lam=0.0)), pair(FedAvg())
    assert apart(personal(ours, simulate(ours)), personal(average, simulate(average))) < 1e-10


def test_without_similarity_modalities_mix_by_size_alone() -> None:
    chosen, uploads = trained(MultimodalFedSaC(**{**TEXT, "beta": 0.0}))
    heads = chosen.method.graph({}, uploads, chosen.cohort(chosen.everyone, Clock(0, 3)))["@head"]
    cost = by_hand(uploads, 0.9, 0.0)
    p = chosen.population.sizes / chosen.population.sizes.sum()
    assert close(heads, mixing.closest(p, cost))


@pytest.mark.parametrize("heads", ["across", "all"])
def test_the_graph_by_hand(heads: str) -> None:
    method = MultimodalFedSaC(**{**TEXT, "alpha": 0.7, "beta": 1.2}, heads=heads)
    chosen, uploads = trained(method)
    graph = method.graph({}, uploads, chosen.cohort(chosen.everyone, Clock(0, 3)))
    sizes = chosen.population.sizes
    flat = torch.cat([uploads[name].flatten(1) for name in ("head.weight", "head.bias")], 1)
    across = -1.2 * functional.cosine_similarity(flat[:, None], flat[None], dim=2)
    cost = torch.where(same() & (heads == "across"), by_hand(uploads, 0.7, 1.2), across)
    assert close(graph["@head"], mixing.closest(sizes / sizes.sum(), cost), 1e-9)
    for members in ([0, 1], [2, 3, 4]):
        p = sizes[members] / sizes[members].sum()
        block = by_hand(uploads, 0.7, 1.2)[members][:, members]
        assert close(graph["*"][members][:, members], mixing.closest(p, block), 1e-9)
    assert not graph["*"][~same()].any()


def test_heads_that_point_apart_stay_in_their_modality() -> None:
    method = MultimodalFedSaC(**{**TEXT, "beta": 50.0})
    chosen, uploads = trained(method, sizes=(9, 9, 9, 9, 9))
    for leaf in ("head.weight", "head.bias"):
        uploads[leaf] = torch.where(torch.tensor(KIND).view(-1, *[1] * (leaf == "head.weight"), 1) == 0, 1.0, -1.0)
        uploads[leaf] = uploads[leaf].expand(5, *((4, 8) if leaf == "head.weight" else (4,))).double()
    graph = method.graph({}, uploads, chosen.cohort(chosen.everyone, Clock(2, 3)))
    assert close(graph["@head"], graph["*"])


def same() -> Tensor:
    kind = torch.tensor(KIND)
    return kind[:, None] == kind


def trained(method: MultimodalFedSaC, **options: Any) -> tuple[Setup, Tree]:
    """A federation, and what its clients upload in the first round."""
    chosen = pair(method, **options)
    state = Simulation(chosen, trainer(chosen)).begin()
    message = method.send(state.server, chosen.cohort(chosen.everyone, Clock(0, 3)))
    return chosen, trainer(chosen).train(chosen.everyone, message, {}, Clock(0, 3)).uploads


def by_hand(uploads: Tree, alpha: float, beta: float) -> Tensor:
    """Alpha C - beta S of clients of one kind; the other pairs mean nothing."""
    cost = torch.zeros(5, 5, dtype=torch.float64)
    for kind, members in (("image", [0, 1]), ("text", [2, 3, 4])):
        names = [n for n in uploads if n.startswith((f"{kind}.", "head."))]
        flat = torch.cat([uploads[name][members].flatten(1) for name in names], 1)
        similarity = functional.cosine_similarity(flat[:, None], flat[None], dim=2)
        found = alpha * features.complementarity(uploads["subspace/U"][members]) - beta * similarity
        cost[torch.tensor(members)[:, None], torch.tensor(members)] = found
    return cost


# ---- inside each kind


@pytest.mark.parametrize("base", ["fedavg", "ditto", "pfedgraph", "fedcollab"])
def test_inside_one_kind_it_is_the_base(base: str) -> None:
    small = {"discriminator": {"rounds": 3, "hidden": 4}, "restarts": 2} if base == "fedcollab" else {}
    inner = PerKind(base={"name": base, **small}).inner
    ours, plain = toys.setup(PerKind(base=inner), few()), toys.setup(inner, few())
    first, second = toys.simulate(ours), toys.simulate(plain)
    assert close(toys.models(ours, first), toys.models(plain, second))
    assert (first.bytes_up, first.bytes_down) == (second.bytes_up, second.bytes_down)


def few() -> Federation:
    """FedCollab's clients have two samples at least."""
    return toys.federation((5, 13, 8))


@pytest.mark.parametrize("base", sampled(["fedavg", "ditto", "pfedgraph"], every=3))
def test_a_kind_goes_on_as_if_it_were_alone(base: str) -> None:
    chosen = pair(PerKind(base={"name": base}))
    found = personal(chosen, simulate(chosen))
    for kind, ids in enumerate(([0, 1], [2, 3, 4])):
        whole = chosen.modalities[kind].federation
        only = copy.copy(whole)
        only.sets = {n: pick(each, ids) for n, each in whole.sets.items()}
        only.ids = ids
        only.population = only._population()
        method = chosen.method.inner  # type: ignore[attr-defined]
        alone = Setup(method, chosen.task.modalities[kind], only, chosen.protocol, 0)
        expected = personal(alone, toys.simulate(alone))  # type: ignore[arg-type]
        assert apart(expected, [found[k] for k in ids]) < 1e-10


def pick(sets: Any, ids: list[int]) -> Any:
    return type(sets).of([sets[k].numpy() for k in ids], torch.device("cpu"))


# ---- refused


@pytest.mark.parametrize("base", ["fedcollab", "kmeans", "fesem"])
def test_a_method_that_prepares_with_everybody_is_not_put_inside(base: str) -> None:
    with pytest.raises(ConfigError, match="prepares with the data of all clients"):
        pair(PerKind(base={"name": base}))


@pytest.mark.parametrize("name", ["fedsac", "pfedsim", "ifca"])
def test_a_method_that_cannot_mix_unlike_clients_is_refused(name: str) -> None:
    from fedbench.methods import METHODS

    with pytest.raises(ConfigError, match=r"leaf by leaf.*fedsac_multimodal.*method=per_kind"):
        pair(METHODS.build({"name": name}))
