"""Low-rank adapters: rounds by hand of its three forms, what crosses the network, and its limits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedbench.core import trees
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.engine.simulation import Simulation
from fedbench.methods.fedlora import FedLoRA, FedSALoRA, FFALoRA
from fedbench.models.small import LeNet5
from fedbench.testing.toys import ToyMeter
from tests.methods.test_histories import LR, SIZES, average, loss_on, played, same, stacked
from tests.methods.toys import BODY, HEAD, derivative, federation, gap, initial, run, samples, setup

FOUR = range(4)
RANK, ALPHA = 2, 3.0
W, A, B = "fc.0.weight", "A/fc.0.weight", "B/fc.0.weight"
FORMS = {"fedlora": FedLoRA, "ffa_lora": FFALoRA, "fedsa_lora": FedSALoRA}
AVERAGED = {"fedlora": {A, B, *HEAD}, "ffa_lora": {B, *HEAD}, "fedsa_lora": {A}}
TRAINED = {"fedlora": {A, B, *HEAD}, "ffa_lora": {B, *HEAD}, "fedsa_lora": {A, B, *HEAD}}


def method(form: str) -> FedLoRA:
    return FORMS[form](rank=RANK, alpha=ALPHA)


def adapted(w: Tree) -> Tree:
    """The network of a client: W_0 and the outer products of columns of B and rows of A, one by one."""
    found = {n: leaf for n, leaf in w.items() if "/" not in n}
    for t in range(RANK):
        found[W] = found[W] + ALPHA / RANK * torch.outer(w[B][:, t], w[A][t])
    return found


@pytest.mark.parametrize("form", FORMS)
def test_rounds_by_hand(form: str) -> None:
    """A step on what is trained; an average of what is averaged; all else stays."""
    chosen, found = played(method(form))
    data = [samples(chosen, k) for k in FOUR]
    start = Simulation(chosen, ToyMeter(chosen)).begin()
    server, own = start.server, [trees.row(start.memory, k) for k in FOUR]
    assert set(server) == AVERAGED[form]
    assert set(own[0]) == {A, B, *BODY, *HEAD} - AVERAGED[form]
    begun = {**server, **own[0]}
    assert (tuple(begun[A].shape), tuple(begun[B].shape)) == ((RANK, 16), (7, RANK))
    assert bool((begun[B] == 0).all())
    assert 1 / 8 < float(begun[A].abs().max()) <= 1 / 4
    for each in found:
        same(each.message, stacked([server] * 3, sorted(server)))
        trained: dict[int, Tree] = {}
        for k in each.ids:

            def loss(w: Tree, k: int = k) -> Tensor:
                return loss_on(data[k])(adapted(w))

            w = {**server, **own[k]}
            slope = derivative(loss, w)
            w = {n: v - LR * slope[n] if n in TRAINED[form] else v for n, v in w.items()}
            trained[k] = {n: w[n] for n in server}
            own[k] = {n: w[n] for n in own[k]}
        same(each.uploads, stacked([trained[k] for k in each.ids], sorted(server)))
        server = average(trained, sorted(server))
        same(each.server, server)
        same(each.memory, stacked(own, sorted(own[0])))
        same(each.scored, stacked([adapted({**server, **own[k]}) for k in FOUR]))


@pytest.mark.parametrize("form", FORMS)
def test_bytes_are_those_of_what_is_averaged(form: str) -> None:
    _, state = run(method(form))
    assert set(state.server) == AVERAGED[form]
    assert state.bytes_up == 3 * len(SIZES) * 8 * sum(leaf.numel() for leaf in state.server.values())


def test_the_network_stays_as_it_was_drawn() -> None:
    chosen, state = run(method("fedlora"))
    begun = trees.row(Simulation(chosen, ToyMeter(chosen)).begin().memory, 0)
    for k in FOUR:
        assert gap(trees.row(state.memory, k), begun) == 0


def test_an_average_of_products_is_the_product_of_averages_where_a_is_frozen() -> None:
    """FFA-LoRA's reason: sum_k p_k B_k A = (sum_k p_k B_k) A, which does not hold where A moves too."""
    for form, equal in (("ffa_lora", True), ("fedlora", False)):
        _, found = played(method(form), cohort=4)
        each = found[-1]
        p = torch.tensor(SIZES, dtype=torch.float64) / sum(SIZES)
        before = {n: each.memory[n] if n in each.memory else each.uploads[n] for n in (A, B)}
        products = torch.einsum("k,kor,krd->od", p, before[B], before[A])
        averaged = {n: torch.einsum("k,k...->...", p, before[n]) for n in (A, B)}
        assert (gap({"": products}, {"": averaged[B] @ averaged[A]}) < 1e-12) is equal


def test_layers_below_the_classifier_layer_are_adapted_and_none_is_refused() -> None:
    """A convolution's weights [o, c, k, k] are a matrix [o, c k k]."""
    chosen = setup(FedLoRA(rank=RANK), federation(SIZES, (1, 16, 16)), LeNet5())
    state = Simulation(chosen, ToyMeter(chosen)).begin()
    layers = {n for n, leaf in initial(chosen).items() if leaf.dim() > 1} - set(HEAD)
    assert {n.partition("/")[2] for n in state.server if n.startswith("A/")} == layers
    assert sorted(initial(chosen)[n].dim() for n in layers) == [2, 2, 4, 4]
    name = next(n for n in sorted(layers) if initial(chosen)[n].dim() == 4)
    own = trees.row(state.memory, 0)
    server = {n: torch.randn(v.shape, generator=torch.Generator().manual_seed(1)) for n, v in state.server.items()}
    client = chosen.client(0, server, own, Clock(0, 1))
    made = chosen.method.model(chosen.method.start(client), client)[name]
    _, into, k, _ = made.shape
    for o, c, u, v in ((0, 0, 0, 0), (3, into - 1, 1, 2), (1, 0, k - 1, k - 2)):
        added = sum(float(server[f"B/{name}"][o, t] * server[f"A/{name}"][t, (c * k + u) * k + v]) for t in range(RANK))
        assert abs(float(made[o, c, u, v] - own[name][o, c, u, v]) - 8 * added) < 1e-5
    refused = setup(FedLoRA(adapted=("*.bias",)))
    with pytest.raises(ConfigError, match=r"method.adapted=\['\*.bias'\]: the network has no such layer"):
        refused.method.init(refused.task, refused.population, torch.Generator().manual_seed(0))
