"""FedDecomp: rounds by hand, a convolution's sum entry by entry, and its limit."""

from __future__ import annotations

import torch
from torch import Tensor

from fedbench.core import trees
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.engine.simulation import Simulation
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.feddecomp import FedDecomp
from fedbench.models.small import LeNet5
from fedbench.testing.toys import ToyMeter
from tests.methods.test_histories import LR, SIZES, average, loss_on, played, same, stacked
from tests.methods.toys import close, derivative, federation, final, gap, initial, run, samples, setup

FOUR = range(4)
WEIGHTS = ("fc.0.weight", "head.weight")


def summed(w: Tree, rank: int) -> Tree:
    """The network of a client: each weight with its low-rank addition, outer products one by one."""
    found = {n: leaf for n, leaf in w.items() if "/" not in n}
    for n in WEIGHTS:
        for t in range(rank):
            found[n] = found[n] + torch.outer(w[f"B/{n}"][:, t], w[f"A/{n}"][t]) / rank
    return found


def test_rounds_of_feddecomp() -> None:
    """Two local epochs of one batch: first A and B step, then sigma under the new ones; two rounds on, A moves too."""
    rank = 2
    chosen, found = played(FedDecomp(rank=rank, personal_epochs=1), epochs=2, rounds=3)
    data = [samples(chosen, k) for k in FOUR]
    start = Simulation(chosen, ToyMeter(chosen)).begin()
    server, own = initial(chosen), [trees.row(start.memory, k) for k in FOUR]
    assert {n: tuple(leaf.shape) for n, leaf in own[0].items()} == {
        "A/fc.0.weight": (2, 16),
        "B/fc.0.weight": (7, 2),
        "A/head.weight": (2, 7),
        "B/head.weight": (4, 2),
    }
    assert all(bool((own[0][f"B/{n}"] == 0).all()) and float(own[0][f"A/{n}"].abs().max()) > 0 for n in WEIGHTS)
    bounds = {"A/fc.0.weight": 16**-0.5, "A/head.weight": 7**-0.5}
    assert all(bound / 2 < float(own[0][n].abs().max()) <= bound for n, bound in bounds.items())
    for each in found:
        same(each.message, stacked([server] * 3))
        trained: dict[int, Tree] = {}
        for k in each.ids:

            def loss(w: Tree, k: int = k) -> Tensor:
                return loss_on(data[k])(summed(w, rank))

            w = {**server, **own[k]}
            for personal in (True, False):
                slope = derivative(loss, w)
                w = {n: v - LR * slope[n] if ("/" in n) is personal else v for n, v in w.items()}
            trained[k] = {n: w[n] for n in server}
            own[k] = {n: w[n] for n in own[k]}
        same(each.uploads, stacked([trained[k] for k in each.ids]))
        server = average(trained)
        same(each.server, server)
        same(each.memory, stacked(own, sorted(own[0])))
        same(each.scored, stacked([summed({**server, **own[k]}, rank) for k in FOUR]))


def test_a_convolution_is_a_matrix_of_its_kernels_rows() -> None:
    """Entry (o, c, u, v) is entry i of the product B A read row by row, i = ((o C + c) k + u) k + v; r = .5 of 6."""
    method = FedDecomp(ratio=0.5)
    chosen = setup(method, federation((6, 9), (1, 16, 16)), LeNet5(), rounds=1)
    server, memory = method.init(chosen.task, chosen.population, torch.Generator().manual_seed(0))
    own = {n: torch.randn(leaf.shape[1:], generator=torch.Generator().manual_seed(1)) for n, leaf in memory.items()}
    name = next(n for n in sorted(server) if server[n].dim() == 4)
    w, A, B = server[name], own[f"A/{name}"], own[f"B/{name}"]
    out, into, k, _ = w.shape
    r = out // 2
    assert (tuple(A.shape), tuple(B.shape)) == ((r * k, into * k), (out * k, r * k))
    client = chosen.client(0, server, own, Clock(0, 1))
    made = method.model(method.start(client), client)[name]
    for o, c, u, v in ((0, 0, 0, 0), (2, 0, 1, 3), (out - 1, into - 1, k - 1, 0), (1, 0, k - 1, k - 2)):
        place = ((o * into + c) * k + u) * k + v
        row, column = divmod(place, into * k)
        added = sum(float(B[row, t] * A[t, column]) for t in range(r * k)) / r
        assert abs(float(made[o, c, u, v] - w[o, c, u, v]) - added) < 1e-5


def test_without_personal_epochs_it_is_fedavg_and_sigma_has_what_is_left_of_the_epochs() -> None:
    assert close(final(FedDecomp(personal_epochs=0)), final(FedAvg()))
    assert gap(final(FedDecomp(personal_epochs=1)), final(FedAvg())) > 1e-4
    for epochs, left in ((5, 3), (2, 1), (None, None)):
        local = setup(FedDecomp(), epochs=epochs, iterations=None if epochs else 7).protocol.local
        stages = FedDecomp().stages(local, Clock(0, 1))
        assert [(stage.epochs, stage.order) for stage in stages] == [(2, 1), (left, 0)]


def test_what_is_personal_never_leaves_a_client() -> None:
    chosen, state = run(FedDecomp(personal_epochs=1))
    assert set(state.server) == set(initial(chosen))
    assert state.bytes_up == 3 * len(SIZES) * 8 * sum(leaf.numel() for leaf in state.server.values())
    assert gap(trees.row(state.memory, 0), trees.row(state.memory, 1)) > 1e-3
